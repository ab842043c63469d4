//! Steps 1 and 2: what stands under the keys of a batch, and the rows that it works on.

use std::collections::{BTreeSet, HashMap, HashSet};

use sqlx::postgres::{PgConnection, PgPool};
use uuid::Uuid;

use super::fault::Fault;
use super::queue::Job;
use super::session::Session;
use crate::account::{AccountId, AccountStatus};
use crate::decide::{Book, BookAccount};
use crate::idempotency::{KeyHash, Record, Response};
use crate::money::{Balance, Currency};
use crate::operation::OperationId;
use crate::scope::{Environment, Shard, TenantId};

/// The accounts that the jobs need, in ascending order, which is the one order of locks.
pub(super) fn account_ids(jobs: &[Job]) -> Vec<Uuid> {
    let ids: BTreeSet<AccountId> = jobs.iter().flat_map(|job| job.asked.operation.accounts()).collect();
    ids.into_iter().map(|id| id.0).collect()
}

/// The records that stand under the hashes, with their answers where these are still kept.
///
/// Keyed by LATERAL with OFFSET 0, so that no statistics can make it a scan.
pub(crate) async fn look_up(
    connection: &mut PgConnection,
    shard: Shard,
    hashes: &[KeyHash],
) -> Result<HashMap<KeyHash, Record>, sqlx::Error> {
    let hashes: Vec<[u8; 32]> = hashes.iter().map(|hash| hash.0).collect();
    let rows = sqlx::query!(
        r#"SELECT k.key_hash AS "key_hash!", r.secret_id, r.environment, r.operation, r.fingerprint, r.members, r.status,
             r.response_id, r.completed_at, a.content_type AS "content_type?", a.location, a.body AS "body?"
           FROM unnest($1::bytea[]) AS k (key_hash),
             LATERAL (SELECT * FROM idempotency_records r WHERE r.key_hash = k.key_hash AND r.shard = $2 OFFSET 0) r
             LEFT JOIN LATERAL
               (SELECT * FROM idempotency_responses a
                WHERE a.id = r.response_id AND a.shard = $2 AND a.day = (r.completed_at AT TIME ZONE 'UTC')::date
                OFFSET 0) a ON true"#,
        &hashes as &[[u8; 32]],
        shard.0,
    )
    .fetch_all(connection)
    .await?;
    let mut records = HashMap::with_capacity(rows.len());
    for row in rows {
        let status = u16::try_from(row.status).map_err(|_| unreadable("status"))?;
        let response = match (row.content_type, row.body) {
            (Some(content_type), Some(body)) => {
                Some(Response { status, content_type: content_type.into(), location: row.location, body })
            }
            _ => None,
        };
        let record = Record {
            secret_id: row.secret_id.into(),
            environment: environment(&row.environment)?,
            operation: row.operation.into(),
            fingerprint: row.fingerprint.try_into().map_err(|_| unreadable("fingerprint"))?,
            members: row.members,
            status,
            response_id: row.response_id,
            completed_at: row.completed_at,
            response,
        };
        records.insert(KeyHash(row.key_hash.try_into().map_err(|_| unreadable("key_hash"))?), record);
    }
    Ok(records)
}

/// Locks those of the accounts that no one else holds, unless a record stands under one of the hashes: then it locks none
/// and the book is empty, since a replay takes no lock.
pub(super) async fn lock_free(
    connection: &mut PgConnection,
    shard: Shard,
    ids: &[Uuid],
    unless: &[KeyHash],
) -> Result<Book, sqlx::Error> {
    let unless: Vec<[u8; 32]> = unless.iter().map(|hash| hash.0).collect();
    // SKIP LOCKED: a stranger's lock must not stop everyone else's money. NO KEY UPDATE, since ids never change. The ids
    // are sorted and the LATERAL is run in their order, which is the one order of locks.
    // A record that is committed after this statement began is not seen by it. The batch then finds the key taken when it
    // writes, and runs again.
    let rows = sqlx::query_as!(
        AccountRow,
        r#"SELECT a.*
           FROM unnest($1::uuid[]) AS k (id),
             LATERAL (SELECT a.id, a.tenant_id, a.environment, a.currency, a.status, a.min_balance, a.max_balance, a.posted,
                        a.held, a.posting_count
                      FROM accounts a WHERE a.id = k.id AND a.shard = $2
                      FOR NO KEY UPDATE SKIP LOCKED) a
           WHERE NOT EXISTS
             (SELECT 1
              FROM unnest($3::bytea[]) AS h (key_hash),
                LATERAL (SELECT 1 FROM idempotency_records r WHERE r.key_hash = h.key_hash AND r.shard = $2 OFFSET 0) r)"#,
        ids,
        shard.0,
        &unless as &[[u8; 32]],
    )
    .fetch_all(connection)
    .await?;
    into_book(rows)
}

/// The accounts as they stand, unlocked: nothing that is decided on them may be written.
pub(crate) async fn read_book(pool: &PgPool, shard: Shard, ids: &[Uuid]) -> Result<Book, sqlx::Error> {
    let rows = sqlx::query_as!(
        AccountRow,
        r#"SELECT a.id, a.tenant_id, a.environment, a.currency, a.status, a.min_balance, a.max_balance, a.posted, a.held,
             a.posting_count
           FROM accounts a WHERE a.id = ANY($1) AND a.shard = $2"#,
        ids,
        shard.0,
    )
    .fetch_all(pool)
    .await?;
    into_book(rows)
}

