//! The published events as a `read_committed` consumer sees them, for people who look.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use thiserror::Error;

use crate::client::{Reader, ReaderContext};

/// How long the brokers may take to say which partitions there are. A client that is refused tries about ten times
/// meanwhile.
const METADATA_WITHIN: Duration = Duration::from_secs(5);
/// How long one poll may block.
const POLL: Duration = Duration::from_millis(100);
/// How long the brokers may say nothing before the end of every partition is reached. A relay's open transaction holds
/// nobody up here: what is committed ends before it.
const SILENT_FOR: Duration = Duration::from_secs(15);

/// An event as it stands in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedEvent {
    /// The partition.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
    /// The record's key: the transfer's id.
    pub key: String,
    /// The record's headers, `ce_id` and `position` among them.
    pub headers: Vec<(String, String)>,
    /// The record's value: JSON.
    pub value: String,
}

impl PublishedEvent {
    /// The header of that name, if the record has it.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn of(message: &BorrowedMessage<'_>) -> Self {
        let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: text(message.key()).unwrap_or_default(),
            headers: headers.map(|header| (header.key.to_owned(), text(header.value).unwrap_or_default())).collect(),
            value: text(message.payload()).unwrap_or_default(),
        }
    }
}

/// Why events can't be read.
#[derive(Debug, Error)]
pub enum ReadEventsError {
    /// No broker answers.
    #[error("no Kafka answers at {brokers}")]
    NoKafka {
        /// Where it was looked for.
        brokers: String,
    },
    /// The topic isn't there: the relay makes it before it publishes.
    #[error("the Kafka at {brokers} has no topic {topic} yet")]
    NoTopic {
        /// Where it was looked for.
        brokers: String,
        /// Its name.
        topic: String,
    },
    /// A broker fell silent before the end was reached.
    #[error("Kafka has said nothing for {} s", SILENT_FOR.as_secs())]
    Silent,
    /// Kafka said no.
    #[error("the events can't be read: {0}")]
    Kafka(#[from] KafkaError),
}

/// Shows every committed event of a topic, in order per partition, up to its end, and goes on from there while `follow`
/// says so. `show` may break it off. It blocks its thread, and leaves nothing behind in Kafka.
///
/// # Errors
/// [`ReadEventsError`].
pub fn read_events(
    brokers: &str,
    topic: &str,
    follow: impl Fn() -> bool,
    mut show: impl FnMut(PublishedEvent) -> ControlFlow<()>,
) -> Result<(), ReadEventsError> {
    let reader: Reader = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("client.id", "oncepost-events")
        // librdkafka assigns nothing without a group. None comes of it at the broker: nothing is subscribed or committed.
        .set("group.id", "oncepost-events")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "earliest")
        .set_log_level(RDKafkaLogLevel::Info)
        .create_with_context(ReaderContext)?;
    let partitions = find_partitions(&reader, brokers, topic)?;
    let mut open = TopicPartitionList::new();
    for partition in &partitions {
        open.add_partition_offset(topic, *partition, Offset::Beginning)?;
    }
    reader.assign(&open)?;
    let mut left = partitions;
    let mut heard_at = Instant::now();
    while follow() || !left.is_empty() {
        match reader.poll(POLL) {
            Some(Ok(message)) => {
                heard_at = Instant::now();
                if show(PublishedEvent::of(&message)).is_break() {
                    return Ok(());
                }
            }
            // The end of what is committed.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                heard_at = Instant::now();
                left.retain(|other| *other != partition);
            }
            // The client connects again by itself.
            Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::OperationTimedOut,
            ))) => {}
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
        if !follow() && heard_at.elapsed() >= SILENT_FOR {
            return Err(ReadEventsError::Silent);
        }
    }
    Ok(())
}

fn find_partitions(reader: &Reader, brokers: &str, topic: &str) -> Result<Vec<i32>, ReadEventsError> {
    let no_kafka = |_| ReadEventsError::NoKafka { brokers: brokers.to_owned() };
    let metadata = reader.fetch_metadata(Some(topic), METADATA_WITHIN).map_err(no_kafka)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    match found {
        Some(found) if !found.partitions().is_empty() => {
            Ok(found.partitions().iter().map(|partition| partition.id()).collect())
        }
        Some(_) | None => Err(ReadEventsError::NoTopic { brokers: brokers.to_owned(), topic: topic.to_owned() }),
    }
}
