//! The HTTP contract, clause by clause, against any server of it.
//!
//! Against a server that runs somewhere, it needs nothing but HTTP and an API key of the test environment with every scope:
//!
//! ```sh
//! ONCEPOST_URL=https://ledger.example ONCEPOST_KEY=sk_test_… cargo test -p oncepost-tests --test contract
//! ```
//!
//! `ONCEPOST_LIVE_KEY`, a key of the same service account in the live environment, adds the clauses about the other
//! environment; nothing is ever made there. In the test environment it leaves a few accounts and transfers behind. Without
//! `ONCEPOST_URL` it starts a server of its own, limited to a rate that it meets.
//!
//! It prints a table: the clause, what was sent, what must come, and what came. The clauses stand in the files of this
//! folder, in the order of the table. What every answer must have, whatever it answers, stands in `every_answer.rs`, and is
//! looked at each time. What HTTP can't show of a server from outside is tested elsewhere: keys past their retention, a first
//! request that runs for longer than its duplicate waits, API keys without a scope, crashes.

mod accepted;
mod every_answer;
mod faults;
mod json;
mod keys;
mod lookup;
mod order;
mod problems;
mod replays;
mod request;
mod resources;
mod rules;
mod suite;
mod table;
mod transport;

use harness::Books;

use crate::suite::{Server, Suite};

/// The rate of the private server: the suite asks for more, and so meets the limit.
const RATE_LIMIT: (&str, &str) = ("RATE_LIMIT_PER_SECOND", "30");

async fn run(server: Server) {
    let mut suite = Suite::open(server).await;
    order::check(&mut suite).await;
    keys::check(&mut suite).await;
    replays::check(&mut suite).await;
    json::check(&mut suite).await;
    transport::check(&mut suite).await;
    resources::check(&mut suite).await;
    rules::check(&mut suite).await;
    accepted::check(&mut suite).await;
    faults::check(&mut suite).await;
    lookup::check(&mut suite).await;
    problems::check(&mut suite).await;
    suite.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_keeps_its_contract() {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(url) = variable("ONCEPOST_URL") {
        let key = variable("ONCEPOST_KEY").expect("ONCEPOST_KEY holds an API key of the test environment");
        return run(Server::new(&url, key, variable("ONCEPOST_LIVE_KEY"))).await;
    }
    let books = Books::open().await;
    let api = books.api_with(&[RATE_LIMIT]).await;
    run(Server::new(&api.url(), books.owner.test.clone(), Some(books.owner.live.clone()))).await;
    books.finish().await;
}
