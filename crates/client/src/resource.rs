//! What is sent and what comes back. Amounts are integers in minor units of their currency. Members that this version doesn't know
//! are ignored, and those that an earlier version of the service didn't send are unset.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::serde::rfc3339;
use uuid::Uuid;

/// What an account is opened with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OpenAccount {
    /// The alphabetic code of ISO 4217, in upper case.
    pub currency: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The floor of the available balance; none for an account without a floor. It is sent in any case, as the service takes an
    /// absent one for 0.
    pub min_balance: Option<i64>,
    /// The ceiling of the posted balance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_balance: Option<i64>,
    /// For the caller's own use. Card numbers don't belong here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

impl OpenAccount {
    /// An account that can't be overdrawn, without a name.
    pub fn new(currency: impl Into<String>) -> Self {
        Self { currency: currency.into(), name: None, min_balance: Some(0), max_balance: None, metadata: None }
    }
}

/// What is asked for when money is to move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PostTransfer {
    /// Is debited.
    pub source_account_id: Uuid,
    /// Is credited.
    pub destination_account_id: Uuid,
    /// In minor units.
    pub amount: i64,
    /// That of both accounts.
    pub currency: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// For the caller's own use. Card numbers don't belong here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

impl PostTransfer {
    /// A transfer without description or metadata.
    pub fn new(source: Uuid, destination: Uuid, amount: i64, currency: impl Into<String>) -> Self {
        Self {
            source_account_id: source,
            destination_account_id: destination,
            amount,
            currency: currency.into(),
            description: None,
            metadata: None,
        }
    }
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Account {
    /// Names the account.
    pub id: Uuid,
    /// A name for people.
    pub name: Option<String>,
    /// The alphabetic code of ISO 4217.
    pub currency: String,
    /// Whether it takes part in transfers.
    pub status: AccountStatus,
    /// The floor of the available balance.
    pub min_balance: Option<i64>,
    /// The ceiling of the posted balance.
    pub max_balance: Option<i64>,
    /// What stands on it.
    pub balance: Balance,
    /// What it was opened with.
    pub metadata: Option<BTreeMap<String, String>>,
    /// When it was opened.
    #[serde(with = "rfc3339")]
    pub created_at: OffsetDateTime,
}

/// What stands on an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Balance {
    /// The sum of the account's postings.
    pub posted: i64,
    /// What open holds keep from being spent.
    pub held: i64,
    /// `posted` less `held`.
    pub available: i64,
}

/// Whether an account takes part in transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AccountStatus {
    /// It does.
    Open,
    /// Not now.
    Frozen,
    /// Never again.
    Closed,
    /// Something that this version doesn't know.
    #[serde(other)]
    Unknown,
}

/// A transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Transfer {
    /// Names the transfer.
    pub id: Uuid,
    /// How far it has come.
    pub status: TransferStatus,
    /// Was debited.
    pub source_account_id: Uuid,
    /// Was credited.
    pub destination_account_id: Uuid,
    /// In minor units.
    pub amount: i64,
    /// That of both accounts.
    pub currency: String,
    /// For people.
    pub description: Option<String>,
    /// What it was sent with.
    pub metadata: Option<BTreeMap<String, String>>,
    /// When it was recorded.
    #[serde(with = "rfc3339")]
    pub created_at: OffsetDateTime,
}

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TransferStatus {
    /// The money has moved.
    Posted,
    /// Something that this version doesn't know.
    #[serde(other)]
    Unknown,
}

/// Work that was accepted, and outlives the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Operation {
    /// Names the operation.
    pub id: Uuid,
    /// How far it has come.
    pub status: OperationStatus,
    /// How many of its parts are done.
    pub done: u32,
    /// How many parts it has.
    pub total: u32,
    /// What came of it: none before its end, and none when the service no longer keeps the answer.
    pub result: Option<OperationResult>,
    /// When it was accepted.
    #[serde(with = "rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "rfc3339::option", default)]
    pub finished_at: Option<OffsetDateTime>,
}

/// The final answer of accepted work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperationResult {
    /// The HTTP status that the same intent is answered with from now on.
    pub status: u16,
    /// The resource that it made.
    pub location: Option<String>,
    /// The body: what was made, or a problem.
    pub body: serde_json::Value,
}

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OperationStatus {
    /// It still runs, or waits for its turn.
    Processing,
    /// It is done.
    Succeeded,
    /// It was rejected.
    Failed,
    /// Something that this version doesn't know.
    #[serde(other)]
    Unknown,
}
