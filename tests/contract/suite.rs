//! Sends requests, judges what comes, and keeps the table.

use std::time::Duration;

use harness::{Account, Reply};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::every_answer::EveryAnswer;
use crate::request::{Request, Want, problem};
use crate::table::{Row, Table};

/// How often a server may say that it is asked too much before the suite gives up.
const PATIENCE: usize = 100;

/// The longest `Retry-After` that is obeyed, in seconds.
const WAIT_MAX: u64 = 60;

/// How long a request may take: longer than any bound of the server.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Whose API key goes with a request.
#[derive(Clone, Copy)]
pub(crate) enum Caller {
    Test,
    Live,
    Nobody,
}

/// Where the server is, and the keys to it.
#[derive(Clone)]
pub(crate) struct Server {
    http: reqwest::Client,
    url: String,
    key: String,
    live_key: Option<String>,
}

impl Server {
    pub(crate) fn new(url: &str, key: String, live_key: Option<String>) -> Self {
        let http = reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
        Self { http: http.build().unwrap(), url: url.trim_end_matches('/').to_owned(), key, live_key }
    }

    /// Sends a request. None where no answer comes.
    async fn send(&self, caller: Caller, request: &Request) -> Option<Reply> {
        let Request { method, path, headers, body } = request;
        let mut lines = HeaderMap::new();
        for (name, value) in headers {
            lines.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        let sending = self.http.request(method.clone(), format!("{}{path}", self.url)).headers(lines);
        let sending = match caller {
            Caller::Test => sending.bearer_auth(&self.key),
            Caller::Live => sending.bearer_auth(self.live_key.as_ref().expect("a key of the live environment")),
            Caller::Nobody => sending,
        };
        let response = sending.body(body.clone()).send().await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Some(Reply { status, headers, body: response.bytes().await.ok()?.to_vec() })
    }
}

/// The server, what is known of it, and the table so far.
pub(crate) struct Suite {
    server: Server,
    table: Table,
    every_answer: EveryAnswer,
    /// Money enters from here.
    pub(crate) world: Account,
    /// A floor of 0, and nothing in it but what clauses put there.
    pub(crate) purse: Account,
}

impl Suite {
    /// Reads what the server says of itself, and opens two accounts.
    pub(crate) async fn open(server: Server) -> Self {
        let document = server.send(Caller::Nobody, &Request::get("/openapi.json")).await;
        let document = document.filter(|reply| reply.status == 200).expect("the server answers with its /openapi.json");
        let every_answer = EveryAnswer::new(document.json(), &server.key);
        let (world, purse) = (Account::new(), Account::new());
        let mut suite = Self { server, table: Table::default(), every_answer, world, purse };
        suite.world = suite.open_account(json!({"currency": "EUR", "min_balance": null})).await;
        suite.purse = suite.open_account(json!({"currency": "EUR"})).await;
        suite
    }

