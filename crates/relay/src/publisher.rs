//! The publisher: a thread that carries one shard's outbox into Kafka, session after session.
//!
//! | step | what | why so |
//! |---|---|---|
//! | S0 lock | an advisory lock for the shard, on a session of its own | two relays would fence each other for ever; that nothing is published twice does not rest on it |
//! | S1 fence | a new producer, `init_transactions` | fences the predecessor and ends its transaction |
//! | S2 position | only now a new reader, the committed position P | before S1 it could still change |
//! | S3 check | cluster, floor, the topic's last records | P may be lost, or the topic's tail |
//! | S4 rows | from P on: P itself, then without a gap, on every turn | PostgreSQL may have been restored or promoted behind |
//! | S5 transaction | begin, send all, await every delivery, position, commit | events and position in one Kafka transaction |
//! | S6 next | P = P'; the floor follows late; S1 again after a slow commit or a broken connection | a late duplicate of the commit request must carry an old epoch |
//! | S7 error | any at all: drop everything, back off, S0 | a client's error doesn't tell what the broker has done |
//! | S8 idle | an empty transaction once an hour | Kafka forgets the offsets of an empty group |
//!
//! A batch is never carried over from one session to the next: P is read anew, and says what is published.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ledger::outbox::{Attempt, Event, Floor, LockSession, Outbox, ShardLock, Stream};
use ledger::{failpoint, trace};
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span as _, SpanKind};
use rdkafka::consumer::{Consumer, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer as _};
use rdkafka::util::Timeout;
use uuid::Uuid;

use crate::client::{self, CALL, MESSAGE_TIMEOUT, Producer, Reader, SOCKET_TIMEOUT};
use crate::config::Settings;
use crate::failure::Failure;
use crate::lag::Published;
use crate::meters::Meters;
use crate::position::{self, Position};
use crate::reason::HaltReason;
use crate::record::{self, Letterhead};
use crate::state::{State, StateSender};
use crate::stop::Stop;
use crate::{tail, topics, verification};

/// How often a relay that waits asks for the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(500);
/// The pause before an unfinished fencing is taken up again.
const FENCE_PAUSE: Duration = Duration::from_millis(50);
/// How long fencing the predecessor may take before the producer is given up.
const FENCED_WITHIN: Duration = Duration::from_secs(60);
/// The pause between two looks into an outbox that has nothing new: at first, and at most. Polling beats a notification,
/// which takes a lock of the whole cluster at the money's commit.
const IDLE_PAUSE: Duration = Duration::from_millis(5);
const IDLE_PAUSE_MAX: Duration = Duration::from_millis(20);
/// The pause between two looks for deliveries. It is slept: rdkafka cuts the time-out of a poll to whole milliseconds, so
/// that a poll of one would spin through it.
const DELIVERY_PAUSE: Duration = Duration::from_millis(1);
/// How long all deliveries of a batch may take: librdkafka's own bound, and a second for its report.
const DELIVERED_WITHIN: Duration = MESSAGE_TIMEOUT.saturating_add(Duration::from_secs(1));
/// How long a commit may go unanswered: the broker ends a transaction by itself after 15 s and a sweep of 10 s.
const COMMITTED_WITHIN: Duration = client::TRANSACTION_TIMEOUT.saturating_add(Duration::from_secs(15));
/// How long a batch may still go on after the wish to stop. Together with `ABORT` it stays below the 5 s of a stop.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// How long aborting a transaction may take when the relay stops.
const ABORT: Duration = Duration::from_secs(1);
/// The least time from the beginning of one transaction to that of the next. A transaction costs the broker and this
/// thread about the same whether it carries ten events or a thousand; a stream of events gathers meanwhile, and is still
/// published within 0.1 s. A lone event after a pause does not wait.
const TRANSACTION_INTERVAL: Duration = Duration::from_millis(40);
/// How often the floor is moved while events are published.
const FLOOR_INTERVAL: Duration = Duration::from_secs(1);
/// The back-off after an error: at first, and at most.
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// How often a halted relay looks again whether the doubt is gone.
pub(crate) const HALTED_PAUSE: Duration = Duration::from_secs(30);

