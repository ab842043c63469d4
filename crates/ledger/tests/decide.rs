//! `decide` against a naive model of the same rules, kept in wide integers and written the other way round.

#![allow(clippy::unwrap_used, reason = "a test stops where its own set-up fails")]

use std::collections::BTreeMap;

use ledger::{
    AccountId, AccountStatus, Amount, Balance, Book, BookAccount, Currency, Effects, Environment, MAX_MINOR_UNITS,
    Operation, PostTransfer, PrincipalId, Rejection, Scope, Shard, TenantId, TransferId, decide,
};
use proptest::prelude::*;
use time::OffsetDateTime;
use uuid::Uuid;

const ACCOUNTS: usize = 6;

/// An account of the model: the same facts in i128, where nothing overflows.
#[derive(Clone, Debug)]
struct Naive {
    mine: bool,
    euro: bool,
    status: AccountStatus,
    floor: Option<i128>,
    ceiling: Option<i128>,
    posted: i128,
    held: i128,
}

fn minor_units() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -200_i64..200, 1 => Just(MAX_MINOR_UNITS), 1 => Just(-MAX_MINOR_UNITS), 1 => MAX_MINOR_UNITS - 200..MAX_MINOR_UNITS]
}

fn account() -> impl Strategy<Value = Naive> {
    let status = prop_oneof![
        8 => Just(AccountStatus::Open), 1 => Just(AccountStatus::Frozen), 1 => Just(AccountStatus::Closed)
    ];
    let limit = || prop::option::of(minor_units().prop_map(i128::from));
    (prop::bool::weighted(0.9), prop::bool::weighted(0.9), status, limit(), limit(), minor_units(), 0_i64..100)
        .prop_map(|(mine, euro, status, floor, ceiling, posted, held)| Naive {
            mine,
            euro,
            status,
            floor,
            ceiling,
            posted: posted.into(),
            held: held.into(),
        })
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 1_i64..150, 1 => Just(MAX_MINOR_UNITS), 1 => MAX_MINOR_UNITS - 200..MAX_MINOR_UNITS]
}

fn id(index: usize) -> AccountId {
    AccountId(Uuid::from_u128(u128::try_from(index).unwrap() + 1))
}

/// What the rules say, or `None` where the transfer is posted.
fn expected(
    accounts: &BTreeMap<usize, Naive>,
    source: usize,
    destination: usize,
    amount: i128,
) -> Option<&'static str> {
    if source == destination {
        return Some("same account");
    }
    let legs = [source, destination];
    if legs.iter().any(|leg| !accounts.get(leg).is_some_and(|account| account.mine)) {
        return Some("not found");
    }
    let legs = legs.map(|leg| accounts[&leg].clone());
    match legs.iter().map(|leg| leg.status).find(|status| *status != AccountStatus::Open) {
        Some(AccountStatus::Frozen) => return Some("frozen"),
        Some(_) => return Some("closed"),
        None => {}
    }
    if legs.iter().any(|leg| !leg.euro) {
        return Some("currency");
    }
    let [source, destination] = legs;
    let most = i128::from(MAX_MINOR_UNITS);
    if source.posted - amount < -most {
        return Some("limit");
    }
    if source.floor.is_some_and(|floor| source.posted - source.held - amount < floor) {
        return Some("funds");
    }
    (destination.posted + amount > destination.ceiling.unwrap_or(most).min(most)).then_some("limit")
}

fn name(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::AccountNotFound { .. } => "not found",
        Rejection::SameAccount { .. } => "same account",
        Rejection::CurrencyMismatch { .. } => "currency",
        Rejection::InsufficientFunds { .. } => "funds",
        Rejection::BalanceLimitExceeded { .. } => "limit",
        Rejection::AccountFrozen { .. } => "frozen",
        Rejection::AccountClosed { .. } => "closed",
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_batch_comes_to_what_the_naive_model_says(
        accounts in prop::collection::vec(account(), ACCOUNTS),
        asked in prop::collection::vec((0..ACCOUNTS + 1, 0..ACCOUNTS + 1, amount()), 1..40),
    ) {
        let (tenant, stranger) = (TenantId::fresh(), TenantId::fresh());
        let scope = Scope { tenant, principal: PrincipalId::fresh(), environment: Environment::Live, shard: Shard(0) };
        let currency = |euro: bool| Currency::parse(if euro { "EUR" } else { "JPY" }).unwrap();
        let narrow = |value: i128| Balance::new(i64::try_from(value).unwrap()).unwrap();
        let mut book = Book::default();
        let mut model = BTreeMap::new();
        for (index, naive) in accounts.into_iter().enumerate() {
            book.add(BookAccount {
                id: id(index),
                tenant: if naive.mine { tenant } else { stranger },
                environment: Environment::Live,
                currency: currency(naive.euro),
                status: naive.status,
                min_balance: naive.floor.map(narrow),
                max_balance: naive.ceiling.map(narrow),
                posted: narrow(naive.posted),
                held: narrow(naive.held),
                posting_count: 0,
            });
            model.insert(index, naive);
        }
        let before: i128 = model.values().map(|account| account.posted).sum();

        for (source, destination, amount) in asked {
            let operation = Operation::PostTransfer(PostTransfer {
                id: TransferId::fresh(),
                source: id(source),
                destination: id(destination),
                amount: Amount::new(amount).unwrap(),
                currency: currency(true),
                description: None,
                metadata: None,
            });
            let outcome = decide(&book, &scope, &operation, OffsetDateTime::UNIX_EPOCH);
            let wanted = expected(&model, source, destination, amount.into());
            prop_assert_eq!(outcome.as_ref().err().map(name), wanted);
            if let Ok(effects) = &outcome {
                let Effects::TransferPosted { debit, credit, .. } = effects else { panic!("an account was opened") };
                prop_assert_eq!(debit.amount + credit.amount, 0, "I1");
                book.apply(effects);
                model.get_mut(&source).unwrap().posted -= i128::from(amount);
                model.get_mut(&destination).unwrap().posted += i128::from(amount);
            }
        }

        for (index, account) in &model {
            prop_assert_eq!(i128::from(book.account(id(*index)).unwrap().posted.minor_units()), account.posted, "I2");
        }
        prop_assert_eq!(model.values().map(|account| account.posted).sum::<i128>(), before, "I1");
    }
}

#[test]
fn the_other_environment_of_the_same_tenant_is_no_account_of_the_scope() {
    let tenant = TenantId::fresh();
    let scope = Scope { tenant, principal: PrincipalId::fresh(), environment: Environment::Test, shard: Shard(0) };
    let euro = Currency::parse("EUR").unwrap();
    let mut book = Book::default();
    for (index, environment) in [(0, Environment::Test), (1, Environment::Live)] {
        book.add(BookAccount {
            id: id(index),
            tenant,
            environment,
            currency: euro,
            status: AccountStatus::Open,
            min_balance: None,
            max_balance: None,
            posted: Balance::ZERO,
            held: Balance::ZERO,
            posting_count: 0,
        });
    }
    let operation = Operation::PostTransfer(PostTransfer {
        id: TransferId::fresh(),
        source: id(0),
        destination: id(1),
        amount: Amount::new(1).unwrap(),
        currency: euro,
        description: None,
        metadata: None,
    });
    let outcome = decide(&book, &scope, &operation, OffsetDateTime::UNIX_EPOCH);
    assert_eq!(outcome, Err(Rejection::AccountNotFound { account: id(1) }));
}
