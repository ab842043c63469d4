//! Accounts, transfers, postings and their lists.

use serde_json::json;

use crate::request::{Request, Want};
use crate::suite::Suite;

const ACCOUNT: &[&str] =
    &["id", "object", "name", "currency", "status", "min_balance", "max_balance", "balance", "metadata", "created_at"];

const TRANSFER: &[&str] = &[
    "id",
    "object",
    "status",
    "source_account_id",
    "destination_account_id",
    "amount",
    "currency",
    "description",
    "metadata",
    "created_at",
];

const POSTING: &[&str] = &["account_id", "sequence", "transfer_id", "amount", "balance_after", "created_at"];

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("Resources");
    accounts(suite).await;
    transfers(suite).await;
    lists(suite).await;
}

async fn accounts(suite: &mut Suite) {
    let open = |body: serde_json::Value, key: String| Request::post("/v1/accounts", body.to_string()).key(key);
    let least = open(json!({"currency": "JPY"}), suite.fresh_key());
    let wants = [
        Want::Status(201),
        Want::Begins("location", "/v1/accounts/"),
        Want::Members("", ACCOUNT),
        Want::Member("/object", json!("account")),
        Want::Member("/status", json!("open")),
        Want::Member("/min_balance", json!(0)),
        Want::Member("/max_balance", json!(null)),
        Want::Member("/name", json!(null)),
        Want::Member("/metadata", json!(null)),
        Want::Member("/balance", json!({"posted": 0, "held": 0, "available": 0})),
    ];
    suite.clause("An account opens empty, with a floor of 0", "a currency only", &least, &wants).await;

    let whole =
        json!({"currency": "KWD", "name": "Till 1", "min_balance": -5, "max_balance": 7, "metadata": {"shop": "9"}});
    let wants = [
        Want::Status(201),
        Want::Member("/name", json!("Till 1")),
        Want::Member("/min_balance", json!(-5)),
        Want::Member("/max_balance", json!(7)),
        Want::Member("/metadata", json!({"shop": "9"})),
    ];
    let opened = suite.clause("What is given is kept", "every member", &open(whole, suite.fresh_key()), &wants).await;
    if let Some(opened) = opened {
        let location = opened.header("location").to_owned();
        let wants = [Want::Status(200), Want::Member("", opened.json())];
        suite.clause("GET shows it", "GET of Location", &Request::get(location), &wants).await;
    }
    let none = json!({"currency": "EUR", "min_balance": null});
    let wants = [Want::Status(201), Want::Member("/min_balance", json!(null))];
    suite.clause("Null means no floor", "min_balance null", &open(none, suite.fresh_key()), &wants).await;
    for (sent, body, at) in [
        ("min_balance 1", json!({"currency": "EUR", "min_balance": 1}), &["/min_balance"]),
        ("max_balance -1", json!({"currency": "EUR", "max_balance": -1}), &["/max_balance"]),
        ("max_balance 2^53", json!({"currency": "EUR", "max_balance": 9_007_199_254_740_992_i64}), &["/max_balance"]),
        ("no currency", json!({"name": "x"}), &["/currency"]),
    ] {
        let wants = [Want::Problem(400, "malformed-request"), Want::Errors(at)];
        suite.clause("Limits hold for an empty account", sent, &open(body, suite.fresh_key()), &wants).await;
    }
    for (sent, id) in [("an id that there is not", "0198c0de-0000-7000-8000-00000000ffff"), ("no id at all", "1")] {
        let request = Request::get(format!("/v1/accounts/{id}"));
        suite.clause("What is not there is not found", sent, &request, &[Want::Problem(404, "not-found")]).await;
    }
}