/// Publishes one shard. It lives on a thread of its own: librdkafka's calls block.
pub(crate) struct Publisher {
    pub(crate) settings: Settings,
    states: StateSender,
    published: Published,
    meters: Meters,
    pub(crate) stop: Stop,
    lock: Option<ShardLock>,
    /// Up to here each event has a transaction of its own, because a batch up to here held one that was too large.
    single_up_to: i64,
    /// How many sessions in a row ended in an error without having found their position.
    errors_in_a_row: u32,
}

/// How a session ends when nothing is wrong.
enum Next {
    /// Another session at once, with a new producer, under the same lock.
    Session,
}

/// What a session publishes with.
pub(crate) struct Session {
    outbox: Outbox,
    producer: Producer,
    group: ConsumerGroupMetadata,
    letterhead: Letterhead,
    pub(crate) at: Option<Position>,
    /// Why `at` can't be known.
    pub(crate) doubt: Option<HaltReason>,
    floor: Option<Floor>,
    pub(crate) stream: Stream,
}

impl Publisher {
    pub(crate) fn new(
        settings: Settings,
        states: StateSender,
        published: Published,
        meters: Meters,
        stop: Stop,
    ) -> Self {
        Self { settings, states, published, meters, stop, lock: None, single_up_to: 0, errors_in_a_row: 0 }
    }

    /// Works until it is asked to stop.
    pub(crate) fn run(mut self) {
        loop {
            let ended = catch_unwind(AssertUnwindSafe(|| self.session())).unwrap_or(Err(Failure::Panicked));
            if let Err(Failure::BatchTooLarge { up_to, .. }) = &ended {
                self.single_up_to = *up_to;
            }
            let pause = match ended {
                Ok(Next::Session) => continue,
                Err(Failure::Stopped) => break,
                Err(Failure::Halt(reason)) => {
                    self.states.set(State::Halted { reason });
                    HALTED_PAUSE
                }
                Err(
                    failure @ (Failure::LockTaken
                    | Failure::LockLost
                    | Failure::Kafka { .. }
                    | Failure::BatchTooLarge { .. }
                    | Failure::TimedOut { .. }
                    | Failure::Topic(_)
                    | Failure::Outbox(_)
                    | Failure::Panicked),
                ) => self.after_error(&failure),
            };
            self.lock = None;
            self.published.forget();
            if self.stop.pause(pause).is_err() {
                break;
            }
        }
        self.lock = None;
        self.states.set(State::Stopped);
    }

    /// S7: tells the error and returns for how long to back off.
    fn after_error(&mut self, failure: &Failure) -> Duration {
        let doubled = BACK_OFF.saturating_mul(2_u32.saturating_pow(self.errors_in_a_row)).min(BACK_OFF_MAX);
        self.errors_in_a_row = self.errors_in_a_row.saturating_add(1);
        // Half of it at random, so that several relays don't come back in step.
        let pause = doubled.mul_f64(rand::random_range(0.5..1.0));
        self.meters.restarts.increment(1);
        tracing::warn!(shard = self.settings.shard.0, error = %failure, ?pause, "the relay begins anew");
        if !self.states.halted() {
            self.states.set(State::Starting);
        }
        pause
    }

    /// One session: S0 to S6, until something ends it.
    fn session(&mut self) -> Result<Next, Failure> {
        self.take_lock(None)?;
        let mut session = self.open()?;
        if let Some(reason) = session.doubt.take() {
            return Err(reason.into());
        }
        self.errors_in_a_row = 0;
        self.published.set(session.at.map_or(0, |at| at.position));
        let ended = self.publish(&mut session);
        if matches!(ended, Err(Failure::Stopped | Failure::Halt(_))) {
            // Best effort, so that the lag shows right meanwhile: the floor may stay behind, a failure changes nothing.
            if let Err(error) = self.raise_floor(&mut session) {
                tracing::debug!(%error, "the floor stays behind");
            }
        }
        ended
    }

