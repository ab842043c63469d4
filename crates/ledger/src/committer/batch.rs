//! One batch: one BEGIN, one COMMIT. The steps are those of the table in [`crate::committer`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::fault::Fault;
use super::queue::Job;
use super::session::Session;
use crate::account::{Account, AccountId, AccountStatus};
use crate::clock;
use crate::decide::{Book, BookAccount, Effects, Rejection, decide};
use crate::failpoint;
use crate::idempotency::{Answer, KeyHash, Record, Response, Secrets};
use crate::money::{Balance, Currency};
use crate::scope::{Environment, Shard, TenantId};
use crate::submission::{Outcome, SubmitError};
use crate::transfer::{Posting, Transfer};

/// How long everything up to COMMIT may take before the connection counts as lost. Each statement has its own time-out;
/// this is for a server that no longer answers at all.
const BATCH_TIMEOUT: Duration = Duration::from_secs(8);
/// How long COMMIT may take before its outcome counts as unknown. Shorter than an operation's deadline, so that the batch
/// can still be run again to find out.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(3);

/// How accounts are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locking {
    /// What others hold is left out.
    Skip,
    /// What others hold is waited for, up to the lock time-out of the second committer.
    Wait,
}

/// The jobs of a batch that have no outcome yet.
pub(super) struct Work {
    /// Still to be committed.
    pub(super) open: Vec<Job>,
    /// Left out, since others hold their accounts.
    pub(super) contended: Vec<Job>,
}

/// What `decide` and `render` made of a job.
struct Decided {
    outcome: Result<Effects, Rejection>,
    response: Response,
}

/// Runs the steps once. On success every job in `open` is answered and gone. On a fault the jobs without an outcome are
/// still in `work`, and the session, if it can still be used, is outside of any transaction.
pub(super) async fn attempt(
    session: &mut Session,
    secrets: &Secrets,
    shard: Shard,
    work: &mut Work,
    locking: Locking,
) -> Result<(), Fault> {
    let mut found = Vec::new();
    if locking == Locking::Skip {
        let timed = tokio::time::timeout(BATCH_TIMEOUT, answer_found(session, secrets, shard, work, &mut found));
        timed.await.map_err(|_elapsed| Fault::Connection)??;
        if work.open.is_empty() && found.is_empty() {
            return Ok(());
        }
    }
    let decided = tokio::time::timeout(BATCH_TIMEOUT, prepare(session, secrets, shard, work, locking, &mut found));
    let decided = match decided.await.map_err(|_elapsed| Fault::Connection).flatten() {
        Ok(decided) => decided,
        Err(fault) => {
            work.open.extend(found.into_iter().map(|(job, _)| job));
            return leave(session, fault).await;
        }
    };
    let Some((now, decided)) = decided else {
        return session.roll_back().await;
    };
    failpoint::hit("before-commit");
    let started = Instant::now();
    let committed =
        tokio::time::timeout(COMMIT_TIMEOUT, session.commit()).await.map_err(|_elapsed| Fault::Unknown).flatten();
    if let Err(fault) = committed {
        work.open.extend(found.into_iter().map(|(job, _)| job));
        return leave(session, fault).await;
    }
    failpoint::hit("after-commit");
    observe("commit", started);
    metrics::histogram!("oncepost_batch_operations")
        .record(f64::from(u32::try_from(decided.len()).unwrap_or(u32::MAX)));
    for (job, record) in found {
        answer(job, secrets, record);
    }
    for (job, decided) in work.open.drain(..).zip(decided) {
        let record = record(&job, decided.response, now);
        answer(job, secrets, record);
    }
    Ok(())
}

/// Leaves a transaction after a fault. The first error inside BEGIN ends it; none is swallowed. A session that is lost or
/// given up needs no rollback.
async fn leave(session: &mut Session, fault: Fault) -> Result<(), Fault> {
    match fault {
        Fault::Connection | Fault::SchemaChanged | Fault::Unknown => Err(fault),
        Fault::KeyTaken | Fault::Retry | Fault::Poison(_) => session.roll_back().await.and(Err(fault)),
    }
}

