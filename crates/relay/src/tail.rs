//! Reads the topic's last committed records of a shard, from the end backwards in doubling steps.

use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;

use crate::client::{CALL, Reader, patiently};
use crate::failure::Failure;
use crate::record::Letterhead;
use crate::stop::Stop;
use crate::verification::Tail;

/// How many offsets the first step goes back. Markers of transactions take offsets too, one for each transaction and
/// partition.
const FIRST_STEP: i64 = 64;
/// How long an open transaction of another shard may keep the end of what is committed below the high-water mark: its
/// 15 s, the broker's sweep, and some room.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);
/// The pause before the end of what is committed is asked for again.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);
/// How long reading may make no progress.
const STALLED_AFTER: Duration = Duration::from_secs(15);
/// How long one poll may block.
const POLL: Duration = Duration::from_millis(100);

/// Reads the end of every partition. `surveyor` sees the high-water marks, `reader` what is committed below them.
pub(crate) fn read(
    surveyor: &Reader,
    reader: &Reader,
    topic: &str,
    partitions: i32,
    letterhead: &Letterhead,
    stop: &Stop,
) -> Result<Vec<Tail>, Failure> {
    let mut tails = Vec::new();
    for partition in 0..partitions {
        let (low, high) = watermarks(surveyor, topic, partition, stop)?;
        tails.push(Tail { low, high, last: None });
    }
    for (partition, tail) in (0..).zip(&tails) {
        settle(reader, topic, partition, tail.high, stop)?;
    }
    let mut step = FIRST_STEP;
    loop {
        let reaches = |tail: &Tail| tail.low.max(tail.high.saturating_sub(step));
        let open: Vec<i32> =
            (0..).zip(&tails).filter(|(_, tail)| tail.last.is_none() && tail.low < tail.high).map(|(p, _)| p).collect();
        if open.is_empty() {
            break;
        }
        let mut assignment = TopicPartitionList::with_capacity(open.len());
        for (partition, tail) in (0..).zip(&tails).filter(|(partition, _)| open.contains(partition)) {
            assignment
                .add_partition_offset(topic, partition, Offset::Offset(reaches(tail)))
                .map_err(Failure::kafka("take an offset"))?;
        }
        reader.assign(&assignment).map_err(Failure::kafka("assign partitions"))?;
        read_to_marks(reader, open, &mut tails, letterhead, stop)?;
        if tails.iter().all(|tail| tail.last.is_some() || reaches(tail) == tail.low) {
            break;
        }
        step = step.saturating_mul(2);
    }
    reader.unassign().map_err(Failure::kafka("let partitions go"))?;
    Ok(tails)
}

fn watermarks(client: &Reader, topic: &str, partition: i32, stop: &Stop) -> Result<(i64, i64), Failure> {
    patiently(stop, "tell a partition's watermarks", || client.fetch_watermarks(topic, partition, CALL))
}

/// Waits until everything below the high-water mark is committed or aborted. The shard's own predecessor is already
/// fenced; another shard's transaction may still be open, and its own relay or the broker ends it.
fn settle(reader: &Reader, topic: &str, partition: i32, high: i64, stop: &Stop) -> Result<(), Failure> {
    let deadline = Instant::now() + SETTLED_WITHIN;
    // For a client that reads what is committed, the end is the last stable offset.
    while watermarks(reader, topic, partition, stop)?.1 < high {
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut { step: "see the topic's open transactions end" });
        }
        stop.pause(SETTLE_PAUSE)?;
    }
    Ok(())
}

/// Reads the assigned partitions up to their high-water marks and keeps each one's last record of the shard.
fn read_to_marks(
    reader: &Reader,
    mut open: Vec<i32>,
    tails: &mut [Tail],
    letterhead: &Letterhead,
    stop: &Stop,
) -> Result<(), Failure> {
    let mut progress_at = Instant::now();
    while !open.is_empty() {
        match reader.poll(POLL) {
            Some(Ok(message)) => {
                progress_at = Instant::now();
                let tail = usize::try_from(message.partition()).ok().and_then(|partition| tails.get_mut(partition));
                let Some(tail) = tail else { continue };
                if message.offset() < tail.high
                    && let Some(position) = message.headers().and_then(|headers| letterhead.position(headers))
                {
                    tail.last = Some(position);
                }
                if message.offset().saturating_add(1) >= tail.high {
                    open.retain(|partition| *partition != message.partition());
                }
            }
            // The end of what is committed, and that lies at the mark or behind it: markers and what was aborted are
            // not shown, so the last offsets before the mark may never come.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                progress_at = Instant::now();
                open.retain(|other| *other != partition);
            }
            Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::OperationTimedOut,
            ))) => {}
            Some(Err(error)) => return Err(Failure::Kafka { step: "read the topic back", error }),
            None => {}
        }
        if stop.requested() {
            return Err(Failure::Stopped);
        }
        if progress_at.elapsed() >= STALLED_AFTER {
            return Err(Failure::TimedOut { step: "read the topic back" });
        }
    }
    Ok(())
}
