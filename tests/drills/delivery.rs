//! Drills of the way from the outbox to a receipt: the relay, Kafka, the example consumer.

use harness::Topic;
use sqlx::Executor as _;

use crate::page::Reader;
use crate::stand::{Stand, seen};

pub(crate) async fn kafka_down() {
    let stand = Stand::open_with_kafka().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    stand.lock().await.kafka.as_mut().unwrap().kill();
    for _ in 0..3 {
        assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    }
    Reader::open("kafka-down", &stand, &[]).await.finish().await;
    published(&stand, 4).await;
}

pub(crate) async fn stuck_outbox() {
    let stand = Stand::open_with_kafka().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    stand.word(&["stop", "relay"]).await;
    // A session that nobody remembers holds the lock of the shard, and publishes nothing.
    let mut forgotten = stand.session().await;
    forgotten.execute("SET application_name = 'oncepost-relay'").await.unwrap();
    forgotten.execute("SELECT pg_advisory_lock(x'6f6e6365'::int, 0)").await.unwrap();
    stand.word(&["start", "relay"]).await;
    for _ in 0..3 {
        assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    }
    Reader::open("stuck-outbox", &stand, &[seen(&mut forgotten).await]).await.finish().await;
    published(&stand, 4).await;
}

pub(crate) async fn relay_restarting() {
    let stand = Stand::open_with_kafka().await;
    let client = stand.client().await;
    stand.accounts(&client).await;
    published(&stand, 1).await;
    // No one listens at this port.
    let mut parts = stand.lock().await;
    parts.settings.insert("KAFKA_BROKERS".to_owned(), "127.0.0.1:1".to_owned());
    parts.launch("relay").await;
    drop(parts);
    let (world, account) = stand.accounts(&client).await;
    assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    let known = [("previous", "oncepost:1".to_owned())];
    Reader::open("relay-restarting", &stand, &known).await.finish().await;
    published(&stand, 3).await;
}

pub(crate) async fn receipts_behind() {
    let stand = Stand::open_with_kafka().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let mailboxes = [("ann@shop.example", 451), ("ben@shop.example", 550)];
    for (recipient, code) in mailboxes {
        stand.lock().await.mail.answer(recipient, code);
    }
    stand.word(&["start", "receipts"]).await;
    for (recipient, _) in mailboxes {
        stand.transfer_with_receipt(&client, &world, &account, recipient).await;
    }
    let mut reader = Reader::open("receipts-behind", &stand, &[]).await;
    reader.read_to("## Mitigation").await;
    for (recipient, _) in mailboxes {
        stand.lock().await.mail.answer(recipient, 250);
    }
    reader.finish().await;
    assert_eq!(stand.lock().await.mail.mailbox().len(), mailboxes.len(), "one mail for each");
}

/// Waits until every event up to the position is in Kafka, once.
pub(crate) async fn published(stand: &Stand, position: i64) {
    let brokers = stand.lock().await.kafka.as_ref().unwrap().bootstrap();
    Topic::at(&brokers).wait_for(position).await;
}
