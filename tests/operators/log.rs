//! The log: one line for each request, and never a key (I10).

use harness::{Books, Client, until};
use serde_json::{Value, json};

/// The access lines of a process, by the id that the answer carried.
fn line_of(log: &[String], request_id: &str) -> Option<Value> {
    let lines = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found = lines.filter(|line| line["target"] == "api::access" && line["fields"]["request_id"] == request_id);
    let line = found.next();
    assert!(found.next().is_none(), "one line a request");
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_leaves_one_line_that_says_who_what_and_what_came_of_it() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let shop = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let first = client.transfer(&key, &world, &shop, 5).await;
    let second = client.transfer(&key, &world, &shop, 5).await;
    let third = client.transfer(&key, &world, &shop, 6).await;
    let read = client.get(&format!("/v1/accounts/{shop}")).await;
    let nobody = Client::new(&api, "sk_test_nobody").get("/v1/transfers").await;

    let hash: String =
        sqlx::query_scalar("SELECT encode(key_hash, 'hex') FROM idempotency_records WHERE response_id = $1::uuid")
            .bind(first.json()["id"].as_str().unwrap())
            .fetch_one(&books.pool)
            .await
            .unwrap();
    let principal = books.owner.principal.to_string();
    for (reply, operation, outcome, who, hash) in [
        (&first, "/v1/transfers", "fresh", Some(&principal), Some(&hash[..8])),
        (&second, "/v1/transfers", "replayed", Some(&principal), Some(&hash[..8])),
        (&third, "/v1/transfers", "idempotency-key-reused", Some(&principal), Some(&hash[..8])),
        (&read, "/v1/accounts/{id}", "ok", Some(&principal), None),
        (&nobody, "/v1/transfers", "unauthenticated", None, None),
    ] {
        let id = reply.header("x-request-id");
        let mut line = None;
        until("the request's line", async || {
            line = line_of(&api.log(), id);
            line.is_some()
        })
        .await;
        let line = line.unwrap();
        let fields = &line["fields"];
        assert_eq!(fields["message"], "request");
        assert_eq!(fields["operation"], operation);
        assert_eq!(fields["outcome"], outcome);
        assert_eq!(fields["status"], reply.status);
        assert_eq!(fields["principal_id"], json!(who));
        assert_eq!(fields["key_hash"], json!(hash));
        assert_eq!(fields["environment"], json!(who.map(|_| "test")));
        assert_eq!(fields["trace_id"].as_str().unwrap().len(), 32);
        assert!(fields["duration_seconds"].as_f64().unwrap() > 0.0);
        assert_eq!(line["level"], "INFO");
    }
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_raw_key_is_in_the_log_in_a_metric_in_an_answer_or_in_a_table() {
    let books = Books::open().await;
    // Everything that may be logged, which nobody would do to a live system.
    let api = books.api_with(&[("RUST_LOG", "trace")]).await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let shop = books.account(&client, Some(0)).await;

    let key = |mark: &str| format!("raw-key-{mark}-41c7");
    let mut answers = Vec::new();
    for amount in [5, 5, 6] {
        answers.push(client.transfer(&key("first"), &world, &shop, amount).await);
    }
    answers.push(client.transfer(&key("reused"), &world, &shop, 1).await);
    answers.push(client.transfer(&key("declined"), &shop, &world, 1_000).await);
    answers.push(client.post("/v1/transfers", &key("malformed"), &json!({"amount": -1})).await);
    answers.push(client.post("/v1/transfers?unknown=raw-key-in-a-query-41c7", &key("malformed"), &json!({})).await);
    answers.push(client.post("/v1/idempotency-keys/lookup", "unused", &json!({"key": key("looked-up")})).await);
    let body = json!({"source_account_id": world, "destination_account_id": shop, "amount": 1, "currency": "EUR"});
    let accepted = [("idempotency-key", key("accepted")), ("prefer", "respond-async, wait=5".to_owned())];
    let accepted = accepted.each_ref().map(|(name, value)| (*name, value.as_bytes()));
    answers.push(client.post_raw("/v1/transfers", &accepted, body.to_string()).await);
    let quoted = format!("\"{}\"", key("quoted\\\"inside"));
    answers.push(client.post_raw("/v1/transfers", &[("idempotency-key", quoted.as_bytes())], body.to_string()).await);
    answers.push(client.post("/v1/transfers?dry_run=true", &key("dry-run"), &body).await);
    for (name, value) in
        [("idempotency-key", &b"raw-key-broken-41c7\xff"[..]), ("authorization", b"Bearer raw-key-wrong-41c7")]
    {
        answers.push(client.post_raw("/v1/transfers", &[(name, value)], body.to_string()).await);
    }
    assert_eq!(answers.iter().filter(|answer| answer.status < 300).count(), 7, "{answers:#?}");

    let metrics = reqwest::get(format!("{}/metrics", api.url())).await.unwrap().text().await.unwrap();
    let mut told = api.log();
    assert!(told.iter().any(|line| line.contains("DEBUG")), "the log has to say all that it can");
    told.push(metrics);
    told.extend(answers.iter().map(|answer| format!("{:?} {}", answer.headers, String::from_utf8_lossy(&answer.body))));
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT c.relname::text FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace")
            .fetch_all(&books.pool)
            .await
            .unwrap();
    assert!(tables.iter().any(|table| table == "idempotency_records"));
    for table in tables {
        let rows = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT t::text FROM {table} t")));
        let rows: Vec<String> = rows.fetch_all(&books.pool).await.unwrap();
        // bytea is shown as hexadecimal digits, so a key that was stored as bytes is looked for in that form as well.
        told.extend(rows);
    }
    let secret_part = books.owner.test.rsplit('_').next().unwrap();
    let hidden: Vec<String> = ["41c7".to_owned(), "raw-key".to_owned(), secret_part.to_owned()].into();
    for text in told {
        // The one query that a client has made up is the client's own, and stands in no line either.
        for secret in &hidden {
            let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
            assert!(!text.contains(secret) && !text.contains(&hex), "a key is told: {text}");
        }
    }
    books.finish().await;
}
