//! A ledger filled with what production would hold, for trying a change on. Everything goes straight into the tables, in the
//! form in which the committer leaves it: the transfers are decided by [`decide`], so that an audit finds nothing.
//!
//! The history is made anew for each table, always the same from its seed, so that nothing of it has to be kept: one COPY a
//! table, all in one transaction. Two indexes have random keys, and are built at the end, which takes minutes less.
//!
//! Of the events only the newest are kept, as in a ledger whose outbox was cleaned up: they have the positions that the
//! whole history gives them, and new transfers are numbered on from the last one (I7).

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sqlx::postgres::{PgConnection, PgCopyIn};
use sqlx::{AssertSqlSafe, Connection, Executor};
use thiserror::Error;
use time::macros::{date, datetime};
use time::{Date, Duration, OffsetDateTime};
use uuid::Uuid;

use crate::account::{Account, AccountId, AccountStatus};
use crate::clock;
use crate::database::Database;
use crate::decide::{Book, BookAccount, Effects, Operation, Rejection, decide};
use crate::idempotency::Response;
use crate::money::{Amount, Balance, Currency};
use crate::scope::Scope;
use crate::submission::{Outcome, Render};
use crate::transfer::{PostTransfer, Posting, Transfer, TransferId};

const LOCK_TIMEOUT_MS: u32 = 10_000;
/// None: an index over all postings takes minutes, and so may a slow disk.
const STATEMENT_TIMEOUT_MS: u32 = 0;
const IDLE_IN_TRANSACTION_TIMEOUT_MS: u32 = 60_000;

/// How many bytes of rows are sent at a time.
const CHUNK: usize = 256 * 1024;
/// The records' hashes are random, so no secret made them, and none of this name is noted in the registry of secrets.
const SECRET_ID: &str = "volume";
/// The largest usual transfer, and what the outside world pays to an account that can't pay, both in minor units.
const USUAL_AMOUNT_MAX: i64 = 10_000;
const FUNDS: i64 = 1_000_000;
/// An account with at least this much can pay for a load of small transfers.
const FUNDED: i64 = 100_000;
/// The bytes of tags that a record keeps of a transfer's members: path, amount, currency and two accounts, of eight each.
const MEMBERS: usize = 40;

/// What is to be filled in.
pub struct Volume {
    /// Whose it is.
    pub scope: Scope,
    /// How many accounts; the first is the outside world, from which money enters. At least 3.
    pub accounts: u32,
    /// How many transfers.
    pub transfers: u32,
    /// How many of the newest transfers have their events in the outbox; at least 1. Where the outbox already has events, all
    /// have.
    pub events: u32,
    /// Over how many days, up to now, the transfers are spread; where the outbox has events, from the newest of them on. The
    /// answers are all kept, so this should not pass the retention.
    pub days: u16,
    /// Two volumes of one seed differ in their times only.
    pub seed: u64,
    /// Makes the answers, as for [`crate::Submission`].
    pub render: Render,
    /// Adds to a ledger that has transfers already, instead of refusing it.
    pub add: bool,
}

/// Why a ledger is not filled. Nothing was changed then.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// PostgreSQL said no, or nothing. The role must own the tables.
    #[error("the ledger can't be filled: {0}")]
    Sql(#[from] sqlx::Error),
    /// The ledger has transfers.
    #[error("the ledger already has transfers")]
    NotEmpty,
    /// The shard has no stream.
    #[error("the tenant's shard has no stream; create the tenant first")]
    NoStream,
    /// Fewer than 3 accounts, no event, or no day.
    #[error("at least 3 accounts, 1 event and 1 day are needed")]
    TooSmall,
    /// The rules refused a transfer that was meant to pass: a fault of this module.
    #[error("a transfer of the history is refused: {0:?}")]
    Refused(Rejection),
    /// A value of the history has no JSON or no place in time: a fault of this module.
    #[error("the history can't be written: {0}")]
    Unwritable(&'static str),
}

/// How far the filling is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, such as `postings`.
    pub step: &'static str,
    /// Rows that are done.
    pub done: u64,
    /// Rows in all; 0 where they can't be counted.
    pub total: u64,
}

