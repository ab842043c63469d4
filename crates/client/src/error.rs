//! What a caller hears when there is no good answer.

use std::time::Duration;

use crate::problem::Problem;
use crate::store::StoreError;

/// Why a call has no answer that the caller wanted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client's own configuration is wrong; nothing was sent.
    #[error("the client can't be set up: {0}")]
    Setup(String),
    /// The store failed; without a key that is kept, nothing is sent.
    #[error("the intent can't be kept: {0}")]
    Store(#[from] StoreError),
    /// The name already stands for another request; nothing was sent. A changed basket is a new intent.
    #[error("the intent {name:?} stands for another request")]
    IntentChanged {
        /// The intent's name.
        name: String,
    },
    /// A rule of the ledger said no, and that is recorded: nothing moved, and nothing ever will under this intent.
    #[error("rejected: {problem}")]
    Rejected {
        /// Which rule, and why.
        problem: Box<Problem>,
        /// Whether it was said before, to an earlier attempt.
        replayed: bool,
    },
    /// The request was not carried out *this time*: its key or its body isn't right, the API key isn't, or something between here
    /// and the service answered. An earlier attempt that went unanswered may still have taken effect, so put the cause right and
    /// send the same intent again.
    #[error("refused with status {status}{}", .problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default())]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Why; none where the answer is not the service's.
        problem: Option<Box<Problem>>,
    },
    /// Attempts or time are used up, and whether the request took effect is not known. The same intent again finds out.
    #[error("unresolved after {attempts} attempts")]
    Unresolved {
        /// How many requests were sent.
        attempts: u32,
        /// How long the service asked to be left alone.
        retry_after: Option<Duration>,
        /// What became of the last one.
        #[source]
        last: Fault,
    },
    /// The intent has no final answer yet, so its key may not be forgotten: a new one could do the same again.
    #[error("the intent {name:?} has no final answer yet")]
    Unsettled {
        /// The intent's name.
        name: String,
    },
}

/// What kept an attempt from a final answer.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The attempt's time was over.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection was refused or broke, before the answer or within it.
    #[error("no whole answer")]
    Transport(#[source] reqwest::Error),
    /// The service asks for the same again, or can't answer.
    #[error("answered with status {status}{}", .problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default())]
    Status {
        /// The HTTP status.
        status: u16,
        /// Why; none where the answer is not the service's.
        problem: Option<Box<Problem>>,
    },
    /// The status says that it is done, but the body is not what belongs to it.
    #[error("answered with status {status} and a body that can't be read")]
    Unreadable {
        /// The HTTP status.
        status: u16,
    },
    /// The operation that is waited for still runs.
    #[error("the operation still runs")]
    Processing,
}

/// Why one attempt is not the call's answer.
#[derive(Debug)]
pub(crate) enum Miss {
    /// No other attempt can change it.
    Final(Error),
    /// Another attempt can, but not before the pause.
    Again(Fault, Option<Duration>),
}

impl From<reqwest::Error> for Miss {
    fn from(error: reqwest::Error) -> Self {
        // The address is the caller's own; in a log it is one thing more that needn't be there.
        Self::Again(Fault::Transport(error.without_url()), None)
    }
}
