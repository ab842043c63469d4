//! What waits to be committed, bounded by number and by bytes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::running::Entry;
use crate::idempotency::{Answer, KeyHash, Record, SealedKey};
use crate::operation::OperationId;
use crate::submission::{Asked, SubmitError};

/// The most operations that wait. At 10,000 a second they wait 0.2 s.
const MAX_WAITING: usize = 2_000;
/// The most bytes that wait, by [`crate::Operation`]'s own estimate.
const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;

/// From so many waiting operations on, more are refused where they would wait for longer than [`PATIENCE`]: a batch of so many
/// is nearly as cheap for each as a larger one. Fewer are never refused, however slow the database is. Twice as many were
/// tried: 256 clients that always ask then hear no refusal, but at twice the capacity the accepted wait two to three times as
/// long.
const SHED_FROM: usize = 128;
/// How long an operation may be expected to wait for its batch before it is refused at once: twice what 256 connections
/// that always ask make it wait where 10,000 are done in a second. Longer waits serve nobody: all would be late, and no more
/// would be done.
const PATIENCE: Duration = Duration::from_millis(50);
/// For how long it may be so before the first is refused: a burst is served, and only lasting overload is not.
const BURST: Duration = Duration::from_millis(100);
/// How long it must not have been so before the next overload may begin with a burst again.
const CALM: Duration = Duration::from_secs(1);
/// How much the newest batch counts in the time that an operation is expected to take: one part of so many.
const PACE_OVER: u32 = 8;

/// Accepted work that a job runs. It has no key of its own: its row is locked while it runs, and done only once.
pub(crate) struct Run {
    pub(crate) id: OperationId,
    /// The records whose 202 its outcome replaces.
    pub(crate) key_hashes: Vec<KeyHash>,
}

/// One operation on its way through the committer.
pub(crate) struct Job {
    pub(crate) asked: Asked,
    pub(crate) sealed: SealedKey,
    pub(crate) run: Option<Run>,
    /// The id of the event that the operation makes, if it makes one; the same however often the batch runs.
    pub(crate) event_id: Uuid,
    /// When it came.
    pub(crate) arrived_at: Instant,
    /// After this the job is answered with what is known.
    pub(crate) deadline: Instant,
    /// A COMMIT that held this job got no answer: what is found for it must be made durable before it is answered.
    pub(crate) unknown: bool,
    /// Since when the second committer has it.
    pub(crate) contended_since: Option<Instant>,
    entry: Entry,
    reply: oneshot::Sender<Result<Answer, SubmitError>>,
}

impl Job {
    pub(crate) fn new(
        asked: Asked,
        sealed: SealedKey,
        run: Option<Run>,
        deadline: Instant,
        entry: Entry,
        reply: oneshot::Sender<Result<Answer, SubmitError>>,
    ) -> Self {
        Self {
            asked,
            sealed,
            run,
            event_id: Uuid::now_v7(),
            arrived_at: Instant::now(),
            deadline,
            unknown: false,
            contended_since: None,
            entry,
            reply,
        }
    }

    /// The hash that the events of this job carry: that of the key under which they were asked for.
    pub(crate) fn event_key_hash(&self) -> KeyHash {
        let accepted_under = self.run.as_ref().and_then(|run| run.key_hashes.first().copied());
        accepted_under.unwrap_or_else(|| self.sealed.primary())
    }

    /// Answers the client and everyone who waits for the same key from the record that now stands.
    pub(crate) fn finish(self, answer: Answer, record: Record) {
        self.observe();
        let _client_gone = self.reply.send(Ok(answer));
        self.entry.finish(record);
    }

    /// Answers that there is no answer. Whoever waits for the same key tries by itself. Where a COMMIT got no answer, no
    /// error may say that nothing happened.
    pub(crate) fn fail(self, error: SubmitError) {
        self.observe();
        let error = if self.unknown { SubmitError::Unavailable } else { error };
        let _client_gone = self.reply.send(Err(error));
    }

    fn observe(&self) {
        if let Some(since) = self.contended_since {
            metrics::histogram!("oncepost_contended_seconds").record(since.elapsed());
        }
    }

    /// Answers a job that is past its deadline with what is known of it.
    pub(crate) fn expire(self) {
        let error = if self.contended_since.is_some() { SubmitError::Contended } else { SubmitError::Unavailable };
        self.fail(error);
    }
}

/// Why an operation is refused at once: the queue is full, or it would wait for too long.
const FULL: &str = "queue";
const SLOW: &str = "slow";

/// Whether one more would wait for too long behind so many, where each of the last ones took `pace` and the batch that runs
/// has run for `hanging`.
fn too_long(waiting: usize, running: usize, pace: Duration, hanging: Duration) -> bool {
    let ahead = u32::try_from(waiting.saturating_add(running)).unwrap_or(u32::MAX);
    waiting >= SHED_FROM && pace.saturating_mul(ahead).max(hanging) > PATIENCE
}