fn observe(phase: &'static str, started: Instant) {
    metrics::histogram!("oncepost_batch_seconds", "phase" => phase).record(started.elapsed());
}

/// Answers a job from the record that now stands: its own, or that of an earlier request.
fn answer(job: Job, secrets: &Secrets, record: Record) {
    let submission = &job.submission;
    let mut answer =
        record.judge(secrets, submission.scope.environment, &submission.fingerprint, submission.known_members);
    // The record may name what this very job made, though the look-up found it: a COMMIT without an answer took effect.
    if record.response_id == submission.operation.id()
        && let Answer::Replayed(response) = answer
    {
        answer = Answer::Fresh(response);
    }
    job.finish(answer, record);
}

fn record(job: &Job, response: Response, now: OffsetDateTime) -> Record {
    let (secret_id, members) = match job.sealed.write.first() {
        Some(write) => (write.secret_id.to_string(), write.members.clone()),
        None => (String::new(), Vec::new()),
    };
    Record {
        secret_id: secret_id.into(),
        environment: job.submission.scope.environment,
        fingerprint: job.submission.fingerprint.whole,
        members,
        status: response.status,
        response_id: job.submission.operation.id(),
        completed_at: now,
        response: Some(response),
    }
}

/// Step 1. Answers the jobs whose records stand. Where one may stem from a COMMIT that got no answer, because the job's own
/// did or because this session has not covered it yet, the job is kept in `found` instead: a COMMIT that writes must first
/// cover the older one's log (I6).
async fn answer_found(
    session: &mut Session,
    secrets: &Secrets,
    shard: Shard,
    work: &mut Work,
    found: &mut Vec<(Job, Record)>,
) -> Result<(), Fault> {
    let started = Instant::now();
    let hashes: Vec<KeyHash> = work.open.iter().flat_map(|job| job.sealed.hashes()).collect();
    let records = look_up(&mut session.connection, shard, &hashes).await.map_err(Fault::before_commit)?;
    observe("look_up", started);
    if records.is_empty() {
        return Ok(());
    }
    let stands = |job: &mut Job| job.sealed.hashes().any(|hash| records.contains_key(&hash));
    let recorded: Vec<Job> = work.open.extract_if(.., stands).collect();
    for job in recorded {
        let record = job.sealed.hashes().find_map(|hash| records.get(&hash)).cloned();
        match record {
            Some(record) if job.unknown || !session.covered => found.push((job, record)),
            Some(record) => answer(job, secrets, record),
            None => work.open.push(job),
        }
    }
    Ok(())
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
        r#"SELECT k.key_hash AS "key_hash!", r.secret_id, r.environment, r.fingerprint, r.members, r.status, r.response_id,
             r.completed_at, a.content_type AS "content_type?", a.location, a.body AS "body?"
           FROM unnest($1::bytea[]) AS k (key_hash),
             LATERAL (SELECT * FROM idempotency_records r WHERE r.key_hash = k.key_hash AND r.shard = $2 OFFSET 0) r
             LEFT JOIN LATERAL
               (SELECT * FROM idempotency_responses a WHERE a.id = r.response_id AND a.shard = $2 OFFSET 0) a ON true"#,
        &hashes as &[[u8; 32]],
        shard.0,
    )
    .fetch_all(connection)
    .await?;
    let mut records = HashMap::with_capacity(rows.len());
    for row in rows {
        let status = u16::try_from(row.status).map_err(decode)?;
        let response = match (row.content_type, row.body) {
            (Some(content_type), Some(body)) => {
                Some(Response { status, content_type: content_type.into(), location: row.location, body })
            }
            _ => None,
        };
        let record = Record {
            secret_id: row.secret_id.into(),
            environment: environment(&row.environment)?,
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

/// Steps 2 to 5, inside BEGIN. `None` where nothing is left to commit.
async fn prepare(
    session: &mut Session,
    secrets: &Secrets,
    shard: Shard,
    work: &mut Work,
    locking: Locking,
    found: &mut Vec<(Job, Record)>,
) -> Result<Option<(OffsetDateTime, Vec<Decided>)>, Fault> {
    let started = Instant::now();
    session
        .begin(match locking {
            Locking::Skip => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
            // 50 ms for each account; what follows waits as the first committer does.
            Locking::Wait => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = 50",
        })
        .await?;
    let (mut book, elsewhere) = match lock(session, shard, &work.open, locking).await {
        Err(Fault::Retry) if locking == Locking::Wait => {
            // Someone holds an account for longer than it may. The caller finds out which.
            work.contended.append(&mut work.open);
            return Ok(None);
        }
        locked => locked?,
    };
    observe("lock", started);
    let held_elsewhere = |job: &mut Job| job.submission.operation.accounts().any(|id| elsewhere.contains(&id));
    work.contended.extend(work.open.extract_if(.., held_elsewhere));
    if locking == Locking::Wait {
        session.begin("SET LOCAL lock_timeout = 3000").await?;
        // While it waited, a request with the same key may have committed: no duplicate gets an answer made by its own
        // original's effect.
        answer_found(session, secrets, shard, work, found).await?;
    }

    let now = clock::now();
    let decided = decide_all(&mut work.open, &mut book, now);
    if !decided.is_empty() {
        let events = events(&work.open, &decided);
        let started = Instant::now();
        let numbering = !events.is_empty();
        let epoch = write(&mut session.connection, shard, now, &work.open, &decided, &book, numbering).await?;
        observe("write", started);
        if numbering {
            let epoch = epoch.ok_or(Fault::Poison(sqlx::Error::RowNotFound))?;
            let started = Instant::now();
            number(&mut session.connection, shard, now, epoch, &events).await?;
            observe("number", started);
        }
    } else if !found.is_empty() {
        sqlx::query!("SELECT pg_logical_emit_message(true, 'oncepost', 'a COMMIT got no answer')::text AS message")
            .fetch_one(&mut session.connection)
            .await
            .map_err(Fault::before_commit)?;
    } else {
        return Ok(None);
    }
    Ok(Some((now, decided)))
}

/// Step 2. The book of the accounts that are now locked, and those that exist but that others hold.
async fn lock(
    session: &mut Session,
    shard: Shard,
    jobs: &[Job],
    locking: Locking,
) -> Result<(Book, HashSet<AccountId>), Fault> {
    let ids: BTreeSet<AccountId> = jobs.iter().flat_map(|job| job.submission.operation.accounts()).collect();
    let ids: Vec<Uuid> = ids.into_iter().map(|id| id.0).collect();
    let mut book = Book::default();
    if ids.is_empty() {
        return Ok((book, HashSet::new()));
    }
    let connection = &mut session.connection;
    match locking {
        Locking::Skip => lock_free(connection, shard, &ids, &mut book).await,
        Locking::Wait => lock_waiting(connection, shard, &ids, &mut book).await,
    }
    .map_err(Fault::before_commit)?;
    let missing: Vec<Uuid> = ids.into_iter().filter(|id| book.account(AccountId(*id)).is_none()).collect();
    if missing.is_empty() {
        return Ok((book, HashSet::new()));
    }
    let elsewhere = existing(connection, shard, &missing).await.map_err(Fault::before_commit)?;
    Ok((book, elsewhere))
}

/// Reads the columns that `decide` needs into the book. A macro, since each checked statement has a row type of its own.
macro_rules! add_to_book {
    ($rows:expr, $book:expr) => {
        for row in $rows {
            let balance = |value| Balance::new(value).ok_or_else(|| unreadable("balance"));
            $book.add(BookAccount {
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
            });
        }
    };
}

/// Locks what no one else holds. SKIP LOCKED: a stranger's lock must not stop everyone else's money. NO KEY UPDATE, since
/// ids never change. The ids are sorted and the LATERAL is run in their order, which is the one order of locks.
async fn lock_free(
    connection: &mut PgConnection,
    shard: Shard,
    ids: &[Uuid],
    book: &mut Book,
) -> Result<(), sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT a.*
           FROM unnest($1::uuid[]) AS k (id),
             LATERAL (SELECT a.id, a.tenant_id, a.environment, a.currency, a.status, a.min_balance, a.max_balance, a.posted,
                        a.held, a.posting_count
                      FROM accounts a WHERE a.id = k.id AND a.shard = $2
                      FOR NO KEY UPDATE SKIP LOCKED) a"#,
        ids,
        shard.0,
    )
    .fetch_all(connection)
    .await?;
    add_to_book!(rows, book);
    Ok(())
}

