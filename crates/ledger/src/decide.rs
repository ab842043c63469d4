//! What the books allow. Pure: no I/O, no clock, no randomness, so that it can be tested against a naive model.

use std::collections::BTreeMap;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::account::{Account, AccountId, AccountStatus, OpenAccount};
use crate::money::{Balance, Currency};
use crate::operation::{AcceptWork, AcceptedWork, OperationStatus};
use crate::scope::{Environment, Scope, TenantId};
use crate::text::Metadata;
use crate::transfer::{PostTransfer, Posting, Transfer};

/// What a client asks of the ledger; everything in it is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opens an account.
    OpenAccount(OpenAccount),
    /// Moves money at once.
    PostTransfer(PostTransfer),
    /// Takes work on, to be done later.
    AcceptWork(AcceptWork),
}

impl Operation {
    /// The name kept in the idempotency record: accepted work has the name of what it will do.
    pub fn name(&self) -> &'static str {
        match self {
            Self::OpenAccount(_) => "account.open",
            Self::PostTransfer(_) => "transfer.post",
            Self::AcceptWork(accept) => accept.work.name(),
        }
    }

    /// The id of what the operation makes. It is fresh for each request, so it also names the stored answer.
    pub(crate) const fn id(&self) -> Uuid {
        match self {
            Self::OpenAccount(open) => open.id.0,
            Self::PostTransfer(transfer) => transfer.id.0,
            Self::AcceptWork(accept) => accept.id.0,
        }
    }

    /// About how many bytes the operation keeps in memory, for the bound of the queue.
    pub(crate) fn weight(&self) -> usize {
        /// Ids, hashes and the rendered answer without free text.
        const FIXED: usize = 1_024;
        let metadata = |metadata: &Option<Metadata>| {
            let members = metadata.iter().flat_map(|metadata| metadata.members());
            members.map(|(name, value)| name.len().saturating_add(value.len())).sum::<usize>()
        };
        let text = match self {
            Self::OpenAccount(open) => {
                open.name.as_ref().map_or(0, |name| name.as_str().len()).saturating_add(metadata(&open.metadata))
            }
            Self::PostTransfer(transfer) => {
                let description = transfer.description.as_ref().map_or(0, |text| text.as_str().len());
                description.saturating_add(metadata(&transfer.metadata))
            }
            Self::AcceptWork(accept) => accept.work.weight(),
        };
        FIXED.saturating_add(text)
    }

    /// The accounts whose rows `decide` needs, in no order.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = AccountId> {
        match self {
            Self::OpenAccount(_) | Self::AcceptWork(_) => [None, None],
            Self::PostTransfer(transfer) => [Some(transfer.source), Some(transfer.destination)],
        }
        .into_iter()
        .flatten()
    }
}

/// A rule of the ledger said no. Recorded under the key, and final for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No account of this tenant and environment has the id.
    AccountNotFound {
        /// The id as asked for.
        account: AccountId,
    },
    /// Source and destination are one account.
    SameAccount {
        /// The account.
        account: AccountId,
    },
    /// The account holds another currency than the transfer names.
    CurrencyMismatch {
        /// The account.
        account: AccountId,
        /// What it holds.
        holds: Currency,
        /// What the transfer names.
        asked: Currency,
    },
    /// The source's `available` would pass below its `min_balance`.
    InsufficientFunds {
        /// The source.
        account: AccountId,
    },
    /// A balance would pass above `max_balance`, or leave ± [`crate::MAX_MINOR_UNITS`].
    BalanceLimitExceeded {
        /// The account.
        account: AccountId,
    },
    /// The account is frozen.
    AccountFrozen {
        /// The account.
        account: AccountId,
    },
    /// The account is closed.
    AccountClosed {
        /// The account.
        account: AccountId,
    },
}

impl Rejection {
    /// The rule that said no, in the words of the problem that clients get.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AccountNotFound { .. } => "account-not-found",
            Self::SameAccount { .. } => "same-account",
            Self::CurrencyMismatch { .. } => "currency-mismatch",
            Self::InsufficientFunds { .. } => "insufficient-funds",
            Self::BalanceLimitExceeded { .. } => "balance-limit-exceeded",
            Self::AccountFrozen { .. } => "account-frozen",
            Self::AccountClosed { .. } => "account-closed",
        }
    }
}

/// What an operation does to the book if the book allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effects {
    /// A new account.
    AccountOpened(Account),
    /// Work that waits to be done.
    WorkAccepted(AcceptedWork),
    /// A transfer with its two postings, the debit first. They sum to zero (I1).
    TransferPosted {
        /// The transfer.
        transfer: Transfer,
        /// The leg of the source.
        debit: Posting,
        /// The leg of the destination.
        credit: Posting,
    },
}

/// What `decide` reads of an account: columns of a locked row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookAccount {
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
    /// The floor of `posted` less `held`, if there is one.
    pub min_balance: Option<Balance>,
    /// The ceiling of `posted`, if there is one.
    pub max_balance: Option<Balance>,
    /// The sum of its postings (I2).
    pub posted: Balance,
    /// What open holds keep from being spent.
    pub held: Balance,
    /// The number of its postings.
    pub posting_count: i64,
}

/// The locked rows that `decide` works on. What is not in it does not exist.
#[derive(Debug, Default)]
pub struct Book {
    accounts: BTreeMap<AccountId, Entry>,
}

#[derive(Debug)]
struct Entry {
    account: BookAccount,
    changed: bool,
}

