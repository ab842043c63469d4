//! The wish to stop, as the publishing thread sees it.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

/// Tells a thread outside the runtime that it should stop, and lets it wait for other things meanwhile.
#[derive(Clone)]
pub(crate) struct Stop {
    requested: watch::Receiver<bool>,
    runtime: Handle,
}

/// Lets a command talk to librdkafka, whose calls block, on a thread of its own. Nobody stops it early; what it waits for has
/// bounds of its own.
pub(crate) async fn unstopped<T: Send + 'static, E: From<Panicked> + Send + 'static>(
    work: impl FnOnce(Stop) -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let (_keep, requested) = watch::channel(false);
    let stop = Stop::new(requested, Handle::current());
    spawn_blocking(move || work(stop)).await.map_err(|_| Panicked)?
}

/// The thread of a command panicked.
pub(crate) struct Panicked;

/// The wait ended because the relay should stop.
#[derive(Debug)]
pub(crate) struct Stopped;

impl Stop {
    pub(crate) fn new(requested: watch::Receiver<bool>, runtime: Handle) -> Self {
        Self { requested, runtime }
    }

    pub(crate) fn requested(&self) -> bool {
        // Whoever dropped the sender no longer waits for the relay: that is a wish to stop as well.
        *self.requested.borrow() || self.requested.has_changed().is_err()
    }

    /// Waits for a future on the runtime, or for the wish to stop.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T, Stopped> {
        let mut requested = self.requested.clone();
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _ = requested.wait_for(|requested| *requested) => Err(Stopped),
                value = future => Ok(value),
            }
        })
    }

    /// Waits for a future on the runtime, whatever is wished. It must have a bound of its own.
    pub(crate) fn finish<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Lets time pass.
    pub(crate) fn pause(&self, duration: Duration) -> Result<(), Stopped> {
        // The timer is made inside: outside the runtime there is none.
        self.wait(async move { tokio::time::sleep(duration).await })
    }
}
