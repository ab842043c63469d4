//! Work that is accepted at once and done later.

use harness::until;
use serde_json::{Value, json};

use crate::request::{Request, Want};
use crate::suite::{Caller, Suite};

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("Prefer: respond-async");
    let key = suite.fresh_key();
    let request = suite.post(&key, 4);
    let asked = request.clone().header("prefer", "respond-async");
    let wants = [
        Want::Status(202),
        Want::First,
        Want::Header("preference-applied", "respond-async"),
        Want::Begins("location", "/v1/operations/"),
        Want::Has("retry-after"),
        Want::Members("", &["id", "object", "status", "done", "total", "result", "created_at", "finished_at"]),
        Want::Member("/object", json!("operation")),
        Want::Member("/status", json!("processing")),
    ];
    let Some(accepted) = suite.clause("Work is accepted", "Prefer: respond-async", &asked, &wants).await else {
        return;
    };

    let location = accepted.header("location").to_owned();
    let mut operation = Value::Null;
    until("the operation to end", async || {
        let reply = suite.answer(Caller::Test, &Request::get(&location)).await.expect("the server answers");
        operation = reply.json();
        operation["status"] != "processing"
    })
    .await;
    let wants = [
        Want::Status(200),
        Want::Member("/status", json!("succeeded")),
        Want::Member("/id", accepted.json()["id"].clone()),
        Want::Member("/result/status", json!(201)),
    ];
    suite
        .clause("The operation tells how it ended", "GET of Location, in the end", &Request::get(&location), &wants)
        .await;
    let result = &operation["result"];
    let made = result["location"].as_str().unwrap_or_default().to_owned();
    let wants = [
        Want::Status(201),
        Want::Header("idempotent-replayed", "true"),
        Want::Header("location", &made),
        Want::Member("", result["body"].clone()),
    ];
    for (sent, again) in [("without Prefer", &request), ("with Prefer", &asked)] {
        suite.clause("From then on the key has the final answer", sent, again, &wants).await;
    }

    let body = json!({"source_account_id": suite.purse, "destination_account_id": suite.purse, "amount": 4, "currency": "EUR"});
    let refused = Request::post("/v1/transfers", body.to_string())
        .key(suite.fresh_key())
        .header("prefer", "respond-async, wait=10");
    let wants = [Want::Problem(422, "same-account"), Want::First, Want::Lacks("preference-applied")];
    suite.clause("With wait=N it is tried first", "respond-async, wait=10; a refusal", &refused, &wants).await;
    let waited = suite.post(suite.fresh_key(), 4).header("prefer", "respond-async, wait=10");
    let wants = [Want::Status(201), Want::First, Want::Lacks("preference-applied")];
    suite.clause("With wait=N it is tried first", "respond-async, wait=10", &waited, &wants).await;
    for preference in ["wait=soon", "handling=strict", ",;=,"] {
        let request = suite.post(suite.fresh_key(), 4).header("prefer", preference);
        suite
            .clause(
                "Unknown preferences are passed over",
                format!("Prefer: {preference}"),
                &request,
                &[Want::Status(201)],
            )
            .await;
    }
    let gone = Request::get("/v1/operations/0198c0de-0000-7000-8000-00000000ffff");
    suite
        .clause("What is not there is not found", "an id that there is not", &gone, &[Want::Problem(404, "not-found")])
        .await;
}
