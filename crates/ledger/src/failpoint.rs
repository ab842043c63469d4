//! Named places where a test may make this process die, stop or panic. They exist in debug builds only; in a release
//! build [`hit`] is empty.

/// Acts if the environment variable `ONCEPOST_FAILPOINT` names this place: `name:action[:nth]`, several separated by
/// commas; `nth` counts from 1 and is 1 unless given. Actions: `kill` (SIGKILL to itself), `pause` (SIGSTOP to itself),
/// `panic`.
#[cfg(debug_assertions)]
pub fn hit(name: &str) {
    armed::hit(name);
}

/// Acts in debug builds only.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn hit(_name: &str) {}

/// Whether the variable has this place refuse: `name:refuse`, for as long as the process lives.
#[cfg(debug_assertions)]
pub fn refuses(name: &str) -> bool {
    armed::refuses(name)
}

/// Never, but in debug builds.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn refuses(_name: &str) -> bool {
    false
}

#[cfg(debug_assertions)]
mod armed {
    use std::process::Command;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Failpoint {
        name: String,
        action: String,
        nth: u64,
        hits: AtomicU64,
    }

    static FAILPOINTS: LazyLock<Vec<Failpoint>> = LazyLock::new(|| {
        let text = std::env::var("ONCEPOST_FAILPOINT").unwrap_or_default();
        text.split(',')
            .filter_map(|entry| {
                let mut parts = entry.split(':');
                let (name, action) = (parts.next()?.to_owned(), parts.next()?.to_owned());
                let nth = parts.next().and_then(|nth| nth.parse().ok()).unwrap_or(1);
                Some(Failpoint { name, action, nth, hits: AtomicU64::new(0) })
            })
            .collect()
    });

    pub(super) fn refuses(name: &str) -> bool {
        FAILPOINTS.iter().any(|failpoint| failpoint.name == name && failpoint.action == "refuse")
    }

    #[allow(clippy::panic, reason = "a failpoint panics because a test asked for it")]
    pub(super) fn hit(name: &str) {
        for failpoint in FAILPOINTS.iter().filter(|failpoint| failpoint.name == name) {
            if failpoint.hits.fetch_add(1, Ordering::SeqCst).checked_add(1) != Some(failpoint.nth) {
                continue;
            }
            // Said before it is done: whoever waits for this moment reads it in the log.
            tracing::warn!(failpoint = name, action = failpoint.action, "failpoint");
            match failpoint.action.as_str() {
                "kill" => signal("-KILL"),
                "pause" => signal("-STOP"),
                _ => panic!("failpoint {name}"),
            }
        }
    }

    /// A signal to this process by the shell's `kill`, since the crate takes no unsafe code and no dependency for it.
    fn signal(signal: &str) {
        if let Err(error) = Command::new("kill").args([signal, &std::process::id().to_string()]).status() {
            tracing::error!(%error, signal, "a failpoint could not act");
        }
    }
}
