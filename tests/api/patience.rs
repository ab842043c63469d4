//! Clients that give up, time-outs, a database that is far away, and records of an earlier version.

use std::time::{Duration, Instant};

use harness::{Books, Client, Proxy};
use ledger::{PrincipalId, TenantId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_longer_than_every_time_out_ends_as_one_transfer() {
    let books = Books::open().await;
    let (one, two) = (books.api().await, books.api().await);
    let client = Client::new(&one, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let lock = books.lock(&account).await;
    let key = client.fresh_key();
    // A statement may take 5 s and a batch 8 s: the lock is held for longer than either.
    let begun = Instant::now();
    let mut refused = 0;
    while begun.elapsed() < Duration::from_secs(9) {
        for client in [client.clone(), client.at(&two)] {
            let reply = client.transfer(&key, &world, &account, 5).await;
            assert!(reply.try_again(), "{reply:?}");
            refused += 1;
        }
    }
    assert!(refused >= 4, "{refused}");
    lock.rollback().await.unwrap();
    for client in [client.clone(), client.at(&two)] {
        assert_eq!(client.transfer_until_final(&key, &world, &account, 5).await.status, 201);
    }
    assert_eq!(books.posted(&account).await, 5);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_given_up_over_a_slow_line_to_the_database_leave_nothing_half_done() {
    const ABORTED: usize = 300;
    let seed = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut books = Books::open().await;
    let proxy = Proxy::before(&books.url).await;
    let api = books.api_with(&[("DATABASE_URL", &proxy.url(&books.url)), ("DATABASE_POOL_SIZE", "2")]).await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    proxy.delay(Duration::from_millis(200));
    let mut aborted = Vec::new();
    for _ in 0..ABORTED {
        let (client, world, account) = (client.clone(), world.clone(), account.clone());
        let patience = Duration::from_millis(random.random_range(0..1_500));
        aborted.push(tokio::spawn(async move {
            let key = client.fresh_key();
            let _given_up = tokio::time::timeout(patience, client.try_transfer(&key, &world, &account, 1)).await;
            key
        }));
    }
    let mut keys = Vec::new();
    for request in aborted {
        keys.push(request.await.unwrap());
    }
    let mut next = Vec::new();
    for _ in 0..100 {
        let (client, world, account) = (client.clone(), world.clone(), account.clone());
        next.push(tokio::spawn(async move { client.transfer(&client.fresh_key(), &world, &account, 1).await }));
    }
    for request in next {
        let reply = request.await.unwrap();
        assert_eq!(reply.status, 201, "{reply:?}");
    }
    let retries: Vec<_> = keys
        .into_iter()
        .map(|key| {
            let (client, world, account) = (client.clone(), world.clone(), account.clone());
            tokio::spawn(async move { client.transfer_until_final(&key, &world, &account, 1).await })
        })
        .collect();
    for retry in retries {
        assert_eq!(retry.await.unwrap().status, 201);
    }
    let log = std::fs::read_to_string(books.postgres().log()).unwrap();
    assert!(!log.contains("current transaction is aborted"), "a statement came after a failed one");
    assert_eq!(books.posted(&account).await, i64::try_from(ABORTED + 100).unwrap());
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_runs_out_of_time_is_put_off_and_its_retry_is_safe() {
    let books = Books::open().await;
    let proxy = Proxy::before(&books.url).await;
    let api = books.api_with(&[("DATABASE_URL", &proxy.url(&books.url))]).await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    proxy.delay(Duration::from_secs(60));
    let key = client.fresh_key();
    let begun = Instant::now();
    let reply = client.transfer(&key, &world, &account, 5).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    assert!(reply.try_again());
    assert!(begun.elapsed() < Duration::from_secs(16), "within a request's time");
    proxy.delay(Duration::ZERO);
    assert_eq!(client.transfer_until_final(&key, &world, &account, 5).await.status, 201);
    assert_eq!(books.posted(&account).await, 5);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_an_earlier_version_are_replayed_byte_for_byte() {
    let books = Books::open().await;
    sqlx::raw_sql(include_str!("../fixtures/records_0.1.0.sql")).execute(&books.pool).await.unwrap();
    let id = |end: u128| uuid::Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0000 + end);
    let owner = books.keys_of(TenantId(id(0xa)), PrincipalId(id(0xb))).await;
    let api = books
        .api_with(&[
            ("IDEMPOTENCY_SECRETS", "new:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"),
            ("IDEMPOTENCY_LOOKUP_SECRETS", "fixture:0123456789abcdef0123456789abcdef"),
        ])
        .await;
    let client = Client::new(&api, &owner.test);
    let (source, destination) = (id(1).to_string(), id(2).to_string());
    let body = json!({
        "source_account_id": source, "destination_account_id": destination, "amount": 5, "currency": "EUR",
        "description": "kept by an earlier version", "metadata": {"order": "42"}
    });
    let done = client.post("/v1/transfers", "transfer-of-5", &body).await;
    assert_eq!((done.status, done.replayed()), (201, true), "{done:?}");
    assert_eq!(done.header("location"), "/v1/transfers/01a22e13-2d0a-75b2-9313-b44864a1902b");
    let declined = client.transfer("declined", &destination, &source, 900).await;
    assert_eq!((declined.status, declined.replayed()), (422, true));
    for (reply, kept) in [(&done, "201"), (&declined, "422")] {
        let query = "SELECT a.body FROM idempotency_responses a JOIN idempotency_records r ON r.response_id = a.id
                     WHERE r.status = $1::smallint AND r.operation = 'transfer.post' AND r.secret_id = 'fixture'";
        let bytes: Vec<u8> =
            sqlx::query_scalar(query).bind(kept.parse::<i16>().unwrap()).fetch_one(&books.pool).await.unwrap();
        assert_eq!(reply.body, bytes);
    }
    let other = client.transfer("transfer-of-5", &source, &destination, 6).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "idempotency-key-reused"));
    assert_eq!(other.json()["members"], json!(["amount", "description", "metadata"]));
    // Money goes on where the earlier version left it.
    assert_eq!(client.transfer(&client.fresh_key(), &source, &destination, 1).await.status, 201);
    assert_eq!(books.posted(&destination).await, 6);
    books.finish().await;
}
