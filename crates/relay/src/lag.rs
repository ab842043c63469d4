//! How far publishing is behind, measured beside it: the gauges move while Kafka is down too.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ledger::outbox::{Outbox, OutboxError};
use time::OffsetDateTime;
use tokio::time::sleep;

use crate::config::Settings;
use crate::meters::Meters;

/// How often the lag is measured: two look-ups in an index each time.
const INTERVAL: Duration = Duration::from_millis(250);
/// The pause after PostgreSQL could not be asked.
const REOPEN_PAUSE: Duration = Duration::from_secs(2);

/// The last position that is known to be published, shared between who publishes and who measures.
#[derive(Clone)]
pub(crate) struct Published(Arc<AtomicI64>);

/// Stands for "not known yet"; positions are never negative.
const UNKNOWN: i64 = -1;

impl Published {
    pub(crate) fn unknown() -> Self {
        Self(Arc::new(AtomicI64::new(UNKNOWN)))
    }

    pub(crate) fn set(&self, position: i64) {
        self.0.store(position, Ordering::Relaxed);
    }

    /// Whoever has no session any more can't know what another relay has published since.
    pub(crate) fn forget(&self) {
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }

    fn position(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|position| *position != UNKNOWN)
    }
}

/// Measures until it is dropped.
pub(crate) async fn measure(settings: Settings, published: Published, meters: Meters) {
    loop {
        if let Err(error) = measure_until_error(&settings, &published, &meters).await {
            tracing::warn!(%error, "the lag can't be measured");
        }
        sleep(REOPEN_PAUSE).await;
    }
}

async fn measure_until_error(settings: &Settings, published: &Published, meters: &Meters) -> Result<(), OutboxError> {
    let mut outbox = Outbox::open(&settings.database, settings.shard).await?;
    loop {
        let position = match published.position() {
            Some(position) => position,
            // Without Kafka's word the floor is the best that is known; it moves late, so the lag shows too high rather
            // than too low.
            None => outbox.relay_record().await?.and_then(|record| record.floor).map_or(0, |floor| floor.position),
        };
        let lag = outbox.lag_behind(position).await?;
        let age = lag.oldest_at.map_or(0.0, |oldest_at| (OffsetDateTime::now_utc() - oldest_at).as_seconds_f64());
        meters.lag_rows.set(gauge_value(lag.rows));
        meters.lag_seconds.set(age.max(0.0));
        sleep(INTERVAL).await;
    }
}

/// Gauges are floats: exact up to 2^53, and nobody reads a lag of 2^32 rows to the row.
fn gauge_value(rows: i64) -> f64 {
    f64::from(u32::try_from(rows).unwrap_or(u32::MAX))
}
