//! The one call by which anything changes in the books.

use std::fmt;
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use thiserror::Error;

use crate::account::Account;
use crate::decide::{Effects, Operation, Rejection};
use crate::idempotency::{Fingerprint, Response, SealedKey};
use crate::operation::AcceptedWork;
use crate::scope::Scope;
use crate::transfer::Transfer;

/// What the books said, for the caller to put into an answer.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The account as it was opened.
    AccountOpened(&'a Account),
    /// The transfer as it was posted.
    TransferPosted(&'a Transfer),
    /// The work as it was accepted.
    WorkAccepted(&'a AcceptedWork),
    /// The rule that said no.
    Rejected(&'a Rejection),
}

impl<'a> From<&'a Result<Effects, Rejection>> for Outcome<'a> {
    fn from(decided: &'a Result<Effects, Rejection>) -> Self {
        match decided {
            Ok(Effects::AccountOpened(account)) => Self::AccountOpened(account),
            Ok(Effects::WorkAccepted(accepted)) => Self::WorkAccepted(accepted),
            Ok(Effects::TransferPosted { transfer, .. }) => Self::TransferPosted(transfer),
            Err(rejection) => Self::Rejected(rejection),
        }
    }
}

/// Puts an outcome into the answer that is stored and sent. Pure; it may run again where a batch runs again.
pub type Render = Box<dyn Fn(Outcome<'_>) -> Response + Send + Sync>;

/// A request under a key, parsed and authenticated.
pub struct Submission {
    /// Who asks.
    pub scope: Scope,
    /// The client's key, sealed by [`crate::Ledger::seal`] with this scope and fingerprint.
    pub key: SealedKey,
    /// What makes a retry the same request.
    pub fingerprint: Fingerprint,
    /// The names that requests of this route may have, for naming those that only the first request had.
    pub known_members: &'static [&'static str],
    /// What to do.
    pub operation: Operation,
    /// How to answer.
    pub render: Render,
    /// How long a duplicate waits for its running original.
    pub wait: Duration,
    /// What goes wrong on purpose, for integrators who test their retries.
    pub staged_fault: Option<StagedFault>,
    /// The span of the request, which its event is to name.
    pub trace: SpanContext,
}

/// What a job of the committer keeps of a request: everything but the key.
pub(crate) struct Asked {
    pub(crate) scope: Scope,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) known_members: &'static [&'static str],
    pub(crate) operation: Operation,
    pub(crate) render: Render,
    pub(crate) staged_fault: Option<StagedFault>,
    pub(crate) trace: SpanContext,
}

/// A fault that is played, not suffered. It commits in a batch of its own, so that it strikes no one else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagedFault {
    /// Everything is done but COMMIT: nothing is recorded, and the client hears [`SubmitError::Unavailable`].
    BeforeCommit,
    /// It commits, and the client hears [`SubmitError::Unavailable`] all the same.
    AfterCommit,
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission")
            .field("scope", &self.scope)
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

/// Why the ledger gave no answer. Only [`SubmitError::Failed`] says that nothing happened; the others mean "same key again".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// As much is waiting as the queue takes. Nothing was recorded.
    #[error("the queue is full")]
    Busy,
    /// Others held an account's lock until the deadline. Nothing was recorded.
    #[error("an account stayed locked")]
    Contended,
    /// The database can't be reached, or whether it committed isn't known yet.
    #[error("the database is unavailable")]
    Unavailable,
    /// The process is stopping and takes no more work. Nothing was recorded.
    #[error("the process is stopping")]
    Stopping,
    /// The operation fails by itself: a fault of ours. Nothing was recorded.
    #[error("the operation failed")]
    Failed,
}
