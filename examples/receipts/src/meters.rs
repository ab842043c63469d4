//! The metrics: `oncepost_receipts_*`.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

/// Counts and gauges of this process.
#[derive(Clone)]
pub(crate) struct Meters {
    /// Events taken in that lead to a receipt.
    pub(crate) accepted: Counter,
    /// Events taken in that lead to nothing.
    pub(crate) skipped: Counter,
    /// Events that came again and found their row.
    pub(crate) duplicates: Counter,
    /// Attempts after which the server had taken the mail.
    pub(crate) sent: Counter,
    /// Attempts that are made again.
    pub(crate) failed: Counter,
    /// Attempts after which a receipt was given up.
    pub(crate) parked: Counter,
    pub(crate) lag_records: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) waiting_seconds: Gauge,
    pub(crate) parked_now: Gauge,
}

impl Meters {
    pub(crate) fn new() -> Self {
        const EVENTS: &str = "oncepost_receipts_events_total";
        const ATTEMPTS: &str = "oncepost_receipts_attempts_total";
        describe_counter!(EVENTS, "Events taken in, by what came of them.");
        describe_counter!(ATTEMPTS, "Attempts to send a receipt, by how they ended.");
        describe_gauge!("oncepost_receipts_lag_records", "Records in the assigned partitions not yet taken in.");
        describe_gauge!("oncepost_receipts_waiting", "Receipts that are still to be sent.");
        describe_gauge!("oncepost_receipts_waiting_seconds", "Since when the oldest of them waits.");
        describe_gauge!("oncepost_receipts_parked", "Receipts that were given up; a person decides.");
        // A counter that first appears with its first event hides that event from `rate`: all are made at once.
        Self {
            accepted: counter!(EVENTS, "outcome" => "accepted"),
            skipped: counter!(EVENTS, "outcome" => "skipped"),
            duplicates: counter!(EVENTS, "outcome" => "duplicate"),
            sent: counter!(ATTEMPTS, "outcome" => "sent"),
            failed: counter!(ATTEMPTS, "outcome" => "failed"),
            parked: counter!(ATTEMPTS, "outcome" => "parked"),
            lag_records: gauge!("oncepost_receipts_lag_records"),
            waiting: gauge!("oncepost_receipts_waiting"),
            waiting_seconds: gauge!("oncepost_receipts_waiting_seconds"),
            parked_now: gauge!("oncepost_receipts_parked"),
        }
    }
}

/// Gauges are floats: exact up to 2^53, and nobody reads a backlog of 2^32 to the row.
pub(crate) fn gauge_value(count: i64) -> f64 {
    f64::from(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}
