//! The ledger's own rules.

use harness::Account;
use serde_json::json;

use crate::request::{Request, Want};
use crate::suite::Suite;

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("The ledger's rules");
    let nobody: Account = "0198c0de-0000-7000-8000-00000000ffff".to_owned();
    let empty = suite.open_account(json!({"currency": "EUR"})).await;
    let capped = suite.open_account(json!({"currency": "EUR", "max_balance": 10})).await;
    let yen = suite.open_account(json!({"currency": "JPY"})).await;
    let full = suite.open_account(json!({"currency": "EUR"})).await;
    let world = suite.world.clone();
    let most = 9_007_199_254_740_991_i64;
    let post = |source: &Account, destination: &Account, amount: i64, key: String| {
        let body = json!({"source_account_id": source, "destination_account_id": destination, "amount": amount, "currency": "EUR"});
        Request::post("/v1/transfers", body.to_string()).key(key)
    };
    for (clause, sent, source, destination, amount, problem, about) in [
        ("Both accounts are there", "a source that is not", &nobody, &empty, 1, "account-not-found", &nobody),
        ("Both accounts are there", "a destination that is not", &world, &nobody, 1, "account-not-found", &nobody),
        ("An account doesn't pay itself", "twice the same", &world, &world, 1, "same-account", &world),
        ("Both hold the currency", "euros to yen", &world, &yen, 1, "currency-mismatch", &yen),
        ("The floor holds", "1 out of an empty account", &empty, &world, 1, "insufficient-funds", &empty),
        ("The ceiling holds", "11 where 10 fit", &world, &capped, 11, "balance-limit-exceeded", &capped),
    ] {
        let wants = [Want::Problem(422, problem), Want::Member("/account_id", json!(about)), Want::First];
        suite.clause(clause, sent, &post(source, destination, amount, suite.fresh_key()), &wants).await;
    }
    suite
        .clause(
            "The ceiling itself fits",
            "10 where 10 fit",
            &post(&world, &capped, 10, suite.fresh_key()),
            &[Want::Status(201)],
        )
        .await;
    // From an account of its own, so that the world's balance stays far from its own limit.
    let source = suite.open_account(json!({"currency": "EUR", "min_balance": null})).await;
    suite
        .clause(
            "2^53 - 1 is an amount",
            "2^53 - 1",
            &post(&source, &full, most, suite.fresh_key()),
            &[Want::Status(201)],
        )
        .await;
    let wants = [Want::Problem(422, "balance-limit-exceeded")];
    suite
        .clause("No balance passes 2^53 - 1", "1 on top of it", &post(&world, &full, 1, suite.fresh_key()), &wants)
        .await;
}