/// Counts an operation that was refused before it got here.
pub(crate) fn shed_early() {
    shed(SLOW).increment(1);
}

fn shed(reason: &'static str) -> metrics::Counter {
    metrics::counter!("oncepost_shed_total", "reason" => reason)
}

/// The queue of one committer.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    bytes: usize,
    closed: bool,
    /// The size of the batch that runs now, and when it began.
    running: usize,
    running_since: Option<Instant>,
    /// The time that each operation of the last batches took.
    pace: Duration,
    /// Since when operations would wait for too long, and when one last would have.
    strained_since: Option<Instant>,
    strained_at: Option<Instant>,
}

impl Waiting {
    /// Why one more operation of this weight is refused at once, if it is.
    fn too_much(&mut self, weight: usize) -> Option<&'static str> {
        if self.jobs.len() >= MAX_WAITING || self.bytes.saturating_add(weight) > MAX_WAITING_BYTES {
            return Some(FULL);
        }
        let now = Instant::now();
        // A batch that hangs says more than those before it.
        let hanging = self.running_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if !too_long(self.jobs.len(), self.running, self.pace, hanging) {
            if self.strained_at.is_none_or(|at| now.saturating_duration_since(at) > CALM) {
                self.strained_since = None;
            }
            return None;
        }
        self.strained_at = Some(now);
        let since = *self.strained_since.get_or_insert(now);
        (now.saturating_duration_since(since) > BURST).then_some(SLOW)
    }
}

impl Queue {
    pub(crate) fn new() -> Self {
        // A counter that first appears with its first event hides that event from `rate`.
        for reason in [FULL, SLOW] {
            shed(reason).absolute(0);
        }
        Self { waiting: Mutex::default(), arrived: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job, or gives it its refusal at once.
    pub(crate) fn put(&self, job: Job) {
        let weight = job.asked.operation.weight();
        let refused = {
            let mut waiting = self.lock();
            if waiting.closed {
                Some((job, SubmitError::Stopping))
            } else if let Some(reason) = waiting.too_much(weight) {
                shed(reason).increment(1);
                Some((job, SubmitError::Busy))
            } else {
                waiting.bytes = waiting.bytes.saturating_add(weight);
                waiting.jobs.push_back(job);
                None
            }
        };
        match refused {
            Some((job, error)) => job.fail(error),
            None => self.arrived.notify_one(),
        }
    }

    /// Whether one more operation would be refused now.
    pub(crate) fn refuses(&self) -> bool {
        self.lock().too_much(0).is_some()
    }

    /// Everything that waits, once something does; `None` when the queue is closed and empty.
    pub(crate) async fn take(&self) -> Option<Vec<Job>> {
        loop {
            // Registered before the look, so that an arrival in between is not missed.
            let arrived = self.arrived.notified();
            {
                let mut waiting = self.lock();
                if !waiting.jobs.is_empty() {
                    waiting.bytes = 0;
                    return Some(waiting.jobs.drain(..).collect());
                }
                if waiting.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Like [`Queue::take`], but for at most `wait`: empty where nothing came, `None` when closed and empty.
    pub(crate) async fn take_within(&self, wait: Duration) -> Option<Vec<Job>> {
        match tokio::time::timeout(wait, self.take()).await {
            Ok(taken) => taken,
            Err(_elapsed) => Some(Vec::new()),
        }
    }

    /// Notes that a batch of so many begins. A queue whose batches nobody notes refuses only what does not fit.
    pub(crate) fn runs(&self, operations: usize) {
        let mut waiting = self.lock();
        waiting.running = operations;
        waiting.running_since = Some(Instant::now());
    }

    /// Notes that the batch that began last has ended.
    pub(crate) fn ran(&self, operations: usize, took: Duration) {
        let mut waiting = self.lock();
        waiting.running = 0;
        waiting.running_since = None;
        let each = took.checked_div(u32::try_from(operations).unwrap_or(u32::MAX)).unwrap_or(took);
        let (older, newest) = (waiting.pace.saturating_mul(PACE_OVER.saturating_sub(1)), each);
        waiting.pace = older.saturating_add(newest).checked_div(PACE_OVER).unwrap_or(each);
    }

    /// The number of waiting operations.
    pub(crate) fn depth(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Refuses what comes from now on.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_wait_for_too_long_is_refused_unless_few_wait() {
        let (fast, slow) = (Duration::from_micros(100), Duration::from_millis(10));
        // 256 connections that always ask, 10,000 done in a second.
        assert!(!too_long(200, 56, fast, Duration::from_millis(20)));
        // Twice as many ask as are done.
        assert!(too_long(400, 400, fast, Duration::ZERO));
        // A slow database: batches grow to their usual size first.
        assert!(!too_long(SHED_FROM - 1, 500, slow, Duration::from_secs(1)));
        assert!(too_long(SHED_FROM, 1, slow, Duration::ZERO));
        // Nothing comes back from the batch that runs.
        assert!(too_long(SHED_FROM, 1, Duration::ZERO, Duration::from_secs(1)));
    }
}
