//! The load generator, the volume and the comparison: run as an operator runs them, on real books, and on a server that breaks
//! its promises.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use harness::{Books, Client};
use serde_json::{Value, json};

const MIXES: [&str; 6] = ["uniform", "hot-account", "retry-storm", "lost-answers", "mixed-reads", "replays"];

/// Fills the books for their owner, with 200 accounts and 2,000 transfers.
async fn preload(books: &Books, more: &[&str]) -> harness::Ended {
    let (tenant, principal) =
        (format!("tenant {}", books.owner.tenant), format!("principal {}", books.owner.principal));
    let volume =
        ["preload", "--accounts", "200", "--transfers", "2000", "--tenant", &tenant, "--principal", &principal];
    books.command("load", &[&volume[..], more].concat(), "").await
}

/// A load of one second at this URL, and its result.
async fn run(books: &Books, url: &str, folder: &Path, mix: &str, more: &[&str]) -> (harness::Ended, Value) {
    let (json, html) = (folder.join(format!("{mix}.json")), folder.join(format!("{mix}.html")));
    let (json, html) = (json.to_str().unwrap(), html.to_str().unwrap());
    let accounts = folder.join("accounts");
    let load =
        ["run", "--url", url, "--key", &books.owner.test, "--mix", mix, "--accounts", accounts.to_str().unwrap()];
    let length = ["--seconds", "1", "--warm-up-seconds", "0", "--json", json, "--html", html];
    let ended = books.command("load", &[&load[..], &length, more].concat(), "").await;
    let result = fs::read(json).unwrap_or_else(|_| panic!("no result: {ended:?}"));
    (ended, serde_json::from_slice(&result).unwrap())
}

#[tokio::test]
async fn every_mix_runs_on_a_preloaded_ledger_and_no_promise_is_broken() {
    let books = Books::open().await;
    let folder = tempfile::tempdir().unwrap();
    let accounts = folder.path().join("accounts");
    let filled = preload(&books, &["--accounts-file", accounts.to_str().unwrap()]).await;
    assert_eq!(filled.code, 0, "{filled:?}");
    books.check().await;
    assert_eq!(books.count("SELECT count(*) FROM transfers").await, 2_000);
    assert_eq!(books.count("SELECT count(*) FROM idempotency_records").await, 2_200);
    assert!(
        books.count("SELECT count(*) FROM pg_constraint WHERE contype = 'p' AND conname = 'postings_id'").await == 1
    );
    let again = preload(&books, &[]).await;
    assert!(again.code == 2 && again.stderr.contains("already has transfers"), "{again:?}");

    let api = books.api().await;
    for mix in MIXES {
        let (ended, result) = run(&books, &api.url(), folder.path(), mix, &["--connections", "8"]).await;
        assert_eq!(ended.code, 0, "{mix}: {ended:?}");
        assert_eq!(result["violations"]["count"], 0, "{mix}");
        let counts = &result["counts"];
        assert_eq!((&counts["lost"], &counts["unresolved"]), (&json!(0), &json!(0)), "{mix}: {counts}");
        // Each mix is what it says.
        let some = |kind: &str| counts[kind].as_u64().unwrap() > 0;
        let seen = [some("first"), some("replay"), some("read")];
        let fits = match mix {
            "uniform" | "hot-account" => seen == [true, false, false],
            "retry-storm" => seen == [true, true, false],
            // Whether a request that was cut off ran, no one can say before.
            "lost-answers" => seen[1..] == [true, false],
            "mixed-reads" => seen == [true, false, true],
            _ => seen == [false, true, false],
        };
        assert!(fits, "{mix}: {counts}");
        let page = fs::read_to_string(folder.path().join(format!("{mix}.html"))).unwrap();
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(!page.contains("//") && !page.contains("<script"), "a page that asks no one for anything");
    }
    let (ended, result) = run(&books, &api.url(), folder.path(), "uniform", &["--rate", "200"]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let sent = result["counts"]["first"].as_u64().unwrap() + result["counts"]["unsent"].as_u64().unwrap();
    assert_eq!(sent, 200, "{result}");
    books.finish().await;
}

#[tokio::test]
async fn a_volume_whose_older_events_are_gone_is_numbered_on_and_more_can_be_added() {
    let books = Books::open().await;
    let folder = tempfile::tempdir().unwrap();
    let ids = folder.path().join("accounts");
    let filled = preload(&books, &["--events", "10", "--accounts-file", ids.to_str().unwrap()]).await;
    assert_eq!(filled.code, 0, "{filled:?}");
    let audit = async || assert_eq!(books.command("api", &["audit"], "").await.code, 0);
    audit().await;
    assert_eq!(books.count("SELECT count(*) FROM outbox").await, 10);
    assert_eq!(books.count("SELECT min(position) FROM outbox").await, 1_991);

    let ids: Vec<String> = fs::read_to_string(ids).unwrap().lines().map(str::to_owned).collect();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let reply = client.transfer(&client.fresh_key(), &ids[0], &ids[1], 5).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(books.count("SELECT max(position) FROM outbox").await, 2_001);
    audit().await;
    drop(api);

    let added = preload(&books, &["--add", "--seed", "2", "--events", "10"]).await;
    assert_eq!(added.code, 0, "{added:?}");
    assert_eq!(books.count("SELECT max(position) FROM outbox").await, 4_001);
    audit().await;
}

/// A server that gives every request another answer, and stops for a while at its tenth.
struct Liar {
    url: String,
}

impl Liar {
    fn start(pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = Arc::new(AtomicU64::new(0));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let answers = Arc::clone(&answers);
                thread::spawn(move || lie(stream, &answers, pause));
            }
        });
        Self { url }
    }
}