impl Volume {
    /// Fills the ledger, all of it or nothing, and returns the accounts that have enough money for a load.
    ///
    /// # Errors
    /// All of [`VolumeError`].
    pub async fn fill(
        &self,
        database: &Database,
        mut tell: impl FnMut(Progress),
    ) -> Result<Vec<AccountId>, VolumeError> {
        if self.accounts < 3 || self.events == 0 || self.days == 0 {
            return Err(VolumeError::TooSmall);
        }
        let options =
            database.session("oncepost-volume", LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, IDLE_IN_TRANSACTION_TIMEOUT_MS);
        // A sort of all postings in memory, by as many workers as the server allows.
        let options = options.options([("maintenance_work_mem", "512MB")]);
        let mut connection = PgConnection::connect_with(&options).await?;
        connection.execute("BEGIN").await?;
        let filled = self.fill_tables(&mut connection, &mut tell).await;
        let accounts = match filled {
            Ok(accounts) => accounts,
            Err(error) => {
                // A COPY that failed half-way can't be talked to any more; closing it rolls back as well.
                drop(connection);
                return Err(error);
            }
        };
        connection.execute("COMMIT").await?;
        tell(Progress { step: "statistics", done: 0, total: 0 });
        connection
            .execute(
                "VACUUM (ANALYZE) accounts, transfers, postings, idempotency_records, idempotency_responses, outbox",
            )
            .await?;
        // So that the first load does not pay for writing all this down. It is a privilege, and no loss without it.
        if let Err(error) = connection.execute("CHECKPOINT").await {
            tracing::debug!(%error, "no checkpoint");
        }
        connection.close().await?;
        Ok(accounts)
    }

    async fn fill_tables(
        &self,
        connection: &mut PgConnection,
        tell: &mut impl FnMut(Progress),
    ) -> Result<Vec<AccountId>, VolumeError> {
        // The stream's lock keeps every committer out until the end (I7).
        let epoch = sqlx::query_scalar!("SELECT epoch FROM streams WHERE shard = $1 FOR UPDATE", self.scope.shard.0)
            .fetch_optional(&mut *connection)
            .await?
            .ok_or(VolumeError::NoStream)?;
        let used = sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM transfers) AS "used!""#)
            .fetch_one(&mut *connection)
            .await?;
        if used && !self.add {
            return Err(VolumeError::NotEmpty);
        }
        let newest = sqlx::query!(
            "SELECT position, created_at FROM outbox WHERE shard = $1 ORDER BY position DESC LIMIT 1",
            self.scope.shard.0
        )
        .fetch_optional(&mut *connection)
        .await?;
        // Positions are dense: behind an event that stands, no event may be missing.
        let last = newest.as_ref().map_or(0, |newest| newest.position);
        let first_event = if last > 0 { 0 } else { self.transfers.saturating_sub(self.events) };
        let stream = Stream { epoch, last, first_event };

