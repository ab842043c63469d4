//! Money and SQL: accounts, transfers, postings, idempotency records, the outbox, the committer and the audit.
//!
//! [`Ledger::submit`] is the only way anything changes; [`mod@committer`] tells how it commits. All SQL text of the
//! workspace stands in this crate.

mod account;
mod audit;
mod clock;
mod committer;
mod database;
mod decide;
pub mod failpoint;
mod idempotency;
mod ledger;
mod money;
pub mod outbox;
pub mod principal;
mod query;
mod scope;
mod submission;
mod text;
mod transfer;

pub use account::{Account, AccountId, AccountStatus, OpenAccount};
pub use audit::{Audit, Finding};
pub use clock::format as format_time;
pub use database::{Database, DatabaseError};
pub use decide::{Book, BookAccount, Effects, Operation, Rejection, decide};
pub use idempotency::{Answer, Fingerprint, IdempotencyKey, KeyHash, Original, Response, Secret, SecretError, Secrets};
pub use ledger::{Ledger, OpenError, Settings};
pub use money::{Amount, Balance, Currency, MAX_MINOR_UNITS};
pub use query::{Page, PostingPage, ReadError, TransferCursor, TransferFilter};
pub use scope::{Environment, PrincipalId, Scope, Shard, TenantId};
pub use submission::{Outcome, Render, Submission, SubmitError};
pub use text::{Description, Metadata, Name, Text, TextError};
pub use transfer::{PostTransfer, Posting, Transfer, TransferId, TransferStatus};
