//! The outbox as the relay reads it: positions of one shard in order, what the relay has recorded, and the lock that
//! lets one relay at a time work on a shard.
//!
//! Each [`Outbox`] is one session of its own, never one of a pool, with `enable_seqscan=off`: an outbox that was emptied
//! and vacuumed is otherwise planned as a sequential scan, and stays planned so while it fills. Every call has a bound,
//! [`CALL_TIMEOUT`], on this side too, because a broken network reports nothing. After any error the session's state is
//! unknown: drop it and open another.

use std::future::Future;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use thiserror::Error;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use crate::database::Database;
use crate::idempotency::KeyHash;
use crate::scope::{Environment, Shard, TenantId};

/// How long the relay's sessions wait for a lock. They only meet one another, on the row of `relays`.
const LOCK_TIMEOUT_MS: u32 = 2_000;
/// How long a statement of the relay runs.
const STATEMENT_TIMEOUT_MS: u32 = 5_000;
/// How long a session of the relay stays idle inside a transaction; it opens none of its own.
const IDLE_IN_TRANSACTION_TIMEOUT_MS: u32 = 5_000;
/// How long the beginning of an epoch may take, 10 minutes: it changes every event that was accepted since the restore, tens of
/// thousands in a second.
const BEGIN_EPOCH_TIMEOUT_MS: u32 = 600_000;
/// How long this side waits for a connection or an answer: longer than `STATEMENT_TIMEOUT_MS`, so that PostgreSQL's own
/// refusal arrives first where the network works.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(7);

/// How long PostgreSQL keeps the lock's session, and with it the lock, after the last word from the relay.
const LOCK_IDLE_SESSION_TIMEOUT_MS: u32 = 10_000;
/// How often the lock's session says a word.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// How long a ping may take. Interval and time-out together stay below `LOCK_IDLE_SESSION_TIMEOUT_MS`, so that a relay
/// whose network broke knows before anyone else can hold the lock.
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// The first half of the advisory lock's key, the letters "once" in ASCII; the second half is the shard.
const LOCK_CLASS: i32 = 0x6f6e_6365;

/// Why the outbox can't be used.
#[derive(Debug, Error)]
pub enum OutboxError {
    /// PostgreSQL said no, or the connection broke.
    #[error("the outbox can't be read: {0}")]
    Sql(#[from] sqlx::Error),
    /// No answer within [`CALL_TIMEOUT`].
    #[error("the outbox can't be read: no answer within {} s", CALL_TIMEOUT.as_secs())]
    TimedOut,
    /// A row names an environment that this version doesn't know.
    #[error("the outbox row at position {0} names an unknown environment")]
    UnknownEnvironment(i64),
}

/// One row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which stream: a person starts a new one after a restore.
    pub epoch: i32,
    /// Counts the shard's events from 1, without a gap, in commit order (I7).
    pub position: i64,
    /// Names the event; consumers deduplicate by it.
    pub event_id: Uuid,
    /// What happened, such as `transfer.posted`.
    pub event_type: String,
    /// What it happened to: the transfer.
    pub resource_id: Uuid,
    /// Whose it is.
    pub tenant: TenantId,
    /// The side of the wall.
    pub environment: Environment,
    /// The hash of the idempotency key that it was born under; the key itself is in no event (I10).
    pub key_hash: KeyHash,
    /// The resource as JSON, as bytes.
    pub payload: Vec<u8>,
    /// The trace of the request that made it, where that was recorded.
    pub traceparent: Option<String>,
    /// When it was decided.
    pub created_at: OffsetDateTime,
}

/// The floor F: a position, with its epoch, that is known to be published. Pairs are compared, never positions alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Floor {
    /// The epoch, which decides first.
    pub epoch: i32,
    /// The position within the epoch.
    pub position: i64,
}

/// What a shard's relay has recorded in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayRecord {
    /// The cluster id of the Kafka that it publishes to.
    pub kafka_cluster_id: String,
    /// The floor; `None` until the first position is known to be published.
    pub floor: Option<Floor>,
}

/// Where an event stands in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which stream.
    pub epoch: i32,
    /// The position within it.
    pub position: i64,
    /// The event at that position.
    pub event_id: Uuid,
}

