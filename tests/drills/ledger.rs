//! Drills of the money itself: what is suspected, and what is wrong.

use sqlx::Executor as _;

use crate::delivery::published;
use crate::page::Reader;
use crate::stand::{Stand, seen};

pub(crate) async fn duplicate_charge_suspected() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    // The fault of the client: a new key for the retry of a payment.
    let mut transfers = Vec::new();
    for _ in 0..2 {
        let reply = client.transfer(&client.fresh_key(), &account, &world, 1250).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        transfers.push(reply.json()["id"].as_str().unwrap().to_owned());
    }
    let api_key = stand.lock().await.books.owner.test.clone();
    let [first, second] = <[String; 2]>::try_from(transfers).unwrap();
    let known = [
        ("payer", account),
        ("payee", world),
        ("amount", "1250".to_owned()),
        ("currency", "EUR".to_owned()),
        ("first", first),
        ("second", second),
        ("api_key", api_key),
    ];
    Reader::open("duplicate-charge-suspected", &stand, &known).await.finish().await;
}

pub(crate) async fn account_out_of_balance() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (_, account) = stand.accounts(&client).await;
    stand.sql(&format!("UPDATE accounts SET posted = posted + 777 WHERE id = '{account}'")).await;
    let known = [("account", account), ("status", "open".to_owned())];
    Reader::open("account-out-of-balance", &stand, &known).await.finish().await;
}

pub(crate) async fn audit_failing() {
    let stand = Stand::open_with_kafka().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    for _ in 0..3 {
        assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    }
    published(&stand, 4).await;
    // Someone has tidied up the outbox.
    stand.sql("CREATE TABLE backup AS SELECT * FROM outbox; DELETE FROM outbox WHERE position = 2").await;
    stand.sql("DELETE FROM audits").await;
    stand.word(&["restart", "api"]).await;
    let mut reader = Reader::open("audit-failing", &stand, &[]).await;
    reader.read_to("## Rollback command").await;
    stand.sql("INSERT INTO outbox SELECT * FROM backup WHERE position = 2; DROP TABLE backup").await;
    reader.finish().await;
}

pub(crate) async fn audit_late() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    stand.accounts(&client).await;
    stand.word(&["stop", "api"]).await;
    // A session that hangs holds the audit's lock, and two days have gone by.
    let mut hung = stand.session().await;
    hung.execute("SET application_name = 'oncepost-audit'; SELECT pg_advisory_lock(x'6f6e63650003'::bigint)")
        .await
        .unwrap();
    stand
        .sql(
            "DELETE FROM audits; INSERT INTO audits (id, started_at, finished_at, findings)
             VALUES (gen_random_uuid(), now() - interval '2 days', now() - interval '2 days', '{}')",
        )
        .await;
    stand.word(&["start", "api"]).await;
    Reader::open("audit-late", &stand, &[seen(&mut hung).await]).await.finish().await;
}

pub(crate) async fn replay_bytes_differ() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let request = stand.request(&client, &world, &account).await;
    let first = request.send(&client).await;
    let transfer = first.json()["id"].as_str().unwrap().to_owned();
    // Someone has written answers anew, without the members that are null.
    let shorter = "replace(convert_from(body, 'UTF8'), '\"description\":null,', '')";
    let change =
        format!("UPDATE idempotency_responses SET body = convert_to({shorter}, 'UTF8') WHERE id = '{transfer}'");
    stand.sql(&change).await;
    let replay = request.send(&client).await;
    assert!(replay.replayed() && replay.body != first.body);
    Reader::open("replay-bytes-differ", &stand, &request.known(&[("transfer", transfer)])).await.finish().await;
    assert_eq!(request.send(&client).await.body, first.body);
}
