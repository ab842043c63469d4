//! Being asked to stop.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Error, Result};

/// Counts how often this process was asked to stop: by Ctrl-C, by SIGTERM, or by a terminal that closes, which would
/// otherwise end it without its servers.
pub(crate) struct Signals {
    asked: watch::Receiver<u32>,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self> {
        let failed = |source: io::Error| Error::Io { doing: "cannot listen for signals".to_owned(), source };
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
        let (count, asked) = watch::channel(0_u32);
        tokio::spawn(async move {
            loop {
                let heard = tokio::select! {
                    heard = interrupt.recv() => heard,
                    heard = terminate.recv() => heard,
                    heard = hangup.recv() => heard,
                };
                if heard.is_none() {
                    return;
                }
                count.send_modify(|count| *count = count.saturating_add(1));
            }
        });
        Ok(Self { asked })
    }

    /// Ready once the process was asked to stop.
    pub(crate) async fn asked(&self) {
        self.asked_times(1).await;
    }

    /// Ready once the process was asked a second time.
    pub(crate) async fn asked_twice(&self) {
        self.asked_times(2).await;
    }

    async fn asked_times(&self, times: u32) {
        if self.asked.clone().wait_for(|count| *count >= times).await.is_err() {
            // Nobody listens any more, so nobody will ask.
            std::future::pending::<()>().await;
        }
    }
}