/// Locks the accounts and waits for what others hold, up to the session's lock time-out.
pub(super) async fn lock_waiting(
    connection: &mut PgConnection,
    shard: Shard,
    ids: &[Uuid],
) -> Result<Book, sqlx::Error> {
    // In ascending order, as above, so that two who wait never deadlock.
    let rows = sqlx::query_as!(
        AccountRow,
        r#"SELECT a.*
           FROM unnest($1::uuid[]) AS k (id),
             LATERAL (SELECT a.id, a.tenant_id, a.environment, a.currency, a.status, a.min_balance, a.max_balance, a.posted,
                        a.held, a.posting_count
                      FROM accounts a WHERE a.id = k.id AND a.shard = $2
                      FOR NO KEY UPDATE) a"#,
        ids,
        shard.0,
    )
    .fetch_all(connection)
    .await?;
    into_book(rows)
}

/// Locks those of the operations that are not done and that no other process runs at this moment. SKIP LOCKED: whoever
/// holds one is doing it.
pub(super) async fn lock_unfinished(
    connection: &mut PgConnection,
    shard: Shard,
    ids: &[OperationId],
) -> Result<HashSet<OperationId>, sqlx::Error> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let locked = sqlx::query_scalar!(
        r#"SELECT o.id
           FROM unnest($1::uuid[]) AS k (id),
             LATERAL (SELECT o.id FROM operations o WHERE o.id = k.id AND o.shard = $2 AND o.finished_at IS NULL
                      FOR NO KEY UPDATE SKIP LOCKED) o"#,
        &ids,
        shard.0,
    )
    .fetch_all(connection)
    .await?;
    Ok(locked.into_iter().map(OperationId).collect())
}

/// Which of the accounts that are not in the book exist: others hold them.
pub(super) async fn held_elsewhere(
    connection: &mut PgConnection,
    shard: Shard,
    ids: Vec<Uuid>,
    book: &Book,
) -> Result<HashSet<AccountId>, sqlx::Error> {
    let missing: Vec<Uuid> = ids.into_iter().filter(|id| book.account(AccountId(*id)).is_none()).collect();
    if missing.is_empty() {
        return Ok(HashSet::new());
    }
    let existing = sqlx::query_scalar!(
        r#"SELECT a.id
           FROM unnest($1::uuid[]) AS k (id),
             LATERAL (SELECT a.id FROM accounts a WHERE a.id = k.id AND a.shard = $2 OFFSET 0) a"#,
        &missing,
        shard.0,
    )
    .fetch_all(connection)
    .await?;
    Ok(existing.into_iter().map(AccountId).collect())
}

/// Which of the accounts others hold at this moment. Locks nothing for longer than the question takes.
pub(super) async fn still_locked(
    session: &mut Session,
    shard: Shard,
    accounts: &HashSet<AccountId>,
) -> Result<Vec<AccountId>, Fault> {
    let ids: BTreeSet<Uuid> = accounts.iter().map(|id| id.0).collect();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    session.begin().await?;
    let locked = lock_free(&mut session.connection, shard, &ids, &[]).await;
    session.roll_back().await?;
    let book = locked.map_err(Fault::before_commit)?;
    Ok(accounts.iter().copied().filter(|id| book.account(*id).is_none()).collect())
}

/// The columns of an account that `decide` needs.
struct AccountRow {
    id: Uuid,
    tenant_id: Uuid,
    environment: String,
    currency: String,
    status: String,
    min_balance: Option<i64>,
    max_balance: Option<i64>,
    posted: i64,
    held: i64,
    posting_count: i64,
}

impl TryFrom<AccountRow> for BookAccount {
    type Error = sqlx::Error;

    fn try_from(row: AccountRow) -> Result<Self, sqlx::Error> {
        let balance = |value| Balance::new(value).ok_or_else(|| unreadable("balance"));
        Ok(Self {
            id: AccountId(row.id),
            tenant: TenantId(row.tenant_id),
            environment: environment(&row.environment)?,
            currency: Currency::parse(&row.currency).ok_or_else(|| unreadable("currency"))?,
            status: AccountStatus::parse(&row.status).ok_or_else(|| unreadable("status"))?,
            min_balance: row.min_balance.map(balance).transpose()?,
            max_balance: row.max_balance.map(balance).transpose()?,
            posted: balance(row.posted)?,
            held: balance(row.held)?,
            posting_count: row.posting_count,
        })
    }
}

fn into_book(rows: Vec<AccountRow>) -> Result<Book, sqlx::Error> {
    let mut book = Book::default();
    for row in rows {
        book.add(row.try_into()?);
    }
    Ok(book)
}

fn unreadable(column: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(format!("the column {column} holds what no version has written").into())
}

fn environment(name: &str) -> Result<Environment, sqlx::Error> {
    Environment::parse(name).ok_or_else(|| unreadable("environment"))
}