        let plan = Plan::new(self, newest.map(|newest| newest.created_at))?;
        let postings = Dropped::take(connection, "postings", "postings_id").await?;
        let records = Dropped::take(connection, "idempotency_records", "idempotency_records_key").await?;
        self.copy_transfers(connection, &plan, tell).await?;
        self.copy_postings(connection, &plan, tell).await?;
        self.copy_records(connection, &plan, tell).await?;
        self.copy_answers(connection, &plan, tell).await?;
        self.copy_events(connection, &plan, &stream, tell).await?;
        let funded = self.copy_accounts(connection, &plan, tell).await?;
        tell(Progress { step: "indexes", done: 0, total: 0 });
        postings.restore(connection).await?;
        records.restore(connection).await?;
        Ok(funded)
    }

    async fn copy_transfers(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        tell: &mut impl FnMut(Progress),
    ) -> Result<(), VolumeError> {
        let mut history = History::new(self, plan);
        let columns = "id, shard, tenant_id, environment, source_account_id, destination_account_id, source_sequence, \
                       destination_sequence, amount, currency, created_at";
        let mut copy = Copy::begin(connection, "transfers", "transfers", columns, self.transfers.into()).await?;
        while let Some(step) = history.next()? {
            let Transfer { id, tenant, environment, source, destination, amount, currency, created_at, .. } =
                &step.transfer;
            copy.row(11);
            copy.uuid(id.0);
            copy.int4(self.scope.shard.0);
            copy.uuid(tenant.0);
            copy.text(environment.name());
            copy.uuid(source.0);
            copy.uuid(destination.0);
            copy.int8(step.debit.sequence);
            copy.int8(step.credit.sequence);
            copy.int8(amount.minor_units());
            copy.text(currency.code());
            copy.time(*created_at)?;
            copy.send_some(tell).await?;
        }
        copy.finish(tell).await
    }

    async fn copy_postings(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        tell: &mut impl FnMut(Progress),
    ) -> Result<(), VolumeError> {
        let mut history = History::new(self, plan);
        let columns = "account_id, sequence, shard, transfer_id, amount, balance_after, created_at";
        let rows = u64::from(self.transfers).saturating_mul(2);
        let mut copy = Copy::begin(connection, "postings", "postings", columns, rows).await?;
        while let Some(step) = history.next()? {
            for posting in [&step.debit, &step.credit] {
                copy.row(7);
                copy.uuid(posting.account_id.0);
                copy.int8(posting.sequence);
                copy.int4(self.scope.shard.0);
                copy.uuid(posting.transfer_id.0);
                copy.int8(posting.amount);
                copy.int8(posting.balance_after.minor_units());
                copy.time(posting.created_at)?;
            }
            copy.send_some(tell).await?;
        }
        copy.finish(tell).await
    }

    async fn copy_records(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        tell: &mut impl FnMut(Progress),
    ) -> Result<(), VolumeError> {
        let mut history = History::new(self, plan);
        let columns = "key_hash, shard, secret_id, principal_id, environment, operation, fingerprint, members, status, \
                       response_id, completed_at";
        let rows = u64::from(self.transfers).saturating_add(self.accounts.into());
        let mut copy = Copy::begin(connection, "records", "idempotency_records", columns, rows).await?;
        let record = |copy: &mut Copy<'_>, key: &Key, operation: &str, id: Uuid, at: OffsetDateTime| {
            copy.row(11);
            copy.value(&key.hash);
            copy.int4(self.scope.shard.0);
            copy.text(SECRET_ID);
            copy.uuid(self.scope.principal.0);
            copy.text(self.scope.environment.name());
            copy.text(operation);
            copy.value(&key.fingerprint);
            copy.value(&key.members);
            copy.int2(201);
            copy.uuid(id);
            copy.time(at)
        };
        for (account, key) in plan.opened(self) {
            record(&mut copy, &key, "account.open", account.id.0, account.created_at)?;
            copy.send_some(tell).await?;
        }
        while let Some(step) = history.next()? {
            record(&mut copy, &step.key, "transfer.post", step.transfer.id.0, step.transfer.created_at)?;
            copy.send_some(tell).await?;
        }
        copy.finish(tell).await
    }

    /// Answers go straight into the tables of their days; those of accounts stand in the first.
    async fn copy_answers(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        tell: &mut impl FnMut(Progress),
    ) -> Result<(), VolumeError> {
        let mut history = History::new(self, plan);
        let mut next = history.next()?;
        let mut day = plan.begin.date();
        let mut opened = Some(plan.opened(self));
        while next.is_some() || opened.is_some() {
            let table = ensure_day(connection, day).await?;
            let columns = "id, shard, day, content_type, location, body";
            let rows = u64::from(self.transfers).saturating_add(self.accounts.into());
            let mut copy = Copy::begin(connection, "answers", &table, columns, rows).await?;
            let answer = |copy: &mut Copy<'_>, id: Uuid, outcome: Outcome<'_>| {
                let Response { status: _, content_type, location, body } = (self.render)(outcome);
                copy.row(6);
                copy.uuid(id);
                copy.int4(self.scope.shard.0);
                copy.day(day)?;
                copy.text(&content_type);
                match location {
                    Some(location) => copy.text(&location),
                    None => copy.null(),
                }
                copy.value(&body);
                Ok::<_, VolumeError>(())
            };
            for (account, _) in opened.take().into_iter().flatten() {
                answer(&mut copy, account.id.0, Outcome::AccountOpened(&account))?;
                copy.send_some(tell).await?;
            }
            while let Some(step) = next.take_if(|step| step.transfer.created_at.date() == day) {
                answer(&mut copy, step.transfer.id.0, Outcome::TransferPosted(&step.transfer))?;
                copy.send_some(tell).await?;
                next = history.next()?;
            }
            copy.finish(tell).await?;
            day = day.next_day().ok_or(VolumeError::Unwritable("a day"))?;
        }
        Ok(())
    }

    async fn copy_events(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        stream: &Stream,
        tell: &mut impl FnMut(Progress),
    ) -> Result<(), VolumeError> {
        let mut history = History::new(self, plan);
        let columns = "shard, position, epoch, event_id, event_type, resource_id, tenant_id, environment, key_hash, payload, \
                       created_at";
        let rows = u64::from(self.transfers.saturating_sub(stream.first_event));
        let mut copy = Copy::begin(connection, "events", "outbox", columns, rows).await?;
        while let Some(step) = history.next()? {
            if step.index < stream.first_event {
                continue;
            }
            let transfer = &step.transfer;
            copy.row(11);
            copy.int4(self.scope.shard.0);
            copy.int8(stream.last.saturating_add(i64::from(step.index)).saturating_add(1));
            copy.int4(stream.epoch);
            copy.uuid(step.event_id);
            copy.text("transfer.posted");
            copy.uuid(transfer.id.0);
            copy.uuid(transfer.tenant.0);
            copy.text(transfer.environment.name());
            copy.value(&step.key.hash);
            copy.value(&serde_json::to_vec(transfer).map_err(|_| VolumeError::Unwritable("an event"))?);
            copy.time(transfer.created_at)?;
            copy.send_some(tell).await?;
        }
        copy.finish(tell).await
    }

    /// The accounts as the history leaves them.
    async fn copy_accounts(
        &self,
        connection: &mut PgConnection,
        plan: &Plan,
        tell: &mut impl FnMut(Progress),
    ) -> Result<Vec<AccountId>, VolumeError> {
        let mut history = History::new(self, plan);
        while history.next()?.is_some() {}
        let columns =
            "id, shard, tenant_id, environment, currency, status, min_balance, posted, posting_count, created_at";
        let mut copy = Copy::begin(connection, "accounts", "accounts", columns, self.accounts.into()).await?;
        let mut funded = Vec::new();
        for (now, (opened, _)) in history.accounts.iter().zip(plan.opened(self)) {
            copy.row(10);
            copy.uuid(now.id.0);
            copy.int4(self.scope.shard.0);
            copy.uuid(now.tenant.0);
            copy.text(now.environment.name());
            copy.text(now.currency.code());
            copy.text(now.status.name());
            match now.min_balance {
                Some(floor) => copy.int8(floor.minor_units()),
                None => copy.null(),
            }
            copy.int8(now.posted.minor_units());
            copy.int8(now.posting_count);
            copy.time(opened.created_at)?;
            copy.send_some(tell).await?;
            if now.posted.minor_units() >= FUNDED {
                funded.push(now.id);
            }
        }
        copy.finish(tell).await?;
        Ok(funded)
    }
}