async fn transfers(suite: &mut Suite) {
    let mut body = suite.transfer(9_007);
    body["description"] = json!("a book");
    body["metadata"] = json!({"order": "42", "": "x"});
    let request = Request::post("/v1/transfers", body.to_string()).key(suite.fresh_key());
    let wants = [Want::Problem(400, "malformed-request"), Want::Errors(&["/metadata/"])];
    suite.clause("Names in metadata are not empty", "an empty one", &request, &wants).await;
    body["metadata"] = json!({"order": "42"});
    let request = request.body(body.to_string());
    let wants = [
        Want::Status(201),
        Want::Begins("location", "/v1/transfers/"),
        Want::Members("", TRANSFER),
        Want::Member("/object", json!("transfer")),
        Want::Member("/status", json!("posted")),
        Want::Member("/source_account_id", json!(suite.world)),
        Want::Member("/destination_account_id", json!(suite.purse)),
        Want::Member("/amount", json!(9_007)),
        Want::Member("/currency", json!("EUR")),
        Want::Member("/description", json!("a book")),
        Want::Member("/metadata", json!({"order": "42"})),
    ];
    let posted = suite.clause("A transfer is posted", "every member", &request, &wants).await;
    let Some(posted) = posted else { return };
    let time = posted.json()["created_at"].as_str().unwrap_or_default().to_owned();
    // 2026-01-31T23:59:59.123456Z
    let formed = time.len() == 27 && time.ends_with('Z') && time.as_bytes()[19] == b'.';
    suite.row("Times are UTC, to the microsecond", "its created_at", "…T…:…:….……Z", time, formed);
    let wants = [Want::Status(200), Want::Member("", posted.json())];
    suite.clause("GET shows it", "GET of Location", &Request::get(posted.header("location")), &wants).await;
    let gone = Request::get("/v1/transfers/0198c0de-0000-7000-8000-00000000ffff");
    suite
        .clause("What is not there is not found", "an id that there is not", &gone, &[Want::Problem(404, "not-found")])
        .await;

    let postings = Request::get(format!("/v1/accounts/{}/postings?limit=1", suite.purse));
    let wants = [
        Want::Status(200),
        Want::Members("/data/0", POSTING),
        Want::Member("/data/0/amount", json!(9_007)),
        Want::Member("/data/0/transfer_id", posted.json()["id"].clone()),
    ];
    suite.clause("It has credited its destination", "the purse's newest posting", &postings, &wants).await;
    let postings = Request::get(format!("/v1/accounts/{}/postings?limit=1", suite.world));
    let wants = [Want::Status(200), Want::Member("/data/0/amount", json!(-9_007))];
    suite.clause("It has debited its source", "the world's newest posting", &postings, &wants).await;
}

async fn lists(suite: &mut Suite) {
    let of_the_purse = format!("/v1/transfers?account_id={}", suite.purse);
    let lists = [
        ("accounts", "/v1/accounts?".to_owned()),
        ("transfers", "/v1/transfers?".to_owned()),
        ("transfers of an account", format!("{of_the_purse}&")),
        ("postings", format!("/v1/accounts/{}/postings?", suite.purse)),
    ];
    for (sent, path) in lists {
        let page =
            |count| [Want::Status(200), Want::Members("", &["data", "next_cursor"]), Want::Count("/data", count)];
        let ask = |limit| Request::get(format!("{path}limit={limit}"));
        let both = suite.clause("A list comes in pages", format!("{sent}, limit 2"), &ask(2), &page(2)).await;
        let one = suite.clause("A list comes in pages", format!("{sent}, limit 1"), &ask(1), &page(1)).await;
        let (Some(both), Some(one)) = (both, one) else { continue };
        let cursor = one.json()["next_cursor"].as_str().unwrap_or_default().to_owned();
        let next = Request::get(format!("{path}limit=1&cursor={cursor}"));
        let wants = [Want::Status(200), Want::Member("/data/0", both.json()["data"][1].clone())];
        suite.clause("The cursor leads to the next one", format!("{sent}, with next_cursor"), &next, &wants).await;
        for (wrong, at) in [
            ("limit=0", &["?limit"]),
            ("limit=101", &["?limit"]),
            ("cursor=x", &["?cursor"]),
            ("acount=1", &["?acount"]),
        ] {
            let wants = [Want::Problem(400, "malformed-request"), Want::Errors(at)];
            suite
                .clause(
                    "Parameters are known and within bounds",
                    format!("{sent}, {wrong}"),
                    &Request::get(format!("{path}{wrong}")),
                    &wants,
                )
                .await;
        }
    }
    let filtered = Request::get(format!("{of_the_purse}&created_from=2100-01-01T00:00:00Z"));
    let wants = [Want::Status(200), Want::Member("/data", json!([])), Want::Member("/next_cursor", json!(null))];
    suite.clause("Filters choose", "created_from in the year 2100", &filtered, &wants).await;
}
