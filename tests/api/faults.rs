//! Faults that integrators ask for, trying out a request, and asking about a key.

use harness::{Books, Client, Reply};
use serde_json::{Value, json};

struct Stage {
    books: Books,
    _api: harness::Process,
    client: Client,
    world: String,
    account: String,
}

impl Stage {
    async fn open(environment: &[(&str, &str)]) -> Self {
        let books = Books::open().await;
        let api = books.api_with(environment).await;
        let client = Client::new(&api, &books.owner.test);
        let world = books.account(&client, None).await;
        let account = books.account(&client, Some(0)).await;
        Self { books, _api: api, client, world, account }
    }

    fn body(&self, amount: i64) -> Value {
        let (source, destination) = (&self.world, &self.account);
        json!({"source_account_id": source, "destination_account_id": destination, "amount": amount, "currency": "EUR"})
    }

    /// Asks for a transfer of 5 and for a fault.
    async fn staged(&self, client: &Client, key: &str, fault: &str) -> Result<Reply, reqwest::Error> {
        let request = client.request(reqwest::Method::POST, "/v1/transfers").header("idempotency-key", key);
        let request = request.header("content-type", "application/json").header("oncepost-fault", fault);
        client.send(request.body(self.body(5).to_string())).await
    }

    async fn transfers(&self) -> i64 {
        self.books.count("SELECT count(*) FROM transfers").await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_strikes_the_first_answer_and_the_retry_comes_through() {
    let stage = Stage::open(&[]).await;
    let client = &stage.client;

    let dropped = client.fresh_key();
    assert!(stage.staged(client, &dropped, "drop-reply").await.is_err(), "no answer comes");
    assert_eq!(stage.transfers().await, 1, "and the transfer stands");
    let retry = stage.staged(client, &dropped, "drop-reply").await.unwrap();
    assert_eq!((retry.status, retry.replayed()), (201, true), "a replay is not struck");

    let before = client.fresh_key();
    let reply = stage.staged(client, &before, "fail-before-commit").await.unwrap();
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    assert!(reply.try_again());
    assert_eq!(stage.transfers().await, 1, "nothing happened");
    let retry = client.transfer(&before, &stage.world, &stage.account, 5).await;
    assert_eq!((retry.status, retry.replayed()), (201, false));

    let after = client.fresh_key();
    let reply = stage.staged(client, &after, "fail-after-commit").await.unwrap();
    assert!(reply.status == 503 && reply.try_again(), "{reply:?}");
    assert_eq!(stage.transfers().await, 3, "it happened, though no one says so");
    let retry = stage.staged(client, &after, "fail-after-commit").await.unwrap();
    assert_eq!((retry.status, retry.replayed()), (201, true));

    let delayed = client.fresh_key();
    let started = std::time::Instant::now();
    assert_eq!(stage.staged(client, &delayed, "delay=300").await.unwrap().status, 201);
    assert!(started.elapsed().as_millis() >= 300, "the answer is late");

    let refused = stage.staged(client, &client.fresh_key(), "explode").await.unwrap();
    assert_eq!((refused.status, refused.problem().as_str()), (400, "malformed-request"));
    let live = client.with_key(&stage.books.owner.live);
    let refused = stage.staged(&live, &client.fresh_key(), "drop-reply").await.unwrap();
    assert_eq!((refused.status, refused.problem().as_str()), (400, "malformed-request"));
    assert_eq!(stage.books.posted(&stage.account).await, 20);
    stage.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trying_out_tells_the_outcome_and_leaves_no_trace() {
    let stage = Stage::open(&[]).await;
    let client = &stage.client;
    let traces = "SELECT (SELECT count(*) FROM transfers) + (SELECT count(*) FROM idempotency_records)
                    + (SELECT count(*) FROM outbox)";
    let before = stage.books.count(traces).await;
    let path = "/v1/transfers?dry_run=true";
    let reply = client.post_raw(path, &[], stage.body(5).to_string()).await;
    assert_eq!((reply.status, &reply.json()["amount"]), (200, &json!(5)), "{reply:?}");
    assert_eq!(reply.header("location"), "");
    let back = json!({"source_account_id": stage.account, "destination_account_id": stage.world, "amount": 5, "currency": "EUR"});
    let reply = client.post_raw(path, &[], back.to_string()).await;
    assert_eq!((reply.status, reply.problem().as_str()), (422, "insufficient-funds"));
    let reply = client.post_raw("/v1/accounts?dry_run=true", &[], "{\"currency\":\"XXX\"}").await;
    assert_eq!((reply.status, reply.problem().as_str()), (400, "malformed-request"));
    let reply =
        client.post_raw("/v1/transfers?dry_run=maybe", &[("idempotency-key", b"k")], stage.body(5).to_string()).await;
    assert_eq!((reply.status, reply.json()["errors"][0]["pointer"].clone()), (400, json!("?dry_run")));
    assert_eq!(stage.books.count(traces).await, before, "nothing is recorded");

    // A live call under a key that a dry run carried runs.
    let key = client.fresh_key();
    let reply = client.post(path, &key, &stage.body(5)).await;
    assert_eq!(reply.status, 200);
    let reply = client.transfer(&key, &stage.world, &stage.account, 5).await;
    assert_eq!((reply.status, reply.replayed()), (201, false), "a dry run never answers a live call");
    stage.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_can_be_asked_about_and_the_question_leaves_no_trace() {
    let stage = Stage::open(&[]).await;
    let client = &stage.client;
    let ask = async |client: &Client, key: &str| {
        client.post_raw("/v1/idempotency-keys/lookup", &[], json!({"key": key}).to_string()).await
    };
    let key = client.fresh_key();
    let unused = ask(client, &key).await;
    assert_eq!((unused.status, &unused.json()["state"]), (200, &json!("unused")));
    assert_eq!(unused.json()["original"], Value::Null);

    let first = client.transfer(&key, &stage.world, &stage.account, 5).await;
    assert_eq!(first.status, 201, "the question has not taken the key");
    assert!(client.transfer(&key, &stage.world, &stage.account, 5).await.replayed());
    assert_eq!(client.transfer(&key, &stage.world, &stage.account, 6).await.status, 422);
    // Between the count in memory and the one that is written, one is missing for a moment.
    harness::until("both attempts to be counted", async || ask(client, &key).await.json()["attempts"] == 3).await;
    let used = ask(client, &key).await.json();
    assert_eq!((&used["state"], &used["operation"]), (&json!("completed"), &json!("transfer.post")));
    assert_eq!(used["original"]["location"], first.header("location"));

    let stranger = client.with_key(&stage.books.another_principal(&stage.books.owner).await.test);
    assert_eq!(ask(&stranger, &key).await.json()["state"], "unused", "a key belongs to its principal");
    let live = client.with_key(&stage.books.owner.live);
    let reply = ask(&live, &key).await;
    assert_eq!((reply.status, reply.problem().as_str()), (422, "idempotency-key-environment-mismatch"));
    let reply = client.post_raw("/v1/idempotency-keys/lookup", &[], "{\"key\":\"\"}").await;
    assert_eq!((reply.status, reply.json()["errors"][0]["pointer"].clone()), (400, json!("/key")));

    // What is counted is written in the end, and adds up over processes.
    let other = stage.books.api().await;
    assert!(client.at(&other).transfer(&key, &stage.world, &stage.account, 5).await.replayed());
    harness::until("all attempts to be counted", async || ask(client, &key).await.json()["attempts"] == 4).await;
    stage.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_a_stricter_version_would_refuse_is_still_replayed() {
    let stage = Stage::open(&[]).await;
    let client = &stage.client;
    let key = client.fresh_key();
    let first = client.transfer(&key, &stage.world, &stage.account, 5).await;
    assert_eq!(first.status, 201);
    let stricter = stage.books.api_with(&[("ONCEPOST_FAILPOINT", "stricter-rules:refuse")]).await;
    let stricter = client.at(&stricter);
    let again = stricter.transfer(&key, &stage.world, &stage.account, 5).await;
    assert_eq!((again.status, again.replayed(), again.body), (201, true, first.body));
    let other = stricter.transfer(&key, &stage.world, &stage.account, 6).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "idempotency-key-reused"));
    let fresh = stricter.fresh_key();
    let refused = stricter.transfer(&fresh, &stage.world, &stage.account, 5).await;
    assert_eq!((refused.status, refused.problem().as_str()), (400, "malformed-request"));
    assert_eq!(client.transfer(&fresh, &stage.world, &stage.account, 5).await.status, 201, "and left its key free");
    stage.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_costs_nothing_of_a_rate_limit_and_a_request_beyond_it_leaves_its_key_free() {
    let stage = Stage::open(&[]).await;
    let limited = stage.books.api_with(&[("RATE_LIMIT_PER_SECOND", "2")]).await;
    let client = stage.client.at(&limited);
    let send = async |key: &str| client.transfer(key, &stage.world, &stage.account, 5).await;
    let key = client.fresh_key();
    let first = send(&key).await;
    assert_eq!(first.status, 201);
    assert_eq!(first.header("ratelimit-policy"), "\"principal\";q=2;w=1");
    for _ in 0..3 {
        let replay = send(&key).await;
        assert_eq!((replay.status, replay.replayed()), (201, true));
        assert!(!replay.header("ratelimit").starts_with("\"principal\";r=0;"), "a replay was charged: {replay:?}");
    }
    // Spend what is left of this second; then a fresh request is refused, and the replay is not.
    let mut refused = None;
    for _ in 0..10 {
        let fresh = client.fresh_key();
        let reply = send(&fresh).await;
        if reply.status == 429 {
            refused = Some((fresh, reply));
            break;
        }
        assert_eq!(reply.status, 201);
    }
    let (fresh, reply) = refused.expect("ten at once are more than two a second");
    assert_eq!((reply.problem().as_str(), reply.header("retry-after")), ("rate-limited", "1"));
    assert!(reply.header("ratelimit").starts_with("\"principal\";r=0;"), "{reply:?}");
    for _ in 0..4 {
        let replay = send(&key).await;
        assert_eq!((replay.status, replay.replayed()), (201, true));
    }
    harness::until("the limit to allow another", async || {
        let reply = send(&fresh).await;
        assert!(reply.status == 429 || (reply.status == 201 && !reply.replayed()), "{reply:?}");
        reply.status == 201
    })
    .await;
    // Another environment, and another process, count by themselves.
    assert_eq!(stage.client.transfer(&client.fresh_key(), &stage.world, &stage.account, 5).await.status, 201);
    stage.books.finish().await;
}
