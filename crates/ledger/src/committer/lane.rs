//! The first committer: takes whatever gathered and runs it until each operation has an outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::batch::{Locking, Work, attempt};
use super::fault::Fault;
use super::queue::Job;
use super::session::Session;
use crate::submission::SubmitError;

/// How often a batch runs again together because another process owned a key, before it runs one by one.
const MAX_TOGETHER: u32 = 3;
/// How often a batch runs again because the schema changed, before that counts as a fault of ours.
const MAX_SCHEMA_CHANGES: u32 = 3;
/// The pause before a batch runs again after the database was out of reach or refused for a passing reason.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long the second committer tries for an operation whose accounts others hold.
const CONTENDED_DEADLINE: Duration = Duration::from_secs(2);

/// How long a transaction that was begun ahead waits for a batch: well within the time that the server gives it.
const AHEAD_FOR: Duration = Duration::from_millis(200);
/// How long BEGIN may take before the connection counts as lost.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A committer's session, opened when it is needed and after it was lost.
pub(super) struct Lane {
    shared: Shared,
    session: Option<Session>,
}

/// The first committer's task. What finds an account locked by others goes to the second.
pub(super) async fn run(shared: Shared) {
    let mut lane = Lane::new(shared);
    while let Some(jobs) = lane.next_jobs().await {
        let waited = metrics::histogram!("oncepost_queue_wait_seconds");
        jobs.iter().for_each(|job| waited.record(job.arrived_at.elapsed()));
        let (operations, begun) = (jobs.len(), Instant::now());
        lane.shared.queue.runs(operations);
        let contended = lane.commit(jobs, Locking::Skip).await;
        lane.shared.queue.ran(operations, begun.elapsed());
        for mut job in contended {
            job.contended_since = Some(Instant::now());
            job.deadline = job.deadline.min(Instant::now() + CONTENDED_DEADLINE);
            metrics::counter!("oncepost_contended_total").increment(1);
            lane.shared.contended.put(job);
        }
        lane.begin_ahead().await;
    }
}

/// How a batch stands after an attempt that did not commit.
enum Next {
    Again,
    OneByOne,
}

impl Lane {
    pub(super) fn new(shared: Shared) -> Self {
        Self { shared, session: None }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Gives the session up; the next use opens another.
    pub(super) fn drop_session(&mut self) {
        self.session = None;
    }

    /// The session, opened if there is none.
    pub(super) async fn session(&mut self) -> Result<&mut Session, sqlx::Error> {
        let session = match self.session.take() {
            Some(session) => session,
            None => Session::open(&self.shared.database).await?,
        };
        Ok(self.session.insert(session))
    }

    /// What waits, once something does; `None` when the queue is closed and empty.
    async fn next_jobs(&mut self) -> Option<Vec<Job>> {
        let queue = Arc::clone(&self.shared.queue);
        match queue.take_within(AHEAD_FOR).await {
            Some(jobs) if jobs.is_empty() => {
                if let Some(session) = &mut self.session {
                    session.positions.forget();
                    if session.roll_back().await.is_err() {
                        self.session = None;
                    }
                }
                queue.take().await
            }
            taken => taken,
        }
    }

    /// Begins the next batch's transaction while its clients still think. It holds no lock and no snapshot.
    async fn begin_ahead(&mut self) {
        if let Some(session) = &mut self.session
            && !matches!(tokio::time::timeout(BEGIN_TIMEOUT, session.begin()).await, Ok(Ok(())))
        {
            self.session = None;
        }
    }

    /// Commits the jobs and answers them, or answers why not; returns those whose accounts others hold. A batch that fails
    /// for a reason of its own runs again one operation at a time, so that only what fails alone is refused.
    pub(super) async fn commit(&mut self, jobs: Vec<Job>, locking: Locking) -> Vec<Job> {
        let mut contended = Vec::new();
        let mut jobs = jobs;
        // A fault that is played must strike no one else.
        let staged = jobs.extract_if(.., |job| job.asked.staged_fault.is_some()).map(|job| vec![job]);
        let mut batches: Vec<Vec<Job>> = staged.collect();
        batches.push(jobs);
        while let Some(jobs) = batches.pop() {
            let mut work = Work { open: jobs, contended: Vec::new() };
            if let Next::OneByOne = self.commit_together(&mut work, locking).await {
                // Popped from the end, so the last stands first: arrival order is kept.
                batches.extend(work.open.drain(..).rev().map(|job| vec![job]));
            }
            contended.append(&mut work.contended);
        }
        contended
    }

    /// Runs one batch until it is committed, expired or to be taken apart. A batch of one is always settled here.
    async fn commit_together(&mut self, work: &mut Work, locking: Locking) -> Next {
        let (mut key_taken, mut schema_changes) = (0_u32, 0_u32);
        loop {
            expire(&mut work.open);
            if work.open.is_empty() {
                return Next::Again;
            }
            let fault = match self.attempt(work, locking).await {
                Ok(()) => return Next::Again,
                Err(fault) => fault,
            };
            work.open.append(&mut work.contended);
            let alone = work.open.len() <= 1;
            metrics::counter!("oncepost_batch_reruns_total", "fault" => fault.name()).increment(1);
            tracing::debug!(?fault, operations = work.open.len(), "a batch did not commit");
            match fault {
                Fault::KeyTaken => {
                    key_taken = key_taken.saturating_add(1);
                    if key_taken > MAX_TOGETHER && !alone {
                        return Next::OneByOne;
                    }
                    if key_taken > MAX_TOGETHER {
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
                // At most once a second, since the next batches read the positions.
                Fault::PositionTaken => {}
                Fault::Retry => tokio::time::sleep(RETRY_PAUSE).await,
                Fault::SchemaChanged if schema_changes < MAX_SCHEMA_CHANGES => {
                    schema_changes = schema_changes.saturating_add(1);
                    self.session = None;
                }
                Fault::Connection => {
                    self.session = None;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Fault::Unknown => {
                    self.session = None;
                    metrics::counter!("oncepost_unknown_commits_total").increment(1);
                    for job in &mut work.open {
                        job.unknown = true;
                    }
                }
                Fault::SchemaChanged | Fault::Poison(_) if !alone => return Next::OneByOne,
                Fault::SchemaChanged => self.refuse(work, "the schema keeps changing"),
                Fault::Poison(error) => self.refuse(work, &error.to_string()),
            }
        }
    }

    /// Refuses what fails by itself; the next turn of the loop finds nothing left.
    fn refuse(&self, work: &mut Work, reason: &str) {
        for job in work.open.drain(..) {
            tracing::error!(operation = job.asked.operation.name(), reason, "an operation fails by itself");
            job.fail(SubmitError::Failed);
        }
    }

    async fn attempt(&mut self, work: &mut Work, locking: Locking) -> Result<(), Fault> {
        let Shared { secrets, shard, .. } = self.shared.clone();
        let session = self.session().await.map_err(|error| {
            tracing::warn!(%error, "the committer can't reach the database");
            Fault::Connection
        })?;
        attempt(session, &secrets, shard, work, locking).await
    }
}

/// Answers the jobs that are past their deadline.
pub(super) fn expire(jobs: &mut Vec<Job>) {
    let now = Instant::now();
    jobs.extract_if(.., |job| job.deadline <= now).for_each(Job::expire);
}
