//! What those who run the ledger may ask of it, beside the money path. Nothing here changes anything.

use std::time::Duration;

use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::committer::look_up;
use crate::database::Database;
use crate::idempotency::{IdempotencyKey, KeyHash, Secrets};
use crate::operation::OperationId;
use crate::query::ReadError;
use crate::scope::{Environment, PrincipalId, Scope, Shard, TenantId};
use crate::secret_registry;

/// The most rows that one question is answered with.
const ROWS_MAX: i64 = 1_000;

/// A session for such questions.
#[derive(Clone, Debug)]
pub struct Inspection {
    pool: PgPool,
}

/// What stands under a client's key, without the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRecord {
    /// What the key became before it was stored.
    pub key_hash: KeyHash,
    /// The secret that it was hashed with.
    pub secret_id: String,
    /// The environment that it was used in.
    pub environment: Environment,
    /// What was asked for, such as `transfer.post`.
    pub operation: String,
    /// The status of the answer.
    pub status: u16,
    /// The account or transfer that was made, or the answer's own id where a rule said no.
    pub resource_id: Uuid,
    /// When it was answered.
    pub completed_at: OffsetDateTime,
    /// Whether the answer's bytes are still kept; otherwise a retry is refused as expired.
    pub answer_kept: bool,
    /// How often the key came again, as far as it was counted.
    pub retries: i64,
    /// When it last came again.
    pub last_retry_at: Option<OffsetDateTime>,
}

/// Work that was accepted with 202 and is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedOperation {
    /// The operation.
    pub id: OperationId,
    /// Whose.
    pub tenant: TenantId,
    /// Who asked.
    pub principal: PrincipalId,
    /// In which environment.
    pub environment: String,
    /// The route that it came by.
    pub endpoint: String,
    /// When it was accepted.
    pub created_at: OffsetDateTime,
    /// How long ago that is, by PostgreSQL's clock.
    pub age: Duration,
}

/// A secret that some process of this ledger ever had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedSecret {
    /// Its name.
    pub id: String,
    /// When a process first had it.
    pub first_seen_at: OffsetDateTime,
    /// What it is for here and now.
    pub configured: Configured,
}

/// What a noted secret is for in this configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configured {
    /// Records are written and looked up with it.
    Write,
    /// Records are only looked up with it.
    LookUp,
    /// It is missing here, or another secret has its name: a server would not start.
    No,
}

impl Inspection {
    /// Opens a session when it is needed.
    pub fn open(database: &Database) -> Self {
        Self { pool: database.pool(1) }
    }

    /// The records under a principal's key, one for each secret that it was written with. Empty where nothing ran under it, or
    /// there is no such principal.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn records(
        &self,
        secrets: &Secrets,
        principal: PrincipalId,
        key: &IdempotencyKey,
    ) -> Result<Vec<KeptRecord>, ReadError> {
        let mut connection = self.pool.acquire().await?;
        let home = sqlx::query!(
            "SELECT t.id, t.shard FROM principals p JOIN tenants t ON t.id = p.tenant_id WHERE p.id = $1",
            principal.0
        )
        .fetch_optional(&mut *connection)
        .await?;
        let Some(home) = home else { return Ok(Vec::new()) };
        let shard = Shard(home.shard);
        // The environment does not enter the hash: the record tells which one it was.
        let scope = Scope { tenant: TenantId(home.id), principal, environment: Environment::Test, shard };
        let hashes = secrets.hashes(&scope, key);
        let mut found = Vec::new();
        for (key_hash, record) in look_up(&mut connection, shard, &hashes).await? {
            let counted = sqlx::query!(
                "SELECT attempts, last_at FROM idempotency_attempts WHERE key_hash = $1 AND shard = $2",
                &key_hash.0[..],
                shard.0
            )
            .fetch_optional(&mut *connection)
            .await?;
            found.push(KeptRecord {
                key_hash,
                secret_id: record.secret_id.into_owned(),
                environment: record.environment,
                operation: record.operation.into_owned(),
                status: record.status,
                resource_id: record.response_id,
                completed_at: record.completed_at,
                answer_kept: record.response.is_some(),
                retries: counted.as_ref().map_or(0, |counted| counted.attempts),
                last_retry_at: counted.map(|counted| counted.last_at),
            });
        }
        found.sort_by(|a, b| a.secret_id.cmp(&b.secret_id));
        Ok(found)
    }

    /// Accepted work that is older than this and not done, the oldest first, at most a thousand.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn unfinished(&self, older_than: Duration) -> Result<Vec<UnfinishedOperation>, ReadError> {
        let rows = sqlx::query!(
            r#"SELECT id, tenant_id, principal_id, environment, endpoint, created_at, clock_timestamp() AS "now!"
               FROM operations
               WHERE status = 'processing' AND created_at <= clock_timestamp() - make_interval(secs => $1)
               ORDER BY created_at, id LIMIT $2"#,
            older_than.as_secs_f64(),
            ROWS_MAX,
        )
        .fetch_all(&self.pool)
        .await?;
        let operations = rows.into_iter().map(|row| UnfinishedOperation {
            id: OperationId(row.id),
            tenant: TenantId(row.tenant_id),
            principal: PrincipalId(row.principal_id),
            environment: row.environment,
            endpoint: row.endpoint,
            created_at: row.created_at,
            age: (row.now - row.created_at).try_into().unwrap_or_default(),
        });
        Ok(operations.collect())
    }

    /// The secrets that processes of this ledger ever had, in the order of their coming.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn secrets(&self, secrets: &Secrets) -> Result<Vec<NotedSecret>, ReadError> {
        let rows = sqlx::query!(
            "SELECT id, proof, created_at FROM idempotency_secrets ORDER BY created_at, id LIMIT $1",
            ROWS_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let noted = rows.into_iter().map(|row| {
            let same = |secret: &&crate::idempotency::Secret| {
                secret.id() == row.id && row.proof.as_ref().is_none_or(|proof| *proof == secret_registry::proof(secret))
            };
            let configured = if secrets.write().iter().any(|secret| same(&secret)) {
                Configured::Write
            } else if secrets.all().any(|secret| same(&secret)) {
                Configured::LookUp
            } else {
                Configured::No
            };
            NotedSecret { id: row.id, first_seen_at: row.created_at, configured }
        });
        Ok(noted.collect())
    }

    /// Closes the session.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
