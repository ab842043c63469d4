//! What ends a session with Kafka.

use ledger::outbox::OutboxError;
use rdkafka::error::KafkaError;
use thiserror::Error;

use crate::reason::HaltReason;
use crate::stop::{Panicked, Stopped};

/// Why a session with Kafka ended. Every one but a halt and a stop is answered in the same way, by a new session: the
/// error that a client sees does not tell what the broker has done, so nothing is concluded from it.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// What was seen can't all be true.
    #[error("{0}")]
    Halt(HaltReason),
    /// The relay should stop.
    #[error("asked to stop")]
    Stopped,
    /// Another relay holds the shard's lock, and goes on holding it.
    #[error("a relay works on this shard: stop it first")]
    LockTaken,
    /// The shard's lock is lost.
    #[error("the shard's lock is lost")]
    LockLost,
    /// Kafka said no, or nothing.
    #[error("Kafka refused to {step}: {error}")]
    Kafka {
        /// What was tried.
        step: &'static str,
        /// The client's word for it.
        error: KafkaError,
    },
    /// Kafka finds a batch too large. Which record is at fault it doesn't say, so they are tried one by one.
    #[error("Kafka finds a batch too large: {error}")]
    BatchTooLarge {
        /// The position of the batch's last event.
        up_to: i64,
        /// The client's word for it.
        error: KafkaError,
    },
    /// Something took longer than its bound.
    #[error("it took too long to {step}")]
    TimedOut {
        /// What was tried.
        step: &'static str,
    },
    /// A topic is not as it must be.
    #[error("{0}")]
    Topic(String),
    /// The outbox can't be read.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// A defect of the relay's own.
    #[error("the relay's thread panicked")]
    Panicked,
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<Panicked> for Failure {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

impl From<HaltReason> for Failure {
    fn from(reason: HaltReason) -> Self {
        Self::Halt(reason)
    }
}

impl Failure {
    /// For `map_err`: Kafka's error and what was tried.
    pub(crate) fn kafka(step: &'static str) -> impl FnOnce(KafkaError) -> Self {
        move |error| Self::Kafka { step, error }
    }
}
