//! Reading the books. Every statement names tenant, environment and shard (I9), and every list is read by its key, so
//! that the hundredth page costs what the first one does.

use sqlx::types::JsonValue;
use thiserror::Error;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::account::{Account, AccountId, AccountStatus};
use crate::idempotency::{KeyHash, Response};
use crate::ledger::Ledger;
use crate::money::{Amount, Balance, Currency};
use crate::operation::{AcceptedWork, OperationId, OperationStatus, Origin, StoredWork, Unfinished};
use crate::scope::{Environment, PrincipalId, Scope, Shard, TenantId};
use crate::text::{Description, Metadata, Name};
use crate::transfer::{Posting, Transfer, TransferId};

/// Why something can't be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The database can't be reached, or took too long.
    #[error("the database is unavailable: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// The database refused the statement: a fault of ours, or a schema that isn't ours.
    #[error("the database refused to read: {0}")]
    Refused(#[source] sqlx::Error),
    /// A row holds what no row may hold.
    #[error("a row of the books can't be read: {what}")]
    Corrupt {
        /// What makes no sense.
        what: &'static str,
    },
}

/// SQLSTATE classes that pass: connection, transaction rollback, resources, operator's intervention (time-outs among
/// them), system error. PostgreSQL's appendix A.
const PASSING_CLASSES: [&str; 5] = ["08", "40", "53", "57", "58"];
/// `lock_not_available` passes, though the rest of its class does not.
const LOCK_NOT_AVAILABLE: &str = "55P03";

impl From<sqlx::Error> for ReadError {
    fn from(error: sqlx::Error) -> Self {
        let passes = match error.as_database_error() {
            Some(refusal) => refusal.code().is_some_and(|code| {
                code == LOCK_NOT_AVAILABLE || PASSING_CLASSES.iter().any(|class| code.starts_with(class))
            }),
            None => matches!(
                error,
                sqlx::Error::Io(_)
                    | sqlx::Error::Tls(_)
                    | sqlx::Error::Protocol(_)
                    | sqlx::Error::PoolTimedOut
                    | sqlx::Error::PoolClosed
                    | sqlx::Error::WorkerCrashed
            ),
        };
        if passes { Self::Unavailable(error) } else { Self::Refused(error) }
    }
}

/// Part of a list, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<C>,
}

/// Part of an account's postings; the cursor is the sequence of the last one.
pub type PostingPage = Page<Posting, i64>;

impl<T, C> Page<T, C> {
    /// Makes a page of rows that were read one beyond the limit: the surplus row only tells that there are more.
    fn cut(mut items: Vec<T>, limit: u8, cursor: impl Fn(&T) -> C) -> Self {
        let more = items.len() > usize::from(limit);
        items.truncate(usize::from(limit));
        let next = if more { items.last().map(cursor) } else { None };
        Self { items, next }
    }

    /// The number of rows to read for a page: one more than it shows.
    fn reach(limit: u8) -> i64 {
        i64::from(limit).saturating_add(1)
    }
}

/// Which transfers are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferFilter {
    /// Those of which this account is the source or the destination.
    pub account: Option<AccountId>,
    /// Those created at this time or later.
    pub created_from: Option<OffsetDateTime>,
    /// Those created before this time.
    pub created_to: Option<OffsetDateTime>,
}

/// Where a page of transfers begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferCursor {
    /// After this transfer.
    Transfer(TransferId),
    /// After this posting of the account that the filter names.
    Posting(i64),
}

/// How far a transfer's identifier may be from its `created_at`: it is made when the request is read, and the transfer is
/// decided at most a request's time later, on a machine whose clock may differ. An hour is far more than both.
const ID_DRIFT: Duration = Duration::hours(1);

/// The smallest identifier that begins with a time, so that a range of times becomes a range of the index: a version 7
/// identifier begins with 48 bits of Unix milliseconds (RFC 9562, section 5.7).
fn first_id(at: OffsetDateTime) -> Uuid {
    let milliseconds = u128::try_from(at.unix_timestamp_nanos()).unwrap_or(0).checked_div(1_000_000).unwrap_or(0);
    Uuid::from_u128(milliseconds.checked_shl(80).unwrap_or(0))
}

