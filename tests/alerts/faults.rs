//! Each alert that a fault can raise here is raised by that fault: real processes are scraped, and the real rules evaluated.
//! Nothing but the named alerts fires, and nothing at all before the fault.
//!
//! DiskFilling is not among them: it takes a disk that fills up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Account, Books, Client, MailServer, Metrics, Process, Proxy, until};
use serde_json::json;
use sqlx::postgres::PgPool;
use stack::Kafka;
use tokio::task::JoinHandle;

use crate::tape::{Tape, Target};

/// How long all is well before a fault, in minutes.
const WELL: usize = 15;
/// Longer than any wait of an alert that has one of minutes, shorter than the window of ten minutes that a burst stays in.
/// What was answered 503 burns in SloBurn's windows of half an hour and more, whatever its cause was, and goes on to.
const FAULT: usize = 8;

/// An API with two accounts, and what Prometheus sees of it.
struct Ledger {
    books: Books,
    api: Process,
    client: Client,
    world: Account,
    account: Account,
    tape: Tape,
}

impl Ledger {
    async fn open() -> Self {
        Self::open_with(&[]).await
    }

    async fn open_with(environment: &[(&str, &str)]) -> Self {
        Self::of(Books::open().await, environment).await
    }

    async fn of(books: Books, environment: &[(&str, &str)]) -> Self {
        let api = books.api_with(environment).await;
        let client = Client::new(&api, &books.owner.live);
        let world = books.account(&client, None).await;
        let account = books.account(&client, Some(0)).await;
        let tape = Tape::of(&[of_api(&api)]);
        Self { books, api, client, world, account, tape }
    }

    /// Ends the API and starts it anew at the same place. What costs more to ask, an API asks PostgreSQL once a minute, and when
    /// it starts.
    async fn start_api_again(&mut self) {
        let address = self.api.url().replace("http://", "");
        self.api.kill();
        self.api = self.books.api_with(&[("LISTEN", &address)]).await;
    }

    /// A transfer under a key.
    async fn post(&self, key: &str) -> u16 {
        self.client.transfer(key, &self.world, &self.account, 5).await.status
    }

    /// Sends transfers under keys of their own, all at once, and returns what they were answered.
    async fn crowd(&self, count: usize) -> Vec<u16> {
        Self::answers((0..count).map(|_| self.begin()).collect()).await
    }

    /// A transfer that is under way.
    fn begin(&self) -> JoinHandle<u16> {
        let (client, from, to) = (self.client.clone(), self.world.clone(), self.account.clone());
        tokio::spawn(async move { client.transfer(&client.fresh_key(), &from, &to, 5).await.status })
    }

    async fn answers(posts: Vec<JoinHandle<u16>>) -> Vec<u16> {
        let mut statuses = Vec::new();
        for post in posts {
            statuses.push(post.await.unwrap());
        }
        statuses
    }

    /// A transfer as JSON.
    fn body(&self) -> String {
        let (from, to) = (&self.world, &self.account);
        json!({"source_account_id": from, "destination_account_id": to, "amount": 5, "currency": "EUR"}).to_string()
    }
}

fn of_api(api: &Process) -> Target {
    Target { job: "oncepost-api", url: api.url() }
}

fn of_relay(relay: &Process) -> Target {
    Target { job: "oncepost-relay", url: relay.url() }
}

