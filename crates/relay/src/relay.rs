//! A relay in this process: a thread that publishes, and a task beside it that measures the lag.

use std::future::Future;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::config::Settings;
use crate::lag::{self, Published};
use crate::meters::Meters;
use crate::publisher::Publisher;
use crate::state::{State, StateSender};
use crate::stop::Stop;

/// How long a relay that was asked to stop may finish its batch. Then it is left alone: whatever it was doing is as safe
/// as after a crash.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Why a relay did not run, or ended by itself.
#[derive(Debug, Error)]
pub enum RunError {
    /// The system has no thread left for it.
    #[error("the relay's thread can't be started: {0}")]
    Thread(std::io::Error),
    /// The thread ended without having been asked to.
    #[error("the relay's thread ended by itself")]
    Ended,
}

/// A relay for one shard. It needs a Tokio runtime with time and I/O, and a `metrics` recorder if anyone is to see its
/// metrics.
pub struct Relay {
    settings: Settings,
    states: StateSender,
    state: watch::Receiver<State>,
}

impl Relay {
    /// A relay that does not run yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let states = StateSender::new(settings.shard.to_string());
        let state = states.subscribe();
        Self { settings, states, state }
    }

    /// What the relay is doing, now and later. It has read its position once [`State::positioned`] holds.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Publishes until `shutdown` is ready, and returns when everything has stopped, at most five seconds after.
    ///
    /// Neither Kafka nor PostgreSQL has to be there: the relay waits for both, and a halt is a [`State`], not an end.
    /// Dropping the future stops the relay as well, without waiting for it.
    ///
    /// # Errors
    /// [`RunError`].
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let shard = self.settings.shard.to_string();
        let meters = Meters::new(&shard);
        let published = Published::unknown();
        let (request_stop, requested) = watch::channel(false);
        let (report_end, mut ended) = oneshot::channel::<()>();
        let stop = Stop::new(requested, Handle::current());
        let publisher = Publisher::new(self.settings.clone(), self.states, published.clone(), meters.clone(), stop);
        let lag = AbortOnDrop(tokio::spawn(lag::measure(self.settings, published, meters)));
        std::thread::Builder::new()
            .name(format!("relay-{shard}"))
            .spawn(move || {
                publisher.run();
                // Nobody listens if `run` was dropped.
                let _ = report_end.send(());
            })
            .map_err(RunError::Thread)?;
        tokio::select! {
            () = shutdown => tracing::info!(shard, "the relay stops"),
            _ = &mut ended => return Err(RunError::Ended),
        }
        request_stop.send_replace(true);
        match timeout(STOP_WITHIN, ended).await {
            Ok(_) => tracing::info!(shard, "the relay has stopped"),
            Err(_) => tracing::warn!(shard, "the batch is abandoned: the next start finds out what became of it"),
        }
        drop(lag);
        Ok(())
    }
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
