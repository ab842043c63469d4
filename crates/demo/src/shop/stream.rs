//! The events in Kafka, read by a consumer of its own while someone watches the panel.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use relay::{PublishedEvent, read_events};
use serde::Serialize;

use crate::events::TOPIC;

/// How long events are read on after the panel was last asked for: some of its turns, which come each second.
const WATCHED_FOR: Duration = Duration::from_secs(20);
/// The newest events that are kept. At some hundred bytes each they are a few megabytes.
const EVENTS_MAX: usize = 10_000;
/// The pause after Kafka could not be read.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a reader may take to end: it looks up every 100 ms, except where it waits 5 s for a Kafka that is not there.
const STOP_TIMEOUT: Duration = Duration::from_secs(7);

/// An event of one transfer as it stands in Kafka.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Published {
    transfer_id: String,
    partition: i32,
    offset: i64,
    /// The header `position`.
    position: String,
    /// The header `ce_id`.
    event_id: String,
    /// The header `ce_type`.
    event_type: String,
}

/// What a reader knows.
#[derive(Default)]
struct Seen {
    events: VecDeque<Published>,
    /// Why Kafka can't be read.
    fault: Option<String>,
    watched_at: Option<Instant>,
    reading: bool,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

/// The stream of events. Nothing is read until someone watches: a load that is measured has Kafka for itself.
#[derive(Clone)]
pub(crate) struct Stream {
    brokers: Arc<str>,
    shared: Arc<Shared>,
}

impl Stream {
    pub(crate) fn new(brokers: &str) -> Self {
        Self { brokers: brokers.into(), shared: Arc::default() }
    }

    /// The events of these transfers, or why they can't be read. It never waits: a reader that has just been started finds
    /// them by one of the next turns.
    pub(crate) fn watch(&self, transfers: &[&str]) -> Result<Vec<Published>, String> {
        let mut seen = self.shared.lock();
        seen.watched_at = Some(Instant::now());
        if !seen.reading && !seen.closed {
            seen.reading = true;
            let reader = self.clone();
            thread::spawn(move || reader.read());
        }
        match &seen.fault {
            Some(fault) => Err(fault.clone()),
            None => {
                let found = seen.events.iter().filter(|event| transfers.contains(&event.transfer_id.as_str()));
                Ok(found.cloned().collect())
            }
        }
    }

    /// Ends reading, and waits until it has ended: librdkafka's threads should not outlive `main`.
    pub(crate) fn close(&self) {
        let mut seen = self.shared.lock();
        seen.closed = true;
        self.shared.changed.notify_all();
        let waited = self.shared.changed.wait_timeout_while(seen, STOP_TIMEOUT, |seen| seen.reading);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Reads from the first event on, again and again where Kafka goes away, until nobody watches any more.
    fn read(&self) {
        loop {
            self.shared.lock().events.clear();
            let read = read_events(
                &self.brokers,
                TOPIC,
                || self.shared.lock().watched(),
                |event| {
                    self.shared.lock().add(&event);
                    ControlFlow::Continue(())
                },
            );
            let mut seen = self.shared.lock();
            seen.fault = read.err().map(|error| error.to_string());
            let rested = self.shared.changed.wait_timeout_while(seen, PAUSE, |seen| !seen.closed);
            let (mut seen, _) = rested.unwrap_or_else(PoisonError::into_inner);
            if !seen.watched() {
                seen.reading = false;
                self.shared.changed.notify_all();
                return;
            }
        }
    }
}

impl Shared {
    /// A holder that panicked has left nothing half done that would matter here.
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn watched(&self) -> bool {
        !self.closed && self.watched_at.is_some_and(|at| at.elapsed() < WATCHED_FOR)
    }

    fn add(&mut self, event: &PublishedEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        let header = |name| event.header(name).unwrap_or_default().to_owned();
        self.fault = None;
        self.events.push_back(Published {
            transfer_id: event.key.clone(),
            partition: event.partition,
            offset: event.offset,
            position: header("position"),
            event_id: header("ce_id"),
            event_type: header("ce_type"),
        });
    }
}