/// Where the events go.
struct Stream {
    epoch: i32,
    /// The last position that is given out.
    last: i64,
    /// The first transfer whose event is kept, counted from 0.
    first_event: u32,
}

/// What every pass over the history starts from.
struct Plan {
    begin: OffsetDateTime,
    end: OffsetDateTime,
    currency: Currency,
    ids: Vec<AccountId>,
}

impl Plan {
    /// The history ends now. One that is added begins where the one that stands has ended, so that its positions are in the
    /// order of time as well, and older transfers need no events because of it.
    fn new(volume: &Volume, after: Option<OffsetDateTime>) -> Result<Self, VolumeError> {
        // A second before now, so that whatever comes next comes later.
        let end = clock::now().saturating_sub(Duration::SECOND);
        let begin = after.unwrap_or(end.saturating_sub(Duration::days(volume.days.into())));
        let end = end.max(begin);
        let currency = Currency::parse("EUR").ok_or(VolumeError::Unwritable("a currency"))?;
        let mut random = StdRng::seed_from_u64(volume.seed);
        let ids = (0..volume.accounts).map(|_| identifier(begin, &mut random).map(AccountId));
        let ids = ids.collect::<Result<_, _>>()?;
        Ok(Self { begin, end, currency, ids })
    }

    /// When a transfer was decided: all are evenly spread, each later than the one before it.
    fn at(&self, index: u32, of: u32) -> OffsetDateTime {
        let whole = (self.end - self.begin).whole_microseconds();
        let share = whole.saturating_mul(i128::from(index).saturating_add(1)).checked_div(i128::from(of)).unwrap_or(0);
        self.begin.saturating_add(Duration::microseconds(i64::try_from(share).unwrap_or(0)))
    }

