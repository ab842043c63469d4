//! `relay reconcile`: which events Kafka holds and the outbox does not, after PostgreSQL has gone back in time. Money moved for
//! those who were answered and for those who consume events, and the ledger has forgotten it.

use std::collections::HashMap;
use std::io;

use ledger::outbox::{Floor, Outbox, OutboxError, Stream};
use rdkafka::consumer::Consumer as _;
use rdkafka::message::{BorrowedMessage, Message as _};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::client::{self, Reader};
use crate::config::Settings;
use crate::events::PublishedEvent;
use crate::failure::Failure;
use crate::position::{self, Position};
use crate::reason::HaltReason;
use crate::record::Letterhead;
use crate::stop::{Panicked, Stop, unstopped};
use crate::tail::{self, FIRST_STEP, Stretch};
use crate::topics;
use crate::verification::started;

/// How many records are compared with the outbox at a time. An event is at most about 64 KiB, so these are 16 MiB at most.
const COMPARED_AT_ONCE: usize = 256;

/// Why outbox and topic can't be compared.
#[derive(Debug, Error)]
pub enum ReconcileError {
    /// PostgreSQL or Kafka; the text says what was asked.
    #[error("{0}")]
    Unanswered(String),
    /// A line can't be shown.
    #[error("the output can't be written: {0}")]
    Output(#[from] io::Error),
}

impl From<Failure> for ReconcileError {
    fn from(failure: Failure) -> Self {
        Self::Unanswered(failure.to_string())
    }
}

impl From<OutboxError> for ReconcileError {
    fn from(error: OutboxError) -> Self {
        Self::Unanswered(error.to_string())
    }
}

impl From<Panicked> for ReconcileError {
    fn from(panicked: Panicked) -> Self {
        Failure::from(panicked).into()
    }
}

/// An event that Kafka holds and the outbox lacks, or has another one in the place of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Where it stands, and its id.
    #[serde(flatten)]
    pub position: Position,
    /// The transfer that it told of.
    pub transfer_id: String,
    /// Whose transfer it was.
    pub tenant_id: String,
    /// On which side of the wall.
    pub environment: String,
    /// The hash of the idempotency key that the transfer was posted under, in hex.
    pub key_hash: String,
    /// The transfer as the record's value has it: amount, currency, accounts.
    pub transfer: Value,
    /// What the outbox holds at that position: another event, or nothing.
    pub outbox: Option<Position>,
    /// The record's partition.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
}

impl Difference {
    fn new(position: Position, event: PublishedEvent, outbox: Option<Position>) -> Self {
        let header = |name: &str| event.header(name).unwrap_or_default().to_owned();
        Self {
            position,
            tenant_id: header("tenant-id"),
            environment: header("environment"),
            key_hash: header("idempotency-key-hash"),
            transfer: serde_json::from_str(&event.value).unwrap_or_else(|_| Value::String(event.value.clone())),
            outbox,
            partition: event.partition,
            offset: event.offset,
            transfer_id: event.key,
        }
    }
}

/// How outbox and topic stand to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reconciliation {
    /// How many events Kafka holds where the outbox has nothing.
    pub missing: u64,
    /// How many events Kafka holds where the outbox has another.
    pub differing: u64,
    /// The last position that both hold with the same event; none if there is no such position.
    pub agreed: Option<Position>,
    /// Whether these are all: not so where retention may have removed records that lay behind the agreed position.
    pub complete: bool,
    /// The topic's last committed record.
    pub topic_end: Option<Position>,
    /// The position that Kafka has committed for the relay.
    pub committed: Option<Position>,
    /// The outbox's last event.
    pub outbox_end: Option<Position>,
    /// The epoch of the events that the ledger makes now.
    pub epoch: i32,
    /// The epoch that `relay new-epoch` would begin.
    pub next_epoch: i32,
}

/// Compares the outbox with what the topic holds, back to the last position that both agree on, and shows every event that
/// Kafka has and the outbox lacks or differs in: partition by partition, in order. It reads only.
///
/// # Errors
/// [`ReconcileError`].
pub async fn reconcile(
    settings: &Settings,
    mut show: impl FnMut(&Difference) -> io::Result<()> + Send + 'static,
) -> Result<Reconciliation, ReconcileError> {
    let settings = settings.clone();
    unstopped(move |stop| {
        let mut comparison = Comparison::open(&settings, &stop)?;
        let committed = match position::read(&comparison.topic.reader, &settings.kafka, settings.shard.0, &stop) {
            // One that no relay has written says nothing.
            Err(Failure::Halt(_)) => None,
            committed => committed?,
        };
        let agreement = comparison.find(committed)?;
        let (missing, differing) = comparison.show(&agreement, &mut show)?;
        let outbox_end = comparison.outbox.last()?;
        Ok(Reconciliation {
            missing,
            differing,
            agreed: agreement.agreed,
            complete: agreement.complete,
            topic_end: agreement.topic_end,
            committed,
            outbox_end,
            epoch: comparison.stream.epoch,
            next_epoch: comparison.next_epoch(later(committed, agreement.topic_end)),
        })
    })
    .await
}

