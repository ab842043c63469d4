//! The ledger as its callers see it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::gauge;
use opentelemetry::trace::SpanContext;
use sqlx::PgPool;
use thiserror::Error;
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::attempts::Attempts;
use crate::audit;
use crate::clock;
use crate::committer::{Committer, Entered, Entry, Job, Queue, Run, Running, look_up, read_book, shed_early};
use crate::database::Database;
use crate::decide::{Effects, Operation, Rejection, decide};
use crate::idempotency::{Answer, Fingerprint, IdempotencyKey, KeyHash, Original, Record, SealedKey, Secrets};
use crate::observation;
use crate::operation::Unfinished;
use crate::query::ReadError;
use crate::retention::Retention;
use crate::scope::{Environment, Scope, Shard};
use crate::secret_registry::{self, SecretFault};
use crate::submission::{Asked, Render, Submission, SubmitError};

/// How long an operation may take through the committer before it is answered with what is known.
const SUBMIT_DEADLINE: Duration = Duration::from_secs(5);
/// How long a client waits for its outcome: the deadline, and the longest single step that a batch may be in by then.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The status of work that is accepted and not done.
const ACCEPTED: u16 = 202;
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
    /// How long answers are kept.
    pub retention: Retention,
    /// How often the books are audited; one process at a time does it for all.
    pub audit_interval: Duration,
}

/// How many database sessions there are for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Those that a reader has now.
    pub used: u32,
    /// Those that are open and wait for one.
    pub idle: u32,
    /// The most that there may be.
    pub max: u32,
}

impl Sessions {
    pub(crate) fn of(pool: &PgPool) -> Self {
        let idle = u32::try_from(pool.num_idle()).unwrap_or(u32::MAX);
        Self { used: pool.size().saturating_sub(idle), idle, max: pool.options().get_max_connections() }
    }
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// How far it has come.
    pub state: KeyState,
    /// The environment in which it was used; the asking one's where it was not.
    pub environment: Environment,
    /// How often it was sent, as far as it was counted.
    pub attempts: i64,
    /// When it was last sent, as far as it was counted.
    pub last_attempt_at: Option<OffsetDateTime>,
    /// The first answer in short.
    pub original: Option<Original>,
}

/// How far a key has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Nothing ran under it.
    Unused,
    /// The first request with it runs in this process.
    Running,
    /// Its work is accepted and not done.
    Accepted,
    /// It has its answer.
    Completed,
    /// It has its answer, whose bytes are no longer kept.
    Expired,
}

/// Why a ledger doesn't open.
#[derive(Debug, Error)]
pub enum OpenError {
    /// PostgreSQL can't be reached, or its schema isn't there.
    #[error("the ledger can't be read: {0}")]
    Sql(#[from] sqlx::Error),
    /// Records stand that the configured secrets would not find.
    #[error("the idempotency secrets don't fit the records: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Secrets(Vec<SecretFault>),
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
    attempts: Attempts,
    /// What is looked after beside the money path. Ended with the ledger.
    chores: Mutex<JoinSet<()>>,
}

/// Whose turn it is with a key.
enum Turn {
    /// The asking request's.
    Mine(Entry),
    /// No one's any more: the request before has left its record.
    Recorded(Arc<Record>),
    /// Still the request before's.
    StillRunning,
}

impl Ledger {
    /// Connects and starts a committer for each shard.
    ///
    /// # Errors
    /// [`OpenError`] by variant.
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let Settings { database, secrets, pool_size, retention, audit_interval } = settings;
        let pool = database.pool(pool_size);
        let faults = secret_registry::check(&pool, &secrets).await?;
        if !faults.is_empty() {
            return Err(OpenError::Secrets(faults));
        }
        // Before anything is answered, since an answer without a table for its day can't be recorded. Dropping may fail here
        // and be done later.
        if let Err(error) = retention.keep(&pool).await {
            tracing::warn!(%error, "the days of answers can't be looked after yet");
        }
        let secrets = Arc::new(secrets);
        let shards = sqlx::query_scalar!("SELECT shard FROM streams").fetch_all(&pool).await?;
        let committers = shards
            .into_iter()
            .map(Shard)
            .map(|shard| (shard, Committer::start(&database, Arc::clone(&secrets), shard)))
            .collect();
        let attempts = Attempts::default();
        let mut chores = JoinSet::new();
        chores.spawn(retention.run(pool.clone()));
        chores.spawn(attempts.clone().run(pool.clone()));
        // On a session of its own: where the pool has none left, PostgreSQL is not down.
        chores.spawn(observation::run(database.pool(1)));
        chores.spawn(audit::run(database, pool.clone(), audit_interval));
        gauge!("oncepost_answer_days_max").set(retention.days_max());
        let inner =
            Inner { pool, secrets, running: Running::default(), committers, attempts, chores: Mutex::new(chores) };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    fn queue(&self, shard: Shard) -> Result<&Queue, SubmitError> {
        self.inner.committers.get(&shard).map(Committer::queue).ok_or(SubmitError::Unavailable)
    }

