//! Steps 4 and 5: what a batch leaves in the books.

use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::batch::Decided;
use super::fault::Fault;
use super::queue::Job;
use crate::account::Account;
use crate::decide::{Book, BookAccount, Effects, Operation};
use crate::money::Balance;
use crate::operation::{AcceptWork, OperationStatus, StoredWork};
use crate::scope::Shard;
use crate::trace;
use crate::transfer::{Posting, Transfer};

/// What a batch has decided, sorted by the tables that it goes to.
pub(super) struct Writing<'a> {
    shard: Shard,
    now: OffsetDateTime,
    /// All jobs, each with its decision.
    jobs: Vec<(&'a Job, &'a Decided)>,
    opened: Vec<&'a Account>,
    accepted: Vec<(&'a Job, &'a AcceptWork)>,
    posted: Vec<PostedTransfer<'a>>,
    changed: Vec<&'a BookAccount>,
}

/// A transfer on its way into the books. Each makes one event.
struct PostedTransfer<'a> {
    job: &'a Job,
    transfer: &'a Transfer,
    debit: &'a Posting,
    credit: &'a Posting,
}

/// The events of a batch, column by column; one for each transfer, in the order of positions.
#[derive(Default)]
struct EventColumns {
    ids: Vec<Uuid>,
    transfers: Vec<Uuid>,
    tenants: Vec<Uuid>,
    environments: Vec<&'static str>,
    hashes: Vec<[u8; 32]>,
    payloads: Vec<Vec<u8>>,
    traceparents: Vec<Option<String>>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(
        shard: Shard,
        now: OffsetDateTime,
        jobs: &'a [Job],
        decided: &'a [Decided],
        book: &'a Book,
    ) -> Self {
        let jobs: Vec<_> = jobs.iter().zip(decided).collect();
        let (mut opened, mut accepted, mut posted) = (Vec::new(), Vec::new(), Vec::new());
        for (job, decided) in &jobs {
            match &decided.outcome {
                Ok(Effects::AccountOpened(account)) => opened.push(account),
                Ok(Effects::TransferPosted { transfer, debit, credit }) => {
                    posted.push(PostedTransfer { job, transfer, debit, credit });
                }
                Ok(Effects::WorkAccepted(_)) | Err(_) => {}
            }
            if let Operation::AcceptWork(work) = &job.asked.operation {
                accepted.push((*job, work));
            }
        }
        Self { shard, now, jobs, opened, accepted, posted, changed: book.changed().collect() }
    }

    /// The number of events that the batch makes.
    pub(super) fn events(&self) -> usize {
        self.posted.len()
    }