    /// The accounts as they were opened, each with the key of its request.
    fn opened<'a>(&'a self, volume: &'a Volume) -> impl Iterator<Item = (Account, Key)> + 'a {
        let mut random = StdRng::seed_from_u64(volume.seed.wrapping_add(1));
        self.ids.iter().enumerate().map(move |(index, id)| {
            let account = Account {
                id: *id,
                tenant: volume.scope.tenant,
                environment: volume.scope.environment,
                currency: self.currency,
                status: AccountStatus::Open,
                name: None,
                min_balance: (index > 0).then_some(Balance::ZERO),
                max_balance: None,
                posted: Balance::ZERO,
                held: Balance::ZERO,
                posting_count: 0,
                metadata: None,
                created_at: self.begin,
            };
            (account, Key::random(&mut random))
        })
    }
}

/// What a record keeps of its key and request, all of it random: as good as hashes of keys that no one has.
struct Key {
    hash: [u8; 32],
    fingerprint: [u8; 32],
    members: [u8; MEMBERS],
}

impl Key {
    fn random(random: &mut StdRng) -> Self {
        Self { hash: random.random(), fingerprint: random.random(), members: random.random() }
    }
}

/// An identifier of version 7 for this moment.
fn identifier(at: OffsetDateTime, random: &mut StdRng) -> Result<Uuid, VolumeError> {
    let millis = at.unix_timestamp_nanos().checked_div(1_000_000).and_then(|millis| u64::try_from(millis).ok());
    let millis = millis.ok_or(VolumeError::Unwritable("a time"))?;
    Ok(uuid::Builder::from_unix_timestamp_millis(millis, &random.random()).into_uuid())
}

/// The transfers one after the other.
struct History<'a> {
    volume: &'a Volume,
    plan: &'a Plan,
    random: StdRng,
    accounts: Vec<BookAccount>,
    next: u32,
}

/// One transfer with all that belongs to it.
struct Step {
    index: u32,
    transfer: Transfer,
    debit: Posting,
    credit: Posting,
    key: Key,
    event_id: Uuid,
}

impl<'a> History<'a> {
    fn new(volume: &'a Volume, plan: &'a Plan) -> Self {
        let accounts = plan.opened(volume).map(|(account, _)| BookAccount {
            id: account.id,
            tenant: account.tenant,
            environment: account.environment,
            currency: account.currency,
            status: account.status,
            min_balance: account.min_balance,
            max_balance: account.max_balance,
            posted: account.posted,
            held: account.held,
            posting_count: account.posting_count,
        });
        let random = StdRng::seed_from_u64(volume.seed.wrapping_add(2));
        Self { volume, plan, random, accounts: accounts.collect(), next: 0 }
    }

