//! Single answers: what a client sees of a first request, a replay and a refusal.

use harness::{Books, Client};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_the_first_answer_byte_for_byte() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let first = client.transfer(&key, &world, &account, 1_250).await;
    assert_eq!(first.status, 201);
    assert!(!first.replayed());
    let transfer = first.json();
    assert_eq!(first.header("location"), format!("/v1/transfers/{}", transfer["id"].as_str().unwrap()));
    assert_eq!(first.header("cache-control"), "no-store");
    for name in ["id", "created_at"] {
        assert!(transfer[name].is_string(), "{transfer}");
    }
    let shown = json!({
        "object": "transfer", "status": "posted", "source_account_id": world, "destination_account_id": account,
        "amount": 1250, "currency": "EUR", "description": null, "metadata": null,
    });
    for (name, value) in shown.as_object().unwrap() {
        assert_eq!(&transfer[name], value, "{name}");
    }

    let again = client.transfer(&key, &world, &account, 1_250).await;
    assert!(again.replayed());
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    for name in ["location", "content-type"] {
        assert_eq!(again.header(name), first.header(name));
    }
    assert_ne!(again.header("x-request-id"), first.header("x-request-id"));
    // The same key in the draft's quoted form, the members in another order and form.
    let quoted = format!("\"{key}\"");
    let body = format!(
        "{{ \"currency\":\"\\u0045UR\",\n\"amount\":1250,\"destination_account_id\":\"{account}\",\"source_account_id\":\"{world}\"}}"
    );
    let reordered = client.post_raw("/v1/transfers", &[("idempotency-key", quoted.as_bytes())], body).await;
    assert!(reordered.replayed(), "{reordered:?}");
    assert_eq!(reordered.body, first.body);

    assert_eq!(client.get(first.header("location")).await.json(), transfer);
    let shown = client.get(&format!("/v1/accounts/{account}")).await.json();
    assert_eq!(shown["balance"], json!({"posted": 1250, "held": 0, "available": 1250}));
    assert_eq!(books.count("SELECT count(*) FROM outbox").await, 1);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decline_stays_a_decline_for_its_key() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let declined = client.transfer(&key, &account, &world, 5).await;
    assert_eq!((declined.status, declined.problem().as_str()), (422, "insufficient-funds"));
    assert_eq!(declined.header("content-type"), "application/problem+json");
    assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 5).await.status, 201);
    let again = client.transfer(&key, &account, &world, 5).await;
    assert!(again.replayed());
    assert_eq!((again.status, again.body), (declined.status, declined.body));
    assert_eq!(client.transfer(&client.fresh_key(), &account, &world, 5).await.status, 201);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_at_the_door_leaves_the_key_free() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let headers: &[(&str, &[u8])] = &[("idempotency-key", key.as_bytes())];
    let body = json!({"source_account_id": world, "destination_account_id": account, "amount": 5, "currency": "EUR"});

    let stranger = client.with_key("sk_test_00000000_000000000000000000000000000000000000");
    assert_eq!(stranger.post("/v1/transfers", &key, &body).await.status, 401);
    let typed: &[(&str, &[u8])] = &[("idempotency-key", key.as_bytes()), ("content-type", b"text/plain")];
    let reply = client.post_raw("/v1/transfers", typed, body.to_string()).await;
    assert_eq!((reply.status, reply.problem().as_str()), (415, "unsupported-media-type"));
    let reply = client.post_raw("/v1/transfers", headers, vec![b' '; 65_537]).await;
    assert_eq!((reply.status, reply.problem().as_str()), (413, "body-too-large"));
    for amount in [
        "100.0",
        "1e2",
        "\"100\"",
        "-0",
        "0",
        "-1",
        "0.1",
        "1e400",
        "null",
        "true",
        "9007199254740992",
        "18446744073709551616",
    ] {
        let text = body.to_string().replace("\"amount\":5", &format!("\"amount\":{amount}"));
        let reply = client.post_raw("/v1/transfers", headers, text).await;
        assert_eq!((reply.status, reply.problem().as_str()), (400, "malformed-request"), "{amount}");
        assert_eq!(reply.json()["errors"][0]["pointer"], "/amount", "{amount}: {reply:?}");
    }
    for text in
        ["{}{}", "", "[1]", "{\"amount\":1,\"\\u0061mount\":2}", "\u{feff}{}", "{\"description\":\"\\u0000\"}", "0100"]
    {
        let reply = client.post_raw("/v1/transfers", headers, text).await;
        assert_eq!((reply.status, reply.problem().as_str()), (400, "malformed-request"), "{text}");
    }
    let reply = client.post("/v1/transfers?dry=1", &key, &body).await;
    assert_eq!(reply.status, 400, "{reply:?}");

    assert_eq!(books.count("SELECT count(*) FROM idempotency_records WHERE operation = 'transfer.post'").await, 0);
    let done = client.post("/v1/transfers", &key, &body).await;
    assert_eq!(done.status, 201);
    assert!(!done.replayed());
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_read_as_the_contract_has_them() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let body = json!({"source_account_id": world, "destination_account_id": account, "amount": 5, "currency": "EUR"})
        .to_string();
    let post = async |keys: &[&[u8]]| {
        let headers: Vec<(&str, &[u8])> = keys.iter().map(|key| ("idempotency-key", *key)).collect();
        client.post_raw("/v1/transfers", &headers, body.clone()).await
    };
    assert_eq!(post(&[b"k"]).await.status, 201);
    assert!(post(&[b"\"k\""]).await.replayed());
    assert_eq!(post(&[b"\"a\\\"b\""]).await.status, 201, "the draft's quoted form may hold an escaped quote");
    assert_eq!(post(&[b"K"]).await.status, 201, "case matters");
    assert_eq!(post(&["x".repeat(255).as_bytes()]).await.status, 201);
    assert_eq!(post(&[b":YWJj:"]).await.status, 201, "any bare bytes will do");
    for missing in [vec![], vec![b"".as_slice()]] {
        let reply = post(&missing).await;
        assert_eq!((reply.status, reply.problem().as_str()), (400, "idempotency-key-missing"));
        assert!(!reply.header("link").is_empty());
    }
    let long = "x".repeat(256);
    let accents = "é".repeat(128);
    let malformed: [&[&[u8]]; 8] = [
        &[b"\"k"],
        &[b"\"k\";p=1"],
        &[b"a,b"],
        &[b"a b"],
        &[b"\xff"],
        &[long.as_bytes()],
        &[accents.as_bytes()],
        &[b"a", b"b"],
    ];
    for keys in malformed {
        let reply = post(keys).await;
        assert_eq!((reply.status, reply.problem().as_str()), (400, "idempotency-key-malformed"), "{keys:?}");
    }
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_belong_to_a_principal_and_know_their_environment() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    assert_eq!(client.transfer("shared", &world, &account, 5).await.status, 201);

    let live = client.with_key(&books.owner.live);
    let reply = live.transfer("shared", &world, &account, 5).await;
    assert_eq!((reply.status, reply.problem().as_str()), (422, "idempotency-key-environment-mismatch"));

    let colleague = client.with_key(&books.another_principal(&books.owner).await.test);
    let reply = colleague.transfer("shared", &world, &account, 5).await;
    assert_eq!((reply.status, reply.replayed()), (201, false), "another principal's key is another key");

    let stranger = client.with_key(&books.another_owner().await.test);
    let reply = stranger.transfer("shared", &world, &account, 5).await;
    assert_eq!((reply.status, reply.problem().as_str()), (422, "account-not-found"), "nothing crosses tenants");
    for path in [format!("/v1/accounts/{account}"), format!("/v1/accounts/{account}/postings")] {
        assert_eq!(stranger.get(&path).await.status, 404, "{path}");
        assert_eq!(live.get(&path).await.status, 404, "{path}");
        assert_eq!(client.get(&path).await.status, 200, "{path}");
    }

    let other_route = client.post("/v1/accounts", "shared", &json!({"currency": "EUR"})).await;
    assert_eq!((other_route.status, other_route.problem().as_str()), (422, "idempotency-key-reused"));
    assert_eq!(books.posted(&account).await, 10);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_a_503_and_the_same_key_executes_later() {
    let mut books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    books.pool.close().await;
    books.postgres().stop().await.unwrap();
    let key = client.fresh_key();
    let reply = client.transfer(&key, &world, &account, 5).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    assert!(reply.try_again());
    assert_eq!(client.get("/livez").await.status, 200);
    assert_eq!(client.get("/readyz").await.status, 503);
    books.postgres().restart().await.unwrap();
    books.pool = sqlx::PgPool::connect(&books.url).await.unwrap();
    assert_eq!(client.transfer_until_final(&key, &world, &account, 5).await.status, 201);
    assert_eq!(client.get("/readyz").await.status, 200);
    assert_eq!(books.posted(&account).await, 5);
    books.finish().await;
}
