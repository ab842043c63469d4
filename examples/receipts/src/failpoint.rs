//! Named places where a test makes this process die or freeze. In a release build [`hit`] is empty.

/// Acts if the environment variable `ONCEPOST_FAILPOINT` is `name:action[:nth]` with this name. Actions: `kill` (SIGKILL) and
/// `pause` (SIGSTOP), done to this process the `nth` time, or the first, that it comes here.
#[cfg(debug_assertions)]
pub(crate) fn hit(name: &str) {
    use std::process::Command;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: LazyLock<String> = LazyLock::new(|| std::env::var("ONCEPOST_FAILPOINT").unwrap_or_default());
    static HITS: AtomicU64 = AtomicU64::new(0);
    let mut parts = ARMED.split(':');
    if parts.next() != Some(name) {
        return;
    }
    let signal = match parts.next() {
        Some("pause") => "-STOP",
        Some(_) | None => "-KILL",
    };
    let nth = parts.next().and_then(|nth| nth.parse().ok()).unwrap_or(1);
    if HITS.fetch_add(1, Ordering::SeqCst).saturating_add(1) == nth {
        // Said before it is done: whoever waits for this moment reads it in the log.
        tracing::warn!(failpoint = name, signal, "failpoint");
        // By the system's `kill`, since this crate takes no unsafe code and no dependency for it.
        if let Err(error) = Command::new("kill").args([signal, &std::process::id().to_string()]).status() {
            tracing::error!(%error, "a failpoint could not act");
        }
    }
}

/// Acts in debug builds only.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) const fn hit(_name: &str) {}