    /// S0. A relay waits for as long as another one holds the lock; a command gives up after a while.
    pub(crate) fn take_lock(&mut self, within: Option<Duration>) -> Result<(), Failure> {
        let deadline = within.map(|within| Instant::now() + within);
        if self.lock.as_ref().is_some_and(|lock| !lock.lost()) {
            return Ok(());
        }
        self.lock = None;
        if !self.states.halted() {
            self.states.set(State::Starting);
        }
        let shard = self.settings.shard;
        let mut session = self.stop.wait(LockSession::open(&self.settings.database, shard))??;
        loop {
            session = match self.stop.wait(session.try_lock())?? {
                Attempt::Held(lock) => {
                    self.lock = Some(lock);
                    return Ok(());
                }
                Attempt::Taken(_) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Err(Failure::LockTaken);
                }
                Attempt::Taken(session) => session,
            };
            self.states.set(State::Waiting);
            self.stop.pause(LOCK_PAUSE)?;
        }
    }

    pub(crate) fn check_lock(&self) -> Result<(), Failure> {
        if self.lock.as_ref().is_none_or(ShardLock::lost) { Err(Failure::LockLost) } else { Ok(()) }
    }

    /// S1 to S3: everything that a session needs, and the position that it starts from.
    pub(crate) fn open(&mut self) -> Result<Session, Failure> {
        let shard = self.settings.shard;
        let kafka = self.settings.kafka.clone();
        let stop = self.stop.clone();
        let mut outbox = stop.wait(Outbox::open(&self.settings.database, shard))??;
        let ledger = stop.wait(outbox.ledger_id())??;
        let surveyor = client::surveyor(&kafka)?;
        // S3's check of the cluster comes first of all: no topic is made in a cluster that is not ours.
        self.check_cluster(
            &mut outbox,
            client::cluster_id(surveyor.client(), || client::serve_reader(&surveyor), &stop)?,
        )?;
        let partitions = topics::ensure(&surveyor, &kafka, shard.0, &stop)?;
        if !self.states.halted() {
            self.states.set(State::Verifying);
        }
        let producer = self.fence(ledger)?;
        failpoint::hit("relay-after-init");
        self.check_cluster(
            &mut outbox,
            client::cluster_id(producer.client(), || client::serve_events(&producer), &stop)?,
        )?;
        let reader = client::committed_reader(&kafka)?;
        let group = group_metadata(&reader)?;
        let letterhead = Letterhead::new(ledger, shard.0);
        let floor = stop.wait(outbox.relay_record())??.and_then(|record| record.floor);
        let stream = stop.wait(outbox.stream())??;
        let mut session = Session { outbox, producer, group, letterhead, at: None, doubt: None, floor, stream };
        match self.read_position(&mut session, &surveyor, &reader, partitions) {
            Ok(at) => session.at = at,
            Err(Failure::Halt(reason)) => session.doubt = Some(reason),
            Err(failure) => return Err(failure),
        }
        Ok(session)
    }

    /// S2 and S3: the committed position, if the ledger and the topic confirm it.
    fn read_position(
        &self,
        session: &mut Session,
        surveyor: &Reader,
        reader: &Reader,
        partitions: i32,
    ) -> Result<Option<Position>, Failure> {
        let (kafka, shard) = (&self.settings.kafka, self.settings.shard);
        let committed = position::read(reader, kafka, shard.0, &self.stop)?;
        let tails = tail::read(surveyor, reader, &kafka.topic, partitions, &session.letterhead, &self.stop)?;
        let home = match committed {
            Some(committed) => self.home_partition(&mut session.outbox, committed, tails.len())?,
            None => None,
        };
        let at = verification::decide(committed, session.floor, &tails, home, &session.stream)?;
        tracing::info!(
            shard = shard.0,
            position = at.map_or(0, |at| at.position),
            epoch = at.map(|at| at.epoch),
            from_scan = committed.is_none() && at.is_some(),
            "the relay has read its position"
        );
        Ok(at)
    }

    /// Compares the brokers' cluster with the recorded one, and records it at the first start.
    fn check_cluster(&self, outbox: &mut Outbox, found: String) -> Result<(), Failure> {
        let recorded = self.stop.wait(outbox.record_cluster(&found))??;
        if recorded == found { Ok(()) } else { Err(HaltReason::ClusterChanged { recorded, found }.into()) }
    }

    /// S1: a new producer. Its `init_transactions` fences the predecessor and waits until that one's transaction is over.
    fn fence(&self, ledger: Uuid) -> Result<Producer, Failure> {
        let shard = self.settings.shard;
        let producer = client::producer(&self.settings.kafka, &format!("oncepost.relay.{ledger}.{shard}"))?;
        let deadline = Instant::now() + FENCED_WITHIN;
        loop {
            let result = producer.init_transactions(CALL);
            client::serve_events(&producer);
            match result {
                Ok(()) => return Ok(producer),
                Err(KafkaError::Transaction(error)) if error.is_retriable() && Instant::now() < deadline => {}
                Err(error) => return Err(Failure::Kafka { step: "fence the predecessor", error }),
            }
            self.check_lock()?;
            self.stop.pause(FENCE_PAUSE)?;
        }
    }

    /// The partition of the published position's record, if the outbox still holds that event.
    fn home_partition(&self, outbox: &mut Outbox, at: Position, partitions: usize) -> Result<Option<usize>, Failure> {
        let rows = self.stop.wait(outbox.read(at.position, 1, self.settings.batch_bytes))??;
        let row = rows.first().filter(|row| row.position == at.position && row.event_id == at.event);
        Ok(row.and_then(|row| record::partition(&record::key(row), partitions)))
    }

    /// S4 to S6 and S8, turn after turn.
    fn publish(&mut self, session: &mut Session) -> Result<Next, Failure> {
        // The position's age is not known, and one that came from a scan is not even committed: renew it at once.
        let mut renew_at = Instant::now();
        let mut floor_at = Instant::now();
        let mut pause = IDLE_PAUSE;
        loop {
            if self.stop.requested() {
                return Err(Failure::Stopped);
            }
            self.check_lock()?;
            client::serve_events(&session.producer);
            let rows = self.read_rows(session)?;
            let fresh = verification::check_rows(session.at, &rows, &session.stream)?;
            let renew = Instant::now() >= renew_at;
            if fresh.is_empty() && !(renew && session.at.is_some()) {
                self.raise_floor(session)?;
                self.states.set(State::Idle);
                self.stop.pause(pause)?;
                pause = pause.saturating_mul(2).min(IDLE_PAUSE_MAX);
                continue;
            }
            pause = IDLE_PAUSE;
            if !fresh.is_empty() {
                self.states.set(State::Publishing);
            }
            let next_at = Instant::now() + TRANSACTION_INTERVAL;
            let trusted = self.transact(session, fresh)?;
            renew_at = Instant::now() + self.settings.renewal;
            if Instant::now() >= floor_at {
                self.raise_floor(session)?;
                floor_at = Instant::now() + FLOOR_INTERVAL;
            }
            if !trusted {
                tracing::info!(
                    shard = self.settings.shard.0,
                    "a commit was slow or a connection broke: a new producer"
                );
                return Ok(Next::Session);
            }
            // A backlog is worked off without a rest.
            if i64::try_from(fresh.len()).is_ok_and(|sent| sent < self.settings.batch_rows) {
                self.stop.pause(next_at.saturating_duration_since(Instant::now()))?;
            }
        }
    }

    /// S4's rows: the published one, and what follows.
    pub(crate) fn read_rows(&self, session: &mut Session) -> Result<Vec<Event>, Failure> {
        let (from, published_rows) = session.at.map_or((0, 0), |at| (at.position, 1));
        let most = if from < self.single_up_to { 1 } else { self.settings.batch_rows };
        let read = session.outbox.read(from, most.saturating_add(published_rows), self.settings.batch_bytes);
        Ok(self.stop.wait(read)??)
    }

    /// S5 and S6: one Kafka transaction with these events and the position after them. Without events it only writes the
    /// position again. Returns whether the producer may go on to the next transaction.
    pub(crate) fn transact(&mut self, session: &mut Session, events: &[Event]) -> Result<bool, Failure> {
        let Some(after) = events.last().map(Position::from).or(session.at) else { return Ok(true) };
        let producer = &session.producer;
        failpoint::hit("relay-before-begin");
        let began_at = Instant::now();
        let faults = producer.context().faults();
        producer.begin_transaction().map_err(Failure::kafka("begin a transaction"))?;
        failpoint::hit("relay-after-begin");
        // Every failure from here on leaves the transaction open; the next session's S1 aborts it.
        let spans: Vec<_> = events.iter().map(publish_span).collect();
        self.send(producer, &session.letterhead, events, &spans)?;
        failpoint::hit("relay-after-delivery");
        self.check_lock()?;
        let offsets =
            after.offsets(&self.settings.kafka, self.settings.shard.0).map_err(Failure::kafka("take the position"))?;
        failpoint::hit("relay-before-offsets");
        // Without a time-out of one's own: librdkafka bounds this call by what remains of the transaction's.
        producer
            .send_offsets_to_transaction(&offsets, &session.group, Timeout::Never)
            .map_err(Failure::kafka("add the position to the transaction"))?;
        failpoint::hit("relay-after-offsets");
        failpoint::hit("relay-before-commit");
        let commit_at = Instant::now();
        self.commit(producer)?;
        failpoint::hit("relay-after-commit");
        client::serve_events(producer);
        session.at = Some(after);
        self.published.set(after.position);
        self.meters.published.increment(u64::try_from(events.len()).unwrap_or(u64::MAX));
        self.meters.transactions.increment(1);
        self.meters.transaction_seconds.record(began_at.elapsed());
        Ok(commit_at.elapsed() < SOCKET_TIMEOUT && producer.context().faults() == faults)
    }

    /// Commits. librdkafka repeats the request until it is answered, without an end; a call that returns early is resumed
    /// by the next one. So this gives up only long after the broker has decided by itself, or on the way out, and in
    /// either case as a crash would: the next session finds out what became of it.
    fn commit(&self, producer: &Producer) -> Result<(), Failure> {
        let mut patience = Patience::new(COMMITTED_WITHIN, "commit a transaction");
        loop {
            // rdkafka flushes before it commits, in steps of 100 ms as long as anything is queued.
            client::serve_events(producer);
            match producer.commit_transaction(CALL) {
                Ok(()) => return Ok(()),
                Err(KafkaError::Transaction(error))
                    if error.code() == RDKafkaErrorCode::OperationTimedOut && error.is_retriable() => {}
                Err(error) => return Err(Failure::Kafka { step: "commit a transaction", error }),
            }
            patience.check(self)?;
        }
    }

    /// Sends a batch's records and waits until every one is delivered.
    fn send(
        &self,
        producer: &Producer,
        letterhead: &Letterhead,
        events: &[Event],
        spans: &[Option<BoxedSpan>],
    ) -> Result<(), Failure> {
        let reports = producer.context();
        reports.begin();
        let mut patience = Patience::new(DELIVERED_WITHIN, "deliver a batch");
        for (event, span) in events.iter().zip(spans) {
            let key = record::key(event);
            let traceparent = span.as_ref().and_then(|span| trace::format(span.span_context()));
            let mut record = BaseRecord::to(&self.settings.kafka.topic)
                .key(key.as_str())
                .payload(event.payload.as_slice())
                .headers(letterhead.headers(event, traceparent.as_deref()));
            loop {
                record = match producer.send(record) {
                    Ok(()) => break,
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), record)) => record,
                    Err((error, _)) => return Err(undelivered(events, error)),
                };
                // librdkafka's queue is full: wait for deliveries, as the loop below does.
                self.poll_deliveries(producer, events, &mut patience)?;
            }
        }
        failpoint::hit("relay-after-send");
        while producer.context().delivered() < events.len() {
            self.poll_deliveries(producer, events, &mut patience)?;
        }
        Ok(())
    }

    /// Serves what librdkafka reports, and gives up on the first record that fails, and when patience ends.
    fn poll_deliveries(&self, producer: &Producer, events: &[Event], patience: &mut Patience) -> Result<(), Failure> {
        let reports = producer.context();
        let delivered = reports.delivered();
        producer.poll(Duration::ZERO);
        if reports.delivered() == delivered {
            std::thread::sleep(DELIVERY_PAUSE);
        }
        if let Some(error) = reports.failure() {
            return Err(undelivered(events, error));
        }
        let patient = patience.check(self);
        if matches!(patient, Err(Failure::Stopped))
            && let Err(error) = producer.abort_transaction(ABORT)
        {
            // Readers wait until the broker times the transaction out.
            tracing::debug!(%error, "the transaction is left to the broker");
        }
        patient
    }

    /// Moves the floor to the published position, if it is not there.
    pub(crate) fn raise_floor(&self, session: &mut Session) -> Result<(), Failure> {
        let Some(at) = session.at else { return Ok(()) };
        let floor = Floor { epoch: at.epoch, position: at.position };
        if session.floor.is_some_and(|recorded| recorded >= floor) {
            return Ok(());
        }
        // Not `stop.wait`: on the way out the floor is still worth its one statement, which has a bound of its own.
        self.stop.finish(session.outbox.raise_floor(floor))?;
        session.floor = Some(floor);
        failpoint::hit("relay-after-floor");
        Ok(())
    }
}

