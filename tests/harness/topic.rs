//! What stands in Kafka, as an independent `read_committed` consumer sees it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use crate::PATIENCE;

/// The topic of the events.
pub const TRANSFERS: &str = "transfers";

/// One event as a consumer gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The partition that it stands in.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
    /// The header `epoch`.
    pub epoch: i64,
    /// The header `position`.
    pub position: i64,
    /// The header `ce_id`.
    pub id: String,
    /// The header `traceparent`, which only traced events have.
    pub traceparent: Option<String>,
    /// The record's key.
    pub key: String,
    /// The record's value.
    pub value: Vec<u8>,
}

/// A reader of the events' topic.
pub struct Topic {
    brokers: String,
}

impl Topic {
    /// The topic on these brokers.
    pub fn at(brokers: &str) -> Self {
        Self { brokers: brokers.to_owned() }
    }

    /// Everything committed up to now, from the beginning, partition by partition. Blocks.
    pub fn read(&self) -> Vec<Event> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", "an-independent-reader")
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .create()
            .unwrap();
        let metadata = consumer.fetch_metadata(Some(TRANSFERS), Duration::from_secs(10)).unwrap();
        let partitions: Vec<i32> = metadata.topics()[0].partitions().iter().map(|partition| partition.id()).collect();
        let mut list = TopicPartitionList::new();
        for partition in &partitions {
            list.add_partition_offset(TRANSFERS, *partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&list).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let (mut events, mut ended) = (Vec::new(), HashSet::new());
        while ended.len() < partitions.len() {
            assert!(Instant::now() < deadline, "the topic can't be read to its end");
            match consumer.poll(Duration::from_millis(200)) {
                None => {}
                Some(Err(rdkafka::error::KafkaError::PartitionEOF(partition))) => {
                    ended.insert(partition);
                }
                Some(Err(error)) => panic!("{error}"),
                Some(Ok(message)) => {
                    let header_if_any = |name: &str| {
                        let header = message.headers().unwrap().iter().find(|header| header.key == name)?;
                        Some(String::from_utf8(header.value?.to_vec()).unwrap())
                    };
                    let header = |name: &str| header_if_any(name).unwrap_or_else(|| panic!("no header {name}"));
                    events.push(Event {
                        partition: message.partition(),
                        offset: message.offset(),
                        epoch: header("epoch").parse().unwrap(),
                        position: header("position").parse().unwrap(),
                        id: header("ce_id"),
                        traceparent: header_if_any("traceparent"),
                        key: String::from_utf8(message.key().unwrap().to_vec()).unwrap(),
                        value: message.payload().unwrap().to_vec(),
                    });
                }
            }
        }
        events
    }

    /// Waits for the positions 1 to `last` of the first epoch, as [`Topic::wait_for_all`] does.
    pub async fn wait_for(&self, last: i64) -> Vec<Event> {
        let expected: Vec<(i64, i64)> = (1..=last).map(|position| (1, position)).collect();
        self.wait_for_all(&expected).await
    }

    /// Reads again and again until as many events are there, and proves I8 each time: each epoch and position once, in order
    /// in its partition, and in the end all of those that are expected, which are given in ascending order.
    pub async fn wait_for_all(&self, expected: &[(i64, i64)]) -> Vec<Event> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reader = Self { brokers: self.brokers.clone() };
            let events = tokio::task::spawn_blocking(move || reader.read()).await.unwrap();
            assert_once_and_in_order(&events);
            if events.len() >= expected.len() {
                let mut positions: Vec<_> = events.iter().map(|event| (event.epoch, event.position)).collect();
                positions.sort_unstable();
                assert_eq!(positions, expected, "what is published is what was expected");
                return events;
            }
            assert!(Instant::now() < deadline, "{} of {} events came", events.len(), expected.len());
        }
    }
}

fn assert_once_and_in_order(events: &[Event]) {
    let mut seen = HashSet::new();
    for event in events {
        let position = (event.epoch, event.position);
        assert!(seen.insert(position), "epoch and position {position:?} stand twice");
    }
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_unstable_by_key(|event| (event.partition, event.offset));
    for pair in sorted.windows(2).filter(|pair| pair[0].partition == pair[1].partition) {
        let order = |event: &Event| (event.epoch, event.position);
        assert!(order(pair[0]) < order(pair[1]), "{:?} stands before {:?}", pair[0], pair[1]);
    }
}
