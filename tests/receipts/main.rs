//! Side effects beyond HTTP: the example consumer sends one receipt for each transfer, counted by a real mail server that
//! sees every delivery and shows, as mail stores do that honour message ids, one mail for each id.

mod records;

use std::collections::HashSet;
use std::time::Duration;

use harness::{Books, Client, MailServer, Process, until};
use rand::RngExt;
use serde_json::{Value, json};
use sqlx::postgres::{PgPool, PgPoolOptions};
use stack::{Kafka, Postgres};

use crate::records::Records;

/// How long a mail may take here; after twice that, a receipt whose process died is sent again.
const SMTP_TIMEOUT_SECONDS: &str = "5";

/// Starts the consumer. Its name in the group makes the partitions of a killed one its own at once.
async fn consumer(database: &str, kafka: &Kafka, mail: &MailServer, environment: &[(&str, &str)]) -> Process {
    let mut all = vec![
        ("RECEIPT_FROM", "Shop <receipts@shop.example>"),
        ("RECEIPT_ENVIRONMENT", "test"),
        ("SMTP_TIMEOUT_SECONDS", SMTP_TIMEOUT_SECONDS),
        ("KAFKA_GROUP_INSTANCE_ID", "receipts-0"),
    ];
    all.extend_from_slice(environment);
    Process::receipts(database, &kafka.bootstrap(), &mail.url(), &all).await
}

async fn stopped(mut consumer: Process) {
    consumer.terminate();
    assert!(consumer.ended().await.success(), "{:#?}", consumer.log());
}

async fn get(consumer: &Process, path: &str) -> (u16, String) {
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap();
    let answer = http.get(format!("{}{path}", consumer.url())).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// The value of a metric, with its labels as they are printed.
async fn metric(consumer: &Process, name: &str) -> f64 {
    let (_, text) = get(consumer, "/metrics").await;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::parse);
    value.unwrap_or_else(|| panic!("no {name} in {text}")).unwrap()
}

const DUPLICATES: &str = r#"oncepost_receipts_events_total{outcome="duplicate"}"#;

/// What is still to be done.
const OPEN: &str = "SELECT state FROM receipts WHERE state <> 'sent'";

async fn rows(pool: &PgPool, query: &'static str) -> Vec<Value> {
    let all = format!("SELECT to_jsonb(found) FROM ({query}) found");
    sqlx::query_scalar(sqlx::AssertSqlSafe(all)).fetch_all(pool).await.unwrap()
}

/// A consumer's database on a server of its own.
async fn database() -> (Postgres, String, PgPool) {
    let postgres = Postgres::temporary().await.unwrap();
    let url = postgres.url();
    let pool = PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
    (postgres, url, pool)
}

/// The books' server holds the consumer's database too, beside the ledger's.
async fn database_beside(books: &mut Books) -> (String, PgPool) {
    sqlx::raw_sql("CREATE DATABASE receipts").execute(&books.pool).await.unwrap();
    let url = books.postgres().url_of("receipts");
    let pool = PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
    (url, pool)
}

