//! Requests with two faults: the first one in the contract's order is what the client hears.

use reqwest::Method;
use serde_json::json;

use crate::request::{Request, Want};
use crate::suite::{Caller, Suite};

/// One byte more than a body may have.
const TOO_LONG: usize = 64 * 1024 + 1;

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("Order of checks");
    let key = suite.fresh_key();
    let used = suite.post(&key, 1);
    let first = [Want::Status(201), Want::First];
    suite.clause("A transfer is posted", "5 members, a fresh key", &used, &first).await;

    let nowhere = Request::get("/v1/nothing");
    let text = suite.post(suite.fresh_key(), 1).without("content-type").header("content-type", "text/plain");
    let deleted = Request::new(Method::DELETE, "/v1/transfers");
    for (clause, sent, request, wants) in [
        ("404 before 401", "GET of no resource, no API key", &nowhere, vec![Want::Problem(404, "not-found")]),
        (
            "405 before 401",
            "DELETE of the transfers, no API key",
            &deleted,
            vec![Want::Problem(405, "method-not-allowed"), Want::Has("allow")],
        ),
        (
            "401 before 415",
            "no API key, text/plain",
            &text,
            vec![Want::Problem(401, "unauthenticated"), Want::Header("www-authenticate", "Bearer")],
        ),
    ] {
        suite.clause_as(Caller::Nobody, clause, sent, request, &wants).await;
    }

    let long = vec![b' '; TOO_LONG];
    let keyless = Request::post("/v1/transfers", "{");
    let stranger = json!({"amount": 2, "stranger": true}).to_string();
    for (clause, sent, request, want) in [
        (
            "415 before 413",
            "text/plain, 65,537 bytes",
            text.body(long.clone()),
            Want::Problem(415, "unsupported-media-type"),
        ),
        (
            "413 before the key",
            "65,537 bytes, no key",
            keyless.clone().body(long),
            Want::Problem(413, "body-too-large"),
        ),
        (
            "The key before the body",
            "no key, half a JSON value",
            keyless.clone(),
            Want::Problem(400, "idempotency-key-missing"),
        ),
        (
            "Strict JSON before the record",
            "a used key, half a JSON value",
            keyless.key(&key),
            Want::Problem(400, "malformed-request"),
        ),
        (
            "The record before today's field rules",
            "a used key, an unknown member",
            used.clone().body(stranger.clone()),
            Want::Problem(422, "idempotency-key-reused"),
        ),
        (
            "Today's field rules where there is no record",
            "a fresh key, an unknown member",
            suite.post(suite.fresh_key(), 1).body(stranger),
            Want::Problem(400, "malformed-request"),
        ),
    ] {
        suite.clause(clause, sent, &request, &[want]).await;
    }

    let clause = "The environment before the request";
    if suite.knows_live() {
        let request = suite.post(&key, 2);
        let wants = [Want::Problem(422, "idempotency-key-environment-mismatch")];
        suite.clause_as(Caller::Live, clause, "a key used in test, another amount, in live", &request, &wants).await;
    } else {
        suite.untried(clause, "ONCEPOST_LIVE_KEY is not given");
    }
    suite.purse_holds("One transfer has come of all that", "the purse's balance", 1).await;
}
