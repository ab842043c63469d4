//! The metrics of the ledger, each told once: recorders are set up by this table, and `docs/metrics.md` is compared with it.

/// A metric: what it is called, and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: MetricKind,
    /// The names of its labels. None of them names a tenant or a key, so that series stay few.
    pub labels: &'static [&'static str],
    /// What it says, in a sentence for whoever reads `/metrics`.
    pub meaning: &'static str,
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug)]
pub enum MetricKind {
    /// It only grows, and begins at 0 with the process.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts values into buckets with these upper bounds.
    Histogram(&'static [f64]),
}

impl MetricKind {
    /// The kind in one word, as Prometheus has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

impl Metric {
    /// One that only grows.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, labels, meaning }
    }

    /// One that goes up and down.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, labels, meaning }
    }

    /// Times in seconds, from half a millisecond to the 15 s that no request outlives.
    #[must_use]
    pub const fn seconds(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Self {
        Self { name, kind: MetricKind::Histogram(&SECONDS), labels, meaning }
    }
}

/// A batch commits in about a millisecond, and nothing takes longer than a request's 15 s.
const SECONDS: [f64; 14] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];
/// A batch holds at most 2,000 operations.
const OPERATIONS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0];

/// Every metric of this crate.
pub const METRICS: [Metric; 24] = [
    Metric {
        name: "oncepost_batch_operations",
        kind: MetricKind::Histogram(&OPERATIONS),
        labels: &[],
        meaning: "Operations that were committed together.",
    },
    Metric::seconds("oncepost_batch_seconds", &["phase"], "Time that one phase of a batch took."),
    Metric::counter(
        "oncepost_batch_reruns_total",
        &["fault"],
        "Times that a batch did not commit and ran again, by the reason.",
    ),
    Metric::counter(
        "oncepost_unknown_commits_total",
        &[],
        "COMMITs that got no answer; the batch ran again to find out.",
    ),
    Metric::gauge("oncepost_queue_operations", &["queue"], "Operations that wait for a committer."),
    Metric::seconds(
        "oncepost_queue_wait_seconds",
        &[],
        "Time from an operation's arrival to the beginning of its batch.",
    ),
    Metric::counter("oncepost_shed_total", &["reason"], "Operations refused at once, since too much waits."),
    Metric::counter(
        "oncepost_contended_total",
        &[],
        "Operations handed to the second committer, since others held an account's lock.",
    ),
    Metric::seconds("oncepost_contended_seconds", &[], "Time that an operation spent with the second committer."),
    Metric::counter(
        "oncepost_rejections_total",
        &["environment", "kind"],
        "Recorded rejections, by the rule that said no.",
    ),
    Metric::gauge("oncepost_pool_sessions", &["pool", "state"], "Database sessions of a pool, used or idle."),
    Metric::gauge("oncepost_pool_sessions_max", &["pool"], "The most sessions that a pool may open."),
    Metric::gauge("oncepost_database_up", &[], "1 while PostgreSQL answers this process, 0 while it does not."),
    Metric::gauge(
        "oncepost_clock_skew_seconds",
        &[],
        "This machine's clock minus PostgreSQL's; half a round trip uncertain.",
    ),
    Metric::gauge(
        "oncepost_audit_finished_timestamp_seconds",
        &[],
        "When the last audit of the books ended, by whichever process, in seconds since 1970; 0 before the first.",
    ),
    Metric::gauge("oncepost_audit_seconds", &[], "How long the last audit took."),
    Metric::gauge("oncepost_audit_findings", &["promise"], "Rows that break a promise, as the last audit found them."),
    Metric::gauge("oncepost_audit_interval_seconds", &[], "How often the books are to be audited."),
    Metric::gauge("oncepost_answer_days", &[], "Days from the oldest whose answers are kept to today, both included."),
    Metric::gauge("oncepost_answer_days_max", &[], "The most days that there are while retention works."),
    Metric::gauge("oncepost_operations_unfinished", &[], "Work that was accepted with 202 and is not done."),
    Metric::gauge("oncepost_operations_oldest_seconds", &[], "The age of the oldest of it; 0 where there is none."),
    Metric::gauge("oncepost_table_bytes", &["table"], "What a table takes on disk, with its indexes and partitions."),
    Metric::gauge("oncepost_build_info", &["version"], "1, with the version of this process."),
];