/// A shard's stream, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The epoch of the events that are made now.
    pub epoch: i32,
    /// Where each epoch after the first began, in their order: the new epoch, and the last position before it. Position 0 with
    /// the nil id is before the first event.
    pub starts: Vec<Stamp>,
}

/// How far publishing is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// How many positions wait.
    pub rows: i64,
    /// When the oldest of them was decided; `None` if none waits.
    pub oldest_at: Option<OffsetDateTime>,
}

/// Sessions of the relay, and what all of them have in common.
fn session(database: &Database, name: &str) -> PgConnectOptions {
    database
        .session(name, LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, IDLE_IN_TRANSACTION_TIMEOUT_MS)
        .options([("enable_seqscan", "off"), ("jit", "off")])
}

/// Puts the bound of [`CALL_TIMEOUT`] on a call.
async fn bounded<T>(call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, OutboxError> {
    Ok(timeout(CALL_TIMEOUT, call).await.map_err(|_| OutboxError::TimedOut)??)
}

/// One shard's outbox, on a session of its own.
pub struct Outbox {
    connection: PgConnection,
    shard: Shard,
}

impl Outbox {
    /// Opens a session.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn open(database: &Database, shard: Shard) -> Result<Self, OutboxError> {
        let connection = bounded(PgConnection::connect_with(&session(database, "oncepost-relay"))).await?;
        Ok(Self { connection, shard })
    }

    /// The ledger's id, made by the first migration. It names the relay's transactional id and the events' source.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn ledger_id(&mut self) -> Result<Uuid, OutboxError> {
        bounded(sqlx::query_scalar!("SELECT id FROM ledgers").fetch_one(&mut self.connection)).await
    }

    /// The events at `from` and after it in the order of their positions: at most `max_rows` of them, and none after the
    /// one with which their payloads together reach `max_bytes`. So at least one comes if there is any.
    ///
    /// # Errors
    /// All of [`OutboxError`].
    pub async fn read(&mut self, from: i64, max_rows: i64, max_bytes: i64) -> Result<Vec<Event>, OutboxError> {
        // The sum runs along the index and stops at the LIMIT; `octet_length` knows the size of a stored value without
        // reading it. The client can't stop early instead: what it leaves unread still comes over the wire.
        let rows = bounded(
            sqlx::query!(
                r#"SELECT epoch, position, event_id, event_type, resource_id, tenant_id, environment,
                          key_hash AS "key_hash: [u8; 32]", payload, traceparent, created_at
                   FROM (SELECT *, sum(octet_length(payload)) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING)
                                   - octet_length(payload) AS bytes_before
                         FROM outbox WHERE shard = $1 AND position >= $2 ORDER BY position LIMIT $3) AS run
                   WHERE bytes_before < $4 ORDER BY position"#,
                self.shard.0,
                from,
                max_rows,
                max_bytes
            )
            .fetch_all(&mut self.connection),
        )
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(Event {
                    epoch: row.epoch,
                    position: row.position,
                    event_id: row.event_id,
                    event_type: row.event_type,
                    resource_id: row.resource_id,
                    tenant: TenantId(row.tenant_id),
                    environment: Environment::parse(&row.environment)
                        .ok_or(OutboxError::UnknownEnvironment(row.position))?,
                    key_hash: KeyHash(row.key_hash),
                    payload: row.payload,
                    traceparent: row.traceparent,
                    created_at: row.created_at,
                })
            })
            .collect()
    }

    /// The shard's last position; `None` if its outbox is empty.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn last_position(&mut self) -> Result<Option<i64>, OutboxError> {
        bounded(
            sqlx::query_scalar!(
                "SELECT position FROM outbox WHERE shard = $1 ORDER BY position DESC LIMIT 1",
                self.shard.0
            )
            .fetch_optional(&mut self.connection),
        )
        .await
    }

    /// Which events stand at these positions; a position that the outbox doesn't hold is left out.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn stamps(&mut self, positions: &[i64]) -> Result<Vec<Stamp>, OutboxError> {
        bounded(
            sqlx::query_as!(
                Stamp,
                "SELECT epoch, position, event_id FROM outbox WHERE shard = $1 AND position = ANY($2)",
                self.shard.0,
                positions
            )
            .fetch_all(&mut self.connection),
        )
        .await
    }

    /// The shard's stream, with the epochs that were begun.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn stream(&mut self) -> Result<Stream, OutboxError> {
        let starts = bounded(
            sqlx::query_as!(
                Stamp,
                "SELECT epoch, after_position AS position, after_event_id AS event_id FROM epochs
                 WHERE shard = $1 ORDER BY epoch",
                self.shard.0
            )
            .fetch_all(&mut self.connection),
        )
        .await?;
        // Second: an epoch that begins in between is then one whose start is not known, and no event of it is believed.
        let epoch = bounded(
            sqlx::query_scalar!("SELECT epoch FROM streams WHERE shard = $1", self.shard.0)
                .fetch_one(&mut self.connection),
        )
        .await?;
        Ok(Stream { epoch, starts })
    }

    /// Begins the epoch of `start` after its position, in one transaction on a session of its own: every event behind the
    /// position becomes one of the new epoch, as does every event that is made from then on, in whichever process. It fails
    /// if that epoch or a later one has begun, or if another event stands at the position.
    ///
    /// # Errors
    /// [`OutboxError::Sql`], also after a lost connection, when it is not known whether the epoch has begun: ask
    /// [`Outbox::stream`].
    pub async fn begin_epoch(database: &Database, shard: Shard, start: Stamp) -> Result<(), OutboxError> {
        let options =
            database.session("oncepost-relay", LOCK_TIMEOUT_MS, BEGIN_EPOCH_TIMEOUT_MS, IDLE_IN_TRANSACTION_TIMEOUT_MS);
        let mut connection = bounded(PgConnection::connect_with(&options)).await?;
        let begun = sqlx::query!(
            "SELECT begin_epoch($1, $2, $3, $4)::text AS begun",
            shard.0,
            start.epoch,
            start.position,
            start.event_id
        )
        .fetch_one(&mut connection);
        let within = Duration::from_millis(u64::from(BEGIN_EPOCH_TIMEOUT_MS)).saturating_add(CALL_TIMEOUT);
        timeout(within, begun).await.map_err(|_| OutboxError::TimedOut)??;
        Ok(())
    }

    /// How far a relay is behind that has published every position up to `published`.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn lag_behind(&mut self, published: i64) -> Result<Lag, OutboxError> {
        let row = bounded(
            sqlx::query!(
                r#"SELECT (SELECT position FROM outbox WHERE shard = $1 ORDER BY position DESC LIMIT 1) AS last,
                          (SELECT created_at FROM outbox WHERE shard = $1 AND position > $2 ORDER BY position LIMIT 1)
                              AS oldest_at"#,
                self.shard.0,
                published
            )
            .fetch_one(&mut self.connection),
        )
        .await?;
        Ok(Lag { rows: row.last.unwrap_or(0).saturating_sub(published).max(0), oldest_at: row.oldest_at })
    }

    /// What the shard's relay has recorded; `None` before its first start.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn relay_record(&mut self) -> Result<Option<RelayRecord>, OutboxError> {
        let row = bounded(
            sqlx::query!(
                "SELECT kafka_cluster_id, floor_epoch, floor_position FROM relays WHERE shard = $1",
                self.shard.0
            )
            .fetch_optional(&mut self.connection),
        )
        .await?;
        Ok(row.map(|row| RelayRecord {
            kafka_cluster_id: row.kafka_cluster_id,
            floor: row.floor_epoch.zip(row.floor_position).map(|(epoch, position)| Floor { epoch, position }),
        }))
    }

    /// Records the Kafka cluster at the first start and returns the one that stands recorded, which is another one if
    /// this ledger has published elsewhere before.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn record_cluster(&mut self, kafka_cluster_id: &str) -> Result<String, OutboxError> {
        // DO NOTHING keeps the first: a different cluster is a person's decision, never the relay's.
        bounded(
            sqlx::query!(
                "INSERT INTO relays (shard, kafka_cluster_id) VALUES ($1, $2) ON CONFLICT ON CONSTRAINT relays_shard DO NOTHING",
                self.shard.0,
                kafka_cluster_id
            )
            .execute(&mut self.connection),
        )
        .await?;
        bounded(
            sqlx::query_scalar!("SELECT kafka_cluster_id FROM relays WHERE shard = $1", self.shard.0)
                .fetch_one(&mut self.connection),
        )
        .await
    }

    /// Moves the floor to a position that is known to be published. It moves only forwards: an older relay that wakes up
    /// late changes nothing.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn raise_floor(&mut self, floor: Floor) -> Result<(), OutboxError> {
        bounded(
            sqlx::query!(
                "UPDATE relays SET floor_epoch = $2, floor_position = $3, updated_at = now()
                 WHERE shard = $1 AND (floor_epoch IS NULL OR (floor_epoch, floor_position) < ($2, $3))",
                self.shard.0,
                floor.epoch,
                floor.position
            )
            .execute(&mut self.connection),
        )
        .await?;
        Ok(())
    }
}

