//! Accounts: where money stands.

use serde::Serialize;
use time::OffsetDateTime;

use crate::clock;
use crate::money::{Balance, Currency};
use crate::scope::{Environment, TenantId, identifier};
use crate::text::{Metadata, Name};

identifier! {
    /// Names an account.
    AccountId
}

/// Whether an account takes part in transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountStatus {
    /// Takes part.
    Open,
    /// Takes part in nothing until it is unfrozen.
    Frozen,
    /// Takes part in nothing any more.
    Closed,
}

impl AccountStatus {
    /// The name used in columns and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Frozen => "frozen",
            Self::Closed => "closed",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Open, Self::Frozen, Self::Closed].into_iter().find(|status| status.name() == name)
    }
}

/// What the owner asks for when an account is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenAccount {
    /// The identifier that the account will have; fresh for each request.
    pub id: AccountId,
    /// The one currency that it holds.
    pub currency: Currency,
    /// A name for people.
    pub name: Option<Name>,
    /// The floor of `available`; `None` for the outside world, from which money enters.
    pub min_balance: Option<Balance>,
    /// The ceiling of `posted`.
    pub max_balance: Option<Balance>,
    /// Members for the owner's own use.
    pub metadata: Option<Metadata>,
}

/// An account with its balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Names it.
    pub id: AccountId,
    /// Who owns it.
    pub tenant: TenantId,
    /// Its side of the wall.
    pub environment: Environment,
    /// The one currency that it holds.
    pub currency: Currency,
    /// Whether it takes part in transfers.
    pub status: AccountStatus,
    /// A name for people.
    pub name: Option<Name>,
    /// The floor of `available`, if there is one.
    pub min_balance: Option<Balance>,
    /// The ceiling of `posted`, if there is one.
    pub max_balance: Option<Balance>,
    /// The sum of its postings (I2).
    pub posted: Balance,
    /// What open holds keep from being spent.
    pub held: Balance,
    /// The number of its postings.
    pub posting_count: i64,
    /// Members for the owner's own use.
    pub metadata: Option<Metadata>,
    /// When it was opened.
    pub created_at: OffsetDateTime,
}

impl Account {
    /// What can be spent down to the floor: `posted` less `held`.
    pub fn available(&self) -> i64 {
        self.posted.minor_units().saturating_sub(self.held.minor_units())
    }
}

#[derive(Serialize)]
struct BalanceObject {
    posted: Balance,
    held: Balance,
    available: i64,
}

/// The account as clients see it, member for member.
#[derive(Serialize)]
struct AccountObject<'a> {
    id: AccountId,
    object: &'static str,
    name: &'a Option<Name>,
    currency: Currency,
    status: AccountStatus,
    min_balance: Option<Balance>,
    max_balance: Option<Balance>,
    balance: BalanceObject,
    metadata: &'a Option<Metadata>,
    #[serde(serialize_with = "clock::serialize")]
    created_at: OffsetDateTime,
}

impl Serialize for Account {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        AccountObject {
            id: self.id,
            object: "account",
            name: &self.name,
            currency: self.currency,
            status: self.status,
            min_balance: self.min_balance,
            max_balance: self.max_balance,
            balance: BalanceObject { posted: self.posted, held: self.held, available: self.available() },
            metadata: &self.metadata,
            created_at: self.created_at,
        }
        .serialize(serializer)
    }
}
