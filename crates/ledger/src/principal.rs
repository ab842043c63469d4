//! Tenants, their principals, and the principals' API keys, as they are stored. What a key looks like and how it is
//! checked is the API's business; here it is an id beside a MAC (I10).

use sqlx::PgPool;
use thiserror::Error;
use time::OffsetDateTime;

use crate::database::Database;
use crate::ledger::Sessions;
use crate::query::ReadError;
use crate::scope::{Environment, PrincipalId, Scope, Shard, TenantId};
use crate::text::Name;

/// The most rows that a listing for administrators returns.
const LIST_MAX: i64 = 10_000;

/// A customer of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Names it.
    pub id: TenantId,
    /// Where it lives.
    pub shard: Shard,
    /// A name for people, unique in the ledger.
    pub name: String,
    /// When it was created.
    pub created_at: OffsetDateTime,
}

/// A service account of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Names it.
    pub id: PrincipalId,
    /// Who owns it.
    pub tenant: TenantId,
    /// A name for people, unique in its tenant.
    pub name: String,
    /// When it was created.
    pub created_at: OffsetDateTime,
}

/// One thing that an API key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// Opens accounts.
    AccountsWrite,
    /// Posts transfers.
    TransfersWrite,
    /// Reads everything of its tenant and environment.
    Read,
}

impl KeyScope {
    /// Every scope, in the order in which people read them.
    pub const ALL: [Self; 3] = [Self::AccountsWrite, Self::TransfersWrite, Self::Read];

    /// The name used in columns, on the command line and in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AccountsWrite => "accounts:write",
            Self::TransfersWrite => "transfers:write",
            Self::Read => "read",
        }
    }

    /// The inverse of [`KeyScope::name`]; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    const fn bit(self) -> u8 {
        match self {
            Self::AccountsWrite => 1,
            Self::TransfersWrite => 2,
            Self::Read => 4,
        }
    }
}

/// What an API key may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyScopes(u8);

impl KeyScopes {
    /// Everything.
    pub const ALL: Self = Self(KeyScope::AccountsWrite.bit() | KeyScope::TransfersWrite.bit() | KeyScope::Read.bit());

