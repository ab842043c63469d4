//! `Oncepost-Fault`, by which integrators try their retries, and `dry_run`, by which they try their requests.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::request::{Request, Want};
use crate::suite::{Caller, Suite};

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("Faults on request");
    faults(suite).await;
    suite.chapter("Dry runs");
    dry_runs(suite).await;
}

async fn faults(suite: &mut Suite) {
    let unavailable = || vec![Want::Problem(503, "unavailable"), Want::Has("retry-after")];
    for (fault, first, replayed) in [
        ("drop-reply", vec![Want::Nothing], true),
        ("fail-before-commit", unavailable(), false),
        ("fail-after-commit", unavailable(), true),
    ] {
        let request = suite.post(suite.fresh_key(), 6);
        let staged = request.clone().header("oncepost-fault", fault);
        suite.clause("A fault strikes the first answer …", fault, &staged, &first).await;
        let then = if replayed { Want::Header("idempotent-replayed", "true") } else { Want::First };
        let sent = format!("the same key after {fault}");
        suite.clause("… and the retry comes through", sent, &request, &[Want::Status(201), then]).await;
    }
    let late = suite.post(suite.fresh_key(), 6).header("oncepost-fault", "delay=300");
    let begun = Instant::now();
    suite.clause("An answer can come late", "delay=300", &late, &[Want::Status(201)]).await;
    let took = begun.elapsed();
    suite.row(
        "… by as much as is asked",
        "delay=300",
        "300 ms or more",
        format!("{} ms", took.as_millis()),
        took >= Duration::from_millis(300),
    );
    let refused = [Want::Problem(400, "malformed-request"), Want::Errors(&["Oncepost-Fault"])];
    for fault in ["explode", "delay=30001", "delay=-1"] {
        let request = suite.post(suite.fresh_key(), 6).header("oncepost-fault", fault);
        suite.clause("Faults are known and within bounds", fault, &request, &refused).await;
    }
    const LIVE: &str = "In live there are none";
    if suite.knows_live() {
        let request = suite.post(suite.fresh_key(), 6).header("oncepost-fault", "drop-reply");
        suite.clause_as(Caller::Live, LIVE, "drop-reply", &request, &refused).await;
    } else {
        suite.untried(LIVE, "ONCEPOST_LIVE_KEY is not given");
    }
}

async fn dry_runs(suite: &mut Suite) {
    let location = Request::get(format!("/v1/accounts/{}", suite.purse));
    let before =
        suite.answer(Caller::Test, &location).await.expect("the server answers").json()["balance"]["posted"].clone();
    let dry = |body: String| Request::post("/v1/transfers?dry_run=true", body);
    let body = suite.transfer(8).to_string();
    let wants = [
        Want::Status(200),
        Want::Lacks("location"),
        Want::Member("/amount", json!(8)),
        Want::Lacks("idempotent-replayed"),
    ];
    suite.clause("A dry run decides and answers", "dry_run=true, no key", &dry(body.clone()), &wants).await;
    let same = body.replace(&suite.world, &suite.purse);
    suite
        .clause("… by the same rules", "twice the same account", &dry(same), &[Want::Problem(422, "same-account")])
        .await;
    let zero = suite.transfer(0).to_string();
    suite.clause("… and the same checks", "amount 0", &dry(zero), &[Want::Problem(400, "malformed-request")]).await;
    let key = suite.fresh_key();
    suite
        .clause("A key with it is not used", "dry_run=true, a key", &dry(body.clone()).key(&key), &[Want::Status(200)])
        .await;
    let wants = [Want::Status(200), Want::Member("/balance/posted", before)];
    suite.clause("Nothing has moved", "the purse's balance", &location, &wants).await;
    suite
        .clause(
            "It never answers a live call",
            "that key, no dry run",
            &suite.post(&key, 8),
            &[Want::Status(201), Want::First],
        )
        .await;
    let unclear = Request::post("/v1/transfers?dry_run=maybe", body).key(suite.fresh_key());
    let wants = [Want::Problem(400, "malformed-request"), Want::Errors(&["?dry_run"])];
    suite.clause("It is true or false", "dry_run=maybe", &unclear, &wants).await;
}
