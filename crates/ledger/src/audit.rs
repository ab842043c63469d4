//! Proof that the books keep the promises: queries over everything that stands, none of which changes or locks anything.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use metrics::gauge;
use sqlx::postgres::PgConnection;
use sqlx::types::Json;
use sqlx::{Connection, Executor, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::{Database, DatabaseError};
use crate::observation::whole;

/// How long one query of the audit may run, an hour: it reads whole tables, and sorts some of them.
const STATEMENT_TIMEOUT_MS: u32 = 3_600_000;
/// What a query of the audit may keep in memory to sort and to join, before it goes to disk.
const WORK_MEM: &str = "128MB";
const LOCK_TIMEOUT_MS: u32 = 2_000;
const IDLE_IN_TRANSACTION_TIMEOUT_MS: u32 = 60_000;
/// The most findings of one rule that are named; the rest are counted.
const MAX_NAMED: i64 = 20;

/// The promises that rules are about. Each has a gauge, also where nothing breaks it.
const PROMISES: [&str; 5] = ["I1", "I2", "I3", "I7", "I9"];
/// How often a process looks whether an audit is due, and tries again after one that failed.
const TURN: Duration = Duration::from_secs(60);
/// Names the advisory lock under which one process at a time audits.
const LOCK: i64 = 0x6f6e_6365_0003;

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The promise, such as `I2`.
    pub promise: &'static str,
    /// What the rule says.
    pub rule: &'static str,
    /// How many rows break it.
    pub count: i64,
    /// Some of them, by id.
    pub examples: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broken {} times: {} ({})", self.promise, self.count, self.rule, self.examples.join(", "))
    }
}

/// The audit of a whole ledger.
#[derive(Debug)]
pub struct Audit;

/// Runs one rule: a query that names the rows that break it.
macro_rules! rule {
    ($findings:ident, $connection:ident, $promise:literal, $rule:literal, $query:literal) => {{
        let rows = sqlx::query!(
            "WITH broken AS ("
                + $query
                + ") SELECT subject AS \"subject!\", count(*) OVER () AS \"count!\" FROM broken LIMIT $1",
            MAX_NAMED
        )
        .fetch_all(&mut *$connection)
        .await?;
        if let Some(first) = rows.first() {
            let count = first.count;
            let examples = rows.into_iter().map(|row| row.subject).collect();
            $findings.push(Finding { promise: $promise, rule: $rule, count, examples });
        }
    }};
}