struct AccountRow {
    id: Uuid,
    tenant_id: Uuid,
    environment: String,
    currency: String,
    status: String,
    name: Option<String>,
    min_balance: Option<i64>,
    max_balance: Option<i64>,
    posted: i64,
    held: i64,
    posting_count: i64,
    metadata: Option<JsonValue>,
    created_at: OffsetDateTime,
}

struct TransferRow {
    id: Uuid,
    tenant_id: Uuid,
    environment: String,
    source_account_id: Uuid,
    destination_account_id: Uuid,
    amount: i64,
    currency: String,
    description: Option<String>,
    metadata: Option<JsonValue>,
    created_at: OffsetDateTime,
}

struct PostingRow {
    account_id: Uuid,
    sequence: i64,
    transfer_id: Uuid,
    amount: i64,
    balance_after: i64,
    created_at: OffsetDateTime,
}

const fn corrupt(what: &'static str) -> ReadError {
    ReadError::Corrupt { what }
}

fn balance(minor_units: i64) -> Result<Balance, ReadError> {
    Balance::new(minor_units).ok_or(corrupt("a balance"))
}

fn metadata(stored: Option<JsonValue>) -> Result<Option<Metadata>, ReadError> {
    stored.map(Metadata::from_stored).transpose().map_err(|_| corrupt("metadata"))
}

impl TryFrom<AccountRow> for Account {
    type Error = ReadError;

    fn try_from(row: AccountRow) -> Result<Self, ReadError> {
        Ok(Self {
            id: AccountId(row.id),
            tenant: TenantId(row.tenant_id),
            environment: Environment::parse(&row.environment).ok_or(corrupt("an environment"))?,
            currency: Currency::parse(&row.currency).ok_or(corrupt("a currency"))?,
            status: AccountStatus::parse(&row.status).ok_or(corrupt("an account's status"))?,
            name: row.name.map(Name::new).transpose().map_err(|_| corrupt("an account's name"))?,
            min_balance: row.min_balance.map(balance).transpose()?,
            max_balance: row.max_balance.map(balance).transpose()?,
            posted: balance(row.posted)?,
            held: balance(row.held)?,
            posting_count: row.posting_count,
            metadata: metadata(row.metadata)?,
            created_at: row.created_at,
        })
    }
}

impl TryFrom<TransferRow> for Transfer {
    type Error = ReadError;

    fn try_from(row: TransferRow) -> Result<Self, ReadError> {
        Ok(Self {
            id: TransferId(row.id),
            tenant: TenantId(row.tenant_id),
            environment: Environment::parse(&row.environment).ok_or(corrupt("an environment"))?,
            source: AccountId(row.source_account_id),
            destination: AccountId(row.destination_account_id),
            amount: Amount::new(row.amount).ok_or(corrupt("an amount"))?,
            currency: Currency::parse(&row.currency).ok_or(corrupt("a currency"))?,
            description: row.description.map(Description::new).transpose().map_err(|_| corrupt("a description"))?,
            metadata: metadata(row.metadata)?,
            created_at: row.created_at,
        })
    }
}

impl TryFrom<PostingRow> for Posting {
    type Error = ReadError;

    fn try_from(row: PostingRow) -> Result<Self, ReadError> {
        Ok(Self {
            account_id: AccountId(row.account_id),
            sequence: row.sequence,
            transfer_id: TransferId(row.transfer_id),
            amount: row.amount,
            balance_after: balance(row.balance_after)?,
            created_at: row.created_at,
        })
    }
}

fn read_all<R, T: TryFrom<R, Error = ReadError>>(rows: Vec<R>) -> Result<Vec<T>, ReadError> {
    rows.into_iter().map(T::try_from).collect()
}