/// The topic and the outbox side by side.
pub(crate) struct Comparison {
    topic: Topic,
    pub(crate) outbox: Rows,
    stream: Stream,
    floor: Option<Floor>,
}

impl Comparison {
    /// Connects to both, and makes sure that the Kafka is this ledger's.
    pub(crate) fn open(settings: &Settings, stop: &Stop) -> Result<Self, Failure> {
        let mut outbox = stop.wait(Outbox::open(&settings.database, settings.shard))??;
        let ledger = stop.wait(outbox.ledger_id())??;
        let stream = stop.wait(outbox.stream())??;
        let surveyor = client::surveyor(&settings.kafka)?;
        let found = client::cluster_id(surveyor.client(), || client::serve_reader(&surveyor), stop)?;
        let record = stop.wait(outbox.relay_record())??;
        let floor = record.as_ref().and_then(|record| record.floor);
        if let Some(recorded) = record.map(|record| record.kafka_cluster_id).filter(|recorded| *recorded != found) {
            return Err(HaltReason::ClusterChanged { recorded, found }.into());
        }
        let topic = Topic {
            surveyor,
            reader: client::committed_reader(&settings.kafka)?,
            name: settings.kafka.topic.clone(),
            letterhead: Letterhead::new(ledger, settings.shard.0),
            stop: stop.clone(),
        };
        Ok(Self { topic, outbox: Rows { outbox, stop: stop.clone() }, stream, floor })
    }

    /// The start of the ledger's present epoch, where Kafka knows nothing of that epoch yet: `relay new-epoch` did not finish.
    /// `published` is the last position that Kafka knows.
    pub(crate) fn unfinished_start(&self, published: Option<Position>) -> Option<Position> {
        let start = self.stream.starts.last().map(|start| Position::from(*start))?;
        let reached = published.is_some_and(|published| published.epoch >= start.epoch)
            || self.floor.is_some_and(|floor| (floor.epoch, floor.position) > start.order());
        Some(start).filter(|start| start.epoch == self.stream.epoch && !reached)
    }

    /// The epoch that comes next after what both sides know; the one that was begun, if that is not finished.
    pub(crate) fn next_epoch(&self, published: Option<Position>) -> i32 {
        let known = self.stream.epoch.max(published.map_or(0, |published| published.epoch));
        self.unfinished_start(published).map_or(known.saturating_add(1), |start| start.epoch)
    }

    /// Finds the last position that both agree on: back from the end of every partition in doubling steps, until each one
    /// shows a record at or before it.
    pub(crate) fn find(&mut self, committed: Option<Position>) -> Result<Agreement, Failure> {
        let Self { topic, outbox, stream, .. } = self;
        let mut partitions = topic.partitions()?;
        // A committed position that the outbox confirms ends the search early, as does one at which an epoch began.
        let mut agreed = outbox.last_agreed(committed.as_slice())?;
        agreed = agreed.or(committed.filter(|committed| started(stream, *committed)));
        let mut topic_end = None;
        let mut step = FIRST_STEP;
        while partitions.iter().any(|partition| partition.unread(agreed)) {
            for partition in &mut partitions {
                if !partition.unread(agreed) {
                    continue;
                }
                let Stretch { from: to, to: end, .. } = partition.stretch;
                let from = partition.low.max(end.saturating_sub(step));
                partition.stretch.from = from;
                let (mut first, mut batch) = (None, Vec::new());
                topic.read(Stretch { from, to, ..partition.stretch }, |position, _| {
                    first.get_or_insert(position);
                    topic_end = later(topic_end, Some(position));
                    batch.push(position);
                    if batch.len() >= COMPARED_AT_ONCE {
                        agreed = later(agreed, outbox.last_agreed(&std::mem::take(&mut batch))?);
                    }
                    Ok::<_, Failure>(())
                })?;
                agreed = later(agreed, outbox.last_agreed(&batch)?);
                partition.earliest = first.or(partition.earliest);
            }
            step = step.saturating_mul(2);
        }
        Ok(Agreement {
            agreed,
            complete: partitions.iter().all(|partition| partition.low == 0 || partition.reaches(agreed)),
            topic_end,
            stretches: partitions.into_iter().map(|partition| partition.stretch).collect(),
        })
    }