    fn next(&mut self) -> Result<Option<Step>, VolumeError> {
        let index = self.next;
        if index == self.volume.transfers {
            return Ok(None);
        }
        self.next = index.saturating_add(1);
        let lost = || VolumeError::Unwritable("an account");
        let count = self.accounts.len();
        let one = self.random.random_range(1..count);
        // Any but the first and `one`.
        let other = self.random.random_range(1..count.saturating_sub(1));
        let other = if other >= one { other.saturating_add(1) } else { other };
        let amount = self.random.random_range(1..=USUAL_AMOUNT_MAX);
        let short = self.accounts.get(one).ok_or_else(lost)?.posted.minor_units() < amount;
        let (source, destination, amount) = if short { (0, one, FUNDS) } else { (one, other, amount) };

        let now = self.plan.at(index, self.volume.transfers);
        let mut book = Book::default();
        for place in [source, destination] {
            book.add(self.accounts.get(place).ok_or_else(lost)?.clone());
        }
        let id = |place: usize| self.accounts.get(place).map(|account| account.id).ok_or_else(lost);
        let operation = Operation::PostTransfer(PostTransfer {
            id: TransferId(identifier(now, &mut self.random)?),
            source: id(source)?,
            destination: id(destination)?,
            amount: Amount::new(amount).ok_or(VolumeError::Unwritable("an amount"))?,
            currency: self.plan.currency,
            description: None,
            metadata: None,
        });
        let effects = decide(&book, &self.volume.scope, &operation, now).map_err(VolumeError::Refused)?;
        book.apply(&effects);
        let Effects::TransferPosted { transfer, debit, credit } = effects else {
            return Err(VolumeError::Unwritable("a transfer"));
        };
        for place in [source, destination] {
            let account = self.accounts.get_mut(place).ok_or_else(lost)?;
            *account = book.account(account.id).cloned().ok_or_else(lost)?;
        }
        let key = Key::random(&mut self.random);
        let event_id = identifier(now, &mut self.random)?;
        Ok(Some(Step { index, transfer, debit, credit, key, event_id }))
    }
}

/// A key that is built again when its table is filled.
struct Dropped {
    restore: String,
}

impl Dropped {
    async fn take(connection: &mut PgConnection, table: &str, constraint: &str) -> Result<Self, VolumeError> {
        let definition = sqlx::query_scalar!(
            r#"SELECT pg_get_constraintdef(oid) AS "definition!" FROM pg_constraint WHERE conname = $1 AND conrelid = $2::text::regclass"#,
            constraint,
            table
        )
        .fetch_one(&mut *connection)
        .await?;
        run(connection, format!("ALTER TABLE {table} DROP CONSTRAINT {constraint}")).await?;
        Ok(Self { restore: format!("ALTER TABLE {table} ADD CONSTRAINT {constraint} {definition}") })
    }

    async fn restore(self, connection: &mut PgConnection) -> Result<(), VolumeError> {
        run(connection, self.restore).await
    }
}

async fn run(connection: &mut PgConnection, statement: String) -> Result<(), VolumeError> {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await?;
    Ok(())
}

/// The table of a day's answers, made where it is missing: the ledger itself makes none for days that are past.
async fn ensure_day(connection: &mut PgConnection, day: Date) -> Result<String, VolumeError> {
    let table = format!("idempotency_responses_{:04}{:02}{:02}", day.year(), u8::from(day.month()), day.day());
    let missing = sqlx::query_scalar!(r#"SELECT to_regclass($1) IS NULL AS "missing!""#, table)
        .fetch_one(&mut *connection)
        .await?;
    if missing {
        let next = day.next_day().ok_or(VolumeError::Unwritable("a day"))?;
        run(
            connection,
            format!("CREATE TABLE {table} (LIKE idempotency_responses INCLUDING DEFAULTS INCLUDING INDEXES)"),
        )
        .await?;
        run(
            connection,
            format!(
                "ALTER TABLE idempotency_responses ATTACH PARTITION {table} FOR VALUES FROM ('{day}') TO ('{next}')"
            ),
        )
        .await?;
    }
    Ok(table)
}

/// One COPY in PostgreSQL's binary format (its documentation, page "COPY", "Binary Format").
struct Copy<'c> {
    into: PgCopyIn<&'c mut PgConnection>,
    step: &'static str,
    /// Rows that are not sent yet.
    bytes: Vec<u8>,
    progress: u64,
    total: u64,
}