    /// Whether the key may do this.
    pub const fn allow(self, scope: KeyScope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// The scopes one by one.
    pub fn iter(self) -> impl Iterator<Item = KeyScope> {
        KeyScope::ALL.into_iter().filter(move |scope| self.allow(*scope))
    }

    fn names(self) -> Vec<String> {
        self.iter().map(|scope| scope.name().to_owned()).collect()
    }

    /// A name that this version doesn't know allows nothing.
    fn from_names(names: &[String]) -> Self {
        names.iter().filter_map(|name| KeyScope::parse(name)).collect()
    }
}

impl FromIterator<KeyScope> for KeyScopes {
    fn from_iter<I: IntoIterator<Item = KeyScope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

/// The secret side of an API key as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyMac {
    /// The pepper that the MAC was made with.
    pub pepper_id: String,
    /// HMAC-SHA256 of the whole key under that pepper.
    pub mac: [u8; 32],
}

/// A key that is about to be stored.
#[derive(Clone)]
pub struct NewKey {
    /// The public part of the key, unique in the ledger.
    pub id: String,
    /// What the key is checked against.
    pub mac: KeyMac,
    /// The key's last four characters, for people who compare.
    pub last_four: String,
    /// When it stops working, if ever.
    pub expires_at: Option<OffsetDateTime>,
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyGrant {
    /// The service account that uses it.
    pub principal: PrincipalId,
    /// Its side of the wall.
    pub environment: Environment,
    /// What it may do.
    pub scopes: KeyScopes,
}

/// A key as a request is checked against it.
#[derive(Clone)]
pub struct StoredKey {
    /// Who asks when this key is used.
    pub scope: Scope,
    /// What it may do.
    pub scopes: KeyScopes,
    /// What the key is checked against.
    pub mac: KeyMac,
    /// When it stops working, if ever.
    pub expires_at: Option<OffsetDateTime>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<OffsetDateTime>,
}

/// A key as administrators see it: nothing in it opens a door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    /// The public part of the key.
    pub id: String,
    /// What it is for.
    pub grant: KeyGrant,
    /// The key's last four characters.
    pub last_four: String,
    /// When it was created.
    pub created_at: OffsetDateTime,
    /// When it stops working, if ever.
    pub expires_at: Option<OffsetDateTime>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<OffsetDateTime>,
}

/// Why a change to tenants, principals or keys was refused.
#[derive(Debug, Error)]
pub enum PrincipalError {
    /// Another tenant, or another principal of the tenant, has the name.
    #[error("the name is taken")]
    NameTaken,
    /// Another tenant or principal has the id.
    #[error("the id is taken")]
    IdTaken,
    /// No tenant has the id.
    #[error("there is no such tenant")]
    TenantUnknown,
    /// No principal has the id.
    #[error("there is no such principal")]
    PrincipalUnknown,
    /// No key has the id, or it is revoked or expired already.
    #[error("there is no such key that still works")]
    KeyUnknown,
    /// A shard is 0 or more.
    #[error("a shard must not be negative")]
    ShardNegative,
    /// The database gave no answer, or one that makes no sense.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// `unique_violation`, PostgreSQL's appendix A.
const UNIQUE_VIOLATION: &str = "23505";
/// `foreign_key_violation`.
const FOREIGN_KEY_VIOLATION: &str = "23503";
/// `check_violation`.
const CHECK_VIOLATION: &str = "23514";

/// Maps what a statement of this file can violate, by SQLSTATE and name.
fn refused(error: sqlx::Error) -> PrincipalError {
    let violated = error.as_database_error().and_then(|e| Some((e.code()?.into_owned(), e.constraint()?.to_owned())));
    match violated.as_ref().map(|(code, constraint)| (code.as_str(), constraint.as_str())) {
        Some((UNIQUE_VIOLATION, "tenants_name_unique" | "principals_name_unique")) => PrincipalError::NameTaken,
        Some((UNIQUE_VIOLATION, "tenants_id" | "principals_id" | "api_keys_id")) => PrincipalError::IdTaken,
        Some((FOREIGN_KEY_VIOLATION, "principals_tenant_exists")) => PrincipalError::TenantUnknown,
        Some((FOREIGN_KEY_VIOLATION, "api_keys_principal_exists")) => PrincipalError::PrincipalUnknown,
        Some((CHECK_VIOLATION, "tenants_shard_not_negative")) => PrincipalError::ShardNegative,
        Some(_) | None => PrincipalError::Read(ReadError::from(error)),
    }
}

/// Reads a stored environment. The column has a CHECK, so anything else means that the schema is not ours.
fn environment(name: &str) -> Result<Environment, ReadError> {
    Environment::parse(name).ok_or(ReadError::Corrupt { what: "an environment" })
}

/// The store of tenants, principals and keys. Each change is one statement, so none can be cut in half.
#[derive(Clone, Debug)]
pub struct Principals {
    pool: PgPool,
}

impl Principals {
    /// A store with at most `max_connections` sessions of its own, opened when they are needed.
    pub fn open(database: &Database, max_connections: u32) -> Self {
        Self { pool: database.pool(max_connections) }
    }

    /// A store that shares the sessions of a pool.
    pub fn with_pool(pool: PgPool) -> Self {
        Self { pool }
    }

    /// The sessions for reading keys.
    pub fn sessions(&self) -> Sessions {
        Sessions::of(&self.pool)
    }

    /// Closes the sessions, so that PostgreSQL hears a farewell and not a broken connection.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Creates a tenant, and its shard's stream where the shard is new.
    ///
    /// # Errors
    /// [`PrincipalError::NameTaken`], [`PrincipalError::IdTaken`], [`PrincipalError::ShardNegative`] and
    /// [`PrincipalError::Read`].
    pub async fn create_tenant(&self, id: TenantId, name: &Name, shard: Shard) -> Result<Tenant, PrincipalError> {
        if shard.0 < 0 {
            return Err(PrincipalError::ShardNegative);
        }
        // The migrations make the stream of shard 0. A stream without tenants does no harm if the second statement fails.
        if shard != Shard::default() {
            sqlx::query!(
                "INSERT INTO streams (shard) VALUES ($1) ON CONFLICT ON CONSTRAINT streams_shard DO NOTHING",
                shard.0
            )
            .execute(&self.pool)
            .await
            .map_err(refused)?;
        }
        let row = sqlx::query!(
            "INSERT INTO tenants (id, shard, name) VALUES ($1, $2, $3) RETURNING created_at",
            id.0,
            shard.0,
            name.as_str()
        )
        .fetch_one(&self.pool)
        .await
        .map_err(refused)?;
        Ok(Tenant { id, shard, name: name.as_str().to_owned(), created_at: row.created_at })
    }

