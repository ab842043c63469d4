//! A client of Oncepost's HTTP API that can be asked as often as the caller likes, and moves money once.
//!
//! An **intent** is one thing that the caller wants done once, under a name of its own choice, such as an order's number. The
//! first time that an intent is sent, the client makes an idempotency key, and puts the key and the exact bytes of the request
//! into a [`Store`] before anything goes out. Every later attempt, also that of another process after a crash, sends the same
//! key and the same bytes.
//!
//! ```no_run
//! use client::{ApiKey, Client, FileStore, Outcome, PostTransfer};
//!
//! # async fn pay(customer: uuid::Uuid, merchant: uuid::Uuid) -> Result<(), client::Error> {
//! let api_key = ApiKey::new(std::env::var("ONCEPOST_KEY").unwrap_or_default());
//! let client = Client::builder("https://ledger.example", api_key, FileStore::open("/var/lib/shop/intents")?).build()?;
//!
//! let mut intent = client.intent("order-42");
//! let transfer = PostTransfer::new(customer, merchant, 12_50, "EUR");
//! if let Outcome::Done(answer) = intent.post_transfer(&transfer).await? {
//!     println!("order 42 is paid by {}", answer.value.id); // Here the shop records it, and commits.
//!     intent.forget().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is tried again
//!
//! | what came | what the client does |
//! |---|---|
//! | no answer, or half of one: refused, reset, timed out | the same again: it may have taken effect, and the key makes that harmless |
//! | a problem of the type `request-in-progress` | the same again: the first attempt still runs |
//! | 429, 503 | the same again, not before `Retry-After` |
//! | 500, and every other 5xx | the same again: nothing was recorded, or a proxy answered that can't know |
//! | 200, 201 or 202 whose body can't be read | the same again: the replay will have it |
//! | 422 of a ledger's rule | nothing: [`Error::Rejected`] is final, and recorded |
//! | every other answer | nothing: [`Error::Refused`] |
//!
//! It waits a random part of an exponentially growing pause between attempts, and ends with [`Error::Unresolved`] when the
//! [`Policy`]'s attempts or time are used up. That is no failure: whether it took effect is not known. The same intent, sent
//! again at any later time, finds out.
//!
//! # Why the caller forgets, and not the client
//!
//! A final answer is not the end: the caller still has to record it, and may crash before it has. If the client removed the key
//! as soon as the answer came, a restarted caller would find no answer and no key, make a new one, and pay twice. So the entry
//! stays until [`Intent::forget`], which belongs *after* the caller's own commit. A crash in between costs one request: the
//! same intent is answered with the first answer, marked as [replayed](Answer::replayed).

mod client;
#[cfg(test)]
mod document;
mod error;
mod intent;
mod key;
mod problem;
mod reply;
mod resource;
mod retry;
mod store;

pub use client::{Client, ClientBuilder};
pub use error::{Error, Fault};
pub use intent::{Answer, Intent, Outcome};
pub use key::{ApiKey, IdempotencyKey};
pub use problem::{Original, Problem, RequestFault};
pub use reqwest::header;
pub use resource::{
    Account, AccountStatus, Balance, OpenAccount, Operation, OperationResult, OperationStatus, PostTransfer, Transfer,
    TransferStatus,
};
pub use retry::Policy;
pub use store::{Entry, FileStore, MemoryStore, Store, StoreError};