    /// Shows every event behind the agreed position, and counts those where the outbox has nothing and those where it has
    /// another.
    fn show(
        &mut self,
        agreement: &Agreement,
        show: &mut impl FnMut(&Difference) -> io::Result<()>,
    ) -> Result<(u64, u64), ReconcileError> {
        let Self { topic, outbox, .. } = self;
        let (mut missing, mut differing) = (0_u64, 0_u64);
        let mut compare = |batch: &mut Vec<(Position, PublishedEvent)>| {
            let held = outbox.at(batch.iter().map(|(position, _)| position.position))?;
            for (position, event) in batch.drain(..) {
                let outbox = held.get(&position.position).copied();
                let count = if outbox.is_some() { &mut differing } else { &mut missing };
                *count = count.saturating_add(1);
                show(&Difference::new(position, event, outbox))?;
            }
            Ok::<_, ReconcileError>(())
        };
        for stretch in &agreement.stretches {
            let mut batch = Vec::new();
            topic.read(*stretch, |position, message| {
                if agreement.agreed.is_none_or(|agreed| position.order() > agreed.order()) {
                    batch.push((position, PublishedEvent::of(message)));
                }
                if batch.len() >= COMPARED_AT_ONCE { compare(&mut batch) } else { Ok(()) }
            })?;
            compare(&mut batch)?;
        }
        Ok((missing, differing))
    }
}

/// The later one of two positions.
pub(crate) fn later(one: Option<Position>, other: Option<Position>) -> Option<Position> {
    one.into_iter().chain(other).max_by_key(Position::order)
}

/// How far outbox and topic agree.
pub(crate) struct Agreement {
    /// The last position that both hold with the same event, or at which an epoch began.
    pub(crate) agreed: Option<Position>,
    /// Whether nothing that retention may have removed can have stood behind it.
    pub(crate) complete: bool,
    /// The topic's last record.
    pub(crate) topic_end: Option<Position>,
    /// Every record behind the agreed position stands in these.
    stretches: Vec<Stretch>,
}

/// One partition, read from its end backwards.
struct Partition {
    low: i64,
    /// What is read of it.
    stretch: Stretch,
    /// The first record of this shard therein.
    earliest: Option<Position>,
}

impl Partition {
    /// Whether it is read back to the agreed position: positions ascend in a partition.
    fn reaches(&self, agreed: Option<Position>) -> bool {
        self.earliest.zip(agreed).is_some_and(|(earliest, agreed)| earliest.order() <= agreed.order())
    }

    fn unread(&self, agreed: Option<Position>) -> bool {
        self.stretch.from > self.low && !self.reaches(agreed)
    }
}

/// The topic, as far as it is this shard's.
struct Topic {
    surveyor: Reader,
    reader: Reader,
    name: String,
    letterhead: Letterhead,
    stop: Stop,
}

impl Topic {
    fn partitions(&self) -> Result<Vec<Partition>, Failure> {
        let count = topics::partitions(&self.surveyor, &self.name, &self.stop)?;
        let marks = tail::settled_marks(&self.surveyor, &self.reader, &self.name, count, &self.stop)?;
        let unread = |(partition, (low, high))| Partition {
            low,
            stretch: Stretch { partition, from: high, to: high },
            earliest: None,
        };
        Ok((0..).zip(marks).map(unread).collect())
    }

    /// Hands over every committed record of the shard in a stretch.
    fn read<E: From<Failure>>(
        &self,
        stretch: Stretch,
        mut take: impl FnMut(Position, &BorrowedMessage<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // An empty stretch at a partition's end has no record that would end the wait for it.
        if stretch.from == stretch.to {
            return Ok(());
        }
        tail::read_stretches(&self.reader, &self.name, &[stretch], &self.stop, |message| {
            match message.headers().and_then(|headers| self.letterhead.position(headers)) {
                Some(position) => take(position, message),
                None => Ok(()),
            }
        })
    }
}

/// The rows of the outbox, as far as they are compared.
pub(crate) struct Rows {
    outbox: Outbox,
    stop: Stop,
}

impl Rows {
    /// The last one.
    pub(crate) fn last(&mut self) -> Result<Option<Position>, Failure> {
        let last = self.stop.wait(self.outbox.last_position())??;
        Ok(self.at(last)?.into_values().next())
    }

    /// Those at these positions.
    pub(crate) fn at(&mut self, positions: impl IntoIterator<Item = i64>) -> Result<HashMap<i64, Position>, Failure> {
        let positions: Vec<i64> = positions.into_iter().collect();
        let stamps = self.stop.wait(self.outbox.stamps(&positions))??;
        Ok(stamps.into_iter().map(|stamp| (stamp.position, Position::from(stamp))).collect())
    }

    /// The last one of these positions that stands here just so.
    fn last_agreed(&mut self, positions: &[Position]) -> Result<Option<Position>, Failure> {
        let held = self.at(positions.iter().map(|position| position.position))?;
        let stands = |position: &&Position| held.get(&position.position) == Some(position);
        Ok(positions.iter().filter(stands).max_by_key(|position| position.order()).copied())
    }
}