impl Ledger {
    /// The account as it stands now; `None` if the scope's tenant has none with the id in this environment.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn account(&self, scope: &Scope, id: AccountId) -> Result<Option<Account>, ReadError> {
        sqlx::query_as!(
            AccountRow,
            "SELECT id, tenant_id, environment, currency, status, name, min_balance, max_balance, posted, held, posting_count,
                    metadata, created_at
             FROM accounts WHERE id = $1 AND shard = $2 AND tenant_id = $3 AND environment = $4",
            id.0,
            scope.shard.0,
            scope.tenant.0,
            scope.environment.name()
        )
        .fetch_optional(self.pool())
        .await?
        .map(Account::try_from)
        .transpose()
    }

    /// At most `limit` accounts after the one that `after` names, newest first.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn accounts(
        &self,
        scope: &Scope,
        after: Option<AccountId>,
        limit: u8,
    ) -> Result<Page<Account, AccountId>, ReadError> {
        let rows = sqlx::query_as!(
            AccountRow,
            "SELECT id, tenant_id, environment, currency, status, name, min_balance, max_balance, posted, held, posting_count,
                    metadata, created_at
             FROM accounts WHERE tenant_id = $1 AND environment = $2 AND shard = $3 AND id < $4
             ORDER BY id DESC LIMIT $5",
            scope.tenant.0,
            scope.environment.name(),
            scope.shard.0,
            after.map_or(Uuid::max(), |id| id.0),
            Page::<Account, AccountId>::reach(limit)
        )
        .fetch_all(self.pool())
        .await?;
        Ok(Page::cut(read_all(rows)?, limit, |account: &Account| account.id))
    }

    /// The transfer; `None` if the scope's tenant has none with the id in this environment.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn transfer(&self, scope: &Scope, id: TransferId) -> Result<Option<Transfer>, ReadError> {
        sqlx::query_as!(
            TransferRow,
            "SELECT id, tenant_id, environment, source_account_id, destination_account_id, amount, currency, description,
                    metadata, created_at
             FROM transfers WHERE id = $1 AND shard = $2 AND tenant_id = $3 AND environment = $4",
            id.0,
            scope.shard.0,
            scope.tenant.0,
            scope.environment.name()
        )
        .fetch_optional(self.pool())
        .await?
        .map(Transfer::try_from)
        .transpose()
    }

    /// At most `limit` transfers after the cursor, newest first. A cursor belongs to the filter that it came from: a list
    /// of an account's transfers goes by its postings, any other by the transfers' identifiers. `None` if the cursor is of
    /// the other kind.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn transfers(
        &self,
        scope: &Scope,
        filter: &TransferFilter,
        after: Option<TransferCursor>,
        limit: u8,
    ) -> Result<Option<Page<Transfer, TransferCursor>>, ReadError> {
        match (filter.account, after) {
            (None, None) => self.transfers_by_id(scope, filter, Uuid::max(), limit).await.map(Some),
            (None, Some(TransferCursor::Transfer(id))) => {
                self.transfers_by_id(scope, filter, id.0, limit).await.map(Some)
            }
            (Some(account), None) => self.transfers_of_account(scope, account, filter, i64::MAX, limit).await.map(Some),
            (Some(account), Some(TransferCursor::Posting(sequence))) => {
                self.transfers_of_account(scope, account, filter, sequence, limit).await.map(Some)
            }
            (None, Some(TransferCursor::Posting(_))) | (Some(_), Some(TransferCursor::Transfer(_))) => Ok(None),
        }
    }

    async fn transfers_by_id(
        &self,
        scope: &Scope,
        filter: &TransferFilter,
        before: Uuid,
        limit: u8,
    ) -> Result<Page<Transfer, TransferCursor>, ReadError> {
        let drifted =
            |at: Option<OffsetDateTime>, drift: Duration| at.and_then(|at| at.checked_add(drift)).map(first_id);
        let lowest = drifted(filter.created_from, -ID_DRIFT).unwrap_or(Uuid::nil());
        let highest = drifted(filter.created_to, ID_DRIFT).unwrap_or(Uuid::max());
        let rows = sqlx::query_as!(
            TransferRow,
            "SELECT id, tenant_id, environment, source_account_id, destination_account_id, amount, currency, description,
                    metadata, created_at
             FROM transfers
             WHERE tenant_id = $1 AND environment = $2 AND shard = $3 AND id >= $4 AND id < $5
               AND ($6::timestamptz IS NULL OR created_at >= $6) AND ($7::timestamptz IS NULL OR created_at < $7)
             ORDER BY id DESC LIMIT $8",
            scope.tenant.0,
            scope.environment.name(),
            scope.shard.0,
            lowest,
            before.min(highest),
            filter.created_from as Option<OffsetDateTime>,
            filter.created_to as Option<OffsetDateTime>,
            Page::<Transfer, TransferCursor>::reach(limit)
        )
        .fetch_all(self.pool())
        .await?;
        Ok(Page::cut(read_all(rows)?, limit, |transfer: &Transfer| TransferCursor::Transfer(transfer.id)))
    }

    /// Goes by the primary key of the account's postings. The account is joined first: postings carry no tenant, and the
    /// postings of a stranger's account must not even be walked (I9).
    async fn transfers_of_account(
        &self,
        scope: &Scope,
        account: AccountId,
        filter: &TransferFilter,
        before: i64,
        limit: u8,
    ) -> Result<Page<Transfer, TransferCursor>, ReadError> {
        let rows = sqlx::query!(
            "SELECT t.id, t.tenant_id, t.environment, t.source_account_id, t.destination_account_id, t.amount, t.currency,
                    t.description, t.metadata, t.created_at, p.sequence
             FROM accounts a
             JOIN postings p ON p.account_id = a.id AND p.shard = a.shard
             JOIN transfers t ON t.id = p.transfer_id AND t.shard = p.shard
             WHERE a.id = $1 AND a.shard = $2 AND a.tenant_id = $3 AND a.environment = $4
               AND t.tenant_id = $3 AND t.environment = $4 AND p.sequence < $5
               AND ($6::timestamptz IS NULL OR p.created_at >= $6) AND ($7::timestamptz IS NULL OR p.created_at < $7)
             ORDER BY p.sequence DESC LIMIT $8",
            account.0,
            scope.shard.0,
            scope.tenant.0,
            scope.environment.name(),
            before,
            filter.created_from as Option<OffsetDateTime>,
            filter.created_to as Option<OffsetDateTime>,
            Page::<Transfer, TransferCursor>::reach(limit)
        )
        .fetch_all(self.pool())
        .await?;
        let items = rows
            .into_iter()
            .map(|row| {
                let transfer = TransferRow {
                    id: row.id,
                    tenant_id: row.tenant_id,
                    environment: row.environment,
                    source_account_id: row.source_account_id,
                    destination_account_id: row.destination_account_id,
                    amount: row.amount,
                    currency: row.currency,
                    description: row.description,
                    metadata: row.metadata,
                    created_at: row.created_at,
                };
                Ok((Transfer::try_from(transfer)?, row.sequence))
            })
            .collect::<Result<Vec<_>, ReadError>>()?;
        let page = Page::cut(items, limit, |(_, sequence)| TransferCursor::Posting(*sequence));
        Ok(Page { items: page.items.into_iter().map(|(transfer, _)| transfer).collect(), next: page.next })
    }

    /// At most `limit` postings of an account before the sequence `before`, newest first; `None` if the scope's tenant has
    /// no such account in this environment.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn postings(
        &self,
        scope: &Scope,
        account: AccountId,
        before: Option<i64>,
        limit: u8,
    ) -> Result<Option<PostingPage>, ReadError> {
        // Accounts are never deleted, so what the first statement finds still holds for the second.
        if self.account(scope, account).await?.is_none() {
            return Ok(None);
        }
        let rows = sqlx::query_as!(
            PostingRow,
            "SELECT p.account_id, p.sequence, p.transfer_id, p.amount, p.balance_after, p.created_at
             FROM accounts a JOIN postings p ON p.account_id = a.id AND p.shard = a.shard
             WHERE a.id = $1 AND a.shard = $2 AND a.tenant_id = $3 AND a.environment = $4 AND p.sequence < $5
             ORDER BY p.sequence DESC LIMIT $6",
            account.0,
            scope.shard.0,
            scope.tenant.0,
            scope.environment.name(),
            before.unwrap_or(i64::MAX),
            PostingPage::reach(limit)
        )
        .fetch_all(self.pool())
        .await?;
        Ok(Some(Page::cut(read_all(rows)?, limit, |posting: &Posting| posting.sequence)))
    }
}

