//! Drills of doubt: the relay has halted, for each of its reasons that a page has commands for; and the restore of a backup,
//! which it notices.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Account, Client, until};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use stack::Kafka;

use crate::delivery::published;
use crate::page::{Page, Reader};
use crate::stand::Stand;

const GROUP: &str = "oncepost-relay";
const WITHIN: Duration = Duration::from_secs(20);

/// A system with four published events, and what goes on with it.
struct Case {
    stand: Stand,
    client: Client,
    world: Account,
    account: Account,
}

impl Case {
    async fn open() -> Self {
        let stand = Stand::open_with_kafka().await;
        let client = stand.client().await;
        let (world, account) = stand.accounts(&client).await;
        let case = Self { stand, client, world, account };
        case.post(3).await;
        published(&case.stand, 4).await;
        case
    }

    async fn post(&self, count: usize) {
        for _ in 0..count {
            let key = self.client.fresh_key();
            assert_eq!(self.client.transfer(&key, &self.world, &self.account, 1).await.status, 201);
        }
    }

    /// The one text that a statement returns.
    async fn one(&self, statement: &'static str) -> String {
        let pool = self.stand.lock().await.books.pool.clone();
        sqlx::query_scalar(statement).fetch_one(&pool).await.unwrap()
    }

    async fn kafka_config(&self) -> ClientConfig {
        let brokers = self.stand.lock().await.kafka.as_ref().unwrap().bootstrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("group.id", GROUP);
        config
    }

    /// Starts the relay, which halts, and reads the page to its end by one section.
    async fn resolve(self, section: &str, known: &[(&'static str, String)]) {
        self.stand.lock().await.launch("relay").await;
        let mut reader = Reader::open("relay-halted", &self.stand, known).await;
        reader.choose(section);
        reader.finish().await;
    }
}

pub(crate) async fn relay_halted() {
    let page = Page::read("relay-halted");
    let tried = ["Cluster changed", "Outbox behind", "Outbox gap", "Position behind topic", "Position missing"];
    assert_eq!(page.sections(), BTreeSet::from(tried), "each section with commands is tried below");

    // Most of the time of each is the relay's, which looks again every 30 s.
    tokio::join!(cluster_changed(), outbox_behind(), outbox_gap(), position_behind_topic(), position_missing());
}

async fn cluster_changed() {
    let case = Case::open().await;
    let other = Kafka::temporary().await.unwrap();
    case.stand.lock().await.settings.insert("KAFKA_BROKERS".to_owned(), other.bootstrap());
    case.resolve("Cluster changed", &[]).await;
}

async fn outbox_behind() {
    let case = Case::open().await;
    case.stand.word(&["backup", "good"]).await;
    case.post(3).await;
    published(&case.stand, 7).await;
    case.stand.word(&["stop", "relay"]).await;
    case.stand.word(&["restore", "good"]).await;
    case.resolve("Outbox behind", &[]).await;
}

async fn outbox_gap() {
    let case = Case::open().await;
    case.stand.word(&["stop", "relay"]).await;
    case.post(3).await;
    let transfer = case.one("DELETE FROM outbox WHERE position = 5 RETURNING resource_id::text").await;
    case.resolve("Outbox gap", &[("transfer", transfer), ("gap", "5".to_owned())]).await;
}

/// Someone set the position back, with all that belongs to it.
async fn position_behind_topic() {
    let case = Case::open().await;
    case.stand.word(&["stop", "relay"]).await;
    let event = case.one("SELECT event_id::text FROM outbox WHERE position = 1").await;
    let config = case.kafka_config().await;
    let set_back = move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let mut list = TopicPartitionList::new();
        let mut position = list.add_partition("relay-position", 0);
        position.set_offset(Offset::Offset(1)).unwrap();
        position.set_metadata(format!("epoch=1 event={event}"));
        consumer.commit(&list, CommitMode::Sync).unwrap();
    };
    tokio::task::spawn_blocking(set_back).await.unwrap();
    case.resolve("Position behind topic", &[]).await;
}

/// The group is gone, and the topic's records are past their retention.
async fn position_missing() {
    let case = Case::open().await;
    case.stand.word(&["stop", "relay"]).await;
    let config = case.kafka_config().await;
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    for gone in admin.delete_groups(&[GROUP], &AdminOptions::new()).await.unwrap() {
        gone.unwrap();
    }
    let list = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let metadata = consumer.fetch_metadata(Some("transfers"), WITHIN).unwrap();
        let mut list = TopicPartitionList::new();
        for partition in metadata.topics()[0].partitions() {
            list.add_partition_offset("transfers", partition.id(), Offset::End).unwrap();
        }
        list
    });
    admin.delete_records(&list.await.unwrap(), &AdminOptions::new()).await.unwrap();
    case.resolve("Position missing", &[("published", "4".to_owned())]).await;
}

pub(crate) async fn restore_from_backup() {
    let case = Case::open().await;
    case.stand.word(&["backup", "good"]).await;
    case.post(3).await;
    published(&case.stand, 7).await;
    // Part of the data is gone, as after a fault of the storage.
    case.stand.sql("DELETE FROM postings WHERE sequence = 2").await;
    Reader::open("restore-from-backup", &case.stand, &[]).await.finish().await;
    until("what is accepted now to be published", async || {
        case.post(1).await;
        case.stand.word(&["relay", "status"]).await.contains("waiting:            0 events")
    })
    .await;
}
