//! What a person sees while the demo starts and stops.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Prints text on stderr. A reader that has gone is no reason to stop.
pub(crate) fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    // A progress bar may stand on the line; it draws itself again below.
    let erase = if stderr.is_terminal() { "\r\x1b[2K" } else { "" };
    drop(writeln!(stderr, "{erase}{text}"));
}

/// Prints that a step is done, and how long it took.
pub(crate) fn step(what: &str, outcome: &str, begun: Instant) {
    say(&line(what, outcome, begun.elapsed()));
}

fn line(what: &str, outcome: &str, took: Duration) -> String {
    format!("  {what:<12}{outcome:<40}{:>6.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_stand_in_columns() {
        assert_eq!(
            line("Kafka", "127.0.0.1:9092", Duration::from_millis(3_140)),
            "  Kafka       127.0.0.1:9092                             3.1 s"
        );
    }
}