    /// Seals a client's key, so that it need not be kept.
    pub fn seal(&self, scope: &Scope, key: &IdempotencyKey, fingerprint: &Fingerprint) -> SealedKey {
        self.inner.secrets.seal(scope, key, fingerprint)
    }

    /// Runs an operation under its key, or answers from the record of the request that ran it before. An answer is given
    /// only after its commit is durable (I6). Dropping the returned future does not stop the operation.
    ///
    /// # Errors
    /// [`SubmitError`] by variant; all but [`SubmitError::Failed`] mean "same key again".
    pub async fn submit(&self, submission: Submission) -> Result<Answer, SubmitError> {
        let Submission { scope, key, fingerprint, known_members, operation, render, wait, staged_fault, trace } =
            submission;
        let (shard, primary) = (scope.shard, key.primary());
        let asked = Asked { scope, fingerprint, known_members, operation, render, staged_fault, trace };
        let answer = match self.enter(primary, wait).await {
            Turn::Mine(entry) => self.enqueue(asked, key, None, entry).await?,
            Turn::Recorded(record) => {
                record.judge(&self.inner.secrets, scope.environment, &asked.fingerprint, asked.known_members)
            }
            Turn::StillRunning => Answer::InProgress,
        };
        match &answer {
            Answer::Fresh(_) | Answer::EnvironmentMismatch { .. } => {}
            Answer::Replayed(_) | Answer::KeyReused { .. } | Answer::Expired { .. } | Answer::InProgress => {
                self.inner.attempts.note(shard, primary);
            }
        }
        Ok(answer)
    }

    /// Accepts work under its key: a submission of [`Operation::AcceptWork`]. Beside the answer, the work itself where this
    /// call has accepted it, for the caller to run; whoever does not leaves it to be found unfinished.
    ///
    /// # Errors
    /// As [`Ledger::submit`].
    pub async fn accept(&self, submission: Submission) -> Result<(Answer, Option<Unfinished>), SubmitError> {
        let unfinished = if let Operation::AcceptWork(accept) = &submission.operation {
            Some(Unfinished {
                id: accept.id,
                scope: submission.scope,
                work: (*accept.work).clone(),
                origin: accept.origin.clone(),
                key_hashes: submission.key.write.iter().map(|write| write.hash).collect(),
            })
        } else {
            None
        };
        let answer = self.submit(submission).await?;
        let accepted = matches!(answer, Answer::Fresh(_));
        Ok((answer, unfinished.filter(|_| accepted)))
    }

    /// Runs accepted work to its end, once: where another process has done it or is doing it, this says
    /// [`SubmitError::Unavailable`], and it is not found unfinished for ever.
    ///
    /// # Errors
    /// [`SubmitError`] by variant; the work stays accepted.
    pub async fn run(&self, unfinished: Unfinished, render: Render) -> Result<Answer, SubmitError> {
        let Unfinished { id, scope, work: operation, key_hashes, .. } = unfinished;
        let mut name = [0; 32];
        name.iter_mut().zip(id.0.as_bytes()).for_each(|(to, from)| *to = *from);
        let Turn::Mine(entry) = self.enter(KeyHash(name), Duration::ZERO).await else {
            return Err(SubmitError::Unavailable);
        };
        let fingerprint = Fingerprint { whole: [0; 32], members: Vec::new() };
        let trace = SpanContext::empty_context();
        let asked = Asked { scope, fingerprint, known_members: &[], operation, render, staged_fault: None, trace };
        self.enqueue(asked, SealedKey::NONE, Some(Run { id, key_hashes }), entry).await
    }

    /// Waits for a request's turn with its key, at most for `wait`.
    async fn enter(&self, key: KeyHash, wait: Duration) -> Turn {
        let started = Instant::now();
        loop {
            let record = match self.inner.running.enter(key) {
                Entered::First(entry) => return Turn::Mine(entry),
                Entered::Wait(record) => record,
            };
            match tokio::time::timeout(wait.saturating_sub(started.elapsed()), record).await {
                Ok(Ok(record)) => return Turn::Recorded(record),
                // The original ended without a record, so this one may run.
                Ok(Err(_ended)) => {}
                Err(_elapsed) => return Turn::StillRunning,
            }
        }
    }

