//! Drills of doubt: the relay has halted, for each of its reasons that the page has commands for; and the restore of a backup,
//! which it notices.

use std::collections::BTreeSet;

use harness::{Account, Client, Event, PATIENCE, Topic, until};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, FromClientConfig};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::Value;
use stack::Kafka;

use crate::page::{Page, Reader};
use crate::stand::Stand;

/// The group and the topic that the relay's position is kept under.
const GROUP: &str = "oncepost-relay";
const POSITIONS: &str = "relay-position";

/// A system whose events are published, and what goes on with it.
struct Case {
    stand: Stand,
    client: Client,
    world: Account,
    account: Account,
}

impl Case {
    /// With four events.
    async fn open() -> Self {
        let stand = Stand::open_with_kafka().await;
        let client = stand.client().await;
        let (world, account) = stand.accounts(&client).await;
        let case = Self { stand, client, world, account };
        case.post(3).await;
        case.published(&[(1, 1..=4)]).await;
        case
    }

    /// Posts so many transfers; returns their keys.
    async fn post(&self, count: usize) -> Vec<String> {
        let keys: Vec<String> = (0..count).map(|_| self.client.fresh_key()).collect();
        self.retry(&keys).await;
        keys
    }

    async fn retry(&self, keys: &[String]) {
        for key in keys {
            assert_eq!(self.client.transfer_until_final(key, &self.world, &self.account, 1).await.status, 201);
        }
    }

    /// Waits until these positions of these epochs are in Kafka, each once, and nothing else.
    async fn published(&self, stretches: &[(i64, std::ops::RangeInclusive<i64>)]) -> Vec<Event> {
        let positions = |(epoch, range): &(i64, std::ops::RangeInclusive<i64>)| {
            let epoch = *epoch;
            range.clone().map(move |position| (epoch, position))
        };
        let expected: Vec<(i64, i64)> = stretches.iter().flat_map(positions).collect();
        Topic::at(&self.brokers().await).wait_for_all(&expected).await
    }

    async fn brokers(&self) -> String {
        self.stand.lock().await.kafka.as_ref().unwrap().bootstrap()
    }

