//! Exactly once into a real Kafka, counted by a consumer that knows nothing of the relay.

mod epochs;

use std::time::Duration;

use harness::{Books, Client, Topic, until};
use stack::Kafka;

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_posted_twice_is_one_event_and_a_decline_is_none() {
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let first = client.transfer(&key, &world, &account, 5).await;
    assert!(client.transfer(&key, &world, &account, 5).await.replayed());
    assert_eq!(client.transfer(&client.fresh_key(), &account, &world, 6).await.status, 422);
    let second = client.transfer(&client.fresh_key(), &account, &world, 5).await;

    let mut relay = books.relay_with(&kafka.bootstrap(), &[]);
    let mut events = Topic::at(&kafka.bootstrap()).wait_for(2).await;
    events.sort_unstable_by_key(|event| event.position);
    for (event, reply) in events.iter().zip([&first, &second]) {
        assert_eq!(event.value, reply.body.trim_ascii_end(), "the event carries the transfer as it was answered");
        assert_eq!(event.key, reply.json()["id"].as_str().unwrap());
    }
    relay.terminate();
    assert!(relay.ended().await.success(), "{:#?}", relay.log());
    kafka.stop().await.unwrap();
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_slept_through_a_takeover_publishes_nothing_twice() {
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let transfers = async |count: i64| {
        for _ in 0..count {
            assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
        }
    };
    let topic = Topic::at(&brokers);
    let sleeper = books.relay_with(&brokers, &[]);
    transfers(20).await;
    topic.wait_for(20).await;
    sleeper.freeze();
    let successor = books.relay_with(&brokers, &[]);
    transfers(20).await;
    // The sleeper's lock connection ends after ten seconds; then the successor fences it and goes on.
    topic.wait_for(40).await;
    sleeper.thaw();
    transfers(20).await;
    topic.wait_for(60).await;
    // The sleeper has found out and waits its turn: it takes over where the successor stops.
    drop(successor);
    transfers(20).await;
    topic.wait_for(80).await;
    kafka.stop().await.unwrap();
    drop(sleeper);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_and_returns_gets_everything_once() {
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let relay = books.relay_with(&brokers, &[("RELAY_BATCH_ROWS", "3")]);
    for round in 1..=3 {
        for transfer in 0..30 {
            if transfer == 15 {
                kafka.kill();
            }
            assert_eq!(
                client.transfer(&client.fresh_key(), &world, &account, 1).await.status,
                201,
                "Kafka down leaves the API up"
            );
        }
        assert_eq!(client.get("/readyz").await.status, 200);
        kafka.restart().await.unwrap();
        Topic::at(&brokers).wait_for(30 * round).await;
    }
    drop(relay);
    kafka.stop().await.unwrap();
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_went_back_in_time_halts_the_relay() {
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    for _ in 0..10 {
        assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    }
    let mut relay = books.relay_with(&brokers, &[]);
    Topic::at(&brokers).wait_for(10).await;
    relay.terminate();
    relay.ended().await;
    // As after a restore from a backup: the last positions are gone, and others will stand there.
    sqlx::raw_sql("DELETE FROM outbox WHERE position > 7").execute(&books.pool).await.unwrap();
    for _ in 0..5 {
        assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    }
    let relay = books.relay_with(&brokers, &[]);
    until("the relay to halt", async || relay.log().iter().any(|line| line.contains("relay-halted.md"))).await;
    // Nothing is guessed: no event of the new history came out.
    tokio::time::timeout(Duration::from_secs(30), async { Topic::at(&brokers).wait_for(10).await }).await.unwrap();
    drop(relay);
    kafka.stop().await.unwrap();
}
