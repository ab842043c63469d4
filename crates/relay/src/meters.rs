//! The relay's metrics. The binary that it runs in installs the recorder.

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

/// The histogram of Kafka transactions, named here because the binary sets its buckets.
pub(crate) const TRANSACTION_SECONDS: &str = "oncepost_relay_transaction_seconds";

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
        describe_gauge!("oncepost_outbox_lag_rows", "Events that wait to be published.");
        describe_gauge!("oncepost_outbox_lag_seconds", "The age of the oldest event that waits to be published.");
        describe_counter!("oncepost_relay_published_total", "Events published in committed Kafka transactions.");
        describe_counter!("oncepost_relay_restarts_total", "Times that the relay began anew after an error.");
        describe_counter!("oncepost_relay_transactions_total", "Kafka transactions committed.");
        describe_histogram!(TRANSACTION_SECONDS, "How long a Kafka transaction takes from begin to commit.");
        describe_gauge!("oncepost_relay_state", "1 for the state that the relay is in, 0 for the others.");
        let shard = shard.to_owned();
        let meters = Self {
            lag_rows: gauge!("oncepost_outbox_lag_rows", "shard" => shard.clone()),
            lag_seconds: gauge!("oncepost_outbox_lag_seconds", "shard" => shard.clone()),
            published: counter!("oncepost_relay_published_total", "shard" => shard.clone()),
            restarts: counter!("oncepost_relay_restarts_total", "shard" => shard.clone()),
            transactions: counter!("oncepost_relay_transactions_total", "shard" => shard.clone()),
            transaction_seconds: histogram!(TRANSACTION_SECONDS, "shard" => shard),
        };
        // A counter that first appears with its first event hides that event from `rate`.
        meters.published.absolute(0);
        meters.restarts.absolute(0);
        meters.transactions.absolute(0);
        meters
    }
}