/// The most unfinished operations that are read at a time.
const MAX_UNFINISHED: i64 = 100;

impl Ledger {
    /// Accepted work of the scope, as it stands.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn operation(&self, scope: &Scope, id: OperationId) -> Result<Option<AcceptedWork>, ReadError> {
        let row = sqlx::query!(
            r#"SELECT o.status, o.done, o.total, o.created_at, o.finished_at, r.status AS "answer_status?",
                 a.content_type AS "content_type?", a.location, a.body AS "body?"
               FROM operations o
               LEFT JOIN idempotency_records r
                 ON r.key_hash = o.key_hashes[1] AND r.shard = o.shard AND r.response_id = o.response_id
               LEFT JOIN idempotency_responses a
                 ON a.id = o.response_id AND a.shard = o.shard AND a.day = (o.finished_at AT TIME ZONE 'UTC')::date
               WHERE o.id = $1 AND o.shard = $2 AND o.tenant_id = $3 AND o.environment = $4"#,
            id.0,
            scope.shard.0,
            scope.tenant.0,
            scope.environment.name(),
        )
        .fetch_optional(self.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let status = OperationStatus::parse(&row.status).ok_or(ReadError::Corrupt { what: "an operation's status" })?;
        let result = match (row.answer_status, row.content_type, row.body) {
            (Some(status), Some(content_type), Some(body)) => Some(Response {
                status: status.try_into().map_err(|_| ReadError::Corrupt { what: "a record's status" })?,
                content_type: content_type.into(),
                location: row.location,
                body,
            }),
            _ => None,
        };
        Ok(Some(AcceptedWork {
            id,
            status,
            done: row.done,
            total: row.total,
            result,
            created_at: row.created_at,
            finished_at: row.finished_at,
        }))
    }

