//! Reads the topic's last committed records of a shard, from the end backwards in doubling steps.

use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;

use crate::client::{CALL, Reader, patiently};
use crate::failure::Failure;
use crate::record::Letterhead;
use crate::stop::Stop;
use crate::verification::Tail;

/// How many offsets the first step goes back. Markers of transactions take offsets too, one for each transaction and
/// partition.
pub(crate) const FIRST_STEP: i64 = 64;
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
    let marks = settled_marks(surveyor, reader, topic, partitions, stop)?;
    let mut tails: Vec<Tail> = marks.into_iter().map(|(low, high)| Tail { low, high, last: None }).collect();
    let mut step = FIRST_STEP;
    loop {
        let reaches = |tail: &Tail| tail.low.max(tail.high.saturating_sub(step));
        let open = (0..).zip(&tails).filter(|(_, tail)| tail.last.is_none() && tail.low < tail.high);
        let stretches: Vec<Stretch> =
            open.map(|(partition, tail)| Stretch { partition, from: reaches(tail), to: tail.high }).collect();
        if stretches.is_empty() {
            break;
        }
        read_stretches(reader, topic, &stretches, stop, |message| {
            let tail = usize::try_from(message.partition()).ok().and_then(|partition| tails.get_mut(partition));
            if let (Some(tail), Some(headers)) = (tail, message.headers()) {
                tail.last = letterhead.position(headers).or(tail.last);
            }
            Ok::<_, Failure>(())
        })?;
        if tails.iter().all(|tail| tail.last.is_some() || reaches(tail) == tail.low) {
            break;
        }
        step = step.saturating_mul(2);
    }
    Ok(tails)
}

/// The watermarks of every partition, taken now; everything below the high-water mark is committed or aborted.
pub(crate) fn settled_marks(
    surveyor: &Reader,
    reader: &Reader,
    topic: &str,
    partitions: i32,
    stop: &Stop,
) -> Result<Vec<(i64, i64)>, Failure> {
    let mut marks = Vec::new();
    for partition in 0..partitions {
        marks.push(watermarks(surveyor, topic, partition, stop)?);
    }
    for (partition, (_, high)) in (0..).zip(&marks) {
        settle(reader, topic, partition, *high, stop)?;
    }
    Ok(marks)
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

/// Offsets of a partition: from one up to another, which is not among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) partition: i32,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

/// Hands over every committed record of the stretches, one stretch for each partition, in order per partition.
pub(crate) fn read_stretches<E: From<Failure>>(
    reader: &Reader,
    topic: &str,
    stretches: &[Stretch],
    stop: &Stop,
    mut take: impl FnMut(&BorrowedMessage<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut assignment = TopicPartitionList::with_capacity(stretches.len());
    for stretch in stretches {
        assignment
            .add_partition_offset(topic, stretch.partition, Offset::Offset(stretch.from))
            .map_err(Failure::kafka("take an offset"))?;
    }
    reader.assign(&assignment).map_err(Failure::kafka("assign partitions"))?;
    let mut open = stretches.to_vec();
    let mut progress_at = Instant::now();
    while !open.is_empty() {
        match reader.poll(POLL) {
            Some(Ok(message)) => {
                let Some(stretch) = open.iter().find(|stretch| stretch.partition == message.partition()) else {
                    continue;
                };
                let to = stretch.to;
                if message.offset() < to {
                    take(&message)?;
                }
                progress_at = Instant::now();
                if message.offset().saturating_add(1) >= to {
                    open.retain(|stretch| stretch.partition != message.partition());
                }
            }
            // The end of what is committed, and that lies at the stretch's end or behind it: markers and what was aborted are
            // not shown, so the last offsets may never come.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                progress_at = Instant::now();
                open.retain(|stretch| stretch.partition != partition);
            }
            Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::OperationTimedOut,
            ))) => {}
            Some(Err(error)) => return Err(Failure::Kafka { step: "read the topic back", error }.into()),
            None => {}
        }
        if stop.requested() {
            return Err(Failure::Stopped.into());
        }
        if progress_at.elapsed() >= STALLED_AFTER {
            return Err(Failure::TimedOut { step: "read the topic back" }.into());
        }
    }
    reader.unassign().map_err(Failure::kafka("let partitions go"))?;
    Ok(())
}
