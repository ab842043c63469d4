//! One batch: one BEGIN, one COMMIT. The steps are those of the table in [`crate::committer`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use time::OffsetDateTime;

use super::fault::Fault;
use super::lock::{account_ids, held_elsewhere, lock_free, lock_unfinished, lock_waiting, look_up};
use super::queue::Job;
use super::session::Session;
use super::write::Writing;
use crate::clock;
use crate::decide::{Book, Effects, Rejection, decide};
use crate::failpoint;
use crate::idempotency::{Answer, KeyHash, Record, Response, Secrets};
use crate::operation::OperationId;
use crate::scope::Shard;
use crate::submission::{Outcome, StagedFault, SubmitError};
use crate::trace;

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
pub(super) struct Decided {
    pub(super) outcome: Result<Effects, Rejection>,
    pub(super) response: Response,
}

/// A batch that stands in an open transaction and waits for its COMMIT.
struct Prepared {
    now: OffsetDateTime,
    decided: Vec<Decided>,
    /// The stream's last position once this is committed, where the batch has events.
    last_position: Option<i64>,
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
    let prepared = tokio::time::timeout(BATCH_TIMEOUT, prepare(session, secrets, shard, work, locking, &mut found));
    let prepared = match prepared.await.map_err(|_elapsed| Fault::Connection).flatten() {
        Ok(Some(prepared)) => prepared,
        // Everyone is answered, and nothing is held: what was read must not keep a transaction open.
        Ok(None) => return session.roll_back().await,
        Err(fault) => {
            work.open.extend(found.into_iter().map(|(job, _)| job));
            return leave(session, fault).await;
        }
    };
    if let Some(job) = work.open.pop_if(|job| job.asked.staged_fault == Some(StagedFault::BeforeCommit)) {
        session.roll_back().await?;
        job.fail(SubmitError::Unavailable);
        return Ok(());
    }
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
    let Prepared { now, decided, last_position } = prepared;
    session.positions.committed(last_position);
    metrics::histogram!("oncepost_batch_operations")
        .record(f64::from(u32::try_from(decided.len()).unwrap_or(u32::MAX)));
    for (job, record) in found {
        answer(job, secrets, record);
    }
    let operations = decided.len();
    for (job, decided) in work.open.drain(..).zip(decided) {
        trace::record_commit(&job.asked.trace, job.arrived_at.elapsed(), operations);
        if job.asked.staged_fault == Some(StagedFault::AfterCommit) {
            job.fail(SubmitError::Unavailable);
            continue;
        }
        if let Err(rejection) = &decided.outcome {
            let environment = job.asked.scope.environment.name();
            metrics::counter!("oncepost_rejections_total", "environment" => environment, "kind" => rejection.name())
                .increment(1);
        }
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
        Fault::PositionTaken => {
            session.positions.taken();
            session.roll_back().await.and(Err(fault))
        }
        Fault::KeyTaken | Fault::Retry | Fault::Poison(_) => session.roll_back().await.and(Err(fault)),
    }
}

fn observe(phase: &'static str, started: Instant) {
    metrics::histogram!("oncepost_batch_seconds", "phase" => phase).record(started.elapsed());
}

/// Answers a job from the record that now stands: its own, or that of an earlier request.
fn answer(job: Job, secrets: &Secrets, record: Record) {
    let asked = &job.asked;
    let mut answer = record.judge(secrets, asked.scope.environment, &asked.fingerprint, asked.known_members);
    // The record may name what this very job made, though the look-up found it: a COMMIT without an answer took effect.
    if record.response_id == asked.operation.id()
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
        environment: job.asked.scope.environment,
        operation: job.asked.operation.name().to_owned().into(),
        fingerprint: job.asked.fingerprint.whole,
        members,
        status: response.status,
        response_id: job.asked.operation.id(),
        completed_at: now,
        response: Some(response),
    }
}