    /// A client of Kafka's that acts as the relay's group.
    async fn kafka<C: FromClientConfig>(&self) -> C {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers().await).set("group.id", GROUP).create().unwrap()
    }

    /// Starts the relay, which halts for the reason, and reads the page to its end by one section.
    async fn resolve(&self, reason: &str, section: &str, known: &[(&'static str, &str)]) {
        self.stand.lock().await.launch("relay").await;
        let page = format!("see runbook/relay-halted.md#{reason}\n");
        until(reason, async || self.stand.word(&["ready", "relay"]).await.ends_with(&page)).await;
        let known: Vec<(&'static str, String)> =
            known.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut reader = Reader::open("relay-halted", &self.stand, &known).await;
        reader.choose(section);
        reader.finish().await;
    }
}

/// One fault after the other strikes the same system.
pub(crate) async fn relay_halted() {
    let page = Page::read("relay-halted");
    let tried =
        ["A new Kafka", "Cluster changed", "Outbox behind", "Outbox gap", "Position behind topic", "Position missing"];
    assert_eq!(page.sections(), BTreeSet::from(tried), "each section with commands is tried below");
    let case = Case::open().await;

    // Someone gave the relay the address of another Kafka; then that one takes the place of the first, whose disks are lost.
    let other = Kafka::temporary().await.unwrap();
    case.stand.lock().await.settings.insert("KAFKA_BROKERS".to_owned(), other.bootstrap());
    case.resolve("cluster-changed", "Cluster changed", &[]).await;
    case.stand.word(&["stop", "relay"]).await;
    case.stand.lock().await.kafka = Some(other);
    case.resolve("cluster-changed", "A new Kafka", &[]).await;
    case.published(&[(1, 1..=4)]).await;

    // Someone tidied up the outbox.
    case.stand.word(&["stop", "relay"]).await;
    case.post(3).await;
    let deleted = "DELETE FROM outbox WHERE position = 5 RETURNING resource_id::text, payload";
    let pool = case.stand.lock().await.books.pool.clone();
    let (transfer, payload): (String, Vec<u8>) = sqlx::query_as(deleted).fetch_one(&pool).await.unwrap();
    case.resolve("outbox-gap", "Outbox gap", &[("transfer", &transfer), ("gap", "5")]).await;
    let events = case.published(&[(1, 1..=7)]).await;
    let again = events.iter().find(|event| event.position == 5).unwrap();
    assert_eq!((&again.key, &again.value), (&transfer, &payload), "the event is what it was");

    // Someone reset the group with a tool, which knows nothing of what stands beside the offset.
    case.stand.word(&["stop", "relay"]).await;
    let consumer: BaseConsumer = case.kafka().await;
    let reset = move || {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(POSITIONS, 0, Offset::Offset(1)).unwrap();
        consumer.commit(&list, CommitMode::Sync).unwrap();
    };
    tokio::task::spawn_blocking(reset).await.unwrap();
    case.resolve("position-unreadable", "Position behind topic", &[]).await;

    // A standby that was behind took over.
    case.stand.word(&["backup", "behind"]).await;
    case.post(3).await;
    case.published(&[(1, 1..=10)]).await;
    case.stand.word(&["stop", "relay"]).await;
    case.stand.word(&["restore", "behind"]).await;
    case.resolve("outbox-behind", "Outbox behind", &[("epoch", "2")]).await;
    case.post(1).await;
    case.published(&[(1, 1..=10), (2, 8..=8)]).await;

    // The relay stood still for so long that Kafka forgot the group, and that the topic's records are past their retention.
    case.stand.word(&["stop", "relay"]).await;
    case.post(1).await;
    let admin: AdminClient<DefaultClientContext> = case.kafka().await;
    for gone in admin.delete_groups(&[GROUP], &AdminOptions::new()).await.unwrap() {
        gone.unwrap();
    }
    let consumer: BaseConsumer = case.kafka().await;
    let ends = move || {
        let metadata = consumer.fetch_metadata(Some("transfers"), PATIENCE).unwrap();
        let mut ends = TopicPartitionList::new();
        for partition in metadata.topics()[0].partitions() {
            ends.add_partition_offset("transfers", partition.id(), Offset::End).unwrap();
        }
        ends
    };
    let ends = tokio::task::spawn_blocking(ends).await.unwrap();
    admin.delete_records(&ends, &AdminOptions::new()).await.unwrap();
    case.resolve("position-missing", "Position missing", &[("published", "8"), ("epoch", "3")]).await;
    case.published(&[(3, 9..=9)]).await;
}

pub(crate) async fn restore_from_backup() {
    let case = Case::open().await;
    case.stand.word(&["backup", "good"]).await;
    let keys = case.post(3).await;
    let events = case.published(&[(1, 1..=7)]).await;
    // Part of the data is gone, as after a fault of the storage.
    case.stand.sql("DELETE FROM postings WHERE sequence = 2").await;
    let known = [("backup", "good".to_owned()), ("epoch", "2".to_owned())];
    let mut reader = Reader::open("restore-from-backup", &case.stand, &known).await;

    reader.read_to("5. ").await;
    let listed = lost(&reader.file("lost.jsonl"));
    let expected = events.iter().filter(|event| event.position > 4).map(|event| (event.id.clone(), event.key.clone()));
    assert_eq!(listed, expected.collect(), "what was published after the backup, and nothing else");

    // The clients retry what the books have lost: it runs anew, and consumers see it in the new epoch.
    reader.read_to("7. ").await;
    case.retry(&keys).await;
    let again = case.published(&[(1, 1..=7), (2, 5..=7)]).await;
    let again: BTreeSet<_> =
        again.into_iter().filter(|event| event.epoch == 2).map(|event| (event.id, event.key)).collect();

    // It was the wrong backup, and those are lost, too.
    reader.read_to("## Never do").await;
    assert_eq!(lost(&reader.file("lost-again.jsonl")), &listed | &again);
    reader.finish().await;
    case.post(1).await;
    case.published(&[(1, 1..=7), (2, 5..=7), (3, 5..=5)]).await;
}

/// The events that `relay reconcile` has listed, each with its transfer; its last line is the summary.
fn lost(listed: &str) -> BTreeSet<(String, String)> {
    let lines = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    lines
        .filter(|line| line["event_id"].is_string())
        .map(|line| (text(&line["event_id"]), text(&line["transfer_id"])))
        .collect()
}
