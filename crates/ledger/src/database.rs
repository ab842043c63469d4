//! How sessions of PostgreSQL are opened, and the schema that they find.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection};
use thiserror::Error;

/// Where the ledger is, read from a URL. It may hold a password, so it has no `Debug`.
#[derive(Clone)]
pub struct Database {
    options: PgConnectOptions,
}

/// Why the database can't be used.
#[derive(Debug, Error)]
pub enum DatabaseError {
    /// The URL can't be read. The text doesn't repeat it: it may hold a password.
    #[error("the database URL can't be read")]
    BadUrl,
    /// PostgreSQL said no, or nothing.
    #[error("the database can't be used: {0}")]
    Sql(#[from] sqlx::Error),
    /// A migration can't be applied.
    #[error("the schema can't be brought up to date: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
}

/// The migrations of the tree that this binary was built from.
static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

/// How long a migration waits for a lock: short, since everyone queues behind it meanwhile.
const MIGRATE_LOCK_TIMEOUT_MS: u32 = 2_000;
/// How long a session waits for a lock, unless it is the committer's.
const LOCK_TIMEOUT_MS: u32 = 2_000;
/// How long a statement runs, unless it is the committer's.
const STATEMENT_TIMEOUT_MS: u32 = 5_000;
/// How long a session stays idle inside a transaction.
const IDLE_IN_TRANSACTION_TIMEOUT_MS: u32 = 5_000;
/// How often PostgreSQL looks whether a client that waits is still there.
const CONNECTION_CHECK_MS: u32 = 1_000;
/// How long a reader waits for a connection of the pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

impl Database {
    /// Reads a URL such as `postgres://user:password@host:port/name`.
    ///
    /// # Errors
    /// [`DatabaseError::BadUrl`].
    pub fn from_url(url: &str) -> Result<Self, DatabaseError> {
        let options = PgConnectOptions::from_str(url).map_err(|_| DatabaseError::BadUrl)?;
        Ok(Self { options })
    }

    /// Brings the schema up to date, once, whoever else tries at the same time; then lets `app_role` work with it. That
    /// role can't change or delete postings, transfers, records or answers.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`] and [`DatabaseError::Migrate`].
    pub async fn migrate(&self, app_role: Option<&str>) -> Result<(), DatabaseError> {
        let options = self.session("oncepost-migrate", MIGRATE_LOCK_TIMEOUT_MS, 0, IDLE_IN_TRANSACTION_TIMEOUT_MS);
        let mut connection = PgConnection::connect_with(&options).await?;
        MIGRATIONS.run(&mut connection).await?;
        if let Some(role) = app_role {
            let role = format!("\"{}\"", role.replace('"', "\"\""));
            for grant in [
                "USAGE ON SCHEMA public",
                "SELECT ON ALL TABLES IN SCHEMA public",
                "INSERT ON tenants, principals, api_keys, accounts, transfers, postings, idempotency_records, \
                 idempotency_responses, idempotency_secrets, idempotency_attempts, operations, outbox, streams, relays, \
                 audits",
                "UPDATE ON api_keys, accounts, idempotency_attempts, operations, streams, relays",
                "UPDATE (status, response_id, completed_at) ON idempotency_records",
                "UPDATE (proof) ON idempotency_secrets",
                "EXECUTE ON FUNCTION add_response_days, drop_response_day, begin_epoch",
            ] {
                sqlx::raw_sql(AssertSqlSafe(format!("GRANT {grant} TO {role}"))).execute(&mut connection).await?;
            }
        }
        connection.close().await?;
        Ok(())
    }

    /// Sessions for reading and for administration, at most `max`, opened when they are needed.
    pub fn pool(&self, max: u32) -> PgPool {
        let options = self.session("oncepost", LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, IDLE_IN_TRANSACTION_TIMEOUT_MS);
        PgPoolOptions::new().max_connections(max).acquire_timeout(ACQUIRE_TIMEOUT).connect_lazy_with(options)
    }

    /// Options of a session with its time-outs in milliseconds.
    pub(crate) fn session(
        &self,
        name: &str,
        lock_ms: u32,
        statement_ms: u32,
        idle_in_transaction_ms: u32,
    ) -> PgConnectOptions {
        self.options.clone().application_name(name).options([
            ("lock_timeout", lock_ms.to_string()),
            ("statement_timeout", statement_ms.to_string()),
            ("idle_in_transaction_session_timeout", idle_in_transaction_ms.to_string()),
            ("client_connection_check_interval", CONNECTION_CHECK_MS.to_string()),
            // Whatever the database, the role or the server says otherwise: what is answered is durable (I6), and on the
            // synchronous standbys too, where there are any.
            ("synchronous_commit", "on".to_owned()),
        ])
    }
}
