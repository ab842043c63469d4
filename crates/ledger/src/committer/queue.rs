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
    /// After this the job is answered with what is known.
    pub(crate) deadline: Instant,
    /// A COMMIT that held this job got no answer: what is found for it must be made durable before it is answered.
    pub(crate) unknown: bool,
    /// The second committer has it.
    pub(crate) contended: bool,
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
        Self { asked, sealed, run, event_id: Uuid::now_v7(), deadline, unknown: false, contended: false, entry, reply }
    }

    /// The hash that the events of this job carry: that of the key under which they were asked for.
    pub(crate) fn event_key_hash(&self) -> KeyHash {
        let accepted_under = self.run.as_ref().and_then(|run| run.key_hashes.first().copied());
        accepted_under.unwrap_or_else(|| self.sealed.primary())
    }

    /// Answers the client and everyone who waits for the same key from the record that now stands.
    pub(crate) fn finish(self, answer: Answer, record: Record) {
        let _client_gone = self.reply.send(Ok(answer));
        self.entry.finish(record);
    }

    /// Answers that there is no answer. Whoever waits for the same key tries by itself. Where a COMMIT got no answer, no
    /// error may say that nothing happened.
    pub(crate) fn fail(self, error: SubmitError) {
        let error = if self.unknown { SubmitError::Unavailable } else { error };
        let _client_gone = self.reply.send(Err(error));
    }

    /// Answers a job that is past its deadline with what is known of it.
    pub(crate) fn expire(self) {
        let error = if self.contended { SubmitError::Contended } else { SubmitError::Unavailable };
        self.fail(error);
    }
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
}

impl Queue {
    pub(crate) fn new() -> Self {
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
            let bytes = waiting.bytes.saturating_add(weight);
            if waiting.closed {
                Some((job, SubmitError::Stopping))
            } else if waiting.jobs.len() >= MAX_WAITING || bytes > MAX_WAITING_BYTES {
                Some((job, SubmitError::Busy))
            } else {
                waiting.bytes = bytes;
                waiting.jobs.push_back(job);
                None
            }
        };
        match refused {
            Some((job, error)) => job.fail(error),
            None => self.arrived.notify_one(),
        }
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
