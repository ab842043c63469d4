//! From the topic into the inbox.
//!
//! The offset of a record is handed to librdkafka only after the inbox has committed it, and committed to Kafka later: Kafka
//! may deliver a record again, never pass one over. What comes again finds its row. No mail is sent here, so a partition
//! waits for our own database and for nothing else.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{Consumer, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::statistics::{Partition, Statistics};
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::event::{Entry, Selection};
use crate::failpoint;
use crate::health::{Health, Part};
use crate::inbox::{Inbox, Taken};
use crate::meters::{Meters, gauge_value};

/// How long the consumer may take to say goodbye to the brokers.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Takes in what the topic holds.
pub(crate) struct Intake {
    pub(crate) kafka: ClientConfig,
    pub(crate) topic: String,
    pub(crate) selection: Selection,
    pub(crate) inbox: Inbox,
    pub(crate) meters: Meters,
    pub(crate) health: Health,
    /// Tells the senders that there may be something to send.
    pub(crate) wake: Arc<Notify>,
}

impl Intake {
    /// Takes records in until it should stop.
    ///
    /// # Errors
    /// Those after which librdkafka does not go on by itself, such as another process with the same
    /// `KAFKA_GROUP_INSTANCE_ID`.
    pub(crate) async fn run(&self, stop: &CancellationToken) -> KafkaResult<()> {
        let context = Ears { health: self.health.clone(), meters: self.meters.clone() };
        let consumer: StreamConsumer<Ears> = consumer_settings(self.kafka.clone()).create_with_context(context)?;
        consumer.subscribe(&[&self.topic])?;
        let taken = self.take_in(&consumer, stop).await;
        // It commits the offsets that were handed to it, gives its partitions back, and blocks meanwhile; without brokers it
        // would do so for as long as a session lasts. What it can't commit is delivered again.
        if tokio::time::timeout(CLOSE_WITHIN, tokio::task::spawn_blocking(move || drop(consumer))).await.is_err() {
            tracing::warn!("the last offsets are not committed: Kafka does not answer");
        }
        taken
    }

    async fn take_in(&self, consumer: &StreamConsumer<Ears>, stop: &CancellationToken) -> KafkaResult<()> {
        loop {
            let record = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                record = consumer.recv() => record,
            };
            let record = match record {
                Ok(record) => record,
                Err(error @ KafkaError::MessageConsumptionFatal(_)) => return Err(error),
                // librdkafka tries again by itself. A topic that is still missing comes here, too.
                Err(error) => {
                    self.health.fails(Part::Kafka, error.to_string());
                    continue;
                }
            };
            let entry = Entry::read(&record, &self.selection, OffsetDateTime::now_utc());
            tracing::debug!(event = entry.event_id, place = entry.place, "received");
            let Some(taken) = self.inbox.take(&entry).await else { return Ok(()) };
            self.tell(&entry, taken);
            failpoint::hit("receipts-before-offset");
            // Refused where the partition has gone to another consumer meanwhile, which gets the record again.
            if let Err(error) = consumer.store_offset_from_message(&record) {
                tracing::debug!(%error, place = entry.place, "the offset was not stored");
            }
        }
    }

    fn tell(&self, entry: &Entry, taken: Taken) {
        match (taken, &entry.content) {
            (Taken::Duplicate, _) => {
                self.meters.duplicates.increment(1);
                tracing::debug!(event = entry.event_id, place = entry.place, "came again");
            }
            (Taken::New, Ok(_)) => {
                self.meters.accepted.increment(1);
                self.wake.notify_one();
            }
            (Taken::New, Err(skipped)) => {
                self.meters.skipped.increment(1);
                tracing::info!(event = entry.event_id, place = entry.place, reason = skipped.reason(), "skipped");
            }
        }
    }
}

/// What this consumer asks of librdkafka, whatever the brokers are and how they are spoken to.
fn consumer_settings(mut kafka: ClientConfig) -> ClientConfig {
    kafka
        .set("client.id", "oncepost-receipts")
        // Only what the relay has committed; the other records are duplicates.
        .set("isolation.level", "read_committed")
        .set("auto.offset.reset", "earliest")
        // Once a second, and when the consumer is closed: the offsets that were handed over, no others.
        .set("enable.auto.offset.store", "false")
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", "1000")
        // The partitions of a consumer that died go to the others after 10 s. One that comes back with the
        // KAFKA_GROUP_INSTANCE_ID that it had gets its own at once.
        .set("session.timeout.ms", "10000")
        // A topic that the relay has yet to make is found within 5 s of being there.
        .set("topic.metadata.refresh.interval.ms", "5000")
        // The most that is fetched ahead, in KiB.
        .set("queued.max.messages.kbytes", "8192")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.max.ms", "1000")
        .set("statistics.interval.ms", "1000")
        .set_log_level(RDKafkaLogLevel::Warning);
    kafka
}

/// Hears what librdkafka says of itself.
struct Ears {
    health: Health,
    meters: Meters,
}

impl ClientContext for Ears {
    fn stats(&self, statistics: Statistics) {
        let lag = statistics.topics.values().flat_map(|topic| topic.partitions.values()).map(lag).sum();
        self.meters.lag_records.set(gauge_value(lag));
        match statistics.cgrp {
            Some(group) if group.state == "up" && group.join_state == "steady" => self.health.works(Part::Kafka),
            Some(group) => {
                self.health.fails(Part::Kafka, format!("the group is {}, {}", group.state, group.join_state))
            }
            None => {}
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the consumer met an error");
    }
}

impl ConsumerContext for Ears {}

/// How many records of a partition are not yet taken in.
fn lag(partition: &Partition) -> i64 {
    // Partitions of others, and the one that librdkafka keeps for records without any.
    if partition.fetch_state != "active" {
        return 0;
    }
    // Not the offset that is stored: the end of a transaction takes an offset too, and librdkafka, which keeps it to itself,
    // counts it as handed over. Before the first record is handed over, the place where it would stand.
    let handed_over = if partition.app_offset >= 0 { partition.app_offset } else { partition.next_offset };
    (partition.ls_offset - handed_over).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_what_is_not_handed_over() {
        let lag_of = |fetch_state: &str, app_offset, next_offset, ls_offset| {
            let fetch_state = fetch_state.to_owned();
            lag(&Partition { fetch_state, app_offset, next_offset, ls_offset, ..Partition::default() })
        };
        const UNKNOWN: i64 = -1_001;
        assert_eq!(lag_of("active", 20, 23, 23), 3, "what is fetched is not yet handed over");
        assert_eq!(lag_of("active", 23, 23, 23), 0);
        assert_eq!(lag_of("active", UNKNOWN, 20, 23), 3);
        assert_eq!(lag_of("active", UNKNOWN, 0, UNKNOWN), 0, "nothing is known yet");
        assert_eq!(lag_of("none", UNKNOWN, 0, 23), 0, "the partition is another consumer's");
    }
}
