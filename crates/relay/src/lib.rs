//! The relay: it carries the outbox of one shard into Kafka, each position exactly once for a `read_committed` reader.
//!
//! [`Relay::run`] works through the steps that `publisher.rs` lists; `verification.rs` decides what may be believed after a
//! start, and [`HaltReason`] says why a relay stands still rather than guesses. Where PostgreSQL has lost what Kafka holds,
//! [`reconcile()`] lists it, and [`begin_epoch`] lets the relay go on after a person has decided.

mod client;
mod config;
mod epoch;
mod events;
mod failure;
mod lag;
mod meters;
mod position;
mod publisher;
mod reason;
mod reconciliation;
mod record;
mod relay;
mod state;
mod status;
mod stop;
mod tail;
mod topics;
mod verification;

pub use config::{Config, Kafka, Profile, Security, Settings, VARIABLES};
pub use epoch::{EpochError, begin_epoch};
pub use events::{PublishedEvent, ReadEventsError, read_events};
pub use meters::METRICS;
pub use position::Position;
pub use reason::HaltReason;
pub use reconciliation::{Difference, ReconcileError, Reconciliation, reconcile};
pub use relay::{Relay, RunError};
pub use state::State;
pub use status::{Status, StatusError, read_status};