    async fn enqueue(
        &self,
        asked: Asked,
        sealed: SealedKey,
        run: Option<Run>,
        entry: Entry,
    ) -> Result<Answer, SubmitError> {
        let queue = self.queue(asked.scope.shard)?;
        let (reply, outcome) = oneshot::channel();
        queue.put(Job::new(asked, sealed, run, Instant::now() + SUBMIT_DEADLINE, entry, reply));
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
        key: &SealedKey,
        fingerprint: &Fingerprint,
        known_members: &'static [&'static str],
    ) -> Result<Option<Answer>, SubmitError> {
        let unavailable = |error: sqlx::Error| {
            tracing::warn!(%error, "a record can't be looked up");
            SubmitError::Unavailable
        };
        let hashes: Vec<_> = key.hashes().collect();
        let mut connection = self.inner.pool.acquire().await.map_err(unavailable)?;
        let records = look_up(&mut connection, scope.shard, &hashes).await.map_err(unavailable)?;
        let record = records.into_values().next();
        Ok(record.map(|record| record.judge(&self.inner.secrets, scope.environment, fingerprint, known_members)))
    }

    /// What became of a key, for whoever holds it. Runs and records nothing.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn key_use(&self, scope: &Scope, key: &IdempotencyKey) -> Result<KeyUse, ReadError> {
        let hashes = self.inner.secrets.hashes(scope, key);
        let mut connection = self.inner.pool.acquire().await?;
        let record = look_up(&mut connection, scope.shard, &hashes).await?.into_values().next();
        let Some(record) = record else {
            let running = hashes.first().is_some_and(|key| self.inner.running.contains(*key));
            let state = if running { KeyState::Running } else { KeyState::Unused };
            return Ok(KeyUse {
                state,
                environment: scope.environment,
                attempts: 0,
                last_attempt_at: None,
                original: None,
            });
        };
        let bytes: Vec<[u8; 32]> = hashes.iter().map(|hash| hash.0).collect();
        let counted = sqlx::query!(
            r#"SELECT coalesce(sum(a.attempts), 0)::bigint AS "attempts!", max(a.last_at) AS last_at
               FROM unnest($1::bytea[]) AS k (key_hash),
                 LATERAL (SELECT * FROM idempotency_attempts a WHERE a.key_hash = k.key_hash AND a.shard = $2 OFFSET 0) a"#,
            &bytes as &[[u8; 32]],
            scope.shard.0,
        )
        .fetch_one(&mut *connection)
        .await?;
        let unwritten = hashes.iter().filter_map(|key| self.inner.attempts.unwritten(scope.shard, *key));
        let (attempts, last_at) = unwritten
            .fold((counted.attempts, counted.last_at), |(attempts, last_at), (more, at)| {
                (attempts.saturating_add(more), last_at.max(Some(at)))
            });
        let state = match (&record.response, record.status) {
            (_, ACCEPTED) => KeyState::Accepted,
            (Some(_), _) => KeyState::Completed,
            (None, _) => KeyState::Expired,
        };
        Ok(KeyUse {
            state,
            environment: record.environment,
            attempts: attempts.saturating_add(1),
            last_attempt_at: last_at.max(Some(record.completed_at)),
            original: Some(record.original()),
        })
    }

    /// What an operation would come to now. Locks, records and changes nothing.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn try_out(&self, scope: &Scope, operation: &Operation) -> Result<Result<Effects, Rejection>, ReadError> {
        let ids: Vec<Uuid> = operation.accounts().map(|id| id.0).collect();
        let book = read_book(&self.inner.pool, scope.shard, &ids).await?;
        Ok(decide(&book, scope, operation, clock::now()))
    }

    /// Whether the books can be reached now.
    pub async fn ready(&self) -> bool {
        let ping = sqlx::query_scalar!(r#"SELECT 1 AS "one!""#).fetch_one(&self.inner.pool);
        matches!(tokio::time::timeout(READY_TIMEOUT, ping).await, Ok(Ok(1)))
    }

    /// The sessions for reading.
    pub fn sessions(&self) -> Sessions {
        Sessions::of(&self.inner.pool)
    }

    /// Whether too much waits for any operation to be taken now, wherever its tenant lives. Whoever asks then refuses a request
    /// before anything is done for it, which is counted here.
    pub fn sheds(&self) -> bool {
        let overloaded = self.inner.committers.values().all(|committer| committer.queue().refuses());
        if overloaded {
            shed_early();
        }
        overloaded
    }

    /// Sets the gauges of what waits now; called when metrics are read, so that they are never out of date.
    pub fn show_queues(&self) {
        let depth = |queue: fn(&Committer) -> &Queue| {
            let waiting: usize = self.inner.committers.values().map(|committer| queue(committer).depth()).sum();
            f64::from(u32::try_from(waiting).unwrap_or(u32::MAX))
        };
        gauge!("oncepost_queue_operations", "queue" => "first").set(depth(Committer::queue));
        gauge!("oncepost_queue_operations", "queue" => "contended").set(depth(Committer::contended));
    }

    /// Takes no more work, commits what is queued, and returns when everything has its outcome.
    pub async fn close(&self) {
        for committer in self.inner.committers.values() {
            committer.close().await;
        }
        self.inner.chores.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.inner.attempts.write(&self.inner.pool).await;
        self.inner.pool.close().await;
    }
}
