//! Drills of PostgreSQL: it is down, it is slow, its disk fills up, or someone else holds what the ledger needs.

use harness::{Account, Client, Metrics, until};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::page::Reader;
use crate::stand::{Stand, seen};

/// A session as a person with psql has it, inside a transaction that began with a statement; and what its finder knows of it.
async fn forgotten_session(stand: &Stand, statement: &str) -> (PgConnection, (&'static str, String)) {
    let mut session = stand.session().await;
    let pid = seen(&mut session).await;
    for statement in ["SET application_name = 'psql'", "BEGIN", statement] {
        session.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
    }
    (session, pid)
}

async fn lock_by_hand(stand: &Stand, account: &Account) -> (PgConnection, (&'static str, String)) {
    forgotten_session(stand, &format!("SELECT FROM accounts WHERE id = '{account}' FOR UPDATE")).await
}

/// Commits wait for a standby that does not come.
async fn lose_standby(stand: &Stand) {
    stand.word(&["sql", "ALTER SYSTEM SET synchronous_standby_names = 'standby_1'"]).await;
    stand.word(&["sql", "SELECT pg_reload_conf()"]).await;
    let waits = "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_standby_names' AND setting <> ''";
    until("commits to wait for the standby", async || stand.lock().await.books.count(waits).await == 1).await;
}

pub(crate) async fn postgres_down() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    stand.word(&["stop", "postgres"]).await;
    let key = client.fresh_key();
    let reply = client.transfer(&key, &world, &account, 1).await;
    assert!(reply.status == 503 && reply.try_again(), "{reply:?}");
    Reader::open("postgres-down", &stand, &[]).await.finish().await;
    assert_eq!(client.transfer_until_final(&key, &world, &account, 1).await.status, 201);
}

pub(crate) async fn contended_accounts() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let (mut held, pid) = lock_by_hand(&stand, &account).await;
    // It does something, so that it is not idle.
    let working = tokio::spawn(async move { held.execute("SELECT pg_sleep(600)").await });
    let request = stand.request(&client, &world, &account).await;
    let reply = request.send(&client).await;
    assert!(reply.status == 503 && reply.try_again(), "{reply:?}");
    Reader::open("contended-accounts", &stand, &request.known(&[pid])).await.finish().await;
    assert!(working.await.unwrap().is_err(), "its session is ended");
    assert_eq!(stand.lock().await.books.posted(&account).await, 10_005, "it ran once");
}

pub(crate) async fn operations_stuck() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let (_held, pid) = lock_by_hand(&stand, &account).await;
    let request = stand.request(&client, &world, &account).await;
    let asked = client.request(reqwest::Method::POST, "/v1/transfers").header("idempotency-key", &request.key);
    let asked = asked.header("content-type", "application/json").header("prefer", "respond-async");
    let reply = client.send(asked.body(request.body.to_string())).await.unwrap();
    assert_eq!(reply.status, 202, "{reply:?}");
    let known = [pid, ("newer", "oncepost:3".to_owned())];
    Reader::open("operations-stuck", &stand, &known).await.finish().await;
    assert_eq!(request.send(&client).await.status, 201, "it has its outcome");
}

pub(crate) async fn in_progress_spike() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let request = stand.request(&client, &world, &account).await;
    lose_standby(&stand).await;
    let first = {
        let (client, key, body) = (client.clone(), request.key.clone(), request.body.clone());
        tokio::spawn(async move { client.post("/v1/transfers", &key, &body).await })
    };
    until("the first request to commit", async || waits_for_standby(&stand).await).await;
    let retry = client.request(reqwest::Method::POST, "/v1/transfers").header("idempotency-key", &request.key);
    let retry = retry.header("content-type", "application/json").header("prefer", "wait=1");
    let retry = client.send(retry.body(request.body.to_string())).await.unwrap();
    assert_eq!((retry.status, retry.problem().as_str()), (409, "request-in-progress"));
    Reader::open("in-progress-spike", &stand, &request.known(&[])).await.finish().await;
    let first = first.await.unwrap();
    assert!(first.status == 201 || first.try_again(), "{first:?}");
    assert_eq!(stand.lock().await.books.posted(&account).await, 10_005, "it ran once");
}

async fn waits_for_standby(stand: &Stand) -> bool {
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE application_name = 'oncepost-committer' AND wait_event = 'SyncRep'";
    stand.lock().await.books.count(waiting).await > 0
}