/// A session that wants a shard's lock.
///
/// The lock keeps a second relay waiting instead of fencing the first; that nothing is published twice does not rest on
/// it. PostgreSQL ends the session, and frees the lock, ten seconds after the last word from here: a relay that hangs or
/// is frozen does not keep the shard.
pub struct LockSession {
    connection: PgConnection,
    shard: Shard,
}

impl LockSession {
    /// Opens the session.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn open(database: &Database, shard: Shard) -> Result<Self, OutboxError> {
        let options = session(database, "oncepost-relay-lock")
            .options([("idle_session_timeout", LOCK_IDLE_SESSION_TIMEOUT_MS.to_string())]);
        Ok(Self { connection: bounded(PgConnection::connect_with(&options)).await?, shard })
    }

    /// Tries once to take the lock, without waiting for it.
    ///
    /// # Errors
    /// [`OutboxError::Sql`] and [`OutboxError::TimedOut`].
    pub async fn try_lock(mut self) -> Result<Attempt, OutboxError> {
        let held = bounded(
            sqlx::query_scalar!(r#"SELECT pg_try_advisory_lock($1, $2) AS "held!""#, LOCK_CLASS, self.shard.0)
                .fetch_one(&mut self.connection),
        )
        .await?;
        Ok(if held { Attempt::Held(ShardLock::keep(self.connection)) } else { Attempt::Taken(self) })
    }
}