    /// The accounts that were opened. No one can ask for one before its id is known, so nothing waits for these rows.
    async fn open_accounts(&self, connection: &mut PgConnection) -> Result<(), Fault> {
        if self.opened.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = self.opened.iter().map(|account| account.id.0).collect();
        let tenants: Vec<Uuid> = self.opened.iter().map(|account| account.tenant.0).collect();
        let environments: Vec<&str> = self.opened.iter().map(|account| account.environment.name()).collect();
        let currencies: Vec<&str> = self.opened.iter().map(|account| account.currency.code()).collect();
        let statuses: Vec<&str> = self.opened.iter().map(|account| account.status.name()).collect();
        let names: Vec<Option<&str>> =
            self.opened.iter().map(|account| account.name.as_ref().map(|name| name.as_str())).collect();
        let floors: Vec<Option<i64>> =
            self.opened.iter().map(|account| account.min_balance.map(Balance::minor_units)).collect();
        let ceilings: Vec<Option<i64>> =
            self.opened.iter().map(|account| account.max_balance.map(Balance::minor_units)).collect();
        let metadata: Vec<Option<String>> =
            self.opened.iter().map(|account| json(&account.metadata)).collect::<Result<_, _>>()?;

        sqlx::query!(
            r#"INSERT INTO accounts (id, shard, tenant_id, environment, currency, status, name, min_balance, max_balance,
                 metadata, created_at)
               SELECT o.id, $1, o.tenant_id, o.environment, o.currency, o.status, o.name, o.min_balance, o.max_balance,
                 o.metadata::jsonb, $2
               FROM unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[],
                 $10::bigint[], $11::text[])
                 AS o (id, tenant_id, environment, currency, status, name, min_balance, max_balance, metadata)"#,
            self.shard.0,
            self.now,
            &ids,
            &tenants,
            &environments as &[&str],
            &currencies as &[&str],
            &statuses as &[&str],
            &names as &[Option<&str>],
            &floors as &[Option<i64>],
            &ceilings as &[Option<i64>],
            &metadata as &[Option<String>],
        )
        .execute(connection)
        .await
        .map_err(Fault::before_commit)?;
        Ok(())
    }

    /// The work that was accepted. It is known to no one yet.
    async fn accept_work(&self, connection: &mut PgConnection) -> Result<(), Fault> {
        // One by one: work that runs long comes seldom.
        for (job, accept) in &self.accepted {
            let hashes: Vec<[u8; 32]> = job.sealed.write.iter().map(|write| write.hash.0).collect();
            let scope = &job.asked.scope;
            let work = StoredWork::of(&accept.work).ok_or(Fault::Poison(sqlx::Error::RowNotFound))?;
            sqlx::query!(
                r#"INSERT INTO operations (id, shard, tenant_id, principal_id, environment, key_hashes, endpoint, request_id,
                     work, total, created_at)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, $10)"#,
                accept.id.0,
                self.shard.0,
                scope.tenant.0,
                scope.principal.0,
                scope.environment.name(),
                &hashes as &[[u8; 32]],
                accept.origin.endpoint,
                accept.origin.request_id,
                serde_json::to_value(work).map_err(encode)?,
                self.now,
            )
            .execute(&mut *connection)
            .await
            .map_err(Fault::before_commit)?;
        }
        Ok(())
    }

    /// The end of accepted work: the final outcome takes the place of its record's 202, once. The operation's row is locked
    /// since the accounts are, and was not done then.
    async fn finish_runs(&self, connection: &mut PgConnection) -> Result<(), Fault> {
        for (job, decided) in &self.jobs {
            let Some(run) = &job.run else { continue };
            let hashes: Vec<[u8; 32]> = run.key_hashes.iter().map(|hash| hash.0).collect();
            let status = if decided.outcome.is_ok() { OperationStatus::Succeeded } else { OperationStatus::Failed };
            let finished = sqlx::query!(
                r#"WITH operation AS (
                     UPDATE operations SET status = $3, done = total, response_id = $4, finished_at = $5
                     WHERE id = $1 AND shard = $2 AND finished_at IS NULL
                     RETURNING id
                   )
                   UPDATE idempotency_records r SET status = $6, response_id = $4, completed_at = $5
                   FROM operation o
                   WHERE r.key_hash = ANY($7) AND r.shard = $2 AND r.response_id = o.id AND r.status = 202"#,
                run.id.0,
                self.shard.0,
                status.name(),
                job.asked.operation.id(),
                self.now,
                i16::try_from(decided.response.status).unwrap_or(i16::MAX),
                &hashes as &[[u8; 32]],
            )
            .execute(&mut *connection)
            .await
            .map_err(Fault::before_commit)?;
            if usize::try_from(finished.rows_affected()) != Ok(hashes.len()) {
                return Err(Fault::Poison(sqlx::Error::RowNotFound));
            }
        }
        Ok(())
    }

    /// Step 4. Everything but the events, in one statement, at the end of which it locks the stream's row if there are
    /// events; then it returns the stream's epoch. Where the last position is known, `after` is it, and the events are
    /// numbered by the same statement.
    pub(super) async fn write(&self, connection: &mut PgConnection, after: Option<i64>) -> Result<Option<i32>, Fault> {
        self.open_accounts(connection).await?;
        self.accept_work(connection).await?;
        self.finish_runs(connection).await?;
        let mut records: Vec<_> = self
            .jobs
            .iter()
            .flat_map(|(job, decided)| job.sealed.write.iter().map(move |write| (*job, *decided, write)))
            .collect();
        // In the order of their hashes: two processes that insert the same keys then wait for each other in one direction.
        records.sort_unstable_by_key(|(_, _, write)| write.hash);

        let inserting = i64::try_from(records.len()).unwrap_or(i64::MAX);
        let hashes: Vec<[u8; 32]> = records.iter().map(|(_, _, write)| write.hash.0).collect();
        let secret_ids: Vec<&str> = records.iter().map(|(_, _, write)| &*write.secret_id).collect();
        let members: Vec<&[u8]> = records.iter().map(|(_, _, write)| write.members.as_slice()).collect();
        let principals: Vec<Uuid> = records.iter().map(|(job, ..)| job.asked.scope.principal.0).collect();
        let environments: Vec<&str> = records.iter().map(|(job, ..)| job.asked.scope.environment.name()).collect();
        let operations: Vec<&str> = records.iter().map(|(job, ..)| job.asked.operation.name()).collect();
        let fingerprints: Vec<[u8; 32]> = records.iter().map(|(job, ..)| job.asked.fingerprint.whole).collect();
        let statuses: Vec<i16> =
            records.iter().map(|(_, decided, _)| i16::try_from(decided.response.status).unwrap_or(i16::MAX)).collect();
        let response_ids: Vec<Uuid> = records.iter().map(|(job, ..)| job.asked.operation.id()).collect();

        let answer_ids: Vec<Uuid> = self.jobs.iter().map(|(job, _)| job.asked.operation.id()).collect();
        let content_types: Vec<&str> = self.jobs.iter().map(|(_, decided)| &*decided.response.content_type).collect();
        let locations: Vec<Option<&str>> =
            self.jobs.iter().map(|(_, decided)| decided.response.location.as_deref()).collect();
        let bodies: Vec<&[u8]> = self.jobs.iter().map(|(_, decided)| decided.response.body.as_slice()).collect();
        let changed_ids: Vec<Uuid> = self.changed.iter().map(|account| account.id.0).collect();
        let changed_posted: Vec<i64> = self.changed.iter().map(|account| account.posted.minor_units()).collect();
        let changed_counts: Vec<i64> = self.changed.iter().map(|account| account.posting_count).collect();
        let sources: Vec<Uuid> = self.posted.iter().map(|posted| posted.transfer.source.0).collect();
        let destinations: Vec<Uuid> = self.posted.iter().map(|posted| posted.transfer.destination.0).collect();
        let source_sequences: Vec<i64> = self.posted.iter().map(|posted| posted.debit.sequence).collect();
        let destination_sequences: Vec<i64> = self.posted.iter().map(|posted| posted.credit.sequence).collect();
        let amounts: Vec<i64> = self.posted.iter().map(|posted| posted.transfer.amount.minor_units()).collect();
        let currencies: Vec<&str> = self.posted.iter().map(|posted| posted.transfer.currency.code()).collect();
        let descriptions: Vec<Option<&str>> =
            self.posted.iter().map(|posted| posted.transfer.description.as_ref().map(|text| text.as_str())).collect();
        let metadata: Vec<Option<String>> =
            self.posted.iter().map(|posted| json(&posted.transfer.metadata)).collect::<Result<_, _>>()?;

        let legs: Vec<&Posting> = self.posted.iter().flat_map(|posted| [posted.debit, posted.credit]).collect();
        let leg_accounts: Vec<Uuid> = legs.iter().map(|leg| leg.account_id.0).collect();
        let leg_sequences: Vec<i64> = legs.iter().map(|leg| leg.sequence).collect();
        let leg_transfers: Vec<Uuid> = legs.iter().map(|leg| leg.transfer_id.0).collect();
        let leg_amounts: Vec<i64> = legs.iter().map(|leg| leg.amount).collect();
        let leg_balances: Vec<i64> = legs.iter().map(|leg| leg.balance_after.minor_units()).collect();

        let events = self.event_columns()?;

        // UPDATE: there is no join whose order a planner could turn round, to read all accounts and look each up in the
        // list. The ids are sorted, so width_bucket finds an id's place in the list by halving.
        // `stream` waits for the counts in `written`, so its lock comes after everything else is written: the last in the
        // order of locks, and the shortest. It is not taken where the batch is about to be rolled back.
        // `numbered` comes after that lock. If another process has given out positions since `after` was read, the key of
        // the outbox refuses the rows: dense and in commit order, or nothing (I7).
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
                 INSERT INTO idempotency_responses (id, shard, day, content_type, location, body)
                 SELECT r.id, $1, ($2::timestamptz AT TIME ZONE 'UTC')::date, r.content_type, r.location, r.body
                 FROM unnest($12::uuid[], $13::text[], $14::text[], $15::bytea[]) AS r (id, content_type, location, body)
                 RETURNING 1
               ), changed AS (
                 UPDATE accounts a SET posted = ($17::bigint[])[width_bucket(a.id, $16::uuid[])],
                   posting_count = ($18::bigint[])[width_bucket(a.id, $16::uuid[])]
                 WHERE a.id = ANY($16::uuid[]) AND a.shard = $1
                 RETURNING 1
               ), posted AS (
                 INSERT INTO transfers (id, shard, tenant_id, environment, source_account_id, destination_account_id,
                   source_sequence, destination_sequence, amount, currency, description, metadata, created_at)
                 SELECT t.id, $1, t.tenant_id, t.environment, t.source_account_id, t.destination_account_id,
                   t.source_sequence, t.destination_sequence, t.amount, t.currency, t.description, t.metadata::jsonb, $2
                 FROM unnest($19::uuid[], $20::uuid[], $21::text[], $22::uuid[], $23::uuid[], $24::bigint[], $25::bigint[],
                   $26::bigint[], $27::text[], $28::text[], $29::text[])
                   AS t (id, tenant_id, environment, source_account_id, destination_account_id, source_sequence,
                     destination_sequence, amount, currency, description, metadata)
                 RETURNING 1
               ), legs AS (
                 INSERT INTO postings (account_id, sequence, shard, transfer_id, amount, balance_after, created_at)
                 SELECT p.account_id, p.sequence, $1, p.transfer_id, p.amount, p.balance_after, $2
                 FROM unnest($30::uuid[], $31::bigint[], $32::uuid[], $33::bigint[], $34::bigint[])
                   AS p (account_id, sequence, transfer_id, amount, balance_after)
                 RETURNING 1
               ), written AS (
                 SELECT (SELECT count(*) FROM records) AS records, (SELECT count(*) FROM responses) AS responses,
                   (SELECT count(*) FROM changed) AS changed, (SELECT count(*) FROM posted) AS posted,
                   (SELECT count(*) FROM legs) AS legs
               ), stream AS (
                 SELECT s.epoch FROM streams s, written w
                 WHERE s.shard = $1 AND $35 AND w.records = $36 AND w.legs + w.posted + w.responses + w.changed >= 0
                 FOR NO KEY UPDATE OF s
               ), numbered AS (
                 INSERT INTO outbox (shard, position, epoch, event_id, event_type, resource_id, tenant_id, environment,
                   key_hash, payload, traceparent, created_at)
                 SELECT $1, $37::bigint + e.ordinal, s.epoch, e.event_id, 'transfer.posted', e.resource_id, e.tenant_id,
                   e.environment, e.key_hash, e.payload, e.traceparent, $2
                 FROM stream s,
                   unnest($38::uuid[], $19::uuid[], $20::uuid[], $21::text[], $39::bytea[], $40::bytea[], $41::text[])
                     WITH ORDINALITY
                     AS e (event_id, resource_id, tenant_id, environment, key_hash, payload, traceparent, ordinal)
                 WHERE $37::bigint IS NOT NULL
               )
               SELECT w.records AS "records!", w.changed AS "changed!", (SELECT epoch FROM stream) AS epoch
               FROM written w"#,
            self.shard.0,
            self.now,
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
            &events.transfers,
            &events.tenants,
            &events.environments as &[&str],
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
            !self.posted.is_empty(),
            inserting,
            after,
            &events.ids,
            &events.hashes as &[[u8; 32]],
            &events.payloads,
            &events.traceparents as &[Option<String>],
        )
        .fetch_one(connection)
        .await
        .map_err(Fault::before_commit)?;

        if written.records != inserting {
            return Err(Fault::KeyTaken);
        }
        if usize::try_from(written.changed) != Ok(self.changed.len()) {
            return Err(Fault::Poison(sqlx::Error::RowNotFound));
        }
        Ok(written.epoch)
    }

    /// Step 5 where the last position is not known, under the lock of the stream's row; returns the last position that it
    /// gave out. A statement of its own: a statement's snapshot is taken before it waits for a lock, so the last position
    /// must be read by one that begins after the lock is held (I7).
    pub(super) async fn number(&self, connection: &mut PgConnection, epoch: i32) -> Result<i64, Fault> {
        let events = self.event_columns()?;
        sqlx::query_scalar!(
            r#"WITH numbered AS (
                 INSERT INTO outbox (shard, position, epoch, event_id, event_type, resource_id, tenant_id, environment,
                   key_hash, payload, traceparent, created_at)
                 SELECT $1, last.position + e.ordinal, $2, e.event_id, 'transfer.posted', e.resource_id, e.tenant_id,
                   e.environment, e.key_hash, e.payload, e.traceparent, $3
                 FROM (SELECT coalesce((SELECT position FROM outbox WHERE shard = $1 ORDER BY position DESC LIMIT 1), 0)
                         AS position) last,
                   unnest($4::uuid[], $5::uuid[], $6::uuid[], $7::text[], $8::bytea[], $9::bytea[], $10::text[])
                     WITH ORDINALITY
                     AS e (event_id, resource_id, tenant_id, environment, key_hash, payload, traceparent, ordinal)
                 RETURNING position
               )
               SELECT max(position) AS "last!" FROM numbered"#,
            self.shard.0,
            epoch,
            self.now,
            &events.ids,
            &events.transfers,
            &events.tenants,
            &events.environments as &[&str],
            &events.hashes as &[[u8; 32]],
            &events.payloads,
            &events.traceparents as &[Option<String>],
        )
        .fetch_one(connection)
        .await
        .map_err(Fault::before_commit)
    }

    fn event_columns(&self) -> Result<EventColumns, Fault> {
        let mut columns = EventColumns::default();
        for PostedTransfer { job, transfer, .. } in &self.posted {
            columns.ids.push(job.event_id);
            columns.transfers.push(transfer.id.0);
            columns.tenants.push(transfer.tenant.0);
            columns.environments.push(transfer.environment.name());
            columns.hashes.push(job.event_key_hash().0);
            columns.payloads.push(serde_json::to_vec(transfer).map_err(encode)?);
            columns.traceparents.push(trace::format(&job.asked.trace));
        }
        Ok(columns)
    }
}

fn json<T: serde::Serialize>(value: &Option<T>) -> Result<Option<String>, Fault> {
    value.as_ref().map(serde_json::to_string).transpose().map_err(encode)
}

fn encode(error: serde_json::Error) -> Fault {
    Fault::Poison(sqlx::Error::Encode(Box::new(error)))
}