pub(crate) async fn shedding() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    // Some batches, so that the queue knows how long an operation takes.
    for _ in 0..20 {
        assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    }
    lose_standby(&stand).await;
    let mut keys = Vec::new();
    let mut crowd = |count| {
        for _ in 0..count {
            let key = client.fresh_key();
            keys.push(key.clone());
            let (client, world, account) = (client.clone(), world.clone(), account.clone());
            tokio::spawn(async move { client.try_transfer(&key, &world, &account, 1).await });
        }
    };
    crowd(600);
    // A burst is served; it is what comes for longer that is refused.
    until("requests to be refused", async || {
        crowd(10);
        let metrics = Metrics::parse(&stand.word(&["metrics", "api"]).await);
        metrics.value("oncepost_shed_total{reason=\"slow\"}").is_some_and(|refused| refused > 0.0)
    })
    .await;
    let mut reader = Reader::open("shedding", &stand, &[]).await;
    reader.read_to("## Mitigation").await;
    // What the page of the cause says.
    stand.word(&["sql", "ALTER SYSTEM RESET synchronous_standby_names"]).await;
    stand.word(&["sql", "SELECT pg_reload_conf()"]).await;
    reader.finish().await;
    retry_all(&client, &keys, &world, &account).await;
    let all = i64::try_from(keys.len()).unwrap();
    assert_eq!(stand.lock().await.books.posted(&account).await, 10_020 + all, "each ran once");
}

async fn retry_all(client: &Client, keys: &[String], world: &Account, account: &Account) {
    for key in keys {
        assert_eq!(client.transfer_until_final(key, world, account, 1).await.status, 201);
    }
}

pub(crate) async fn pool_exhausted() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    stand.configured("DATABASE_POOL_SIZE", "1").await;
    let (_held, pid) = forgotten_session(&stand, "LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").await;
    let readers = tokio::spawn({
        let (client, path) = (client.clone(), format!("/v1/accounts/{account}"));
        async move {
            loop {
                // An answer is not awaited by any of them for long; the next one comes at once.
                let request = client.request(reqwest::Method::GET, &path);
                let _answer = client.send(request).await;
            }
        }
    });
    let mut reader = Reader::open("pool-exhausted", &stand, &[pid]).await;
    reader.read_to("2. More sessions").await;
    readers.abort();
    reader.finish().await;
    assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
}

pub(crate) async fn clock_skew() {
    let stand = Stand::open().await;
    // PostgreSQL's clock is five minutes ahead, for everyone who asks it.
    stand
        .sql(
            "CREATE SCHEMA ahead;
             CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql
               AS $$ SELECT pg_catalog.clock_timestamp() + interval '5 minutes' $$;
             ALTER ROLE postgres SET search_path = ahead, public, pg_catalog",
        )
        .await;
    stand.word(&["restart", "api"]).await;
    let mut reader = Reader::open("clock-skew", &stand, &[]).await;
    reader.read_to("Then set the wrong clock right").await;
    // For sessions that are open as well.
    stand
        .sql(
            "CREATE OR REPLACE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql
               AS $$ SELECT pg_catalog.clock_timestamp() $$",
        )
        .await;
    reader.finish().await;
}

pub(crate) async fn disk_filling() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    stand.accounts(&client).await;
    // A standby that was taken away, and what PostgreSQL keeps for it: each file of log has 16 MiB.
    stand.sql("SELECT pg_create_physical_replication_slot('standby_2', true)").await;
    for _ in 0..4 {
        stand.sql("SELECT pg_logical_emit_message(false, 'drill', 'a reason for another file')").await;
        stand.sql("SELECT pg_switch_wal()").await;
    }
    Reader::open("disk-filling", &stand, &[("slot", "standby_2".to_owned())]).await.finish().await;
}

pub(crate) async fn retention_stalled() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    stand.accounts(&client).await;
    // The answers of a day that should be gone, and a report that someone forgot.
    stand
        .sql(
            "DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - 12; BEGIN
               EXECUTE format('CREATE TABLE %I PARTITION OF idempotency_responses FOR VALUES FROM (%L) TO (%L)',
                 'idempotency_responses_' || to_char(day, 'YYYYMMDD'), day, day + 1);
             END $$",
        )
        .await;
    let (_held, pid) = forgotten_session(&stand, "SELECT count(*) FROM idempotency_responses").await;
    stand.word(&["restart", "api"]).await;
    Reader::open("retention-stalled", &stand, &[pid]).await.finish().await;
}
