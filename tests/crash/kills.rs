//! kill -9 at any moment, under load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use harness::{Books, Client, Topic, until};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stack::Kafka;
use tokio::sync::{mpsc, watch};

/// How many kills the long runs make; `ONCEPOST_KILLS` says otherwise.
const MANY_KILLS: u64 = 200;

fn many_kills() -> u64 {
    std::env::var("ONCEPOST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(MANY_KILLS)
}

/// The moments of the kills follow from this; `ONCEPOST_SEED` repeats a run.
fn random() -> StdRng {
    let seed =
        std::env::var("ONCEPOST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| rand::rng().random());
    eprintln!("ONCEPOST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_of_the_api_lose_and_double_nothing() {
    kill_api(20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs minutes: see the top of main.rs"]
async fn many_kills_of_the_api_lose_and_double_nothing() {
    kill_api(many_kills()).await;
}

/// Clients that send each intent until it is answered, through a process that is killed again and again.
async fn kill_api(kills: u64) {
    const CLIENTS: u64 = 16;
    let mut random = random();
    let books = Books::open().await;
    let mut api = books.api().await;
    let setup = Client::new(&api, &books.owner.test);
    let world = books.account(&setup, None).await;
    let mut accounts = Vec::new();
    for _ in 0..4 {
        accounts.push(books.account(&setup, Some(0)).await);
    }
    let (current, client) = watch::channel(setup.clone());
    let (answered, mut answers) = mpsc::unbounded_channel();
    let stop = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for index in 0..CLIENTS {
        let (client, answered, stop) = (client.clone(), answered.clone(), Arc::clone(&stop));
        let (world, account) = (world.clone(), accounts[usize::try_from(index % 4).unwrap()].clone());
        tasks.push(tokio::spawn(async move {
            while stop.load(Ordering::SeqCst) == 0 {
                let key = uuid::Uuid::new_v4().to_string();
                loop {
                    let now = client.borrow().clone();
                    match now.try_transfer(&key, &world, &account, 1).await {
                        Ok(reply) if reply.status == 201 => {
                            let _ = answered.send((reply.json()["id"].as_str().unwrap().to_owned(), key));
                            break;
                        }
                        Ok(reply) => assert!(reply.try_again(), "{reply:?}"),
                        // Nobody is there just now.
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            }
        }));
    }
    drop(answered);
    let mut acknowledged: HashMap<String, String> = HashMap::new();
    for _ in 0..kills {
        // Some answers first, so that each process does work before it dies; then at any moment.
        for _ in 0..CLIENTS * 2 {
            let (transfer, key) = answers.recv().await.unwrap();
            assert!(acknowledged.insert(transfer, key).is_none(), "one transfer answers two keys");
        }
        tokio::time::sleep(Duration::from_micros(random.random_range(0..20_000))).await;
        api.kill();
        api = books.api().await;
        current.send_replace(setup.at(&api));
    }
    stop.store(1, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    while let Some((transfer, key)) = answers.recv().await {
        assert!(acknowledged.insert(transfer, key).is_none(), "one transfer answers two keys");
    }
    let stored: Vec<String> =
        sqlx::query_scalar("SELECT id::text FROM transfers").fetch_all(&books.pool).await.unwrap();
    assert_eq!(
        stored.len(),
        acknowledged.len(),
        "each intent was sent until it was answered, so each transfer has one"
    );
    assert!(stored.iter().all(|id| acknowledged.contains_key(id)));
    eprintln!("{kills} kills of the API, {} transfers, each acknowledged once", stored.len());
    books.finish().await;
}

/// Where a relay is killed around each step of a Kafka transaction.
const RELAY_FAILPOINTS: [&str; 10] = [
    "relay-after-init",
    "relay-before-begin",
    "relay-after-begin",
    "relay-after-send",
    "relay-after-delivery",
    "relay-before-offsets",
    "relay-after-offsets",
    "relay-before-commit",
    "relay-after-commit",
    "relay-after-floor",
];

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_of_the_relay_publish_each_position_once() {
    kill_relay(20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs minutes: see the top of main.rs"]
async fn many_kills_of_the_relay_publish_each_position_once() {
    kill_relay(many_kills()).await;
}

/// Relays that die at each step in turn while transfers go on, then one that catches up.
async fn kill_relay(kills: u64) {
    let mut random = random();
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    for kill in 0..kills {
        let failpoint = RELAY_FAILPOINTS[usize::try_from(kill).unwrap() % RELAY_FAILPOINTS.len()];
        // A start's first transaction or, for the later ones, a step of its second or third; `init` happens once.
        let nth = if failpoint == "relay-after-init" { 1 } else { random.random_range(1..=3) };
        let armed = format!("{failpoint}:kill:{nth}");
        let mut relay = books.relay_with(&brokers, &[("ONCEPOST_FAILPOINT", &armed), ("RELAY_BATCH_ROWS", "5")]);
        // Enough for several batches, however many this relay finds already published.
        until("the relay to reach the step and die", async || {
            for _ in 0..8 {
                assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
            }
            !relay.running()
        })
        .await;
    }
    let last = books.count("SELECT max(position) FROM outbox").await;
    let relay = books.relay_with(&brokers, &[]);
    let events = Topic::at(&brokers).wait_for(last).await;
    let published: HashMap<&str, &[u8]> =
        events.iter().map(|event| (event.key.as_str(), event.value.as_slice())).collect();
    let outbox: Vec<(String, Vec<u8>)> =
        sqlx::query_as("SELECT resource_id::text, payload FROM outbox").fetch_all(&books.pool).await.unwrap();
    assert_eq!(published.len(), outbox.len());
    for (transfer, payload) in &outbox {
        assert_eq!(published[transfer.as_str()], payload.as_slice());
    }
    eprintln!("{kills} kills of the relay, {last} positions, each published once");
    drop(relay);
    kafka.stop().await.unwrap();
    books.finish().await;
}