/// What came of trying to take a shard's lock.
pub enum Attempt {
    /// It is ours.
    Held(ShardLock),
    /// Another relay holds it; the session may try again.
    Taken(LockSession),
}

/// A shard's lock, held until it is dropped or lost.
pub struct ShardLock {
    lost: watch::Receiver<bool>,
    pings: JoinHandle<()>,
}

impl ShardLock {
    fn keep(connection: PgConnection) -> Self {
        let (report, lost) = watch::channel(false);
        let pings = tokio::spawn(async move {
            ping_until_lost(connection).await;
            report.send_replace(true);
        });
        Self { lost, pings }
    }

    /// Whether the lock is known to be lost.
    #[must_use]
    pub fn lost(&self) -> bool {
        // A sender that went away without a word is a ping task that ended: the session ended with it.
        *self.lost.borrow() || self.lost.has_changed().is_err()
    }

    /// Returns once the lock is lost.
    pub async fn wait_until_lost(&self) {
        let mut lost = self.lost.clone();
        // Both endings mean the same, as in `lost`.
        let _ = lost.wait_for(|lost| *lost).await;
    }
}

impl Drop for ShardLock {
    fn drop(&mut self) {
        // The task owns the connection: the socket closes with it, and PostgreSQL frees the lock as it notices.
        self.pings.abort();
    }
}

/// Keeps the session from becoming idle, and returns as soon as a ping fails. Time is counted from the last answer, so
/// that a process that was frozen for longer than the session lived sees its next ping fail.
async fn ping_until_lost(mut connection: PgConnection) {
    loop {
        sleep_until(Instant::now() + PING_INTERVAL).await;
        match timeout(PING_TIMEOUT, connection.ping()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the shard's lock is lost");
                return;
            }
            Err(_) => {
                tracing::warn!("the shard's lock is lost: PostgreSQL doesn't answer");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_of_a_later_epoch_stands_above_every_position_of_an_earlier_one() {
        assert!(Floor { epoch: 2, position: 1 } > Floor { epoch: 1, position: 1_000_000 });
        assert!(Floor { epoch: 1, position: 2 } > Floor { epoch: 1, position: 1 });
    }

    #[test]
    fn a_broken_network_is_noticed_before_the_lock_can_be_someone_elses() {
        let noticed = PING_INTERVAL + PING_TIMEOUT;
        assert!(noticed < Duration::from_millis(u64::from(LOCK_IDLE_SESSION_TIMEOUT_MS)));
    }
}
