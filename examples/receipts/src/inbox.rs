//! The inbox and the receipts: all SQL of this consumer.

use std::fmt::Display;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio_util::sync::CancellationToken;

use crate::event::Entry;
use crate::failpoint;
use crate::health::{Health, Part};

/// The schema, carried in the binary. The database is this consumer's own: no other service's transaction or migration can
/// reach into it.
static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// One session for the intake, one for each sender, one for the upkeep.
const SESSIONS: u32 = 6;
/// How long a session is waited for before the database counts as down.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a statement may take, and how long a transaction of a frozen process may hold up whoever has taken over its
/// partitions. Every statement here finds its rows by an index.
const SESSION_TIMEOUTS: [(&str, &str); 2] =
    [("statement_timeout", "10s"), ("idle_in_transaction_session_timeout", "10s")];
/// The pause before the database is asked again.
const REPEAT_PAUSE: Duration = Duration::from_secs(1);
/// The most rows that one statement deletes, so that none takes long.
const DELETE_ROWS: i64 = 1_000;

/// The consumer's own database.
#[derive(Clone)]
pub(crate) struct Inbox {
    pool: PgPool,
    health: Health,
    stop: CancellationToken,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was new, and is in the inbox now, with its effect.
    New,
    /// It was there already: nothing was done.
    Duplicate,
}

/// A receipt that an attempt has begun for. The attempt's number is its token: a later attempt has another one.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Claim {
    pub(crate) event_id: String,
    pub(crate) message_id: String,
    pub(crate) recipient: String,
    pub(crate) message: Vec<u8>,
    pub(crate) attempts: i32,
}

/// How an attempt ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server took the mail.
    Sent,
    /// It is not known to have been taken, and is sent again after a pause.
    Failed { reason: String, pause: Duration },
    /// It is given up.
    Parked { reason: String },
}

/// What is still to be done.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Backlog {
    pub(crate) waiting: i64,
    pub(crate) waiting_seconds: f64,
    pub(crate) parked: i64,
}

impl Inbox {
    /// Opens nothing yet: sessions come with their first use.
    pub(crate) fn new(database: PgConnectOptions, health: Health, stop: CancellationToken) -> Self {
        let options = database.application_name("oncepost-receipts").options(SESSION_TIMEOUTS);
        let pool = PgPoolOptions::new().max_connections(SESSIONS).acquire_timeout(ACQUIRE_TIMEOUT);
        Self { pool: pool.connect_lazy_with(options), health, stop }
    }

    /// Repeats a call until the database has done it; `None` if the process should stop before. There is nothing else to
    /// do without the database: nothing may be done that can't be remembered.
    async fn patiently<T, E: Display>(&self, mut call: impl AsyncFnMut() -> Result<T, E>) -> Option<T> {
        loop {
            match call().await {
                Ok(value) => {
                    self.health.works(Part::Database);
                    return Some(value);
                }
                Err(error) => self.health.fails(Part::Database, error.to_string()),
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = tokio::time::sleep(REPEAT_PAUSE) => {}
            }
        }
    }

    /// Brings the schema up to date. Several processes may do it at once: they wait for each other.
    pub(crate) async fn migrate(&self) -> Option<()> {
        self.patiently(async || MIGRATIONS.run(&self.pool).await).await
    }

    /// Takes a record in, with its effect, or finds that it was taken in before.
    pub(crate) async fn take(&self, entry: &Entry) -> Option<Taken> {
        self.patiently(async || self.take_once(entry).await).await
    }