fn hashes(jobs: &[Job]) -> Vec<KeyHash> {
    jobs.iter().flat_map(|job| job.sealed.hashes()).collect()
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
    let hashes = hashes(&work.open);
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

/// Steps 1 to 5, inside BEGIN. `None` where nothing is left to commit; then nothing is locked either.
async fn prepare(
    session: &mut Session,
    secrets: &Secrets,
    shard: Shard,
    work: &mut Work,
    locking: Locking,
    found: &mut Vec<(Job, Record)>,
) -> Result<Option<Prepared>, Fault> {
    session.begin().await?;
    let Some(mut book) = (match locking {
        Locking::Skip => lock_in_passing(session, secrets, shard, work, found).await?,
        Locking::Wait => lock_in_line(session, secrets, shard, work, found).await?,
    }) else {
        return Ok(None);
    };
    claim_runs(session, shard, work).await?;
    let now = clock::now();
    let decided = decide_all(&mut work.open, &mut book, now);
    let mut last_position = None;
    if !decided.is_empty() {
        let started = Instant::now();
        let writing = Writing::new(shard, now, &work.open, &decided, &book);
        let after = session.positions.known();
        let epoch = writing.write(&mut session.connection, after).await?;
        observe("write", started);
        if writing.events() > 0 {
            let epoch = epoch.ok_or(Fault::Poison(sqlx::Error::RowNotFound))?;
            last_position = Some(match after {
                Some(after) => after.saturating_add(i64::try_from(writing.events()).unwrap_or(i64::MAX)),
                None => {
                    let started = Instant::now();
                    let last = writing.number(&mut session.connection, epoch).await?;
                    observe("number", started);
                    last
                }
            });
        }
    } else if !found.is_empty() {
        sqlx::query!("SELECT pg_logical_emit_message(true, 'oncepost', 'a COMMIT got no answer')::text AS message")
            .fetch_one(&mut session.connection)
            .await
            .map_err(Fault::before_commit)?;
    } else {
        session.roll_back().await?;
        return Ok(None);
    }
    Ok(Some(Prepared { now, decided, last_position }))
}

/// Steps 1 and 2 of the first committer. Mostly keys are new, so the accounts are locked by a statement that looks for
/// records first, and the records are read only where one stands; while replays come in, the records are read at once.
/// `None` where every job was answered from its record.
async fn lock_in_passing(
    session: &mut Session,
    secrets: &Secrets,
    shard: Shard,
    work: &mut Work,
    found: &mut Vec<(Job, Record)>,
) -> Result<Option<Book>, Fault> {
    let mut book = Book::default();
    if !session.replaying {
        let hashes = hashes(&work.open);
        book = lock_accounts(session, shard, &work.open, &hashes).await?;
    }
    if book.is_empty() {
        // Replays, or nothing that could be locked.
        let asked = work.open.len();
        answer_found(session, secrets, shard, work, found).await?;
        session.replaying = work.open.len() < asked;
        if work.open.is_empty() && found.is_empty() {
            return Ok(None);
        }
        book = lock_accounts(session, shard, &work.open, &[]).await?;
    }
    set_apart(session, shard, work, &book).await?;
    Ok(Some(book))
}

async fn lock_accounts(session: &mut Session, shard: Shard, jobs: &[Job], unless: &[KeyHash]) -> Result<Book, Fault> {
    let started = Instant::now();
    let ids = account_ids(jobs);
    let book = lock_free(&mut session.connection, shard, &ids, unless).await.map_err(Fault::before_commit)?;
    observe("lock", started);
    Ok(book)
}

/// Steps 2 and 1 of the second committer, which waits for the locks. `None` where someone holds an account for longer than
/// it may; the caller finds out which.
async fn lock_in_line(
    session: &mut Session,
    secrets: &Secrets,
    shard: Shard,
    work: &mut Work,
    found: &mut Vec<(Job, Record)>,
) -> Result<Option<Book>, Fault> {
    // 50 ms for each account; what follows waits as the first committer does.
    session.set("SET LOCAL lock_timeout = 50").await?;
    let ids = account_ids(&work.open);
    let book = match lock_waiting(&mut session.connection, shard, &ids).await.map_err(Fault::before_commit) {
        Err(Fault::Retry) => {
            work.contended.append(&mut work.open);
            session.roll_back().await?;
            return Ok(None);
        }
        locked => locked?,
    };
    session.set("SET LOCAL lock_timeout = 3000").await?;
    // While it waited, a request with the same key may have committed: no duplicate gets an answer made by its own
    // original's effect.
    answer_found(session, secrets, shard, work, found).await?;
    set_apart(session, shard, work, &book).await?;
    Ok(Some(book))
}

/// Locks the rows of the accepted work that the jobs run. What is done already, or being done elsewhere, ends here.
async fn claim_runs(session: &mut Session, shard: Shard, work: &mut Work) -> Result<(), Fault> {
    let ids: Vec<OperationId> = work.open.iter().filter_map(|job| Some(job.run.as_ref()?.id)).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let claimed = lock_unfinished(&mut session.connection, shard, &ids).await.map_err(Fault::before_commit)?;
    let lost = |job: &mut Job| job.run.as_ref().is_some_and(|run| !claimed.contains(&run.id));
    work.open.extract_if(.., lost).for_each(|job| job.fail(SubmitError::Unavailable));
    Ok(())
}

/// Leaves out the jobs whose accounts exist but are not in the book: others hold them.
async fn set_apart(session: &mut Session, shard: Shard, work: &mut Work, book: &Book) -> Result<(), Fault> {
    let ids = account_ids(&work.open);
    let elsewhere = held_elsewhere(&mut session.connection, shard, ids, book).await.map_err(Fault::before_commit)?;
    let held = |job: &mut Job| job.asked.operation.accounts().any(|id| elsewhere.contains(&id));
    work.contended.extend(work.open.extract_if(.., held));
    Ok(())
}

/// Step 3. Decides and renders one by one; what panics gets its refusal alone, and its neighbours go on.
fn decide_all(jobs: &mut Vec<Job>, book: &mut Book, now: OffsetDateTime) -> Vec<Decided> {
    let mut decided = Vec::with_capacity(jobs.len());
    let mut kept = Vec::with_capacity(jobs.len());
    for job in jobs.drain(..) {
        let asked = &job.asked;
        // Nothing is applied to the book before both have returned, so a panic leaves no half effect behind.
        let made = catch_unwind(AssertUnwindSafe(|| {
            failpoint::hit("decide");
            let outcome = decide(book, &asked.scope, &asked.operation, now);
            let response = (asked.render)(Outcome::from(&outcome));
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
                tracing::error!(operation = asked.operation.name(), "an operation panicked and is refused alone");
                job.fail(SubmitError::Failed);
            }
        }
    }
    *jobs = kept;
    decided
}