impl Book {
    /// Adds a locked row.
    pub fn add(&mut self, account: BookAccount) {
        self.accounts.insert(account.id, Entry { account, changed: false });
    }

    /// The account as the operations so far have left it.
    pub fn account(&self, id: AccountId) -> Option<&BookAccount> {
        self.accounts.get(&id).map(|entry| &entry.account)
    }

    /// Whether no row was locked.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// The accounts whose balances the operations so far have changed, in the order of their ids.
    pub fn changed(&self) -> impl Iterator<Item = &BookAccount> {
        self.accounts.values().filter(|entry| entry.changed).map(|entry| &entry.account)
    }

    /// Lets the effects stand, so that the next operation of the batch sees them. An account that was just opened is in
    /// no book: its id is known to no one before the batch has committed.
    pub fn apply(&mut self, effects: &Effects) {
        match effects {
            Effects::AccountOpened(_) | Effects::WorkAccepted(_) => {}
            Effects::TransferPosted { debit, credit, .. } => {
                for posting in [debit, credit] {
                    if let Some(entry) = self.accounts.get_mut(&posting.account_id) {
                        entry.account.posted = posting.balance_after;
                        entry.account.posting_count = posting.sequence;
                        entry.changed = true;
                    }
                }
            }
        }
    }

    /// An account that the scope may touch; another tenant's or environment's is as good as none (I9).
    fn find(&self, id: AccountId, scope: &Scope) -> Result<&BookAccount, Rejection> {
        self.account(id)
            .filter(|account| account.tenant == scope.tenant && account.environment == scope.environment)
            .ok_or(Rejection::AccountNotFound { account: id })
    }
}

/// Decides one operation. Rules are tried in a fixed order, so that an answer never depends on the order of rows: one
/// account, existence, state, currency, the source's funds, the destination's limits; source before destination.
///
/// # Errors
/// The first rule that says no.
pub fn decide(book: &Book, scope: &Scope, operation: &Operation, now: OffsetDateTime) -> Result<Effects, Rejection> {
    match operation {
        Operation::OpenAccount(open) => Ok(open_account(scope, open, now)),
        Operation::PostTransfer(transfer) => post_transfer(book, scope, transfer, now),
        Operation::AcceptWork(accept) => Ok(Effects::WorkAccepted(AcceptedWork {
            id: accept.id,
            status: OperationStatus::Processing,
            done: 0,
            total: 1,
            result: None,
            created_at: now,
            finished_at: None,
        })),
    }
}

fn open_account(scope: &Scope, open: &OpenAccount, now: OffsetDateTime) -> Effects {
    Effects::AccountOpened(Account {
        id: open.id,
        tenant: scope.tenant,
        environment: scope.environment,
        currency: open.currency,
        status: AccountStatus::Open,
        name: open.name.clone(),
        min_balance: open.min_balance,
        max_balance: open.max_balance,
        posted: Balance::ZERO,
        held: Balance::ZERO,
        posting_count: 0,
        metadata: open.metadata.clone(),
        created_at: now,
    })
}

fn post_transfer(book: &Book, scope: &Scope, asked: &PostTransfer, now: OffsetDateTime) -> Result<Effects, Rejection> {
    if asked.source == asked.destination {
        return Err(Rejection::SameAccount { account: asked.source });
    }
    let source = book.find(asked.source, scope)?;
    let destination = book.find(asked.destination, scope)?;
    for account in [source, destination] {
        match account.status {
            AccountStatus::Open => {}
            AccountStatus::Frozen => return Err(Rejection::AccountFrozen { account: account.id }),
            AccountStatus::Closed => return Err(Rejection::AccountClosed { account: account.id }),
        }
    }
    for account in [source, destination] {
        if account.currency != asked.currency {
            return Err(Rejection::CurrencyMismatch {
                account: account.id,
                holds: account.currency,
                asked: asked.currency,
            });
        }
    }
    let limit = |account: &BookAccount| Rejection::BalanceLimitExceeded { account: account.id };

    let source_after = source.posted.debit(asked.amount).ok_or_else(|| limit(source))?;
    if let Some(floor) = source.min_balance {
        // The two balances are within 2^53, so their difference is within i64.
        let available = source_after.minor_units().saturating_sub(source.held.minor_units());
        if available < floor.minor_units() {
            return Err(Rejection::InsufficientFunds { account: source.id });
        }
    }
    let destination_after = destination.posted.credit(asked.amount).ok_or_else(|| limit(destination))?;
    if destination.max_balance.is_some_and(|ceiling| destination_after > ceiling) {
        return Err(limit(destination));
    }

    let next_sequence = |account: &BookAccount| account.posting_count.checked_add(1).ok_or_else(|| limit(account));
    let leg = |account: &BookAccount, amount: i64, balance_after| {
        Ok(Posting {
            account_id: account.id,
            sequence: next_sequence(account)?,
            transfer_id: asked.id,
            amount,
            balance_after,
            created_at: now,
        })
    };
    let amount = asked.amount.minor_units();
    let debit = leg(source, amount.checked_neg().ok_or_else(|| limit(source))?, source_after)?;
    let credit = leg(destination, amount, destination_after)?;
    let transfer = Transfer {
        id: asked.id,
        tenant: scope.tenant,
        environment: scope.environment,
        source: asked.source,
        destination: asked.destination,
        amount: asked.amount,
        currency: asked.currency,
        description: asked.description.clone(),
        metadata: asked.metadata.clone(),
        created_at: now,
    };
    Ok(Effects::TransferPosted { transfer, debit, credit })
}
