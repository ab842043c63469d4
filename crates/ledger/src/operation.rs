//! Long-running work: accepted at once, done by whichever process comes to it, once.
//!
//! Accepting is an operation of the committer: it records the 202 and keeps the work, in one commit. Running it is another:
//! the work's own effects, the operation's end and the final outcome in place of the record's 202 commit together, so a
//! crash between the two leaves work that the next process finds.

use serde::{Deserialize, Serialize};
use sqlx::types::JsonValue;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::account::{AccountId, OpenAccount};
use crate::clock;
use crate::decide::Operation;
use crate::idempotency::{KeyHash, Response};
use crate::money::{Amount, Balance, Currency};
use crate::scope::{Scope, identifier};
use crate::text::{Metadata, Text};
use crate::transfer::{PostTransfer, TransferId};

identifier! {
    /// Names an accepted piece of work.
    OperationId
}

/// Work that a client wants to be accepted now and done later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptWork {
    /// The identifier that the operation will have; fresh for each request.
    pub id: OperationId,
    /// What is to be done.
    pub work: Box<Operation>,
    /// What the final answer tells of the request that asked for it.
    pub origin: Origin,
}

/// What the final answer to accepted work tells of the request that asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The route, as metrics and problems name it.
    pub endpoint: String,
    /// The request's id.
    pub request_id: Uuid,
}

/// Accepted work as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedWork {
    /// Names it.
    pub id: OperationId,
    /// How far it has come.
    pub status: OperationStatus,
    /// The parts that are done.
    pub done: i32,
    /// The parts that there are.
    pub total: i32,
    /// The final answer, where there is one and its bytes are still kept.
    pub result: Option<Response>,
    /// When it was accepted.
    pub created_at: OffsetDateTime,
    /// When its final outcome was decided.
    pub finished_at: Option<OffsetDateTime>,
}

/// How far accepted work has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationStatus {
    /// Accepted, and not yet done.
    Processing,
    /// Done.
    Succeeded,
    /// A rule of the ledger said no.
    Failed,
}

impl OperationStatus {
    /// The name used in columns and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Processing, Self::Succeeded, Self::Failed].into_iter().find(|status| status.name() == name)
    }
}

/// The final answer inside an operation.
#[derive(Serialize)]
struct ResultObject<'a> {
    status: u16,
    location: &'a Option<String>,
    /// The answer's own body, member for member.
    body: JsonValue,
}

/// The operation as clients see it, member for member.
#[derive(Serialize)]
struct OperationObject<'a> {
    id: OperationId,
    object: &'static str,
    status: OperationStatus,
    done: i32,
    total: i32,
    result: Option<ResultObject<'a>>,
    #[serde(serialize_with = "clock::serialize")]
    created_at: OffsetDateTime,
    finished_at: Option<String>,
}

impl Serialize for AcceptedWork {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let result = self.result.as_ref().map(|response| ResultObject {
            status: response.status,
            location: &response.location,
            // What is stored was written as JSON.
            body: serde_json::from_slice(&response.body).unwrap_or_default(),
        });
        OperationObject {
            id: self.id,
            object: "operation",
            status: self.status,
            done: self.done,
            total: self.total,
            result,
            created_at: self.created_at,
            finished_at: self.finished_at.map(clock::format),
        }
        .serialize(serializer)
    }
}

/// Accepted work that is not done, as the process that will do it finds it.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// Names it.
    pub id: OperationId,
    /// For whom it is done.
    pub scope: Scope,
    /// What is to be done.
    pub work: Operation,
    /// What the final answer tells of the request that asked for it.
    pub origin: Origin,
    /// The records whose 202 the final outcome replaces.
    pub(crate) key_hashes: Vec<KeyHash>,
}