async fn post(client: &Client, key: &str, from: &str, to: &str, email: &str) -> bool {
    let body = json!({"source_account_id": from, "destination_account_id": to, "amount": 1250, "currency": "EUR",
        "description": "Order 1001", "metadata": {"email": email}});
    let reply = client.post("/v1/transfers", key, &body).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.replayed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_retried_five_times_a_relay_killed_twice_and_a_record_delivered_again_send_one_receipt() {
    let mut books = Books::open().await;
    let (url, pool) = database_beside(&mut books).await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let mail = MailServer::start();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;

    let key = client.fresh_key();
    for attempt in 0..=5 {
        assert_eq!(post(&client, &key, &world, &account, "ann@example.com").await, attempt > 0);
    }
    for failpoint in ["relay-before-commit:kill", "relay-after-commit:kill"] {
        let mut relay = books.relay_with(&kafka.bootstrap(), &[("ONCEPOST_FAILPOINT", failpoint)]);
        assert!(!relay.ended().await.success(), "{failpoint}");
    }
    let relay = books.relay_with(&kafka.bootstrap(), &[]);
    // Without a name in the group, so that the group is empty once it has stopped and its offsets can be set back.
    let nameless = [("KAFKA_GROUP_INSTANCE_ID", "")];
    let receipts = consumer(&url, &kafka, &mail, &nameless).await;
    until("the receipt", async || mail.mailbox().len() == 1).await;
    until("it to be ready", async || get(&receipts, "/readyz").await.0 == 200).await;
    stopped(receipts).await;

    Records::at(&kafka).rewind("oncepost-receipts").await;
    let receipts = consumer(&url, &kafka, &mail, &nameless).await;
    until("the record to come again", async || metric(&receipts, DUPLICATES).await == 1.0).await;
    stopped(receipts).await;

    let deliveries = mail.deliveries();
    assert_eq!(deliveries.len(), 1);
    let event: String = sqlx::query_scalar("SELECT event_id::text FROM outbox").fetch_one(&books.pool).await.unwrap();
    assert_eq!(deliveries[0].message_id, format!("<receipt.{event}@shop.example>"));
    assert_eq!(deliveries[0].recipient, "ann@example.com");
    assert!(String::from_utf8_lossy(&deliveries[0].bytes).contains("Amount:    12.50 EUR"));
    drop(relay);
    kafka.stop().await.unwrap();
    pool.close().await;
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_the_mail_and_its_commit_it_sends_the_same_mail_again_and_the_mailbox_holds_one() {
    let (mut postgres, url, pool) = database().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let mail = MailServer::start();
    let records = Records::made(&kafka).await;
    records.transfer("ann@example.com").await;

    let mut killed = consumer(&url, &kafka, &mail, &[("ONCEPOST_FAILPOINT", "receipts-after-send:kill")]).await;
    assert!(!killed.ended().await.success());
    assert_eq!(mail.deliveries().len(), 1, "the server took the mail");
    let state = "SELECT state, attempts FROM receipts";
    assert_eq!(rows(&pool, state).await, [json!({"state": "sending", "attempts": 1})], "nobody knows that it did");

    let receipts = consumer(&url, &kafka, &mail, &[]).await;
    let sent = [json!({"state": "sent", "attempts": 2})];
    until("the second attempt", async || rows(&pool, state).await == sent).await;
    assert_eq!(mail.deliveries().len(), 2, "a mail server alone can't tell: it took the mail twice");
    assert_eq!(mail.mailbox().len(), 1);
    stopped(receipts).await;
    kafka.stop().await.unwrap();
    pool.close().await;
    postgres.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_slept_through_its_lease_changes_nothing_when_it_wakes() {
    let (mut postgres, url, pool) = database().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let mail = MailServer::start();
    // The first attempt fails, and its consumer falls asleep before it can say so.
    mail.answer("ann@example.com", 550);
    let records = Records::made(&kafka).await;
    records.transfer("ann@example.com").await;
    let sleeper = consumer(&url, &kafka, &mail, &[("ONCEPOST_FAILPOINT", "receipts-after-send:pause")]).await;
    until("it to fall asleep", async || sleeper.said("failpoint").is_some()).await;
    mail.answer("ann@example.com", 250);
    let other = [("KAFKA_GROUP_INSTANCE_ID", "receipts-1"), ("ONCEPOST_FAILPOINT", "receipts-after-send:pause")];
    let other = consumer(&url, &kafka, &mail, &other).await;
    until("the other one to send, and to fall asleep", async || other.said("failpoint").is_some()).await;
    let state = "SELECT state, attempts FROM receipts";
    sleeper.thaw();
    let parked = "parked: see last_error of its row in receipts";
    until("the sleeper to go on", async || sleeper.said(parked).is_some()).await;
    let sending = [json!({"state": "sending", "attempts": 2})];
    assert_eq!(rows(&pool, state).await, sending, "a failure of an earlier attempt no longer counts");
    other.thaw();
    let sent = [json!({"state": "sent", "attempts": 2})];
    until("the other one to settle", async || rows(&pool, state).await == sent).await;
    stopped(sleeper).await;
    stopped(other).await;
    assert_eq!(mail.mailbox().len(), 1);
    kafka.stop().await.unwrap();
    pool.close().await;
    postgres.stop().await.unwrap();
}

/// Where a consumer is killed, around each commit and the mail.
const FAILPOINTS: [&str; 5] = [
    "receipts-before-inbox-commit",
    "receipts-before-offset",
    "receipts-before-send",
    "receipts-after-send",
    "receipts-after-send",
];

#[tokio::test(flavor = "multi_thread")]
async fn ten_kills_of_the_consumer_during_fifty_transfers_leave_fifty_mails() {
    const ROUNDS: usize = 10;
    const TRANSFERS_A_ROUND: usize = 5;
    let mut books = Books::open().await;
    let (url, pool) = database_beside(&mut books).await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let mail = MailServer::start();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let relay = books.relay_with(&kafka.bootstrap(), &[]);
    let mut expected = HashSet::new();
    for round in 0..ROUNDS {
        let failpoint = FAILPOINTS[round % FAILPOINTS.len()];
        let nth = rand::rng().random_range(1..=3);
        eprintln!("round {round}: {failpoint}:kill:{nth}");
        let armed = format!("{failpoint}:kill:{nth}");
        let mut receipts = consumer(&url, &kafka, &mail, &[("ONCEPOST_FAILPOINT", &armed)]).await;
        for transfer in 0..TRANSFERS_A_ROUND {
            let recipient = format!("customer-{round}-{transfer}@example.com");
            post(&client, &client.fresh_key(), &world, &account, &recipient).await;
            expected.insert(recipient);
        }
        assert!(!receipts.ended().await.success());
    }
    let receipts = consumer(&url, &kafka, &mail, &[]).await;
    until("every receipt to be sent", async || mail.mailbox().len() == expected.len()).await;
    until("every receipt to be known as sent", async || rows(&pool, OPEN).await.is_empty()).await;
    // The ends of the relay's transactions take offsets, too, and are no lag. Some are the last thing in their partition.
    until("no lag", async || metric(&receipts, "oncepost_receipts_lag_records").await == 0.0).await;
    let (mailbox, deliveries) = (mail.mailbox(), mail.deliveries());
    assert_eq!(mailbox.iter().map(|mail| mail.recipient.clone()).collect::<HashSet<_>>(), expected);
    assert_eq!(mailbox.len(), ROUNDS * TRANSFERS_A_ROUND);
    eprintln!("{} deliveries of {} mails", deliveries.len(), mailbox.len());
    assert!(deliveries.len() > mailbox.len(), "no kill came between a mail and its commit");
    stopped(receipts).await;
    drop(relay);
    kafka.stop().await.unwrap();
    pool.close().await;
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_handled_is_written_down_and_stops_nothing_behind_it() {
    let (mut postgres, url, pool) = database().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let mail = MailServer::start();
    mail.answer("nobody@example.com", 550);
    mail.answer("later@example.com", 451);
    let records = Records::made(&kafka).await;
    records.bare(b"no headers at all").await;
    records.event(&[], b"not JSON").await;
    records.event(&[("ce_type", "oncepost.transfer.held")], b"{}").await;
    records.event(&[("environment", "live")], b"{}").await;
    records.event(&[("ce_time", "2020-01-01T00:00:00Z")], b"{}").await;
    records.transfer("nobody").await;
    records.transfer("nobody@example.com").await;
    records.transfer("later@example.com").await;
    records.transfer("ann@example.com").await;

    let receipts = consumer(&url, &kafka, &mail, &[("RECEIPT_ATTEMPTS", "2")]).await;
    until("the last record's receipt", async || mail.mailbox().len() == 1).await;
    assert_eq!(mail.mailbox()[0].recipient, "ann@example.com");
    let skipped = rows(&pool, "SELECT skipped, place FROM inbox WHERE skipped IS NOT NULL ORDER BY place").await;
    let reasons = ["unreadable", "unreadable", "other type", "other environment", "too old", "bad recipient"];
    let expected: Vec<Value> = (0..)
        .zip(reasons)
        .map(|(offset, reason)| json!({"skipped": reason, "place": format!("transfers/0/{offset}")}))
        .collect();
    assert_eq!(skipped, expected);

    until("the hopeless ones to be given up", async || {
        rows(&pool, "SELECT state FROM receipts WHERE state = 'parked'").await.len() == 2
    })
    .await;
    let parked = rows(&pool, "SELECT recipient, attempts FROM receipts WHERE state = 'parked' ORDER BY attempts").await;
    let (refused, tried) = ("nobody@example.com", "later@example.com");
    assert_eq!(parked, [json!({"recipient": refused, "attempts": 1}), json!({"recipient": tried, "attempts": 2})]);
    until("the gauges", async || metric(&receipts, "oncepost_receipts_parked").await == 2.0).await;
    assert_eq!(metric(&receipts, r#"oncepost_receipts_events_total{outcome="skipped"}"#).await, 6.0);
    assert_eq!(metric(&receipts, r#"oncepost_receipts_attempts_total{outcome="parked"}"#).await, 2.0);
    assert!(!receipts.log().iter().any(|line| line.contains("@example.com")), "no address is in the log");
    stopped(receipts).await;

    // What is over is forgotten some day; what waits is not.
    sqlx::raw_sql(
        "UPDATE inbox SET received_at = now() - interval '32 days'; \
                   UPDATE receipts SET state = 'waiting', due_at = 'infinity' WHERE recipient = 'later@example.com'",
    )
    .execute(&pool)
    .await
    .unwrap();
    let receipts = consumer(&url, &kafka, &mail, &[]).await;
    until("the old ones to be forgotten", async || rows(&pool, "SELECT place FROM inbox").await.len() == 1).await;
    assert_eq!(rows(&pool, "SELECT recipient FROM receipts").await, [json!({"recipient": "later@example.com"})]);
    stopped(receipts).await;
    kafka.stop().await.unwrap();
    pool.close().await;
    postgres.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_down_delay_receipts_and_neither_lose_nor_double_one() {
    let (mut postgres, url, pool) = database().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let mut mail = MailServer::start();
    mail.close();
    // The topic is not there yet, either.
    let talkative = [("RUST_LOG", "info,receipts=debug")];
    let receipts = consumer(&url, &kafka, &mail, &talkative).await;
    until("the missing topic to be told", async || get(&receipts, "/readyz").await.0 == 503).await;
    let records = Records::made(&kafka).await;
    for recipient in ["ann@example.com", "ben@example.com", "cleo@example.com"] {
        records.transfer(recipient).await;
    }
    until("all to be taken in without a mail server", async || {
        metric(&receipts, "oncepost_receipts_waiting").await == 3.0
            && metric(&receipts, "oncepost_receipts_lag_records").await == 0.0
    })
    .await;
    let (status, text) = get(&receipts, "/readyz").await;
    assert!(status == 200 && text.contains("smtp: Connection error"), "{status} {text}");
    assert!(metric(&receipts, "oncepost_receipts_waiting_seconds").await > 0.0);

    mail.lose_replies(1);
    mail.open();
    until("all to be sent", async || mail.mailbox().len() == 3).await;
    until("the lost reply's mail to be sent again", async || mail.deliveries().len() == 4).await;
    until("every receipt to be known as sent", async || rows(&pool, OPEN).await.is_empty()).await;

    postgres.stop().await.unwrap();
    records.transfer("dora@example.com").await;
    until("the missing database to be told", async || get(&receipts, "/readyz").await.0 == 503).await;
    assert_eq!(metric(&receipts, r#"oncepost_receipts_works{part="database"}"#).await, 0.0);
    // Stopped with a record in hand that it can't write down: that record has to come again.
    until("the record to arrive", async || receipts.log().iter().any(|line| line.contains("transfers/0/3"))).await;
    stopped(receipts).await;
    let mut receipts = consumer(&url, &kafka, &mail, &talkative).await;
    postgres.restart().await.unwrap();
    until("the fourth receipt", async || mail.mailbox().len() == 4).await;
    assert_eq!(mail.deliveries().len(), 5);

    kafka.kill();
    until("the missing broker to be told", async || get(&receipts, "/readyz").await.0 == 503).await;
    let asked = std::time::Instant::now();
    receipts.terminate();
    assert!(receipts.ended().await.success(), "{:#?}", receipts.log());
    assert!(asked.elapsed() < Duration::from_secs(8), "it stops without a broker: {:?}", asked.elapsed());
    pool.close().await;
    postgres.stop().await.unwrap();
}
