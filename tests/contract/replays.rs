//! The same key with the same request: the first answer again.

use serde_json::json;

use crate::request::{Request, Want};
use crate::suite::Suite;

/// How many clients send one request at once.
const CROWD: usize = 20;

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("Replays");
    spellings_of_one_value(suite).await;
    declines(suite).await;
    crowd(suite).await;
}

async fn spellings_of_one_value(suite: &mut Suite) {
    let key = suite.fresh_key();
    let mut value = suite.transfer(5);
    value["description"] = json!("A/é");
    value["metadata"] = json!({"order": "42"});
    let plain = value.to_string();
    let request = Request::post("/v1/transfers", plain.clone()).key(&key);
    let wants =
        [Want::Status(201), Want::First, Want::Has("location"), Want::Header("content-type", "application/json")];
    let Some(first) = suite.clause("The first answer", "a fresh key", &request, &wants).await else { return };

    let members = value.as_object().unwrap().iter().rev();
    let turned: Vec<String> = members.map(|(name, value)| format!("\"{name}\" :\t{value}")).collect();
    let turned = format!("{{\r\n{}\n}}", turned.join(",\n"));
    let escaped =
        plain.replace("EUR", "\\u0045UR").replace("A/é", "\\u0041\\/\\u00E9").replace("\"amount\"", "\"\\u0061mount\"");
    for (sent, again) in [
        ("the same bytes", request.clone()),
        ("members in another order, white space", request.clone().body(turned)),
        ("escapes for letters", request.clone().body(escaped)),
        ("amount 5.0, the same JSON value", request.clone().body(plain.replace(":5,", ":5.0,"))),
        ("Prefer: wait=1", request.clone().header("prefer", "wait=1")),
        ("Prefer: respond-async", request.clone().header("prefer", "respond-async")),
        ("Oncepost-Fault: drop-reply", request.clone().header("oncepost-fault", "drop-reply")),
        ("Oncepost-Fault: fail-before-commit", request.clone().header("oncepost-fault", "fail-before-commit")),
    ] {
        suite.clause("The same request is answered the same", sent, &again, &[Want::Replay(&first)]).await;
    }
    let location = first.header("location").to_owned();
    let found = [Want::Status(200), Want::Member("", first.json())];
    suite.clause("What was made is where Location says", "GET of it", &Request::get(location), &found).await;
}

async fn declines(suite: &mut Suite) {
    let poor = suite.open_account(json!({"currency": "EUR"})).await;
    let (world, key) = (suite.world.clone(), suite.fresh_key());
    let move_money = |source: &str, destination: &str, key: &str| {
        let body =
            json!({"source_account_id": source, "destination_account_id": destination, "amount": 7, "currency": "EUR"});
        Request::post("/v1/transfers", body.to_string()).key(key)
    };
    let out = move_money(&poor, &world, &key);
    let wants = [Want::Problem(422, "insufficient-funds"), Want::First];
    let Some(declined) = suite.clause("A rule's no …", "7 out of an empty account", &out, &wants).await else {
        return;
    };
    let funding = move_money(&world, &poor, &suite.fresh_key());
    suite.clause("(the account is funded)", "7 into it", &funding, &[Want::Status(201)]).await;
    let wants = [Want::Replay(&declined), Want::Member("/request_id", declined.json()["request_id"].clone())];
    suite.clause("… stays a no for its key", "the same key", &out, &wants).await;
    let anew = move_money(&poor, &world, &suite.fresh_key());
    suite.clause("A new key is a new intent", "another key", &anew, &[Want::Status(201), Want::First]).await;
}

async fn crowd(suite: &mut Suite) {
    let purse = suite.purse.clone();
    let before = balance(suite, &purse).await;
    let request = suite.post(suite.fresh_key(), 3);
    let mut replies = suite.answer_at_once(&vec![request; CROWD]).await;
    replies.retain(|reply| !reply.try_again() && reply.status != 429);
    let fresh = replies.iter().filter(|reply| !reply.replayed()).count();
    let same = replies.iter().all(|reply| reply.status == 201 && reply.body == replies[0].body);
    let seen = format!(
        "{} final answers, {fresh} of them first, {}",
        replies.len(),
        if same { "all the same" } else { "not all the same" }
    );
    let sent = format!("one request, {CROWD} times at once");
    suite.row(
        "Of many at once one runs",
        sent,
        "201 each or \"same key again\"; one of them first",
        seen,
        same && fresh == 1,
    );
    suite.purse_holds("And money moves once", "the purse's balance", before + 3).await;
    suite.untried("Past 5 s of waiting, 409 request-in-progress", "HTTP can't make the first one slow");
}

async fn balance(suite: &mut Suite, account: &str) -> i64 {
    let request = Request::get(format!("/v1/accounts/{account}"));
    let reply = suite.answer(crate::suite::Caller::Test, &request).await.expect("the server answers");
    reply.json()["balance"]["posted"].as_i64().unwrap()
}