    pub(crate) async fn open_account(&mut self, account: Value) -> Account {
        let request = Request::post("/v1/accounts", account.to_string()).key(self.fresh_key());
        let opened = self.answer(Caller::Test, &request).await.expect("the server answers");
        assert_eq!(opened.status, 201, "no account can be opened: {opened:?}");
        opened.json()["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn document(&self) -> &Value {
        self.every_answer.document()
    }

    pub(crate) fn knows_live(&self) -> bool {
        self.server.live_key.is_some()
    }

    /// A key that was never used.
    pub(crate) fn fresh_key(&self) -> String {
        Uuid::new_v4().to_string()
    }

    /// The body of a transfer from the world to the purse.
    pub(crate) fn transfer(&self, amount: i64) -> Value {
        json!({"source_account_id": self.world, "destination_account_id": self.purse, "amount": amount, "currency": "EUR"})
    }

    /// A transfer under a key.
    pub(crate) fn post(&self, key: impl AsRef<[u8]>, amount: i64) -> Request {
        Request::post("/v1/transfers", self.transfer(amount).to_string()).key(key)
    }

    /// Sends a request as it is, until the server no longer says that it is asked too much. None where no answer comes.
    pub(crate) async fn answer(&mut self, caller: Caller, request: &Request) -> Option<Reply> {
        for _ in 0..PATIENCE {
            let reply = self.server.send(caller, request).await?;
            self.every_answer.look_at(request, &reply);
            if problem(&reply).as_deref() != Some("rate-limited") {
                return Some(reply);
            }
            let seconds = reply.header("retry-after").parse().unwrap_or(1);
            tokio::time::sleep(Duration::from_secs(WAIT_MAX.min(seconds))).await;
        }
        panic!("the server has refused the same request {PATIENCE} times because of its rate limit");
    }

    /// Sends requests at once, and returns the answers in their order.
    pub(crate) async fn answer_at_once(&mut self, requests: &[Request]) -> Vec<Reply> {
        let send = |request: &Request| {
            let (server, request) = (self.server.clone(), request.clone());
            tokio::spawn(async move { server.send(Caller::Test, &request).await })
        };
        let sent: Vec<_> = requests.iter().map(send).collect();
        let mut replies = Vec::new();
        for (request, sent) in requests.iter().zip(sent) {
            let reply = sent.await.unwrap().expect("the server answers");
            self.every_answer.look_at(request, &reply);
            replies.push(reply);
        }
        replies
    }

    /// Begins the next part of the table.
    pub(crate) fn chapter(&mut self, name: &'static str) {
        self.table.begin(name);
    }

    /// Tries a clause: sends the request, judges the answer, and adds a row.
    pub(crate) async fn clause(
        &mut self,
        clause: &'static str,
        sent: impl Into<String>,
        request: &Request,
        wants: &[Want<'_>],
    ) -> Option<Reply> {
        self.clause_as(Caller::Test, clause, sent, request, wants).await
    }

    /// Tries a clause with wants that are kept elsewhere.
    pub(crate) async fn clause_with(
        &mut self,
        clause: &'static str,
        sent: impl Into<String>,
        request: &Request,
        wants: &[&Want<'_>],
    ) -> Option<Reply> {
        self.tried(Caller::Test, clause, sent.into(), request, wants).await
    }

    /// Tries a clause as somebody.
    pub(crate) async fn clause_as(
        &mut self,
        caller: Caller,
        clause: &'static str,
        sent: impl Into<String>,
        request: &Request,
        wants: &[Want<'_>],
    ) -> Option<Reply> {
        self.tried(caller, clause, sent.into(), request, &wants.iter().collect::<Vec<_>>()).await
    }

    async fn tried(
        &mut self,
        caller: Caller,
        clause: &'static str,
        sent: String,
        request: &Request,
        wants: &[&Want<'_>],
    ) -> Option<Reply> {
        let reply = self.answer(caller, request).await;
        let misses: Vec<String> = wants.iter().filter_map(|want| want.miss(reply.as_ref())).collect();
        let came = reply.as_ref().map_or_else(|| "no answer".to_owned(), told);
        let seen = if misses.is_empty() { came } else { format!("{came}; but: {}", misses.join(", ")) };
        let expected = wants.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        self.row(clause, sent, expected, seen, misses.is_empty());
        reply
    }

    /// Adds a row that was judged elsewhere.
    pub(crate) fn row(
        &mut self,
        clause: &'static str,
        sent: impl Into<String>,
        expected: impl Into<String>,
        seen: impl Into<String>,
        kept: bool,
    ) {
        self.table.add(Row {
            clause,
            sent: sent.into(),
            expected: expected.into(),
            seen: seen.into(),
            kept: Some(kept),
        });
    }

    /// Adds a row for a clause that can't be tried here.
    pub(crate) fn untried(&mut self, clause: &'static str, why: &str) {
        let (sent, expected) = (String::new(), String::new());
        self.table.add(Row { clause, sent, expected, seen: format!("not tried: {why}"), kept: None });
    }

    /// A clause about what the requests before have come to: what the purse holds.
    pub(crate) async fn purse_holds(&mut self, clause: &'static str, sent: impl Into<String>, minor_units: i64) {
        let request = Request::get(format!("/v1/accounts/{}", self.purse));
        let wants = [Want::Status(200), Want::Member("/balance/posted", json!(minor_units))];
        self.clause(clause, sent, &request, &wants).await;
    }

    /// Ends the table with what every answer must have, and prints it.
    ///
    /// # Panics
    /// Where a clause is broken.
    pub(crate) fn finish(mut self) {
        self.table.begin("Every answer");
        for row in self.every_answer.rows() {
            self.table.add(row);
        }
        self.table.print();
        let [_, broken, _] = self.table.counts();
        assert_eq!(broken, 0, "clauses of the contract are broken; the table tells which");
    }
}

/// An answer in a few words.
fn told(reply: &Reply) -> String {
    let mut words = vec![reply.status.to_string()];
    words.extend(problem(reply));
    if reply.replayed() {
        words.push("replayed".to_owned());
    }
    words.join(" ")
}