/// Locks as [`lock_free`] does, but waits for what others hold, in ascending order so that two who wait never deadlock.
async fn lock_waiting(
    connection: &mut PgConnection,
    shard: Shard,
    ids: &[Uuid],
    book: &mut Book,
) -> Result<(), sqlx::Error> {
    let rows = sqlx::query!(
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
    add_to_book!(rows, book);
    Ok(())
}

/// Which of the accounts exist, whoever holds them.
async fn existing(
    connection: &mut PgConnection,
    shard: Shard,
    ids: &[Uuid],
) -> Result<HashSet<AccountId>, sqlx::Error> {
    let rows = sqlx::query_scalar!(
        r#"SELECT a.id
           FROM unnest($1::uuid[]) AS k (id),
             LATERAL (SELECT a.id FROM accounts a WHERE a.id = k.id AND a.shard = $2 OFFSET 0) a"#,
        ids,
        shard.0,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(AccountId).collect())
}

/// Which of the accounts others hold at this moment. Locks nothing for longer than the question takes.
pub(super) async fn still_locked(
    session: &mut Session,
    shard: Shard,
    accounts: &HashSet<AccountId>,
) -> Result<Vec<AccountId>, Fault> {
    let ids: BTreeSet<Uuid> = accounts.iter().map(|id| id.0).collect();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    session.begin("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
    let mut book = Book::default();
    let locked = lock_free(&mut session.connection, shard, &ids, &mut book).await;
    session.roll_back().await?;
    locked.map_err(Fault::before_commit)?;
    Ok(accounts.iter().copied().filter(|id| book.account(*id).is_none()).collect())
}

/// Step 3. Decides and renders one by one; what panics gets its refusal alone, and its neighbours go on.
fn decide_all(jobs: &mut Vec<Job>, book: &mut Book, now: OffsetDateTime) -> Vec<Decided> {
    let mut decided = Vec::with_capacity(jobs.len());
    let mut kept = Vec::with_capacity(jobs.len());
    for job in jobs.drain(..) {
        let submission = &job.submission;
        // Nothing is applied to the book before both have returned, so a panic leaves no half effect behind.
        let made = catch_unwind(AssertUnwindSafe(|| {
            failpoint::hit("decide");
            let outcome = decide(book, &submission.scope, &submission.operation, now);
            let response = (submission.render)(Outcome::from(&outcome));
            Decided { outcome, response }
        }));
        match made {
            Ok(made) => {
                if let Ok(effects) = &made.outcome {
                    book.apply(effects);
                }
                decided.push(made);
                kept.push(job);
            }
            Err(_panic) => {
                tracing::error!(operation = submission.operation.name(), "an operation panicked and is refused alone");
                job.fail(SubmitError::Failed);
            }
        }
    }
    *jobs = kept;
    decided
}

/// What is to be numbered: the transfers that are posted.
fn events<'a>(jobs: &'a [Job], decided: &'a [Decided]) -> Vec<(&'a Job, &'a Transfer)> {
    let transfer = |decided: &'a Decided| match &decided.outcome {
        Ok(Effects::TransferPosted { transfer, .. }) => Some(transfer),
        Ok(Effects::AccountOpened(_)) | Err(_) => None,
    };
    jobs.iter().zip(decided).filter_map(|(job, decided)| Some((job, transfer(decided)?))).collect()
}

