//! The relay's metrics. The binary that it runs in installs the recorder.

use ledger::metric::Metric;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// Every metric of this crate.
pub const METRICS: [Metric; 8] = [
    Metric::gauge(
        "oncepost_relay_state",
        &["shard", "state"],
        "1 for the state that the relay is in, 0 for the others.",
    ),
    Metric::gauge("oncepost_relay_halt", &["shard", "reason"], "1 for the reason that the relay has halted for."),
    Metric::gauge("oncepost_outbox_lag_rows", &["shard"], "Events that wait to be published."),
    Metric::gauge("oncepost_outbox_lag_seconds", &["shard"], "The age of the oldest event that waits to be published."),
    Metric::counter("oncepost_relay_published_total", &["shard"], "Events published in committed Kafka transactions."),
    Metric::counter("oncepost_relay_transactions_total", &["shard"], "Kafka transactions committed."),
    Metric::counter("oncepost_relay_restarts_total", &["shard"], "Times that the relay began anew after an error."),
    Metric::seconds(
        "oncepost_relay_transaction_seconds",
        &["shard"],
        "How long a Kafka transaction takes from begin to commit.",
    ),
];

/// The metrics of one shard's relay.
#[derive(Clone)]
pub(crate) struct Meters {
    pub(crate) lag_rows: Gauge,
    pub(crate) lag_seconds: Gauge,
    pub(crate) published: Counter,
    pub(crate) restarts: Counter,
    pub(crate) transactions: Counter,
    pub(crate) transaction_seconds: Histogram,
}

impl Meters {
    pub(crate) fn new(shard: &str) -> Self {
        let shard = shard.to_owned();
        let meters = Self {
            lag_rows: gauge!("oncepost_outbox_lag_rows", "shard" => shard.clone()),
            lag_seconds: gauge!("oncepost_outbox_lag_seconds", "shard" => shard.clone()),
            published: counter!("oncepost_relay_published_total", "shard" => shard.clone()),
            restarts: counter!("oncepost_relay_restarts_total", "shard" => shard.clone()),
            transactions: counter!("oncepost_relay_transactions_total", "shard" => shard.clone()),
            transaction_seconds: histogram!("oncepost_relay_transaction_seconds", "shard" => shard),
        };
        // A counter that first appears with its first event hides that event from `rate`.
        meters.published.absolute(0);
        meters.restarts.absolute(0);
        meters.transactions.absolute(0);
        meters
    }
}
