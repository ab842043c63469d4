//! What the tests stand on: a private PostgreSQL with a migrated ledger ([`Books`]), the real binaries as processes
//! ([`Process`]), a client that keeps everything it was answered ([`Client`]), an independent `read_committed` consumer
//! ([`Topic`]), a proxy that loses answers ([`Proxy`]), a mail server ([`MailServer`]) and a reader of [`Metrics`].
//!
//! Every test of money ends with [`Books::finish`]. Nothing here sleeps for a fixed time: what must be waited for is
//! asked for again until a bound.

mod books;
mod client;
pub mod document;
mod mail;
mod metrics;
mod process;
mod proxy;
mod topic;

use std::time::{Duration, Instant};

pub use books::{Account, Books, Owner, PEPPERS, SECRETS};
pub use client::{Client, Reply};
pub use mail::{Mail, MailServer};
pub use metrics::{Metrics, Series};
pub use process::{Ended, Process, binary};
pub use proxy::Proxy;
pub use topic::{Event, Topic};

/// The longest that anything here is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is asked for.
const TURN: Duration = Duration::from_millis(20);

/// Asks until the condition holds.
///
/// # Panics
/// After [`PATIENCE`], with the name of what was waited for.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let patience = Patience::start();
    while !condition().await {
        patience.turn(what).await;
    }
}

/// Time to ask again, for a while.
pub(crate) struct Patience(Instant);

impl Patience {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Waits for the next turn, or fails the test.
    pub(crate) async fn turn(&self, what: &str) {
        assert!(self.0.elapsed() < PATIENCE, "waited in vain for: {what}");
        tokio::time::sleep(TURN).await;
    }
}