    /// Every tenant, in the order of their names.
    ///
    /// # Errors
    /// [`PrincipalError::Read`].
    pub async fn tenants(&self) -> Result<Vec<Tenant>, PrincipalError> {
        let rows = sqlx::query!("SELECT id, shard, name, created_at FROM tenants ORDER BY name LIMIT $1", LIST_MAX)
            .fetch_all(&self.pool)
            .await
            .map_err(refused)?;
        Ok(rows
            .into_iter()
            .map(|row| Tenant {
                id: TenantId(row.id),
                shard: Shard(row.shard),
                name: row.name,
                created_at: row.created_at,
            })
            .collect())
    }

    /// The tenant with the name, if there is one.
    ///
    /// # Errors
    /// [`PrincipalError::Read`].
    pub async fn find_tenant(&self, name: &str) -> Result<Option<Tenant>, PrincipalError> {
        let row = sqlx::query!("SELECT id, shard, name, created_at FROM tenants WHERE name = $1", name)
            .fetch_optional(&self.pool)
            .await
            .map_err(refused)?;
        Ok(row.map(|row| Tenant {
            id: TenantId(row.id),
            shard: Shard(row.shard),
            name: row.name,
            created_at: row.created_at,
        }))
    }

    /// Creates a principal.
    ///
    /// # Errors
    /// [`PrincipalError::NameTaken`], [`PrincipalError::IdTaken`], [`PrincipalError::TenantUnknown`] and
    /// [`PrincipalError::Read`].
    pub async fn create_principal(
        &self,
        id: PrincipalId,
        tenant: TenantId,
        name: &Name,
    ) -> Result<Principal, PrincipalError> {
        let row = sqlx::query!(
            "INSERT INTO principals (id, tenant_id, name) VALUES ($1, $2, $3) RETURNING created_at",
            id.0,
            tenant.0,
            name.as_str()
        )
        .fetch_one(&self.pool)
        .await
        .map_err(refused)?;
        Ok(Principal { id, tenant, name: name.as_str().to_owned(), created_at: row.created_at })
    }

    /// The principals of a tenant, or of all, in the order of tenants and names.
    ///
    /// # Errors
    /// [`PrincipalError::Read`].
    pub async fn principals(&self, tenant: Option<TenantId>) -> Result<Vec<Principal>, PrincipalError> {
        let rows = sqlx::query!(
            "SELECT id, tenant_id, name, created_at FROM principals
             WHERE tenant_id = $1 OR $1 IS NULL
             ORDER BY tenant_id, name LIMIT $2",
            tenant.map(|tenant| tenant.0) as Option<uuid::Uuid>,
            LIST_MAX
        )
        .fetch_all(&self.pool)
        .await
        .map_err(refused)?;
        Ok(rows
            .into_iter()
            .map(|row| Principal {
                id: PrincipalId(row.id),
                tenant: TenantId(row.tenant_id),
                name: row.name,
                created_at: row.created_at,
            })
            .collect())
    }

