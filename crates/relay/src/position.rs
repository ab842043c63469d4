//! How far a shard is published, as Kafka keeps it: the offset of partition = shard of a topic that nothing is ever
//! written into, committed in the same transaction as the events.

use std::fmt;

use ledger::outbox::{Event, Stamp};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::Serialize;
use uuid::Uuid;

use crate::client::{CALL, Reader, patiently};
use crate::config::Kafka;
use crate::failure::Failure;
use crate::reason::HaltReason;
use crate::stop::Stop;

/// A position with the event that stands there. "P is committed" means: every position up to P is published.
///
/// A new epoch begins with the position before its first event, under the new epoch's number; if the outbox was empty then,
/// that is position 0 with the nil id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Which stream.
    pub epoch: i32,
    /// The position within it, from 1.
    pub position: i64,
    /// The event at that position.
    #[serde(rename = "event_id")]
    pub event: Uuid,
}

impl From<Stamp> for Position {
    fn from(stamp: Stamp) -> Self {
        Self { epoch: stamp.epoch, position: stamp.position, event: stamp.event_id }
    }
}

impl From<&Event> for Position {
    fn from(event: &Event) -> Self {
        Self { epoch: event.epoch, position: event.position, event: event.event_id }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} position {} (event {})", self.epoch, self.position, self.event)
    }
}

impl Position {
    /// What positions are compared by. A position alone says nothing: after a restore the same number comes again, in a
    /// later epoch.
    pub(crate) const fn order(&self) -> (i32, i64) {
        (self.epoch, self.position)
    }

    /// What is committed beside the offset.
    fn metadata(&self) -> String {
        format!("epoch={} event={}", self.epoch, self.event)
    }

    /// Reads what [`Position::metadata`] wrote.
    fn parse(offset: i64, metadata: &str) -> Option<Self> {
        let (epoch, event) = metadata.split_once(' ')?;
        let position = Self {
            epoch: epoch.strip_prefix("epoch=")?.parse().ok().filter(|epoch| *epoch > 0)?,
            position: offset,
            event: event.strip_prefix("event=")?.parse().ok()?,
        };
        // Only the start of an epoch lies before the first event.
        (position.position > 0 || position.position == 0 && position.event.is_nil()).then_some(position)
    }

    /// The position in the form in which a transaction commits it.
    pub(crate) fn offsets(&self, kafka: &Kafka, shard: i32) -> KafkaResult<TopicPartitionList> {
        let mut offsets = TopicPartitionList::with_capacity(1);
        offsets.add_partition(&kafka.position_topic, shard).set_offset(Offset::Offset(self.position))?;
        if let Some(mut element) = offsets.find_partition(&kafka.position_topic, shard) {
            element.set_metadata(self.metadata());
        }
        Ok(offsets)
    }
}

/// Reads the committed position; `None` if Kafka has none.
pub(crate) fn read(reader: &Reader, kafka: &Kafka, shard: i32, stop: &Stop) -> Result<Option<Position>, Failure> {
    let (offset, metadata) = patiently(stop, "tell the committed position", || committed(reader, kafka, shard))?;
    match offset {
        Offset::Invalid => Ok(None),
        Offset::Offset(offset) => {
            let unreadable = || HaltReason::PositionUnreadable { offset, metadata: metadata.clone() };
            Ok(Some(Position::parse(offset, &metadata).ok_or_else(unreadable)?))
        }
        Offset::Beginning | Offset::End | Offset::Stored | Offset::OffsetTail(_) => {
            Err(HaltReason::PositionUnreadable { offset: offset.to_raw().unwrap_or(-1), metadata }.into())
        }
    }
}

fn committed(reader: &Reader, kafka: &Kafka, shard: i32) -> KafkaResult<(Offset, String)> {
    let mut asked = TopicPartitionList::with_capacity(1);
    asked.add_partition(&kafka.position_topic, shard);
    let answer = reader.committed_offsets(asked, CALL)?;
    let element = answer
        .find_partition(&kafka.position_topic, shard)
        .ok_or(KafkaError::OffsetFetch(rdkafka::types::RDKafkaErrorCode::UnknownPartition))?;
    // An error of the partition alone does not fail the call; its offset would read as "none".
    element.error()?;
    Ok((element.offset(), element.metadata().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_002a);

    #[test]
    fn a_position_comes_back_from_its_metadata() {
        let position = Position { epoch: 3, position: 17, event: EVENT };
        assert_eq!(Position::parse(17, &position.metadata()), Some(position));
        let before_the_first = Position { epoch: 2, position: 0, event: Uuid::nil() };
        assert_eq!(Position::parse(0, &before_the_first.metadata()), Some(before_the_first));
    }

    #[test]
    fn metadata_that_no_relay_wrote_gives_no_position() {
        let fine = Position { epoch: 1, position: 1, event: EVENT }.metadata();
        for metadata in ["", "epoch=1", "epoch=1 event=", "epoch=0 event=0", "epoch=x event=y", "event=1 epoch=1"] {
            assert_eq!(Position::parse(1, metadata), None, "{metadata:?}");
        }
        assert_eq!(Position::parse(1, &format!("{fine} more")), None);
        assert_eq!(Position::parse(0, &fine), None);
        assert_eq!(Position::parse(-1, &fine), None);
        assert_eq!(Position::parse(1, &fine.replace("epoch=1", "epoch=-1")), None);
    }

    #[test]
    fn an_epoch_decides_before_a_position() {
        let early = Position { epoch: 1, position: 900, event: EVENT };
        let late = Position { epoch: 2, position: 1, event: EVENT };
        assert!(late.order() > early.order());
    }
}
