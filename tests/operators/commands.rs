//! The commands for whoever is on call.

use harness::{Books, Client, until};
use serde_json::{Value, json};

fn lines(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_found_by_whoever_has_it() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let shop = books.account(&client, Some(0)).await;
    let first = client.transfer("order-42", &world, &shop, 5).await;
    assert!(client.transfer("order-42", &world, &shop, 5).await.replayed());
    // Attempts are written when the process ends, at the latest.
    let mut api = api;
    api.terminate();
    api.ended().await;

    let principal = books.owner.principal.to_string();
    let found = books.command("api", &["record", "--principal", &principal], "order-42\n").await;
    assert_eq!(found.code, 0, "{found:?}");
    let [record] = &lines(&found.stdout)[..] else { panic!("{found:?}") };
    assert_eq!(record["resource_id"], first.json()["id"]);
    assert_eq!((record["status"].as_i64(), record["environment"].as_str()), (Some(201), Some("test")));
    assert_eq!((record["answer_kept"].as_bool(), record["retries"].as_i64()), (Some(true), Some(1)));
    assert!(!format!("{found:?}").contains("order-42"));

    let unused = books.command("api", &["record", "--principal", &principal], "order-43").await;
    assert_eq!((unused.code, unused.stdout.as_str()), (1, ""));
    assert!(unused.stderr.contains("no record") && !unused.stderr.contains("order-43"), "{unused:?}");
    let another = books.another_principal(&books.owner).await.principal.to_string();
    assert_eq!(books.command("api", &["record", "--principal", &another], "order-42").await.code, 1);
    assert_eq!(books.command("api", &["record", "--principal", &principal], &"k".repeat(300)).await.code, 1);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_not_done_is_listed_until_it_is() {
    let books = Books::open().await;
    // The work stays undone for as long as an account is locked.
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let shop = books.account(&client, Some(0)).await;
    let lock = books.lock(&shop).await;
    let body = json!({"source_account_id": world, "destination_account_id": shop, "amount": 1, "currency": "EUR"});
    let headers = [("idempotency-key", &b"slow"[..]), ("prefer", b"respond-async")];
    assert_eq!(client.post_raw("/v1/transfers", &headers, body.to_string()).await.status, 202);

    let found = books.command("api", &["operations"], "").await;
    let [operation] = &lines(&found.stdout)[..] else { panic!("{found:?}") };
    assert_eq!(operation["principal_id"], json!(books.owner.principal));
    assert_eq!(operation["endpoint"], "/v1/transfers");
    let none = books.command("api", &["operations", "--older-than-seconds", "3600"], "").await;
    assert_eq!((none.code, none.stdout.as_str()), (0, ""));

    lock.rollback().await.unwrap();
    until("the work to be done", async || books.command("api", &["operations"], "").await.stdout.is_empty()).await;
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_listed_with_what_they_are_for_here() {
    let books = Books::open().await;
    drop(books.api().await);
    let here = books.command("api", &["secrets"], "").await;
    let [secret] = &lines(&here.stdout)[..] else { panic!("{here:?}") };
    assert_eq!((secret["id"].as_str(), secret["configured"].as_str()), (Some("test"), Some("write")));
    let other = ("IDEMPOTENCY_SECRETS", "other:00000000000000000000000000000000");
    let elsewhere = books.command_with("api", &["secrets"], "", &[other]).await;
    assert_eq!(lines(&elsewhere.stdout)[0]["configured"], "no");
    let test = ("IDEMPOTENCY_LOOKUP_SECRETS", "test:0123456789abcdef0123456789abcdef");
    let rotated = books.command_with("api", &["secrets"], "", &[other, test]).await;
    assert_eq!(lines(&rotated.stdout)[0]["configured"], "look-up");
    books.finish().await;
}