/// Step 4. Everything but the events, in one statement, at the end of which it locks the stream's row if events are to be
/// numbered; then it returns the stream's epoch.
async fn write(
    connection: &mut PgConnection,
    shard: Shard,
    now: OffsetDateTime,
    jobs: &[Job],
    decided: &[Decided],
    book: &Book,
    numbering: bool,
) -> Result<Option<i32>, Fault> {
    let mut records: Vec<_> = jobs
        .iter()
        .zip(decided)
        .flat_map(|(job, decided)| job.sealed.write.iter().map(move |write| (job, decided, write)))
        .collect();
    // In the order of their hashes: two processes that insert the same keys then wait for each other in one direction.
    records.sort_unstable_by_key(|(_, _, write)| write.hash);

    let inserting = i64::try_from(records.len()).unwrap_or(i64::MAX);
    let hashes: Vec<[u8; 32]> = records.iter().map(|(_, _, write)| write.hash.0).collect();
    let secret_ids: Vec<&str> = records.iter().map(|(_, _, write)| &*write.secret_id).collect();
    let members: Vec<&[u8]> = records.iter().map(|(_, _, write)| write.members.as_slice()).collect();
    let principals: Vec<Uuid> = records.iter().map(|(job, ..)| job.submission.scope.principal.0).collect();
    let environments: Vec<&str> = records.iter().map(|(job, ..)| job.submission.scope.environment.name()).collect();
    let operations: Vec<&str> = records.iter().map(|(job, ..)| job.submission.operation.name()).collect();
    let fingerprints: Vec<[u8; 32]> = records.iter().map(|(job, ..)| job.submission.fingerprint.whole).collect();
    let statuses: Vec<i16> =
        records.iter().map(|(_, decided, _)| i16::try_from(decided.response.status).unwrap_or(i16::MAX)).collect();
    let response_ids: Vec<Uuid> = records.iter().map(|(job, ..)| job.submission.operation.id()).collect();

    let answer_ids: Vec<Uuid> = jobs.iter().map(|job| job.submission.operation.id()).collect();
    let content_types: Vec<&str> = decided.iter().map(|decided| &*decided.response.content_type).collect();
    let locations: Vec<Option<&str>> = decided.iter().map(|decided| decided.response.location.as_deref()).collect();
    let bodies: Vec<&[u8]> = decided.iter().map(|decided| decided.response.body.as_slice()).collect();

    let changed: Vec<&BookAccount> = book.changed().collect();
    let changed_ids: Vec<Uuid> = changed.iter().map(|account| account.id.0).collect();
    let changed_posted: Vec<i64> = changed.iter().map(|account| account.posted.minor_units()).collect();
    let changed_counts: Vec<i64> = changed.iter().map(|account| account.posting_count).collect();

    let mut opened: Vec<&Account> = Vec::new();
    let mut posted: Vec<(&Transfer, &Posting, &Posting)> = Vec::new();
    for effects in decided.iter().filter_map(|decided| decided.outcome.as_ref().ok()) {
        match effects {
            Effects::AccountOpened(account) => opened.push(account),
            Effects::TransferPosted { transfer, debit, credit } => posted.push((transfer, debit, credit)),
        }
    }
    let opened_ids: Vec<Uuid> = opened.iter().map(|account| account.id.0).collect();
    let opened_tenants: Vec<Uuid> = opened.iter().map(|account| account.tenant.0).collect();
    let opened_environments: Vec<&str> = opened.iter().map(|account| account.environment.name()).collect();
    let opened_currencies: Vec<&str> = opened.iter().map(|account| account.currency.code()).collect();
    let opened_statuses: Vec<&str> = opened.iter().map(|account| account.status.name()).collect();
    let opened_names: Vec<Option<&str>> =
        opened.iter().map(|account| account.name.as_ref().map(|name| name.as_str())).collect();
    let opened_floors: Vec<Option<i64>> =
        opened.iter().map(|account| account.min_balance.map(Balance::minor_units)).collect();
    let opened_ceilings: Vec<Option<i64>> =
        opened.iter().map(|account| account.max_balance.map(Balance::minor_units)).collect();
    let opened_metadata: Vec<Option<String>> =
        opened.iter().map(|account| json(&account.metadata)).collect::<Result<_, _>>()?;

    let transfer_ids: Vec<Uuid> = posted.iter().map(|(transfer, ..)| transfer.id.0).collect();
    let tenants: Vec<Uuid> = posted.iter().map(|(transfer, ..)| transfer.tenant.0).collect();
    let transfer_environments: Vec<&str> = posted.iter().map(|(transfer, ..)| transfer.environment.name()).collect();
    let sources: Vec<Uuid> = posted.iter().map(|(transfer, ..)| transfer.source.0).collect();
    let destinations: Vec<Uuid> = posted.iter().map(|(transfer, ..)| transfer.destination.0).collect();
    let source_sequences: Vec<i64> = posted.iter().map(|(_, debit, _)| debit.sequence).collect();
    let destination_sequences: Vec<i64> = posted.iter().map(|(_, _, credit)| credit.sequence).collect();
    let amounts: Vec<i64> = posted.iter().map(|(transfer, ..)| transfer.amount.minor_units()).collect();
    let currencies: Vec<&str> = posted.iter().map(|(transfer, ..)| transfer.currency.code()).collect();
    let descriptions: Vec<Option<&str>> =
        posted.iter().map(|(transfer, ..)| transfer.description.as_ref().map(|text| text.as_str())).collect();
    let metadata: Vec<Option<String>> =
        posted.iter().map(|(transfer, ..)| json(&transfer.metadata)).collect::<Result<_, _>>()?;

    let legs: Vec<&Posting> = posted.iter().flat_map(|(_, debit, credit)| [*debit, *credit]).collect();
    let leg_accounts: Vec<Uuid> = legs.iter().map(|leg| leg.account_id.0).collect();
    let leg_sequences: Vec<i64> = legs.iter().map(|leg| leg.sequence).collect();
    let leg_transfers: Vec<Uuid> = legs.iter().map(|leg| leg.transfer_id.0).collect();
    let leg_amounts: Vec<i64> = legs.iter().map(|leg| leg.amount).collect();
    let leg_balances: Vec<i64> = legs.iter().map(|leg| leg.balance_after.minor_units()).collect();

    // UPDATE: there is no join whose order a planner could turn round, to read all accounts and look each up in the list.
    // The ids are sorted, so width_bucket finds an id's place in the list by halving.
    // `stream` waits for the counts in `written`, so its lock comes after everything else is written: the last in the order
    // of locks, and the shortest. It is not taken where the batch is about to be rolled back.
    // ON CONFLICT: a key that another process has just taken must not fail the batch; the count below tells, and the
    // batch is rolled back and run again.
    let written = sqlx::query!(
        r#"WITH records AS (
             INSERT INTO idempotency_records (key_hash, shard, secret_id, principal_id, environment, operation, fingerprint,
               members, status, response_id, completed_at)
             SELECT r.key_hash, $1, r.secret_id, r.principal_id, r.environment, r.operation, r.fingerprint, r.members,
               r.status, r.response_id, $2
             FROM unnest($3::bytea[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::bytea[], $9::bytea[],
               $10::smallint[], $11::uuid[])
               AS r (key_hash, secret_id, principal_id, environment, operation, fingerprint, members, status, response_id)
             ON CONFLICT ON CONSTRAINT idempotency_records_key DO NOTHING
             RETURNING 1
           ), responses AS (
             INSERT INTO idempotency_responses (id, shard, content_type, location, body)
             SELECT r.id, $1, r.content_type, r.location, r.body
             FROM unnest($12::uuid[], $13::text[], $14::text[], $15::bytea[]) AS r (id, content_type, location, body)
             RETURNING 1
           ), changed AS (
             UPDATE accounts a SET posted = ($17::bigint[])[width_bucket(a.id, $16::uuid[])],
               posting_count = ($18::bigint[])[width_bucket(a.id, $16::uuid[])]
             WHERE a.id = ANY($16::uuid[]) AND a.shard = $1
             RETURNING 1
           ), opened AS (
             INSERT INTO accounts (id, shard, tenant_id, environment, currency, status, name, min_balance, max_balance,
               metadata, created_at)
             SELECT o.id, $1, o.tenant_id, o.environment, o.currency, o.status, o.name, o.min_balance, o.max_balance,
               o.metadata::jsonb, $2
             FROM unnest($19::uuid[], $20::uuid[], $21::text[], $22::text[], $23::text[], $24::text[], $25::bigint[],
               $26::bigint[], $27::text[])
               AS o (id, tenant_id, environment, currency, status, name, min_balance, max_balance, metadata)
             RETURNING 1
           ), posted AS (
             INSERT INTO transfers (id, shard, tenant_id, environment, source_account_id, destination_account_id,
               source_sequence, destination_sequence, amount, currency, description, metadata, created_at)
             SELECT t.id, $1, t.tenant_id, t.environment, t.source_account_id, t.destination_account_id, t.source_sequence,
               t.destination_sequence, t.amount, t.currency, t.description, t.metadata::jsonb, $2
             FROM unnest($28::uuid[], $29::uuid[], $30::text[], $31::uuid[], $32::uuid[], $33::bigint[], $34::bigint[],
               $35::bigint[], $36::text[], $37::text[], $38::text[])
               AS t (id, tenant_id, environment, source_account_id, destination_account_id, source_sequence,
                 destination_sequence, amount, currency, description, metadata)
             RETURNING 1
           ), legs AS (
             INSERT INTO postings (account_id, sequence, shard, transfer_id, amount, balance_after, created_at)
             SELECT p.account_id, p.sequence, $1, p.transfer_id, p.amount, p.balance_after, $2
             FROM unnest($39::uuid[], $40::bigint[], $41::uuid[], $42::bigint[], $43::bigint[])
               AS p (account_id, sequence, transfer_id, amount, balance_after)
             RETURNING 1
           ), written AS (
             SELECT (SELECT count(*) FROM records) AS records, (SELECT count(*) FROM responses) AS responses,
               (SELECT count(*) FROM changed) AS changed, (SELECT count(*) FROM opened) AS opened,
               (SELECT count(*) FROM posted) AS posted, (SELECT count(*) FROM legs) AS legs
           ), stream AS (
             SELECT s.epoch FROM streams s, written w
             WHERE s.shard = $1 AND $44 AND w.records = $45 AND w.legs + w.posted + w.responses + w.changed + w.opened >= 0
             FOR NO KEY UPDATE OF s
           )
           SELECT w.records AS "records!", w.changed AS "changed!", (SELECT epoch FROM stream) AS epoch FROM written w"#,
        shard.0,
        now,
        &hashes as &[[u8; 32]],
        &secret_ids as &[&str],
        &principals,
        &environments as &[&str],
        &operations as &[&str],
        &fingerprints as &[[u8; 32]],
        &members as &[&[u8]],
        &statuses,
        &response_ids,
        &answer_ids,
        &content_types as &[&str],
        &locations as &[Option<&str>],
        &bodies as &[&[u8]],
        &changed_ids,
        &changed_posted,
        &changed_counts,
        &opened_ids,
        &opened_tenants,
        &opened_environments as &[&str],
        &opened_currencies as &[&str],
        &opened_statuses as &[&str],
        &opened_names as &[Option<&str>],
        &opened_floors as &[Option<i64>],
        &opened_ceilings as &[Option<i64>],
        &opened_metadata as &[Option<String>],
        &transfer_ids,
        &tenants,
        &transfer_environments as &[&str],
        &sources,
        &destinations,
        &source_sequences,
        &destination_sequences,
        &amounts,
        &currencies as &[&str],
        &descriptions as &[Option<&str>],
        &metadata as &[Option<String>],
        &leg_accounts,
        &leg_sequences,
        &leg_transfers,
        &leg_amounts,
        &leg_balances,
        numbering,
        inserting,
    )
    .fetch_one(connection)
    .await
    .map_err(Fault::before_commit)?;

    if written.records != inserting {
        return Err(Fault::KeyTaken);
    }
    if usize::try_from(written.changed) != Ok(changed.len()) {
        return Err(Fault::Poison(sqlx::Error::RowNotFound));
    }
    Ok(written.epoch)
}