    /// Accepted work that is not done, the oldest first, a hundred at a time: those after `after`, the cursor of the page
    /// before. `accepted_before` leaves to their own process those that it has only just accepted. What can't be read, such as
    /// work of a later version, is passed over and logged; it waits for a process that can.
    ///
    /// # Errors
    /// [`ReadError`] by variant.
    pub async fn unfinished(
        &self,
        accepted_before: OffsetDateTime,
        after: Option<UnfinishedCursor>,
    ) -> Result<Page<Unfinished, UnfinishedCursor>, ReadError> {
        let UnfinishedCursor(after_time, after_id) =
            after.unwrap_or(UnfinishedCursor(OffsetDateTime::UNIX_EPOCH, Uuid::nil()));
        let rows = sqlx::query!(
            r#"SELECT id, shard, tenant_id, principal_id, environment, key_hashes, endpoint, request_id, work, created_at
               FROM operations
               WHERE status = 'processing' AND created_at < $1 AND (created_at, id) > ($2, $3)
               ORDER BY created_at, id LIMIT $4"#,
            accepted_before,
            after_time,
            after_id,
            MAX_UNFINISHED,
        )
        .fetch_all(self.pool())
        .await?;
        let full = i64::try_from(rows.len()) == Ok(MAX_UNFINISHED);
        let next = rows.last().filter(|_| full).map(|row| UnfinishedCursor(row.created_at, row.id));
        let mut items = Vec::with_capacity(rows.len());
        for row in rows {
            let work = serde_json::from_value::<StoredWork>(row.work).ok().and_then(StoredWork::restore);
            let key_hashes: Option<Vec<KeyHash>> =
                row.key_hashes.into_iter().map(|hash| hash.try_into().map(KeyHash).ok()).collect();
            let (Some(work), Some(key_hashes), Some(environment)) =
                (work, key_hashes, Environment::parse(&row.environment))
            else {
                tracing::error!(operation = %row.id, "accepted work can't be read by this version");
                continue;
            };
            items.push(Unfinished {
                id: OperationId(row.id),
                scope: Scope {
                    tenant: TenantId(row.tenant_id),
                    principal: PrincipalId(row.principal_id),
                    environment,
                    shard: Shard(row.shard),
                },
                work,
                origin: Origin { endpoint: row.endpoint, request_id: row.request_id },
                key_hashes,
            });
        }
        Ok(Page { items, next })
    }
}

/// Where a page of unfinished work begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedCursor(OffsetDateTime, Uuid);

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn an_identifier_lies_between_the_bounds_of_its_time() {
        let before = OffsetDateTime::now_utc();
        let id = TransferId::fresh().0;
        let after = OffsetDateTime::now_utc();
        assert!(first_id(before) <= id && id < first_id(after + Duration::milliseconds(1)));
        assert_eq!(first_id(datetime!(1969-01-01 0:00 UTC)), Uuid::nil());
    }

    #[test]
    fn a_surplus_row_tells_of_a_next_page_and_is_not_shown() {
        let cursor = |item: &i32| *item;
        assert_eq!(Page::cut(vec![3, 2, 1], 2, cursor), Page { items: vec![3, 2], next: Some(2) });
        assert_eq!(Page::cut(vec![3, 2], 2, cursor), Page { items: vec![3, 2], next: None });
        assert_eq!(Page::<i32, i32>::cut(Vec::new(), 2, cursor), Page { items: Vec::new(), next: None });
    }
}
