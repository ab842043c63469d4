//! A session of the committer, and the two statements around a batch that must not be taken at their word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, Executor};
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, Event, Metadata, Subscriber, level_filters::LevelFilter, span};

use super::fault::Fault;
use crate::database::Database;

/// How long a batch waits for a record or for the stream. Longer than a frozen process may hold them, which is
/// [`IDLE_IN_TRANSACTION_TIMEOUT_MS`].
const LOCK_TIMEOUT_MS: u32 = 3_000;
/// How long a statement runs; none is armed around COMMIT.
const STATEMENT_TIMEOUT_MS: u32 = 5_000;
/// A process that is frozen between numbering and COMMIT holds the stream no longer than this.
const IDLE_IN_TRANSACTION_TIMEOUT_MS: u32 = 1_000;
/// How long a rollback may take before the connection counts as lost.
const ROLL_BACK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long opening a session may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// One connection that belongs to one committer task.
pub(crate) struct Session {
    pub(crate) connection: PgConnection,
    /// Whether this session has made a COMMIT durable. Until then, what it finds may stem from a COMMIT that got no answer,
    /// and is not shown before a COMMIT that writes has covered the older log (I6).
    pub(crate) covered: bool,
    /// Where the stream ends.
    pub(crate) positions: Positions,
    /// Whether the last batch held replays: then the next one likely does.
    pub(crate) replaying: bool,
    /// Whether a transaction is open.
    begun: bool,
    notices: Arc<AtomicBool>,
    dispatch: Dispatch,
}

/// The options of sessions that run the committer's statements.
///
/// Those statements go from a list of keys to a primary key, and the last position is the end of an index. A planner
/// without statistics, or with those of an empty table, may prefer to read whole tables, and a cached plan keeps doing so;
/// here it has no other choice, so one plan serves batches of every size and need not be made again for a small one. Costs
/// made up by these settings must not start the JIT compiler.
pub(crate) fn options(database: &Database, name: &str) -> PgConnectOptions {
    database.session(name, LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, IDLE_IN_TRANSACTION_TIMEOUT_MS).options([
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("jit", "off"),
    ])
}

impl Session {
    pub(crate) async fn open(database: &Database) -> Result<Self, sqlx::Error> {
        let options = options(database, "oncepost-committer");
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(&options))
            .await
            .map_err(|_elapsed| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))??;
        let notices = Arc::new(AtomicBool::new(false));
        let dispatch = Dispatch::new(NoticeWatch(Arc::clone(&notices)));
        Ok(Self {
            connection,
            covered: false,
            positions: Positions::default(),
            replaying: false,
            begun: false,
            notices,
            dispatch,
        })
    }

    /// Begins, unless that was done ahead.
    pub(crate) async fn begin(&mut self) -> Result<(), Fault> {
        if !self.begun {
            // Whatever keeps it from beginning, such as a server that has become a standby, a new session may not meet.
            let begun = self.set("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await;
            begun.map_err(|_| Fault::Connection)?;
            self.begun = true;
        }
        Ok(())
    }

    /// Runs a statement without parameters, such as `SET LOCAL`.
    pub(crate) async fn set(&mut self, statement: &'static str) -> Result<(), Fault> {
        self.connection.execute(sqlx::raw_sql(statement)).await.map_err(Fault::before_commit)?;
        Ok(())
    }

    /// Rolls back, if a transaction is open. A session in which that fails is not used again.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Fault> {
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        match tokio::time::timeout(ROLL_BACK_TIMEOUT, self.connection.execute(sqlx::raw_sql("ROLLBACK"))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Fault::Connection),
        }
    }

    /// Commits, and tells a commit that is durable from one that may not be.
    ///
    /// The statement time-out is disarmed in the same round trip: a cancelled wait for a synchronous standby would report
    /// success with no more than a warning. A warning of any kind therefore counts as unknown.
    pub(crate) async fn commit(&mut self) -> Result<(), Fault> {
        self.begun = false;
        self.notices.store(false, Ordering::SeqCst);
        let committed = self
            .connection
            .execute(sqlx::raw_sql("SET LOCAL statement_timeout = 0; COMMIT"))
            .with_subscriber(self.dispatch.clone())
            .await;
        match committed {
            Ok(_) if self.notices.load(Ordering::SeqCst) => {
                tracing::warn!("COMMIT drew a warning; whether it is durable is not known yet");
                Err(Fault::Unknown)
            }
            Ok(_) => {
                self.covered = true;
                Ok(())
            }
            Err(error) => Err(Fault::at_commit(error)),
        }
    }
}

/// How long positions are read anew for each batch after another process has given some out.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// What a session knows of the end of its shard's stream. It serves as a guess that saves a round trip: a wrong one is
/// refused by the outbox's key, since positions are only ever added.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    last: Option<i64>,
    /// Another process gives out positions, too.
    shared_until: Option<Instant>,
}

impl Positions {
    /// The last position, as far as this session knows and may rely on it.
    pub(crate) fn known(&self) -> Option<i64> {
        self.last.filter(|_| self.shared_until.is_none_or(|until| until <= Instant::now()))
    }

    /// A batch of this session is committed; `last` is its last event's position, if it has events.
    pub(crate) fn committed(&mut self, last: Option<i64>) {
        self.last = last.or(self.last);
    }

    /// Nothing has happened here for a while: what is known may be out of date.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// The guess was wrong.
    pub(crate) fn taken(&mut self) {
        self.last = None;
        self.shared_until = Some(Instant::now() + SHARED_FOR);
    }
}

/// Notes that the server sent a warning. sqlx hands notices to nobody but `tracing`, so this listens there, for the time
/// of one COMMIT.
struct NoticeWatch(Arc<AtomicBool>);

impl Subscriber for NoticeWatch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::postgres::notice"
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn event(&self, _: &Event<'_>) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
