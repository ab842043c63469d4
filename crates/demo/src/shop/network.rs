//! The network between the browser and the API, as bad as the panel's switches make it. It is bad for real: a delay
//! delays the request and the answer, and a lost answer is a connection that ends without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a slow network takes, each way: a person can act meanwhile, and the page does not run out of patience.
const SLOW_BY: Duration = Duration::from_secs(2);

/// The state of the network.
#[derive(Clone, Default)]
pub(crate) struct Network {
    loses_reply: Arc<AtomicBool>,
    slow: Arc<AtomicBool>,
}

impl Network {
    /// Takes the time that the way takes.
    pub(crate) async fn travel(&self) {
        if self.slow() {
            tokio::time::sleep(SLOW_BY).await;
        }
    }

    /// Whether the answer at hand is lost. One is; the next one arrives.
    pub(crate) fn lose_reply(&self) -> bool {
        self.loses_reply.swap(false, Ordering::Relaxed)
    }

    /// Whether the next answer is going to be lost.
    pub(crate) fn loses_reply(&self) -> bool {
        self.loses_reply.load(Ordering::Relaxed)
    }

    pub(crate) fn set_loses_reply(&self, loses: bool) {
        self.loses_reply.store(loses, Ordering::Relaxed);
    }

    pub(crate) fn slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    pub(crate) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }
}
