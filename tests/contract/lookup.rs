//! Asking what became of a key.

use serde_json::json;

use crate::request::{Request, Want};
use crate::suite::{Caller, Suite};

const KEY: &[&str] = &["object", "state", "operation", "attempts", "first_attempt_at", "last_attempt_at", "original"];

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("Asking about a key");
    let key = suite.fresh_key();
    let ask = |key: &str| Request::post("/v1/idempotency-keys/lookup", json!({"key": key}).to_string());
    let unused = [
        Want::Status(200),
        Want::Members("", KEY),
        Want::Member("/object", json!("idempotency_key")),
        Want::Member("/state", json!("unused")),
        Want::Member("/original", json!(null)),
    ];
    suite.clause("A key that was not used", "no key of its own", &ask(&key), &unused).await;
    let request = suite.post(&key, 2);
    let first = suite
        .clause("The question doesn't use it", "a transfer under it", &request, &[Want::Status(201), Want::First])
        .await;
    let Some(first) = first else { return };
    suite.clause("(a replay)", "the same again", &request, &[Want::Replay(&first)]).await;
    let wants = [
        Want::Status(200),
        Want::Member("/state", json!("completed")),
        Want::Member("/operation", json!("transfer.post")),
        Want::Member("/original/status", json!(201)),
        Want::Member("/original/location", json!(first.header("location"))),
    ];
    suite.clause("A key that was used", "lookup", &ask(&key), &wants).await;
    for (sent, body, at) in [
        ("an empty key", json!({"key": ""}), &["/key"]),
        ("256 bytes", json!({"key": "k".repeat(256)}), &["/key"]),
        ("a letter above ASCII", json!({"key": "é"}), &["/key"]),
        ("no key", json!({}), &["/key"]),
    ] {
        let request = Request::post("/v1/idempotency-keys/lookup", body.to_string());
        let wants = [Want::Problem(400, "malformed-request"), Want::Errors(at)];
        suite.clause("The key is one that a header could bear", sent, &request, &wants).await;
    }
    const LIVE: &str = "A key of the other environment is told so";
    if suite.knows_live() {
        let wants =
            [Want::Problem(422, "idempotency-key-environment-mismatch"), Want::Member("/used_in", json!("test"))];
        suite.clause_as(Caller::Live, LIVE, "lookup in live", &ask(&key), &wants).await;
    } else {
        suite.untried(LIVE, "ONCEPOST_LIVE_KEY is not given");
    }
}