impl<'c> Copy<'c> {
    /// Begins. A table without rows is filled with rows that are frozen at once: no one has to come back to each page for them.
    async fn begin(
        connection: &'c mut PgConnection,
        step: &'static str,
        table: &str,
        columns: &str,
        total: u64,
    ) -> Result<Self, VolumeError> {
        let used = sqlx::query_scalar::<_, bool>(AssertSqlSafe(format!("SELECT EXISTS (SELECT FROM {table})")))
            .fetch_one(&mut *connection)
            .await?;
        // FREEZE wants a table that is new in this transaction.
        let freeze = if used {
            ""
        } else {
            run(connection, format!("TRUNCATE {table}")).await?;
            ", FREEZE"
        };
        let into =
            connection.copy_in_raw(&format!("COPY {table} ({columns}) FROM STDIN (FORMAT binary{freeze})")).await?;
        let mut bytes = Vec::with_capacity(CHUNK.saturating_mul(2));
        // The signature, no flags, no extension.
        bytes.extend_from_slice(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
        Ok(Self { into, step, bytes, progress: 0, total })
    }

    fn row(&mut self, columns: i16) {
        self.bytes.extend_from_slice(&columns.to_be_bytes());
        self.progress = self.progress.saturating_add(1);
    }

    fn value(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(&i32::try_from(value.len()).unwrap_or(i32::MAX).to_be_bytes());
        self.bytes.extend_from_slice(value);
    }

    fn null(&mut self) {
        self.bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    }

    fn text(&mut self, value: &str) {
        self.value(value.as_bytes());
    }

    fn uuid(&mut self, value: Uuid) {
        self.value(value.as_bytes());
    }

    fn int2(&mut self, value: i16) {
        self.value(&value.to_be_bytes());
    }

    fn int4(&mut self, value: i32) {
        self.value(&value.to_be_bytes());
    }

    fn int8(&mut self, value: i64) {
        self.value(&value.to_be_bytes());
    }

    /// Microseconds since 2000.
    fn time(&mut self, value: OffsetDateTime) -> Result<(), VolumeError> {
        let since = (value - datetime!(2000-01-01 00:00 UTC)).whole_microseconds();
        self.int8(i64::try_from(since).map_err(|_| VolumeError::Unwritable("a time"))?);
        Ok(())
    }

    /// Days since 2000.
    fn day(&mut self, value: Date) -> Result<(), VolumeError> {
        let since = (value - date!(2000 - 01 - 01)).whole_days();
        self.int4(i32::try_from(since).map_err(|_| VolumeError::Unwritable("a day"))?);
        Ok(())
    }

    /// Sends the rows, where enough have gathered.
    async fn send_some(&mut self, tell: &mut impl FnMut(Progress)) -> Result<(), VolumeError> {
        if self.bytes.len() >= CHUNK {
            self.into.send(self.bytes.as_slice()).await?;
            self.bytes.clear();
            tell(Progress { step: self.step, done: self.progress, total: self.total });
        }
        Ok(())
    }

    async fn finish(mut self, tell: &mut impl FnMut(Progress)) -> Result<(), VolumeError> {
        // Instead of a number of columns, this ends the rows.
        self.bytes.extend_from_slice(&(-1_i16).to_be_bytes());
        self.into.send(self.bytes.as_slice()).await?;
        self.into.finish().await?;
        tell(Progress { step: self.step, done: self.progress, total: self.total });
        Ok(())
    }
}
