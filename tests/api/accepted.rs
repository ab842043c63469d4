//! Work that is accepted at once and done later.

use harness::{Books, Client, Reply, until};
use serde_json::{Value, json};

fn body(source: &str, destination: &str, amount: i64) -> Value {
    json!({"source_account_id": source, "destination_account_id": destination, "amount": amount, "currency": "EUR"})
}

/// Asks for a transfer with a `Prefer` header.
async fn prefer(client: &Client, preference: &str, key: &str, body: &Value) -> Result<Reply, reqwest::Error> {
    let request = client.request(reqwest::Method::POST, "/v1/transfers").header("idempotency-key", key);
    let request = request.header("content-type", "application/json").header("prefer", preference);
    client.send(request.body(body.to_string())).await
}

/// Waits for the operation's end, and returns it.
async fn done(client: &Client, location: &str) -> Value {
    let mut operation = Value::Null;
    until("the operation to be done", async || {
        let reply = client.get(location).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        operation = reply.json();
        operation["status"] != "processing"
    })
    .await;
    operation
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_work_is_replayed_as_accepted_until_it_is_done_and_as_done_ever_after() {
    let books = Books::open().await;
    // The work stays undone for as long as an account is locked.
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let lock = books.lock(&account).await;

    let key = client.fresh_key();
    let accepted = prefer(&client, "respond-async", &key, &body(&world, &account, 5)).await.unwrap();
    assert_eq!((accepted.status, accepted.replayed()), (202, false), "{accepted:?}");
    assert_eq!(accepted.header("preference-applied"), "respond-async");
    assert_eq!(accepted.header("retry-after"), "2");
    let location = accepted.header("location").to_owned();
    assert_eq!(location, format!("/v1/operations/{}", accepted.json()["id"].as_str().unwrap()));
    assert_eq!(accepted.json()["status"], "processing");
    // With or without the preference: it is the same request, and the same answer without progress.
    for again in [
        prefer(&client, "respond-async", &key, &body(&world, &account, 5)).await.unwrap(),
        client.transfer(&key, &world, &account, 5).await,
    ] {
        assert_eq!((again.status, again.replayed()), (202, true));
        assert_eq!(again.body, accepted.body);
        assert_eq!(again.header("location"), location);
        assert_eq!(again.header("retry-after"), "2");
    }
    let other = client.transfer(&key, &world, &account, 6).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "idempotency-key-reused"));
    assert_eq!(other.json()["original"]["location"], location);

    drop(lock);
    let operation = done(&client, &location).await;
    assert_eq!((&operation["status"], &operation["done"]), (&json!("succeeded"), &json!(1)));
    let last = client.transfer(&key, &world, &account, 5).await;
    assert_eq!((last.status, last.replayed()), (201, true));
    assert_eq!(operation["result"]["body"], last.json());
    assert_eq!(operation["result"]["location"], last.header("location"));
    assert_eq!(client.get(last.header("location")).await.json(), last.json());
    assert_eq!(books.posted(&account).await, 5);
    let live = client.with_key(&books.owner.live);
    assert_eq!(live.get(&location).await.status, 404, "nothing crosses environments");
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_gives_the_outcome_itself_where_it_comes_in_time_rejections_included() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let reply = prefer(&client, "respond-async, wait=10", &key, &body(&world, &account, 5)).await.unwrap();
    assert_eq!((reply.status, reply.replayed()), (201, false), "{reply:?}");
    assert_eq!(reply.header("preference-applied"), "");
    assert_eq!(client.transfer(&key, &world, &account, 5).await.body, reply.body);

    let key = client.fresh_key();
    let declined = prefer(&client, "respond-async, wait=10", &key, &body(&account, &world, 6)).await.unwrap();
    assert_eq!((declined.status, declined.problem().as_str()), (422, "insufficient-funds"));
    let again = client.transfer(&key, &account, &world, 6).await;
    assert_eq!((again.status, again.replayed(), again.body), (422, true, declined.body));
    let failed = "SELECT count(*) FROM operations WHERE status = 'failed'";
    assert_eq!(books.count(failed).await, 1);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_every_process_left_behind_is_done_once_by_those_that_come_next() {
    // The first two commits open the accounts, the third accepts the work, the fourth would be its end.
    for failpoint in ["after-commit:kill:3", "before-commit:kill:4", "after-commit:kill:4"] {
        let books = Books::open().await;
        let mut doomed = books.api_with(&[("ONCEPOST_FAILPOINT", failpoint)]).await;
        let client = Client::new(&doomed, &books.owner.test);
        let world = books.account(&client, None).await;
        let account = books.account(&client, Some(0)).await;
        let key = client.fresh_key();
        let _lost_or_accepted = prefer(&client, "respond-async", &key, &body(&world, &account, 5)).await;
        assert!(!doomed.ended().await.success());
        assert_eq!(books.count("SELECT count(*) FROM operations").await, 1);
        let (one, two) = (books.api().await, books.api().await);
        until("all work to be done", async || {
            books.count("SELECT count(*) FROM operations WHERE status = 'processing'").await == 0
        })
        .await;
        for client in [client.at(&one), client.at(&two)] {
            let reply = client.transfer(&key, &world, &account, 5).await;
            assert_eq!((reply.status, reply.replayed()), (201, true), "{failpoint}: {reply:?}");
        }
        assert_eq!(books.posted(&account).await, 5);
        books.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_this_version_can_t_read_keeps_no_other_waiting() {
    let books = Books::open().await;
    let mut api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let lock = books.lock(&account).await;
    let mut locations = Vec::new();
    for _ in 0..2 {
        let accepted = prefer(&client, "respond-async", &client.fresh_key(), &body(&world, &account, 5)).await.unwrap();
        locations.push(accepted.header("location").to_owned());
    }
    // As a later version might have written it, and this one finds it after a roll-back.
    let later = "UPDATE operations SET work = '{\"operation\": \"of a later version\"}' WHERE id = $1::uuid";
    let id = locations[0].rsplit('/').next().unwrap();
    api.kill();
    sqlx::query(later).bind(id).execute(&books.pool).await.unwrap();
    drop(lock);
    let api = books.api().await;
    let client = client.at(&api);
    assert_eq!(done(&client, &locations[1]).await["status"], "succeeded");
    assert_eq!(client.get(&locations[0]).await.json()["status"], "processing", "it waits for a process that can");
    assert!(api.said("accepted work can't be read by this version").is_some());
    assert_eq!(books.posted(&account).await, 5);
    books.finish().await;
}
