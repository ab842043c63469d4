use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Ready once the process is asked to stop, by SIGTERM or SIGINT. It listens from this call on, so that an early signal is
/// not lost.
///
/// # Errors
/// What the operating system says.
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
