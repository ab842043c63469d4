//! The command `events`: what stands in Kafka, for people without Kafka's tools.

use std::io::{self, Write as _};
use std::ops::ControlFlow;

use relay::{PublishedEvent, read_events};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::progress::say;

/// The topic of the events.
pub(crate) const TOPIC: &str = "transfers";

/// Shows the events, or those of one transfer.
pub(crate) async fn show(brokers: String, transfer: Option<Uuid>, follow: bool) -> Result<()> {
    let transfer = transfer.map(|id| id.to_string());
    let reading = tokio::task::spawn_blocking(move || {
        let mut shown: u64 = 0;
        let mut printed = Ok(());
        let read = read_events(
            &brokers,
            TOPIC,
            || follow,
            |event| {
                if transfer.as_ref().is_some_and(|id| *id != event.key) {
                    return ControlFlow::Continue(());
                }
                shown += 1;
                printed = print(&event);
                if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            },
        );
        (read, printed, shown)
    });
    let failed = |source: io::Error| Error::Io { doing: "cannot print".to_owned(), source };
    let (read, printed, shown) = reading.await.map_err(|error| failed(io::Error::other(error)))?;
    read?;
    match printed {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(()) => {}
    }
    say(&format!("{shown} {}", if shown == 1 { "event" } else { "events" }));
    Ok(())
}

fn print(event: &PublishedEvent) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(line(event).as_bytes())?;
    stdout.flush()
}

/// One event in one line: where it stands, its position in its shard's stream, what it is, and the transfer.
fn line(event: &PublishedEvent) -> String {
    let header = |name| event.header(name).unwrap_or("-");
    format!(
        "{}/{} position {} {} {} {} {}\n",
        event.partition,
        event.offset,
        header("position"),
        header("ce_id"),
        header("ce_type"),
        event.key,
        event.value
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = PublishedEvent {
            partition: 3,
            offset: 7,
            key: "0198c0de".to_owned(),
            headers: vec![("ce_id".to_owned(), "id".to_owned()), ("position".to_owned(), "41".to_owned())],
            value: "{\"amount\":1250}".to_owned(),
        };
        assert_eq!(line(&event), "3/7 position 41 id - 0198c0de {\"amount\":1250}\n");
    }
}