impl Audit {
    /// Reads the whole ledger at one moment and returns every broken promise; none is the good answer.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn run(database: &Database) -> Result<Vec<Finding>, DatabaseError> {
        let mut connection = connect(database).await?;
        let findings = Self::prove(&mut connection).await?;
        connection.close().await?;
        Ok(findings)
    }

    /// The same, and leaves word of it for every process that shows metrics.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn run_and_record(database: &Database) -> Result<Vec<Finding>, DatabaseError> {
        let mut connection = connect(database).await?;
        let findings = Self::prove_and_record(&mut connection).await?;
        connection.close().await?;
        Ok(findings)
    }

    async fn prove_and_record(connection: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
        let started_at = now(connection).await?;
        let findings = Self::prove(connection).await?;
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for finding in &findings {
            let count = counts.entry(finding.promise).or_default();
            *count = count.saturating_add(finding.count);
        }
        sqlx::query!(
            "INSERT INTO audits (id, started_at, finished_at, findings) VALUES ($1, $2, clock_timestamp(), $3)",
            Uuid::now_v7(),
            started_at,
            Json(counts) as _,
        )
        .execute(connection)
        .await?;
        Ok(findings)
    }

    /// Every rule, on a connection made for it.
    async fn prove(connection: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
        // One snapshot for all rules, so that work in progress shows wholly or not at all.
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let mut findings = Vec::new();

        rule!(
            findings,
            connection,
            "I1",
            "the postings of a transfer are its debit and its credit and sum to zero",
            "SELECT t.id::text AS subject FROM transfers t
             LEFT JOIN postings d ON d.account_id = t.source_account_id AND d.sequence = t.source_sequence
               AND d.shard = t.shard
             LEFT JOIN postings c ON c.account_id = t.destination_account_id AND c.sequence = t.destination_sequence
               AND c.shard = t.shard
             WHERE d.amount IS DISTINCT FROM -t.amount OR c.amount IS DISTINCT FROM t.amount
               OR d.transfer_id IS DISTINCT FROM t.id OR c.transfer_id IS DISTINCT FROM t.id"
        );
        rule!(
            findings,
            connection,
            "I1",
            "each transfer has two postings, and each posting a transfer",
            "SELECT coalesce(p.transfer_id, t.id)::text AS subject
             FROM (SELECT transfer_id, count(*) AS legs, sum(amount) AS total FROM postings GROUP BY transfer_id) p
             FULL JOIN transfers t ON t.id = p.transfer_id
             WHERE t.id IS NULL OR p.legs IS DISTINCT FROM 2 OR p.total IS DISTINCT FROM 0"
        );
        rule!(
            findings,
            connection,
            "I2",
            "a balance is the sum of the account's postings, and their number is counted",
            "SELECT a.id::text AS subject FROM accounts a
             LEFT JOIN (SELECT account_id, shard, sum(amount) AS total, count(*) AS legs, max(sequence) AS last
                        FROM postings GROUP BY account_id, shard) p ON p.account_id = a.id AND p.shard = a.shard
             WHERE a.posted <> coalesce(p.total, 0) OR a.posting_count <> coalesce(p.legs, 0)
               OR a.posting_count <> coalesce(p.last, 0)"
        );
        rule!(
            findings,
            connection,
            "I2",
            "each posting continues the balance of the one before it",
            "SELECT account_id::text || '#' || sequence AS subject
             FROM (SELECT account_id, sequence, amount, balance_after,
                     lag(balance_after, 1, 0::bigint) OVER (PARTITION BY account_id ORDER BY sequence) AS before
                   FROM postings) p
             WHERE before + amount <> balance_after"
        );
        rule!(
            findings,
            connection,
            "I2",
            "no balance passes its account's limits",
            "SELECT id::text AS subject FROM accounts
             WHERE posted - held < min_balance OR posted > max_balance"
        );
        rule!(
            findings,
            connection,
            "I2",
            "each posting belongs to an account",
            "SELECT DISTINCT p.account_id::text AS subject FROM postings p
             LEFT JOIN accounts a ON a.id = p.account_id AND a.shard = p.shard WHERE a.id IS NULL"
        );
        rule!(
            findings,
            connection,
            "I3",
            "each transfer and account was made under a key, and by one request only",
            "SELECT m.id::text AS subject
             FROM (SELECT id, shard, 'transfer.post' AS operation FROM transfers
                   UNION ALL SELECT id, shard, 'account.open' FROM accounts) m
             LEFT JOIN (SELECT response_id, shard, operation, count(DISTINCT (fingerprint, principal_id)) AS requests
                        FROM idempotency_records WHERE status = 201 GROUP BY 1, 2, 3) r
               ON r.response_id = m.id AND r.shard = m.shard AND r.operation = m.operation
             WHERE r.requests IS DISTINCT FROM 1"
        );
        rule!(
            findings,
            connection,
            "I3",
            "each record of a success has what it made",
            "SELECT encode(r.key_hash, 'hex') AS subject FROM idempotency_records r
             WHERE r.status = 201
               AND NOT EXISTS (SELECT FROM transfers t WHERE t.id = r.response_id AND r.operation = 'transfer.post')
               AND NOT EXISTS (SELECT FROM accounts a WHERE a.id = r.response_id AND r.operation = 'account.open')"
        );
        rule!(
            findings,
            connection,
            "I3",
            "accepted work and the records that say so belong together until it is done",
            "SELECT coalesce(encode(r.key_hash, 'hex'), o.id::text) AS subject
             FROM (SELECT * FROM idempotency_records WHERE status = 202) r
             FULL JOIN (SELECT id, shard, unnest(key_hashes) AS key_hash FROM operations WHERE status = 'processing') o
               ON o.key_hash = r.key_hash AND o.shard = r.shard AND o.id = r.response_id
             WHERE o.id IS NULL OR r.key_hash IS NULL"
        );
        rule!(
            findings,
            connection,
            "I7",
            "positions of a shard are dense, and their epoch changes only where one was begun",
            "SELECT o.shard || '/' || o.position AS subject
             FROM (SELECT shard, position, epoch, lag(position) OVER w AS before, lag(epoch) OVER w AS epoch_before
                   FROM outbox WINDOW w AS (PARTITION BY shard ORDER BY position)) o
             LEFT JOIN epochs e ON e.shard = o.shard AND e.epoch = o.epoch AND e.after_position = o.before
             WHERE o.position <> o.before + 1
               OR o.epoch <> o.epoch_before AND (o.epoch < o.epoch_before OR e.epoch IS NULL)"
        );
        rule!(
            findings,
            connection,
            "I7",
            "each event that is still kept belongs to one transfer, as it stands",
            "SELECT o.shard || '/' || o.position AS subject FROM outbox o
             LEFT JOIN transfers t ON t.id = o.resource_id AND t.shard = o.shard AND t.tenant_id = o.tenant_id
               AND t.environment = o.environment
             WHERE t.id IS NULL OR o.event_type <> 'transfer.posted'"
        );
        rule!(
            findings,
            connection,
            "I7",
            "each transfer since the oldest kept event has an event",
            "SELECT t.id::text AS subject FROM transfers t
             JOIN (SELECT shard, min(created_at) AS since, min(position) AS first FROM outbox GROUP BY shard) k
               ON k.shard = t.shard AND (k.first = 1 OR t.created_at > k.since)
             WHERE NOT EXISTS (SELECT FROM outbox o WHERE o.resource_id = t.id AND o.shard = t.shard)"
        );
        rule!(
            findings,
            connection,
            "I9",
            "a transfer and its accounts share tenant, environment and currency",
            "SELECT t.id::text AS subject FROM transfers t
             LEFT JOIN accounts s ON s.id = t.source_account_id AND s.shard = t.shard
             LEFT JOIN accounts d ON d.id = t.destination_account_id AND d.shard = t.shard
             WHERE (s.tenant_id, s.environment, s.currency) IS DISTINCT FROM (t.tenant_id, t.environment, t.currency)
                OR (d.tenant_id, d.environment, d.currency) IS DISTINCT FROM (t.tenant_id, t.environment, t.currency)"
        );
        rule!(findings, connection, "I9", "a record and what it made share tenant and environment",
            "SELECT encode(r.key_hash, 'hex') AS subject FROM idempotency_records r
             JOIN principals p ON p.id = r.principal_id
             JOIN (SELECT id, tenant_id, environment FROM transfers UNION ALL SELECT id, tenant_id, environment FROM accounts) m
               ON m.id = r.response_id
             WHERE (m.tenant_id, m.environment) IS DISTINCT FROM (p.tenant_id, r.environment)");

        connection.execute("ROLLBACK").await?;
        Ok(findings)
    }
}

