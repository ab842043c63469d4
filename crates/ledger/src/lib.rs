//! Money and SQL: accounts, transfers, postings, idempotency records, the outbox, the committer and the audit.
//!
//! [`Ledger::submit`] is the only way anything changes; [`mod@committer`] tells how it commits. All SQL text of the
//! workspace stands in this crate.

mod account;
mod attempts;
mod audit;
mod clock;
mod committer;
mod database;
mod decide;
pub mod failpoint;
mod idempotency;
mod inspection;
mod ledger;
pub mod metric;
mod money;
mod observation;
mod operation;
pub mod outbox;
pub mod principal;
mod query;
mod retention;
mod scope;
mod secret_registry;
mod submission;
mod text;
pub mod trace;
mod transfer;
pub mod volume;

pub use account::{Account, AccountId, AccountStatus, OpenAccount};
pub use audit::{Audit, Finding};
pub use clock::format as format_time;
pub use database::{Database, DatabaseError};
pub use decide::{Book, BookAccount, Effects, Operation, Rejection, decide};
pub use idempotency::{
    Answer, Fingerprint, IdempotencyKey, KeyHash, Original, Response, SealedKey, Secret, SecretError, Secrets,
};
pub use inspection::{Configured, Inspection, KeptRecord, NotedSecret, UnfinishedOperation};
pub use ledger::{KeyState, KeyUse, Ledger, OpenError, Sessions, Settings};
pub use money::{Amount, Balance, Currency, MAX_MINOR_UNITS};
pub use operation::{AcceptWork, AcceptedWork, OperationId, OperationStatus, Origin, Unfinished};
pub use query::{Page, PostingPage, ReadError, TransferCursor, TransferFilter, UnfinishedCursor};
pub use retention::{Kept, Retention};
pub use scope::{Environment, PrincipalId, Scope, Shard, TenantId};
pub use secret_registry::SecretFault;
pub use submission::{Outcome, Render, StagedFault, Submission, SubmitError};
pub use text::{Description, Metadata, Name, Text, TextError};
pub use transfer::{PostTransfer, Posting, Transfer, TransferId, TransferStatus};
