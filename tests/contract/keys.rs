//! `Idempotency-Key`: how it is spelled, whose it is, and what leaves it free.

use serde_json::json;

use crate::request::{Request, Want};
use crate::suite::{Caller, Suite};

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("Idempotency-Key: spellings");
    spellings(suite).await;
    suite.chapter("Idempotency-Key: other requests");
    other_requests(suite).await;
    suite.chapter("Idempotency-Key: refused before the ledger, so still free");
    refused_at_the_door(suite).await;
}

/// Parts of keys are fresh, so that the suite can be run again.
async fn spellings(suite: &mut Suite) {
    const MISSING: &str = "A POST needs a key";
    let request = Request::post("/v1/transfers", suite.transfer(1).to_string());
    let missing = [Want::Problem(400, "idempotency-key-missing"), Want::Has("link")];
    suite.clause(MISSING, "no Idempotency-Key", &request, &missing).await;
    for (sent, key) in [("nothing", ""), ("blanks", " \t "), ("an empty quoted string", "\"\"")] {
        suite.clause(MISSING, format!("Idempotency-Key: {sent}"), &request.clone().key(key), &missing).await;
    }

    let long = "k".repeat(256);
    let quoted = format!("\"{long}\"");
    let accents = "é".repeat(20);
    let malformed: [(&str, &[u8]); 15] = [
        ("no closing quote", b"\"k"),
        ("a parameter", b"\"k\";p=1"),
        ("a bare key with a parameter", b"k;p=1"),
        ("a list", b"a,b"),
        ("a list of quoted strings", b"\"a\", \"b\""),
        ("a blank inside", b"a b"),
        ("a tab inside", b"a\tb"),
        ("a backslash", b"a\\b"),
        ("a quote inside", b"a\"b"),
        ("an escape that there is not", b"\"a\\n\""),
        ("a byte above ASCII", b"\xff"),
        ("letters above ASCII", accents.as_bytes()),
        ("Cyrillic in quotes", "\"ключ\"".as_bytes()),
        ("256 bytes", long.as_bytes()),
        ("256 bytes in quotes", quoted.as_bytes()),
    ];
    let refused = [Want::Problem(400, "idempotency-key-malformed"), Want::Has("link")];
    for (sent, key) in malformed {
        suite
            .clause("One key, of known bytes", format!("Idempotency-Key: {sent}"), &request.clone().key(key), &refused)
            .await;
    }
    let twice = request.clone().key("a").key("a");
    suite.clause("One key, of known bytes", "two Idempotency-Key lines", &twice, &refused).await;

    let run = suite.fresh_key();
    let padded = |length: usize| format!("{run}{}", "k".repeat(length - run.len()));
    for (sent, key) in [
        ("255 bytes", padded(255)),
        ("255 bytes in quotes", format!("\"{}\"", padded(254) + "q")),
        ("blanks and separators in quotes", format!("\"{run} a, b; c\"")),
        ("escapes in quotes", format!("\"{run}\\\"\\\\\"")),
        ("a colon at both ends", format!(":{run}:")),
        ("a percent sign", format!("%0a{run}")),
        ("braces", format!("{{{run}}}")),
    ] {
        let wants = [Want::Status(201), Want::First];
        suite
            .clause("Whatever fits is plain data", format!("Idempotency-Key: {sent}"), &suite.post(key, 1), &wants)
            .await;
    }

    let (lower, upper) = (format!("k-{run}"), format!("K-{run}"));
    let first = suite.clause("A bare key …", "k", &suite.post(&lower, 1), &[Want::Status(201), Want::First]).await;
    if let Some(first) = first {
        for (sent, key) in [("\"k\"", format!("\"{lower}\"")), ("k between blanks", format!("  {lower} \t"))] {
            let wants = [Want::Replay(&first)];
            suite.clause("… is the same in quotes and between blanks", sent, &suite.post(key, 1), &wants).await;
        }
    }
    suite.clause("Case matters", "K", &suite.post(&upper, 1), &[Want::Status(201), Want::First]).await;
    let reading = Request::get("/v1/transfers?limit=1").key("a,b");
    suite.clause("The header means nothing on GET", "GET, a malformed key", &reading, &[Want::Status(200)]).await;
    suite.purse_holds("Each accepted key has moved money once", "the purse's balance", 10).await;
}

async fn other_requests(suite: &mut Suite) {
    const REUSED: Want<'_> = Want::Problem(422, "idempotency-key-reused");
    let key = suite.fresh_key();
    let first = suite.clause("A transfer is posted …", "amount 1", &suite.post(&key, 1), &[Want::Status(201)]).await;
    let location = first.map(|first| first.header("location").to_owned()).unwrap_or_default();
    let original = [Want::Member("/original/status", json!(201)), Want::Member("/original/location", json!(location))];

    let mut described = suite.transfer(2);
    described["description"] = json!("another");
    let elsewhere = |path: &str| Request::post(path, suite.transfer(1).to_string()).key(&key);
    for (sent, request, members) in [
        ("another amount", suite.post(&key, 2), json!(["amount"])),
        (
            "another amount and a description",
            Request::post("/v1/transfers", described.to_string()).key(&key),
            json!(["amount", "description"]),
        ),
        ("another path", elsewhere("/v1/accounts"), json!([":path"])),
        ("a query", elsewhere("/v1/transfers?dry_run=false"), json!([":query"])),
    ] {
        let [status, location] = &original;
        let wants = [&REUSED, &Want::Member("/members", members), status, location];
        suite.clause_with("… and its key is not for another request", sent, &request, &wants).await;
    }
    let again = suite.post(&key, 1);
    suite
        .clause(
            "The first request keeps it",
            "amount 1",
            &again,
            &[Want::Status(201), Want::Header("idempotent-replayed", "true")],
        )
        .await;

    const ELSEWHERE: &str = "A key belongs to its environment";
    if suite.knows_live() {
        let wants =
            [Want::Problem(422, "idempotency-key-environment-mismatch"), Want::Member("/used_in", json!("test"))];
        suite.clause_as(Caller::Live, ELSEWHERE, "the same request in live", &again, &wants).await;
    } else {
        suite.untried(ELSEWHERE, "ONCEPOST_LIVE_KEY is not given");
    }
    suite.untried("A key past its retention is refused, and never runs again", "HTTP can't make it grow old");
}

async fn refused_at_the_door(suite: &mut Suite) {
    let key = suite.fresh_key();
    let right = suite.post(&key, 1);
    let nobody = [Want::Problem(401, "unauthenticated")];
    suite.clause_as(Caller::Nobody, "Refused …", "no API key", &right, &nobody).await;
    for (sent, request, want) in [
        (
            "text/plain",
            right.clone().without("content-type").header("content-type", "text/plain"),
            Want::Problem(415, "unsupported-media-type"),
        ),
        ("65,537 bytes", right.clone().body(vec![b' '; 65_537]), Want::Problem(413, "body-too-large")),
        ("half a JSON value", right.clone().body("{"), Want::Problem(400, "malformed-request")),
        ("amount 0", suite.post(&key, 0), Want::Problem(400, "malformed-request")),
    ] {
        suite.clause("Refused …", sent, &request, &[want]).await;
    }
    suite
        .clause(
            "… and then the same key runs",
            "the request as it should be",
            &right,
            &[Want::Status(201), Want::First],
        )
        .await;
}
