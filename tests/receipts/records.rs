//! Records that a test writes itself, as a relay would or as it never would, all into one partition.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::json;
use stack::Kafka;
use uuid::Uuid;

const TOPIC: &str = "transfers";
const WITHIN: Duration = Duration::from_secs(30);

/// Writes into the topic.
pub(crate) struct Records {
    client: ClientConfig,
}

impl Records {
    /// The topic as it is.
    pub(crate) fn at(kafka: &Kafka) -> Self {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", kafka.bootstrap());
        Self { client }
    }

    /// Makes the topic, with one partition.
    pub(crate) async fn made(kafka: &Kafka) -> Self {
        let records = Self::at(kafka);
        let admin: AdminClient<DefaultClientContext> = records.client.create().unwrap();
        let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(1));
        for made in admin.create_topics(&[topic], &AdminOptions::new()).await.unwrap() {
            made.unwrap();
        }
        records
    }

    /// A record without headers.
    pub(crate) async fn bare(&self, payload: &[u8]) {
        self.write(payload, OwnedHeaders::new()).await;
    }

    /// An event with the usual headers, some of them replaced.
    pub(crate) async fn event(&self, replaced: &[(&str, &str)], payload: &[u8]) {
        let id = Uuid::now_v7().to_string();
        let usual = [
            ("ce_id", id.as_str()),
            ("ce_type", "oncepost.transfer.posted"),
            ("ce_time", "2099-01-01T00:00:00Z"),
            ("environment", "test"),
        ];
        let mut headers = OwnedHeaders::new();
        for (key, value) in usual {
            let value = replaced.iter().find(|(name, _)| *name == key).map_or(value, |(_, value)| value);
            headers = headers.insert(Header { key, value: Some(value) });
        }
        self.write(payload, headers).await;
    }

    /// The event of a transfer whose receipt goes to `email`.
    pub(crate) async fn transfer(&self, email: &str) {
        let transfer = json!({"id": Uuid::now_v7(), "object": "transfer", "status": "posted", "amount": 1250,
            "currency": "EUR", "description": null, "metadata": {"email": email}});
        self.event(&[], transfer.to_string().as_bytes()).await;
    }

    async fn write(&self, payload: &[u8], headers: OwnedHeaders) {
        let producer: FutureProducer = self.client.create().unwrap();
        let record = FutureRecord::<(), [u8]>::to(TOPIC).partition(0).payload(payload).headers(headers);
        producer.send(record, WITHIN).await.unwrap();
    }

    /// Sets the group's offsets back to the beginning: everything is delivered again.
    pub(crate) async fn rewind(&self, group: &str) {
        let mut config = self.client.clone();
        config.set("group.id", group);
        let back = move || {
            let consumer: BaseConsumer = config.create().unwrap();
            let metadata = consumer.fetch_metadata(Some(TOPIC), WITHIN).unwrap();
            let mut list = TopicPartitionList::new();
            for partition in metadata.topics()[0].partitions() {
                list.add_partition_offset(TOPIC, partition.id(), Offset::Offset(0)).unwrap();
            }
            consumer.commit(&list, CommitMode::Sync).unwrap();
        };
        tokio::task::spawn_blocking(back).await.unwrap();
    }
}