    /// The principal of a tenant with the name, if there is one.
    ///
    /// # Errors
    /// [`PrincipalError::Read`].
    pub async fn find_principal(&self, tenant: TenantId, name: &str) -> Result<Option<Principal>, PrincipalError> {
        let row = sqlx::query!(
            "SELECT id, tenant_id, name, created_at FROM principals WHERE tenant_id = $1 AND name = $2",
            tenant.0,
            name
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(refused)?;
        Ok(row.map(|row| Principal {
            id: PrincipalId(row.id),
            tenant: TenantId(row.tenant_id),
            name: row.name,
            created_at: row.created_at,
        }))
    }

    /// Stores a key.
    ///
    /// # Errors
    /// [`PrincipalError::IdTaken`], [`PrincipalError::PrincipalUnknown`] and [`PrincipalError::Read`].
    pub async fn insert_key(&self, grant: &KeyGrant, key: &NewKey) -> Result<(), PrincipalError> {
        sqlx::query!(
            "INSERT INTO api_keys (id, principal_id, environment, scopes, pepper_id, key_mac, last_four, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            key.id,
            grant.principal.0,
            grant.environment.name(),
            &grant.scopes.names(),
            key.mac.pepper_id,
            &key.mac.mac[..],
            key.last_four,
            key.expires_at
        )
        .execute(&self.pool)
        .await
        .map_err(refused)?;
        Ok(())
    }

    /// Stores a key with the grant of an old one and lets the old one expire at `old_expires_at`, unless it expires
    /// earlier. Both happen, or neither.
    ///
    /// # Errors
    /// [`PrincipalError::KeyUnknown`], [`PrincipalError::IdTaken`] and [`PrincipalError::Read`].
    pub async fn roll_key(
        &self,
        old: &str,
        key: &NewKey,
        old_expires_at: OffsetDateTime,
    ) -> Result<KeyGrant, PrincipalError> {
        let row = sqlx::query!(
            "WITH old AS (
               UPDATE api_keys SET expires_at = least(expires_at, $2)
               WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
               RETURNING principal_id, environment, scopes)
             INSERT INTO api_keys (id, principal_id, environment, scopes, pepper_id, key_mac, last_four, expires_at)
             SELECT $3, principal_id, environment, scopes, $4, $5, $6, $7 FROM old
             RETURNING principal_id, environment, scopes",
            old,
            old_expires_at,
            key.id,
            key.mac.pepper_id,
            &key.mac.mac[..],
            key.last_four,
            key.expires_at as Option<OffsetDateTime>
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(refused)?
        .ok_or(PrincipalError::KeyUnknown)?;
        Ok(KeyGrant {
            principal: PrincipalId(row.principal_id),
            environment: environment(&row.environment)?,
            scopes: KeyScopes::from_names(&row.scopes),
        })
    }

    /// Sets when a key stops working; `None` for never.
    ///
    /// # Errors
    /// [`PrincipalError::KeyUnknown`] and [`PrincipalError::Read`].
    pub async fn set_key_expiry(&self, id: &str, expires_at: Option<OffsetDateTime>) -> Result<(), PrincipalError> {
        let done = sqlx::query!(
            "UPDATE api_keys SET expires_at = $2 WHERE id = $1 AND revoked_at IS NULL",
            id,
            expires_at as Option<OffsetDateTime>
        )
        .execute(&self.pool)
        .await
        .map_err(refused)?;
        if done.rows_affected() == 0 { Err(PrincipalError::KeyUnknown) } else { Ok(()) }
    }

    /// Revokes a key for good. A key that is revoked already stays so, and its time unchanged.
    ///
    /// # Errors
    /// [`PrincipalError::KeyUnknown`] and [`PrincipalError::Read`].
    pub async fn revoke_key(&self, id: &str) -> Result<(), PrincipalError> {
        let done = sqlx::query!("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1", id)
            .execute(&self.pool)
            .await
            .map_err(refused)?;
        if done.rows_affected() == 0 { Err(PrincipalError::KeyUnknown) } else { Ok(()) }
    }

    /// The keys of a principal, or of all, newest first.
    ///
    /// # Errors
    /// [`PrincipalError::Read`].
    pub async fn keys(&self, principal: Option<PrincipalId>) -> Result<Vec<ListedKey>, PrincipalError> {
        let rows = sqlx::query!(
            "SELECT id, principal_id, environment, scopes, last_four, created_at, expires_at, revoked_at FROM api_keys
             WHERE principal_id = $1 OR $1 IS NULL
             ORDER BY created_at DESC, id LIMIT $2",
            principal.map(|principal| principal.0) as Option<uuid::Uuid>,
            LIST_MAX
        )
        .fetch_all(&self.pool)
        .await
        .map_err(refused)?;
        rows.into_iter()
            .map(|row| {
                Ok(ListedKey {
                    id: row.id,
                    grant: KeyGrant {
                        principal: PrincipalId(row.principal_id),
                        environment: environment(&row.environment)?,
                        scopes: KeyScopes::from_names(&row.scopes),
                    },
                    last_four: row.last_four,
                    created_at: row.created_at,
                    expires_at: row.expires_at,
                    revoked_at: row.revoked_at,
                })
            })
            .collect()
    }

    /// The key with the id, whatever its state, and whom it speaks for.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn find_key(&self, id: &str) -> Result<Option<StoredKey>, ReadError> {
        let row = sqlx::query!(
            "SELECT k.principal_id, p.tenant_id, t.shard, k.environment, k.scopes, k.pepper_id, k.key_mac, k.expires_at,
                    k.revoked_at
             FROM api_keys k JOIN principals p ON p.id = k.principal_id JOIN tenants t ON t.id = p.tenant_id
             WHERE k.id = $1",
            id
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(ReadError::from)?;
        row.map(|row| {
            Ok(StoredKey {
                scope: Scope {
                    tenant: TenantId(row.tenant_id),
                    principal: PrincipalId(row.principal_id),
                    environment: environment(&row.environment)?,
                    shard: Shard(row.shard),
                },
                scopes: KeyScopes::from_names(&row.scopes),
                mac: KeyMac {
                    pepper_id: row.pepper_id,
                    mac: row.key_mac.try_into().map_err(|_| ReadError::Corrupt { what: "the MAC of a key" })?,
                },
                expires_at: row.expires_at,
                revoked_at: row.revoked_at,
            })
        })
        .transpose()
    }
}