async fn connect(database: &Database) -> Result<PgConnection, sqlx::Error> {
    let options =
        database.session("oncepost-audit", LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, IDLE_IN_TRANSACTION_TIMEOUT_MS);
    // Every rule reads whole tables; a planner without statistics might read one of them again for each row of another.
    PgConnection::connect_with(&options.options([("enable_nestloop", "off"), ("work_mem", WORK_MEM)])).await
}

/// The database's time: audits are compared across machines.
async fn now(connection: &mut PgConnection) -> Result<OffsetDateTime, sqlx::Error> {
    sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(connection).await
}

/// Audits the books whenever the last audit, by whichever process, is older than `interval`; until the task is ended.
pub(crate) async fn run(database: Database, pool: PgPool, interval: Duration) {
    gauge!("oncepost_audit_interval_seconds").set(interval.as_secs_f64());
    loop {
        match audit_if_due(&database, &pool, interval).await {
            Ok(None) => {}
            Ok(Some(findings)) if findings.is_empty() => tracing::info!("the books are audited, and right"),
            Ok(Some(findings)) => findings.iter().for_each(|finding| {
                tracing::error!(promise = finding.promise, count = finding.count, %finding, "the audit found a broken promise");
            }),
            Err(error) => tracing::warn!(%error, "the books can't be audited now; trying again"),
        }
        tokio::time::sleep(TURN).await;
    }
}

/// Audits if it is time and no other process is at it; `None` where nothing had to be done.
async fn audit_if_due(
    database: &Database,
    pool: &PgPool,
    interval: Duration,
) -> Result<Option<Vec<Finding>>, sqlx::Error> {
    if !due(&mut *pool.acquire().await?, interval).await? {
        return Ok(None);
    }
    let mut connection = connect(database).await?;
    // Held until the connection is closed, also by a process that dies.
    let first =
        sqlx::query_scalar!(r#"SELECT pg_try_advisory_lock($1) AS "first!""#, LOCK).fetch_one(&mut connection).await?;
    // Looked at again, since another process may have ended its audit meanwhile.
    let findings = if first && due(&mut connection, interval).await? {
        let findings = Audit::prove_and_record(&mut connection).await?;
        show_last(&mut connection).await?;
        Some(findings)
    } else {
        None
    };
    connection.close().await?;
    Ok(findings)
}

async fn due(connection: &mut PgConnection, interval: Duration) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT NOT EXISTS (SELECT FROM audits WHERE finished_at > clock_timestamp() - make_interval(secs => $1)) AS "due!""#,
        interval.as_secs_f64(),
    )
    .fetch_one(connection)
    .await
}

/// Shows the last audit, whoever ran it.
pub(crate) async fn show_last(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let last = sqlx::query!(
        r#"SELECT started_at, finished_at, findings AS "findings: Json<BTreeMap<String, i64>>"
           FROM audits ORDER BY finished_at DESC LIMIT 1"#
    )
    .fetch_optional(connection)
    .await?;
    let Some(last) = last else {
        gauge!("oncepost_audit_finished_timestamp_seconds").set(0.0);
        return Ok(());
    };
    gauge!("oncepost_audit_finished_timestamp_seconds").set(whole(last.finished_at.unix_timestamp()));
    gauge!("oncepost_audit_seconds").set((last.finished_at - last.started_at).as_seconds_f64());
    for promise in PROMISES {
        let count = last.findings.get(promise).copied().unwrap_or(0);
        gauge!("oncepost_audit_findings", "promise" => promise).set(whole(count));
    }
    Ok(())
}