/// Step 5, under the lock of the stream's row. A statement of its own: a statement's snapshot is taken before it waits for
/// a lock, so the last position must be read by one that begins after the lock is held (I7).
async fn number(
    connection: &mut PgConnection,
    shard: Shard,
    now: OffsetDateTime,
    epoch: i32,
    events: &[(&Job, &Transfer)],
) -> Result<(), Fault> {
    let event_ids: Vec<Uuid> = events.iter().map(|(job, _)| job.event_id).collect();
    let transfers: Vec<Uuid> = events.iter().map(|(_, transfer)| transfer.id.0).collect();
    let tenants: Vec<Uuid> = events.iter().map(|(_, transfer)| transfer.tenant.0).collect();
    let environments: Vec<&str> = events.iter().map(|(_, transfer)| transfer.environment.name()).collect();
    let hashes: Vec<[u8; 32]> = events.iter().map(|(job, _)| job.sealed.primary().0).collect();
    let payloads: Vec<Vec<u8>> =
        events.iter().map(|(_, transfer)| serde_json::to_vec(transfer)).collect::<Result<_, _>>().map_err(encode)?;

    sqlx::query!(
        r#"INSERT INTO outbox (shard, position, epoch, event_id, event_type, resource_id, tenant_id, environment, key_hash,
             payload, created_at)
           SELECT $1, last.position + e.ordinal, $2, e.event_id, 'transfer.posted', e.resource_id, e.tenant_id,
             e.environment, e.key_hash, e.payload, $3
           FROM (SELECT coalesce((SELECT position FROM outbox WHERE shard = $1 ORDER BY position DESC LIMIT 1), 0)
                   AS position) last,
             unnest($4::uuid[], $5::uuid[], $6::uuid[], $7::text[], $8::bytea[], $9::bytea[]) WITH ORDINALITY
               AS e (event_id, resource_id, tenant_id, environment, key_hash, payload, ordinal)"#,
        shard.0,
        epoch,
        now,
        &event_ids,
        &transfers,
        &tenants,
        &environments as &[&str],
        &hashes as &[[u8; 32]],
        &payloads,
    )
    .execute(connection)
    .await
    .map_err(Fault::before_commit)?;
    Ok(())
}

fn json<T: serde::Serialize>(value: &Option<T>) -> Result<Option<String>, Fault> {
    value.as_ref().map(serde_json::to_string).transpose().map_err(encode)
}

fn encode(error: serde_json::Error) -> Fault {
    Fault::Poison(sqlx::Error::Encode(Box::new(error)))
}

fn decode(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}

fn unreadable(column: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(format!("the column {column} holds what no version has written").into())
}

fn environment(name: &str) -> Result<Environment, sqlx::Error> {
    Environment::parse(name).ok_or_else(|| unreadable("environment"))
}