/// How long one step of a transaction is waited for.
struct Patience {
    began_at: Instant,
    within: Duration,
    step: &'static str,
    stop_at: Option<Instant>,
}

impl Patience {
    fn new(within: Duration, step: &'static str) -> Self {
        Self { began_at: Instant::now(), within, step, stop_at: None }
    }

    /// Ends the wait at its bound, and some time after the wish to stop. A relay that waits for longer than a request
    /// may take does not show itself as ready.
    fn check(&mut self, publisher: &Publisher) -> Result<(), Failure> {
        let now = Instant::now();
        if publisher.stop.requested() && now >= *self.stop_at.get_or_insert(now + FINISH_WITHIN) {
            return Err(Failure::Stopped);
        }
        let waited = now.saturating_duration_since(self.began_at);
        if waited >= self.within {
            return Err(Failure::TimedOut { step: self.step });
        }
        if waited >= SOCKET_TIMEOUT {
            publisher.states.set(State::Starting);
        }
        Ok(())
    }
}

/// The publication of an event, below the request that made it, from here until it is dropped after the commit. Where this
/// process records no traces it stands for the request.
fn publish_span(event: &Event) -> Option<BoxedSpan> {
    let request = trace::parse(event.traceparent.as_deref()?)?;
    Some(trace::begin("publish", SpanKind::Producer, &request))
}

/// The group's metadata for `send_offsets_to_transaction`: the group's name, and no member.
fn group_metadata(reader: &Reader) -> Result<ConsumerGroupMetadata, Failure> {
    reader.group_metadata().ok_or_else(|| Failure::Topic("the reader has no group".to_owned()))
}

/// What it means that a batch's record failed. One that is too large is tried alone, since a batch of small ones is too
/// large just as well; if it fails alone, the shard halts there, with everything before it published.
fn undelivered(events: &[Event], error: KafkaError) -> Failure {
    let too_large = matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize)
    );
    match events {
        [event] if too_large => {
            HaltReason::EventTooLarge { position: event.position, detail: error.to_string() }.into()
        }
        [.., last] if too_large => Failure::BatchTooLarge { up_to: last.position, error },
        [..] => Failure::Kafka { step: "deliver a record", error },
    }
}