fn lie(mut stream: TcpStream, answers: &AtomicU64, pause: Duration) {
    let mut request = [0; 4096];
    // A request of the load fits into one read.
    while let Ok(1..) = stream.read(&mut request) {
        let number = answers.fetch_add(1, Ordering::SeqCst);
        if number == 10 {
            thread::sleep(pause);
        }
        let body = format!("{{\"id\":\"{number}\"}}\n");
        let answer = format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_server_that_answers_a_retry_otherwise_is_found_out() {
    let books = Books::open().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("accounts"), accounts()).unwrap();
    let liar = Liar::start(Duration::ZERO);
    for mix in ["retry-storm", "lost-answers", "replays"] {
        let (ended, result) = run(&books, &liar.url, folder.path(), mix, &["--connections", "2"]).await;
        assert_eq!(ended.code, 1, "{mix}: {ended:?}");
        assert!(result["violations"]["count"].as_u64().unwrap() > 0, "{mix}");
        assert!(ended.stdout.contains("violations"), "{mix}: {ended:?}");
    }
    books.finish().await;
}

#[tokio::test]
async fn a_server_that_stops_for_a_while_is_slow_for_all_who_were_due_meanwhile() {
    let books = Books::open().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("accounts"), accounts()).unwrap();
    let liar = Liar::start(Duration::from_millis(600));
    let open = ["--rate", "100", "--connections", "1"];
    let (ended, result) = run(&books, &liar.url, folder.path(), "uniform", &open).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    // About 60 of 100 were due in those 600 ms, the last of them just before its end. A closed loop has one slow answer.
    let latency = &result["latencies"]["first"];
    assert!((50..=100).contains(&latency["count"].as_u64().unwrap()), "{latency}");
    assert!(latency["p50"].as_f64().unwrap() > 50.0, "{latency}");
    assert!(latency["max"].as_f64().unwrap() > 500.0, "{latency}");
    books.finish().await;
}

/// Ids of accounts that a server without books takes as well as any.
fn accounts() -> String {
    (0..8).map(|_| format!("{}\n", uuid::Uuid::new_v4())).collect()
}

#[tokio::test]
async fn a_regression_is_told_and_nothing_else_is() {
    let books = Books::open().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("accounts"), accounts()).unwrap();
    let liar = Liar::start(Duration::ZERO);
    let (_, before) = run(&books, &liar.url, folder.path(), "uniform", &[]).await;
    let write = |name: &str, result: &Value| {
        let file = folder.path().join(name);
        fs::write(&file, result.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let one = write("before.json", &before);
    let same = books.command("load", &["compare", &one, &one], "").await;
    assert!(same.code == 0 && same.stdout.contains("nothing regressed"), "{same:?}");

    let mut slower = before.clone();
    slower["throughput"] = json!(before["throughput"].as_f64().unwrap() * 0.8);
    let other = write("after.json", &slower);
    let told = books.command("load", &["compare", &one, &other], "").await;
    assert!(told.code == 1 && told.stdout.contains("regressed: accepted a second"), "{told:?}");
    let lenient = books.command("load", &["compare", &one, &other, "--threshold", "30"], "").await;
    assert_eq!(lenient.code, 0, "{lenient:?}");

    let mut elsewhere = before.clone();
    elsewhere["load"]["connections"] = json!(1);
    let other = write("elsewhere.json", &elsewhere);
    let refused = books.command("load", &["compare", &one, &other], "").await;
    assert!(refused.code == 2 && refused.stderr.contains("can't be compared"), "{refused:?}");
    books.finish().await;
}
