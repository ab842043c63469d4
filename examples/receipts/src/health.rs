//! What each thing that this process depends on last said.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{describe_gauge, gauge};

/// What this process depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Where events come from.
    Kafka,
    /// Where the inbox is.
    Database,
    /// Where mail goes.
    Smtp,
}

const WORKS: &str = "oncepost_receipts_works";
const NOT_REACHED: &str = "not reached yet";

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Database => "database",
            Self::Smtp => "smtp",
        }
    }
}

/// The last fault of each part, shared by all tasks.
#[derive(Clone)]
pub(crate) struct Health(Arc<Mutex<Faults>>);

/// `None` where a part works.
#[derive(Clone)]
pub(crate) struct Faults {
    kafka: Option<String>,
    database: Option<String>,
    smtp: Option<String>,
}

impl Health {
    /// Nothing is known yet, so nothing is ready.
    pub(crate) fn unknown() -> Self {
        describe_gauge!(WORKS, "1 while a part of what this process needs works, 0 while it does not.");
        let starting = || Some(NOT_REACHED.to_owned());
        let health = Self(Arc::new(Mutex::new(Faults { kafka: starting(), database: starting(), smtp: None })));
        for (part, works) in [(Part::Kafka, 0.0), (Part::Database, 0.0), (Part::Smtp, 1.0)] {
            gauge!(WORKS, "part" => part.name()).set(works);
        }
        health
    }

    pub(crate) fn works(&self, part: Part) {
        if self.set(part, None).is_some() {
            tracing::info!(part = part.name(), "works");
        }
    }

    /// Logs the first fault after a time without: what is down says something every second.
    pub(crate) fn fails(&self, part: Part, fault: String) {
        if self.set(part, Some(fault.clone())).is_none_or(|before| before == NOT_REACHED) {
            tracing::warn!(part = part.name(), fault, "does not work");
        }
    }

    fn set(&self, part: Part, fault: Option<String>) -> Option<String> {
        gauge!(WORKS, "part" => part.name()).set(if fault.is_none() { 1.0 } else { 0.0 });
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match part {
            Part::Kafka => &mut faults.kafka,
            Part::Database => &mut faults.database,
            Part::Smtp => &mut faults.smtp,
        };
        std::mem::replace(slot, fault)
    }

    pub(crate) fn faults(&self) -> Faults {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Faults {
    /// Whether events are taken in. A mail server that is down stops no event: its receipts wait in the inbox.
    pub(crate) const fn ready(&self) -> bool {
        self.kafka.is_none() && self.database.is_none()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, fault) in [(Part::Kafka, &self.kafka), (Part::Database, &self.database), (Part::Smtp, &self.smtp)] {
            writeln!(f, "{}: {}", part.name(), fault.as_deref().unwrap_or("ok"))?;
        }
        Ok(())
    }
}