    /// The inbox pattern: one transaction for the row that remembers the event and for the effect. Whatever kills the
    /// process, both are there or neither is; whoever comes second finds the row.
    async fn take_once(&self, entry: &Entry) -> Result<Taken, sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        // Where another consumer is just taking the same event in, as after a rebalance, this waits for its end.
        let insert =
            "INSERT INTO inbox (event_id, place, skipped) VALUES ($1, $2, $3) ON CONFLICT (event_id) DO NOTHING";
        let skipped = entry.content.as_ref().err().map(|skipped| skipped.reason());
        let insert = sqlx::query(insert).bind(&entry.event_id).bind(&entry.place).bind(skipped);
        if insert.execute(&mut *transaction).await?.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(Taken::Duplicate);
        }
        if let Ok(receipt) = &entry.content {
            sqlx::query("INSERT INTO receipts (event_id, message_id, recipient, message) VALUES ($1, $2, $3, $4)")
                .bind(&entry.event_id)
                .bind(&receipt.message_id)
                .bind(&receipt.recipient)
                .bind(&receipt.message)
                .execute(&mut *transaction)
                .await?;
        }
        failpoint::hit("receipts-before-inbox-commit");
        transaction.commit().await?;
        Ok(Taken::New)
    }

    /// Begins an attempt at the receipt that has been due for longest, if one is. This is committed before anything is
    /// sent: a process that dies later leaves a trace of what it may have done. From the end of `lease` on, anyone may
    /// begin the next attempt.
    pub(crate) async fn claim(&self, lease: Duration) -> Option<Option<Claim>> {
        // SKIP LOCKED: the senders pass by the row that another one is just claiming.
        let claim = "UPDATE receipts SET state = 'sending', attempts = attempts + 1, \
                     due_at = now() + make_interval(secs => $1) \
                     WHERE event_id = (SELECT event_id FROM receipts \
                     WHERE state IN ('waiting', 'sending') AND due_at <= now() \
                     ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED) \
                     RETURNING event_id, message_id, recipient, message, attempts";
        self.patiently(async || sqlx::query_as(claim).bind(lease.as_secs_f64()).fetch_optional(&self.pool).await).await
    }

    /// Writes down how an attempt ended.
    pub(crate) async fn settle(&self, claim: &Claim, outcome: &Outcome) -> Option<()> {
        self.patiently(async || self.settle_once(claim, outcome).await).await
    }

    async fn settle_once(&self, claim: &Claim, outcome: &Outcome) -> Result<(), sqlx::Error> {
        let settle = match outcome {
            // A mail that was taken is taken, whichever attempt hears of it.
            Outcome::Sent => sqlx::query(
                "UPDATE receipts SET state = 'sent', sent_at = now(), last_error = NULL \
                 WHERE event_id = $1 AND state <> 'sent'",
            )
            .bind(&claim.event_id),
            // A failure counts only while no later attempt has begun.
            Outcome::Failed { reason, pause } => sqlx::query(
                "UPDATE receipts SET state = 'waiting', last_error = $3, due_at = now() + make_interval(secs => $4) \
                 WHERE event_id = $1 AND state = 'sending' AND attempts = $2",
            )
            .bind(&claim.event_id)
            .bind(claim.attempts)
            .bind(reason)
            .bind(pause.as_secs_f64()),
            Outcome::Parked { reason } => sqlx::query(
                "UPDATE receipts SET state = 'parked', last_error = $3 \
                 WHERE event_id = $1 AND state = 'sending' AND attempts = $2",
            )
            .bind(&claim.event_id)
            .bind(claim.attempts)
            .bind(reason),
        };
        settle.execute(&self.pool).await.map(|_| ())
    }

    /// Counts what is still to be done.
    pub(crate) async fn backlog(&self) -> Option<Backlog> {
        let count = "SELECT count(*) FILTER (WHERE state <> 'parked') AS waiting, \
                     coalesce(extract(epoch FROM now() - min(received_at) FILTER (WHERE state <> 'parked')), 0)::float8 \
                     AS waiting_seconds, count(*) FILTER (WHERE state = 'parked') AS parked \
                     FROM receipts JOIN inbox USING (event_id) WHERE state <> 'sent'";
        self.patiently(async || sqlx::query_as(count).fetch_one(&self.pool).await).await
    }

    /// Deletes some of the rows that were taken in longer than `age` ago and have nothing to do any more, and returns how
    /// many they were.
    pub(crate) async fn delete_older_than(&self, age: Duration) -> Option<u64> {
        let delete = "DELETE FROM inbox WHERE event_id IN (SELECT event_id FROM inbox \
                      WHERE received_at < now() - make_interval(secs => $1) AND NOT EXISTS (SELECT FROM receipts r \
                      WHERE r.event_id = inbox.event_id AND r.state IN ('waiting', 'sending')) \
                      ORDER BY received_at LIMIT $2)";
        self.patiently(async || {
            let deleted = sqlx::query(delete).bind(age.as_secs_f64()).bind(DELETE_ROWS).execute(&self.pool).await?;
            Ok::<_, sqlx::Error>(deleted.rows_affected())
        })
        .await
    }
}
