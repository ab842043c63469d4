//! The ledger as its callers see it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use thiserror::Error;
use tokio::sync::oneshot;

use crate::committer::{Committer, Entered, Job, Queue, Running, look_up};
use crate::database::Database;
use crate::idempotency::{Answer, Fingerprint, IdempotencyKey, Secrets};
use crate::scope::{Scope, Shard};
use crate::submission::{Submission, SubmitError};

/// How long an operation may take through the committer before it is answered with what is known.
const SUBMIT_DEADLINE: Duration = Duration::from_secs(5);
/// How long a client waits for its outcome: the deadline, and the longest single step that a batch may be in by then.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a duplicate waits for a running original.
const DUPLICATE_WAIT: Duration = Duration::from_secs(5);
/// How long the database may take to say that it is there.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// What a ledger needs to open.
#[derive(Clone)]
pub struct Settings {
    /// Where the books are.
    pub database: Database,
    /// What idempotency keys are hashed with.
    pub secrets: Secrets,
    /// The most sessions for reading; the committers have two more for each shard.
    pub pool_size: u32,
}

/// Why a ledger doesn't open.
#[derive(Debug, Error)]
pub enum OpenError {
    /// PostgreSQL can't be reached, or its schema isn't there.
    #[error("the ledger can't be read: {0}")]
    Sql(#[from] sqlx::Error),
}

/// A handle on the books; cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PgPool,
    secrets: Arc<Secrets>,
    running: Running,
    committers: HashMap<Shard, Committer>,
}

impl Ledger {
    /// Connects and starts a committer for each shard.
    ///
    /// # Errors
    /// [`OpenError`] by variant.
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let Settings { database, secrets, pool_size } = settings;
        let pool = database.pool(pool_size);
        let secrets = Arc::new(secrets);
        let shards = sqlx::query_scalar!("SELECT shard FROM streams").fetch_all(&pool).await?;
        let committers = shards
            .into_iter()
            .map(Shard)
            .map(|shard| (shard, Committer::start(&database, Arc::clone(&secrets), shard)))
            .collect();
        Ok(Self { inner: Arc::new(Inner { pool, secrets, running: Running::default(), committers }) })
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    fn queue(&self, shard: Shard) -> Result<&Queue, SubmitError> {
        self.inner.committers.get(&shard).map(Committer::queue).ok_or(SubmitError::Unavailable)
    }

    /// Runs an operation under its key, or answers from the record of the request that ran it before. An answer is given
    /// only after its commit is durable (I6). Dropping the returned future does not stop the operation.
    ///
    /// # Errors
    /// [`SubmitError`] by variant; all but [`SubmitError::Failed`] mean "same key again".
    pub async fn submit(&self, submission: Submission) -> Result<Answer, SubmitError> {
        let started = Instant::now();
        let queue = self.queue(submission.scope.shard)?;
        let sealed = self.inner.secrets.seal(&submission.scope, &submission.key, &submission.fingerprint);
        let entry = loop {
            match self.inner.running.enter(sealed.primary()) {
                Entered::First(entry) => break entry,
                Entered::Wait(record) => {
                    let left = DUPLICATE_WAIT.saturating_sub(started.elapsed());
                    match tokio::time::timeout(left, record).await {
                        Ok(Ok(record)) => {
                            let Submission { scope, fingerprint, known_members, .. } = &submission;
                            return Ok(record.judge(
                                &self.inner.secrets,
                                scope.environment,
                                fingerprint,
                                known_members,
                            ));
                        }
                        // The original ended without a record, so this one may run.
                        Ok(Err(_ended)) => {}
                        Err(_elapsed) => return Ok(Answer::InProgress),
                    }
                }
            }
        };
        let (reply, outcome) = oneshot::channel();
        queue.put(Job::new(submission, sealed, Instant::now() + SUBMIT_DEADLINE, entry, reply));
        match tokio::time::timeout(SUBMIT_TIMEOUT, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(SubmitError::Unavailable),
        }
    }

    /// The answer that stands under a key, without running anything: for a request that today's rules refuse, but that an
    /// earlier version may have run.
    ///
    /// # Errors
    /// [`SubmitError::Unavailable`].
    pub async fn look_up(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        fingerprint: &Fingerprint,
        known_members: &'static [&'static str],
    ) -> Result<Option<Answer>, SubmitError> {
        let unavailable = |error: sqlx::Error| {
            tracing::warn!(%error, "a record can't be looked up");
            SubmitError::Unavailable
        };
        let sealed = self.inner.secrets.seal(scope, key, fingerprint);
        let hashes: Vec<_> = sealed.hashes().collect();
        let mut connection = self.inner.pool.acquire().await.map_err(unavailable)?;
        let records = look_up(&mut connection, scope.shard, &hashes).await.map_err(unavailable)?;
        let record = records.into_values().next();
        Ok(record.map(|record| record.judge(&self.inner.secrets, scope.environment, fingerprint, known_members)))
    }

    /// Whether the books can be reached now.
    pub async fn ready(&self) -> bool {
        let ping = sqlx::query_scalar!(r#"SELECT 1 AS "one!""#).fetch_one(&self.inner.pool);
        matches!(tokio::time::timeout(READY_TIMEOUT, ping).await, Ok(Ok(1)))
    }

    /// The number of operations that wait for a committer.
    pub fn queue_depth(&self) -> usize {
        self.inner.committers.values().map(|committer| committer.queue().depth()).sum()
    }

    /// Takes no more work, commits what is queued, and returns when everything has its outcome.
    pub async fn close(&self) {
        for committer in self.inner.committers.values() {
            committer.close().await;
        }
        self.inner.pool.close().await;
    }
}
