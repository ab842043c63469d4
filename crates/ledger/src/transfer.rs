//! Transfers: money that moves from a source, which is debited, to a destination, which is credited.

use serde::Serialize;
use time::OffsetDateTime;

use crate::account::AccountId;
use crate::clock;
use crate::money::{Amount, Balance, Currency};
use crate::scope::{Environment, TenantId, identifier};
use crate::text::{Description, Metadata};

identifier! {
    /// Names a transfer.
    TransferId
}

/// What a client asks for when money is to move at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostTransfer {
    /// The identifier that the transfer will have; fresh for each request.
    pub id: TransferId,
    /// Debited.
    pub source: AccountId,
    /// Credited.
    pub destination: AccountId,
    /// How much, in minor units.
    pub amount: Amount,
    /// The currency of both accounts.
    pub currency: Currency,
    /// A text for people.
    pub description: Option<Description>,
    /// Members for the client's own use.
    pub metadata: Option<Metadata>,
}

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferStatus {
    /// Its postings stand in the books.
    Posted,
}

/// A transfer that stands in the books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Names it.
    pub id: TransferId,
    /// Who owns both accounts.
    pub tenant: TenantId,
    /// The side of the wall of both accounts.
    pub environment: Environment,
    /// Debited.
    pub source: AccountId,
    /// Credited.
    pub destination: AccountId,
    /// How much, in minor units.
    pub amount: Amount,
    /// The currency of both accounts.
    pub currency: Currency,
    /// A text for people.
    pub description: Option<Description>,
    /// Members for the client's own use.
    pub metadata: Option<Metadata>,
    /// When it was decided.
    pub created_at: OffsetDateTime,
}

/// The transfer as clients and events carry it, member for member.
#[derive(Serialize)]
struct TransferObject<'a> {
    id: TransferId,
    object: &'static str,
    status: TransferStatus,
    source_account_id: AccountId,
    destination_account_id: AccountId,
    amount: Amount,
    currency: Currency,
    description: &'a Option<Description>,
    metadata: &'a Option<Metadata>,
    #[serde(serialize_with = "clock::serialize")]
    created_at: OffsetDateTime,
}

impl Serialize for Transfer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TransferObject {
            id: self.id,
            object: "transfer",
            status: TransferStatus::Posted,
            source_account_id: self.source,
            destination_account_id: self.destination,
            amount: self.amount,
            currency: self.currency,
            description: &self.description,
            metadata: &self.metadata,
            created_at: self.created_at,
        }
        .serialize(serializer)
    }
}

/// One leg of a transfer: a debit is negative, a credit positive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Posting {
    /// The account that it changes.
    pub account_id: AccountId,
    /// Counts the account's postings from 1, without a gap.
    pub sequence: i64,
    /// The transfer that it is a leg of.
    pub transfer_id: TransferId,
    /// Signed, in minor units.
    pub amount: i64,
    /// The account's posted balance after this posting (I2).
    pub balance_after: Balance,
    /// When the transfer was decided.
    #[serde(serialize_with = "clock::serialize")]
    pub created_at: OffsetDateTime,
}