async fn run(pool: &PgPool, statements: &'static str) {
    sqlx::raw_sql(statements).execute(pool).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_client_that_puts_the_time_into_each_attempt_raises_conflict_spike() {
    let mut ledger = Ledger::open().await;
    ledger.tape.hold(WELL).await;
    let accounts = format!(r#""source_account_id":"{}","destination_account_id":"{}""#, ledger.world, ledger.account);
    let post = async |key: &str, members: &str| {
        let body = format!(r#"{{{accounts},"currency":"EUR",{members}}}"#);
        ledger.client.post_raw("/v1/transfers", &[("idempotency-key", key.as_bytes())], body).await
    };
    for payment in 0..30 {
        let key = ledger.client.fresh_key();
        let reply = post(&key, &format!(r#""amount":5,"metadata":{{"sent_at":"{payment}"}}"#)).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        // Other white space and members in another order are the same request.
        if payment < 3 {
            assert!(post(&key, &format!(r#" "metadata" : {{"sent_at":"{payment}"}}, "amount":5"#)).await.replayed());
        }
        if payment < 10 {
            let reply = post(&key, &format!(r#""amount":5,"metadata":{{"sent_at":"{payment}.5"}}"#)).await;
            assert_eq!(reply.problem(), "idempotency-key-reused");
        }
    }
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["ConflictSpike"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_client_that_sends_everything_twice_raises_replay_spike() {
    let mut ledger = Ledger::open().await;
    ledger.tape.hold(WELL).await;
    for _ in 0..30 {
        let key = ledger.client.fresh_key();
        assert_eq!((ledger.post(&key).await, ledger.post(&key).await), (201, 201));
    }
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["ReplaySpike"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_client_that_mixes_its_api_keys_up_raises_environment_mismatch_spike() {
    let mut ledger = Ledger::open().await;
    ledger.tape.hold(WELL).await;
    let test = ledger.client.with_key(&ledger.books.owner.test);
    for _ in 0..10 {
        let key = ledger.client.fresh_key();
        assert_eq!(ledger.post(&key).await, 201);
        let reply = test.transfer(&key, &ledger.world, &ledger.account, 5).await;
        assert_eq!(reply.problem(), "idempotency-key-environment-mismatch");
    }
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["EnvironmentMismatchSpike"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn retries_that_meet_a_request_that_hangs_raise_in_progress_spike() {
    let mut ledger = Ledger::open().await;
    ledger.tape.hold(WELL).await;
    let lock = ledger.books.lock(&ledger.account).await;
    let key = ledger.client.fresh_key();
    let body = ledger.body();
    // Whichever comes first waits for the account; the others don't wait for it.
    let attempts: Vec<_> = (0..15)
        .map(|_| {
            let (client, key, body) = (ledger.client.clone(), key.clone(), body.clone());
            tokio::spawn(async move {
                let headers: [(&str, &[u8]); 2] = [("idempotency-key", key.as_bytes()), ("prefer", b"wait=0")];
                client.post_raw("/v1/transfers", &headers, body).await.status
            })
        })
        .collect();
    let mut in_progress = 0;
    for attempt in attempts {
        in_progress += usize::from(attempt.await.unwrap() == 409);
    }
    assert!(in_progress >= 10, "{in_progress}");
    lock.rollback().await.unwrap();
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["InProgressSpike"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_postgresql_that_stops_raises_postgres_down_and_slo_burn() {
    let mut ledger = Ledger::open().await;
    ledger.tape.hold(WELL).await;
    ledger.books.postgres().stop().await.unwrap();
    ledger.tape.wait_for(&["oncepost_database_up{"], |up| up == 0.0).await;
    assert!(ledger.crowd(15).await.iter().all(|status| *status == 503));
    ledger.tape.hold(3).await;
    ledger.books.postgres().restart().await.unwrap();
    ledger.tape.wait_for(&["oncepost_database_up{"], |up| up == 1.0).await;
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["PostgresDown", "SloBurn"], &["SloBurn"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_schema_that_is_not_ours_raises_server_errors() {
    let mut ledger = Ledger::open().await;
    assert_eq!(ledger.post("before").await, 201);
    ledger.tape.hold(WELL).await;
    run(&ledger.books.pool, "ALTER TABLE transfers ADD CONSTRAINT of_another_hand CHECK (amount <> 13)").await;
    let reply = ledger.client.transfer(&ledger.client.fresh_key(), &ledger.world, &ledger.account, 13).await;
    assert_eq!(reply.status, 500, "{reply:?}");
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["ServerErrors"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_table_locked_by_hand_raises_pool_exhausted() {
    let mut ledger = Ledger::open_with(&[("DATABASE_POOL_SIZE", "1")]).await;
    ledger.tape.hold(WELL).await;
    let mut lock = ledger.books.pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let path = format!("/v1/accounts/{}", ledger.account);
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (client, path) = (ledger.client.clone(), path.clone());
            tokio::spawn(async move { while client.get(&path).await.status != 200 {} })
        })
        .collect();
    let used = ["oncepost_pool_sessions{", "pool=\"reads\"", "state=\"used\""];
    ledger.tape.wait_for(&used, |sessions| sessions == 1.0).await;
    ledger.tape.hold(FAULT).await;
    lock.rollback().await.unwrap();
    for reader in readers {
        reader.await.unwrap();
    }
    ledger.tape.wait_for(&used, |sessions| sessions == 0.0).await;
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["PoolExhausted"], &[]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_row_locked_by_hand_raises_contended_accounts_and_operations_stuck() {
    let mut ledger = Ledger::open().await;
    assert_eq!(ledger.post("before").await, 201);
    ledger.tape.hold(WELL).await;
    let lock = ledger.books.lock(&ledger.account).await;
    let body = ledger.body();
    let headers: [(&str, &[u8]); 2] = [("idempotency-key", b"accepted"), ("prefer", b"respond-async")];
    let reply = ledger.client.post_raw("/v1/transfers", &headers, body).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    assert!(ledger.crowd(30).await.iter().all(|status| *status == 503));
    // Ten minutes pass.
    run(&ledger.books.pool, "UPDATE operations SET created_at = created_at - interval '10 minutes'").await;
    ledger.tape.wait_for(&["oncepost_operations_oldest_seconds"], |seconds| seconds > 600.0).await;
    ledger.tape.hold(FAULT).await;
    lock.rollback().await.unwrap();
    ledger.tape.wait_for(&["oncepost_operations_unfinished"], |operations| operations == 0.0).await;
    ledger.tape.wait_for(&["oncepost_operations_oldest_seconds"], |seconds| seconds == 0.0).await;
    ledger.tape.hold(WELL).await;
    ledger.tape.fires(&[&[], &["ContendedAccounts", "OperationsStuck", "SloBurn"], &["SloBurn"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_balance_changed_by_hand_raises_audit_failing() {
    let mut ledger = Ledger::open().await;
    assert_eq!(ledger.post("before").await, 201);
    ledger.tape.hold(WELL).await;
    let findings = ["oncepost_audit_findings{", "promise=\"I2\""];
    run(&ledger.books.pool, "UPDATE accounts SET posted = posted + 1 WHERE posted > 0").await;
    assert_eq!(ledger.books.command("api", &["audit"], "").await.code, 1);
    ledger.start_api_again().await;
    ledger.tape.wait_for(&findings, |found| found > 0.0).await;
    ledger.tape.hold(FAULT).await;
    run(&ledger.books.pool, "UPDATE accounts SET posted = posted - 1 WHERE posted > 0").await;
    assert_eq!(ledger.books.command("api", &["audit"], "").await.code, 0);
    ledger.start_api_again().await;
    ledger.tape.wait_for(&findings, |found| found == 0.0).await;
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["AuditFailing"], &[]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn an_audit_that_hangs_for_days_raises_audit_late() {
    let mut ledger = Ledger::open().await;
    let finished = ["oncepost_audit_finished_timestamp_seconds"];
    ledger.tape.wait_for(&finished, |at| at > 0.0).await;
    ledger.tape.hold(WELL).await;
    // What a process holds that audits; and two days pass.
    let mut auditor = ledger.books.pool.acquire().await.unwrap();
    sqlx::raw_sql("SELECT pg_advisory_lock(x'6f6e63650003'::bigint)").execute(&mut *auditor).await.unwrap();
    let pass =
        "UPDATE audits SET started_at = started_at - interval '2 days', finished_at = finished_at - interval '2 days'";
    run(&ledger.books.pool, pass).await;
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() - 86_400.0;
    ledger.start_api_again().await;
    ledger.tape.wait_for(&finished, |at| at > 0.0 && at < before).await;
    ledger.tape.hold(70).await;
    auditor.close().await.unwrap();
    ledger.tape.fires(&[&[], &["AuditLate"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_day_of_answers_that_someone_reads_for_ever_raises_retention_stalled() {
    let mut ledger = Ledger::open().await;
    // Else AuditLate has a say, too.
    ledger.tape.wait_for(&["oncepost_audit_finished_timestamp_seconds"], |at| at > 0.0).await;
    ledger.tape.hold(WELL).await;
    // One day is enough: it is its age that counts.
    let day = "DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - 14; BEGIN
        EXECUTE format('CREATE TABLE %I PARTITION OF idempotency_responses FOR VALUES FROM (%L) TO (%L)',
            'idempotency_responses_' || to_char(day, 'YYYYMMDD'), day, day + 1);
    END $$";
    run(&ledger.books.pool, day).await;
    let mut reader = ledger.books.pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT count(*) FROM idempotency_responses").execute(&mut *reader).await.unwrap();
    ledger.start_api_again().await;
    ledger.tape.wait_for(&["oncepost_answer_days{"], |days| days > 9.0).await;
    ledger.tape.hold(130).await;
    reader.rollback().await.unwrap();
    ledger.tape.fires(&[&[], &["RetentionStalled"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_kafka_that_stops_raises_stuck_outbox_and_relay_restarting() {
    let ledger = Ledger::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let relay = ledger.books.relay_with(&kafka.bootstrap(), &[]).probed().await;
    let mut tape = Tape::of(&[of_api(&ledger.api), of_relay(&relay)]);
    assert_eq!(ledger.post("before").await, 201);
    tape.wait_for(&["oncepost_relay_published_total"], |events| events == 1.0).await;
    tape.hold(WELL).await;
    kafka.kill();
    assert_eq!(ledger.post("meanwhile").await, 201);
    // Ten minutes pass.
    run(&ledger.books.pool, "UPDATE outbox SET created_at = created_at - interval '10 minutes' WHERE position = 2")
        .await;
    tape.wait_for(&["oncepost_outbox_lag_seconds"], |seconds| seconds > 600.0).await;
    // Each attempt to reach Kafka takes its time.
    for count in 1..=6 {
        tape.wait_for(&["oncepost_relay_restarts_total"], |restarts| restarts >= f64::from(count)).await;
    }
    tape.hold(FAULT).await;
    kafka.restart().await.unwrap();
    tape.wait_for(&["oncepost_relay_published_total"], |events| events == 2.0).await;
    tape.wait_for(&["oncepost_outbox_lag_rows"], |rows| rows == 0.0).await;
    tape.hold(20).await;
    tape.fires(&[&[], &["RelayRestarting", "StuckOutbox"], &[]]);
    drop(relay);
    kafka.stop().await.unwrap();
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_ledger_that_went_back_in_time_raises_relay_halted() {
    let ledger = Ledger::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let mut relay = ledger.books.relay_with(&kafka.bootstrap(), &[]).probed().await;
    let mut tape = Tape::of(&[of_api(&ledger.api), of_relay(&relay)]);
    for key in ["one", "two"] {
        assert_eq!(ledger.post(key).await, 201);
    }
    tape.wait_for(&["oncepost_relay_published_total"], |events| events == 2.0).await;
    tape.hold(WELL).await;
    relay.terminate();
    relay.ended().await;
    // As after a restore from a backup.
    run(&ledger.books.pool, "DELETE FROM outbox WHERE position = 2").await;
    let address = relay.url().replace("http://", "");
    let relay = ledger.books.relay_with(&kafka.bootstrap(), &[("RELAY_LISTEN", &address)]).probed().await;
    tape.wait_for(&["oncepost_relay_halt{", "reason=\"outbox-behind\""], |halted| halted == 1.0).await;
    tape.hold(FAULT).await;
    tape.fires(&[&[], &["RelayHalted"]]);
    drop(relay);
    kafka.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_mail_server_that_is_gone_raises_receipts_behind() {
    let mut ledger = Ledger::open().await;
    run(&ledger.books.pool, "CREATE DATABASE receipts").await;
    let url = ledger.books.postgres().url_of("receipts");
    let mut kafka = Kafka::temporary().await.unwrap();
    let mut mail = MailServer::start();
    let relay = ledger.books.relay_with(&kafka.bootstrap(), &[]).probed().await;
    let settings = [("RECEIPT_FROM", "Shop <receipts@shop.example>"), ("RECEIPT_ENVIRONMENT", "live")];
    let receipts = Process::receipts(&url, &kafka.bootstrap(), &mail.url(), &settings).await;
    let of_receipts = Target { job: "oncepost-receipts", url: receipts.url() };
    let mut tape = Tape::of(&[of_api(&ledger.api), of_relay(&relay), of_receipts]);
    let post = async || {
        let body = json!({"source_account_id": ledger.world, "destination_account_id": ledger.account, "amount": 5,
            "currency": "EUR", "metadata": {"email": "ann@example.com"}});
        assert_eq!(ledger.client.post("/v1/transfers", &ledger.client.fresh_key(), &body).await.status, 201);
    };
    post().await;
    let sent = ["oncepost_receipts_attempts_total{", "outcome=\"sent\""];
    tape.wait_for(&sent, |mails| mails == 1.0).await;
    tape.hold(WELL).await;
    mail.close();
    post().await;
    tape.wait_for(&["oncepost_receipts_waiting{"], |waiting| waiting == 1.0).await;
    // A quarter of an hour passes.
    let pool = PgPool::connect(&url).await.unwrap();
    run(&pool, "UPDATE inbox SET received_at = received_at - interval '15 minutes'").await;
    tape.wait_for(&["oncepost_receipts_waiting_seconds"], |seconds| seconds > 600.0).await;
    tape.hold(FAULT).await;
    mail.open();
    run(&pool, "UPDATE receipts SET due_at = now() WHERE state = 'waiting'").await;
    tape.wait_for(&sent, |mails| mails == 2.0).await;
    tape.wait_for(&["oncepost_receipts_waiting{"], |waiting| waiting == 0.0).await;
    tape.hold(FAULT).await;
    tape.fires(&[&[], &["ReceiptsBehind"], &[]]);
    pool.close().await;
    drop((receipts, relay));
    kafka.stop().await.unwrap();
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn processes_that_die_raise_process_down() {
    let mut ledger = Ledger::open().await;
    let mut other = ledger.books.api().await;
    let mut tape = Tape::of(&[of_api(&ledger.api), of_api(&other)]);
    tape.hold(WELL).await;
    other.kill();
    // A ticket after five minutes, while one process goes on; someone is woken when none is left.
    tape.hold(4).await;
    tape.hold(4).await;
    ledger.api.kill();
    tape.hold(3).await;
    tape.fires(&[&[], &[], &["ProcessDown"], &["ProcessDown"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_database_that_is_slow_under_load_raises_shedding() {
    let books = Books::open().await;
    let network = Proxy::before(&books.url).await;
    let through_it = network.url(&books.url);
    let mut ledger = Ledger::of(books, &[("DATABASE_URL", &through_it)]).await;
    assert_eq!(ledger.post("before").await, 201);
    ledger.tape.hold(WELL).await;
    network.delay(Duration::from_millis(100));
    // A burst is served; it is what comes for longer that is refused, while the burst is under way.
    let mut posts: Vec<_> = (0..400).map(|_| ledger.begin()).collect();
    until("requests to be refused", async || {
        posts.extend((0..100).map(|_| ledger.begin()));
        let refused = Metrics::of(&ledger.api).await.value("oncepost_shed_total{reason=\"slow\"}");
        refused.is_some_and(|refused| refused > 50.0)
    })
    .await;
    Ledger::answers(posts).await;
    network.delay(Duration::ZERO);
    ledger.tape.hold(FAULT).await;
    ledger.tape.fires(&[&[], &["Shedding", "SloBurn"]]);
    ledger.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: apt install prometheus"]
async fn a_postgresql_whose_clock_is_ahead_raises_clock_skew() {
    let mut ledger = Ledger::open().await;
    ledger.tape.wait_for(&["oncepost_clock_skew_seconds"], |skew| skew.abs() < 1.0).await;
    ledger.tape.hold(WELL).await;
    let ahead = "CREATE SCHEMA ahead;
        CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql
            AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 minute' $$;
        ALTER ROLE ALL SET search_path = ahead, pg_catalog, public";
    run(&ledger.books.pool, ahead).await;
    ledger.start_api_again().await;
    ledger.tape.wait_for(&["oncepost_clock_skew_seconds"], |skew| skew < -50.0).await;
    ledger.tape.hold(WELL).await;
    ledger.tape.fires(&[&[], &["ClockSkew"]]);
    run(&ledger.books.pool, "ALTER ROLE ALL RESET search_path").await;
    ledger.books.finish().await;
}