/// Work in the form in which it waits. It was valid when it was accepted, and is not judged again by the rules of a later
/// version: what was accepted is done. Work with a member that this version does not know is left to the version that wrote
/// it: done without that member, it would be done wrong, and once.
#[derive(Serialize, Deserialize)]
#[serde(tag = "operation", deny_unknown_fields)]
pub(crate) enum StoredWork {
    #[serde(rename = "account.open")]
    OpenAccount {
        id: AccountId,
        currency: String,
        name: Option<String>,
        min_balance: Option<i64>,
        max_balance: Option<i64>,
        metadata: Option<JsonValue>,
    },
    #[serde(rename = "transfer.post")]
    PostTransfer {
        id: TransferId,
        source: AccountId,
        destination: AccountId,
        amount: i64,
        currency: String,
        description: Option<String>,
        metadata: Option<JsonValue>,
    },
}

fn text<const MAX: usize>(text: &Option<Text<MAX>>) -> Option<String> {
    text.as_ref().map(|text| text.as_str().to_owned())
}

fn members(metadata: &Option<Metadata>) -> Option<JsonValue> {
    // Members with texts as names and values have no way to fail.
    metadata.as_ref().and_then(|metadata| serde_json::to_value(metadata).ok())
}

impl StoredWork {
    /// `None` for what is not done later.
    pub(crate) fn of(work: &Operation) -> Option<Self> {
        match work {
            Operation::OpenAccount(open) => Some(Self::OpenAccount {
                id: open.id,
                currency: open.currency.code().to_owned(),
                name: text(&open.name),
                min_balance: open.min_balance.map(Balance::minor_units),
                max_balance: open.max_balance.map(Balance::minor_units),
                metadata: members(&open.metadata),
            }),
            Operation::PostTransfer(transfer) => Some(Self::PostTransfer {
                id: transfer.id,
                source: transfer.source,
                destination: transfer.destination,
                amount: transfer.amount.minor_units(),
                currency: transfer.currency.code().to_owned(),
                description: text(&transfer.description),
                metadata: members(&transfer.metadata),
            }),
            Operation::AcceptWork(_) => None,
        }
    }

    /// The work again; `None` where no version has written this.
    pub(crate) fn restore(self) -> Option<Operation> {
        fn restored<T, U>(stored: Option<T>, restore: impl FnOnce(T) -> Option<U>) -> Option<Option<U>> {
            stored.map_or(Some(None), |stored| restore(stored).map(Some))
        }
        Some(match self {
            Self::OpenAccount { id, currency, name, min_balance, max_balance, metadata } => {
                Operation::OpenAccount(OpenAccount {
                    id,
                    currency: Currency::parse(&currency)?,
                    name: name.map(Text::from_stored),
                    min_balance: restored(min_balance, Balance::new)?,
                    max_balance: restored(max_balance, Balance::new)?,
                    metadata: restored(metadata, |members| Metadata::from_stored(members).ok())?,
                })
            }
            Self::PostTransfer { id, source, destination, amount, currency, description, metadata } => {
                Operation::PostTransfer(PostTransfer {
                    id,
                    source,
                    destination,
                    amount: Amount::new(amount)?,
                    currency: Currency::parse(&currency)?,
                    description: description.map(Text::from_stored),
                    metadata: restored(metadata, |members| Metadata::from_stored(members).ok())?,
                })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_comes_back_as_it_was_kept() {
        let transfer = Operation::PostTransfer(PostTransfer {
            id: TransferId::fresh(),
            source: AccountId::fresh(),
            destination: AccountId::fresh(),
            amount: Amount::new(1).unwrap(),
            currency: Currency::parse("EUR").unwrap(),
            description: Some(Text::new("a text\nof two lines".to_owned()).unwrap()),
            metadata: Some(Metadata::new([("order".to_owned(), "42".to_owned())].into()).unwrap()),
        });
        let account = Operation::OpenAccount(OpenAccount {
            id: AccountId::fresh(),
            currency: Currency::parse("JPY").unwrap(),
            name: None,
            min_balance: None,
            max_balance: Balance::new(5),
            metadata: None,
        });
        for work in [transfer, account] {
            let kept = serde_json::to_string(&StoredWork::of(&work).unwrap()).unwrap();
            let found: StoredWork = serde_json::from_str(&kept).unwrap();
            assert_eq!(found.restore(), Some(work));
            let later = kept.replacen('{', r#"{"of_a_later_version":null,"#, 1);
            assert!(serde_json::from_str::<StoredWork>(&later).is_err(), "{later}");
        }
    }
}
