//! The shapes of requests and answers for the OpenAPI document. The answers are written by `ledger`, which knows nothing
//! of HTTP; a test here compares what it writes with what is declared.
#![expect(dead_code, reason = "these types describe; nothing makes values of them")]

use std::collections::BTreeMap;

use ledger::Metadata;
use time::OffsetDateTime;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// What an account is opened with.
#[derive(ToSchema)]
pub(crate) struct OpenAccount {
    /// The alphabetic code of ISO 4217, in upper case.
    #[schema(example = "EUR")]
    currency: String,
    /// A name for people.
    #[schema(schema_with = text::<200>)]
    name: Option<String>,
    /// The floor of `available`, in minor units, not above 0: 0 unless given; null for no floor.
    #[schema(minimum = -9_007_199_254_740_991_i64, maximum = 0)]
    min_balance: Option<i64>,
    /// The ceiling of `posted`, in minor units, not below 0; null for none.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    max_balance: Option<i64>,
    /// Up to 20 members for the owner's own use; names up to 40 characters. Card numbers don't belong here.
    #[schema(schema_with = metadata)]
    metadata: Option<BTreeMap<String, String>>,
}

/// Whether an account takes part in transfers.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(crate) enum AccountStatus {
    Open,
    Frozen,
    Closed,
}

/// An account's balance in minor units.
#[derive(ToSchema)]
pub(crate) struct Balance {
    /// The sum of the account's postings.
    posted: i64,
    /// What open holds keep from being spent.
    held: i64,
    /// `posted` less `held`.
    available: i64,
}

/// An account.
#[derive(ToSchema)]
pub(crate) struct Account {
    id: Uuid,
    /// Always `account`.
    #[schema(pattern = "^account$")]
    object: String,
    #[schema(required)]
    name: Option<String>,
    #[schema(example = "EUR")]
    currency: String,
    #[schema(inline)]
    status: AccountStatus,
    /// The floor of `available`; null for none.
    #[schema(required)]
    min_balance: Option<i64>,
    /// The ceiling of `posted`; null for none.
    #[schema(required)]
    max_balance: Option<i64>,
    #[schema(inline)]
    balance: Balance,
    #[schema(required, schema_with = metadata)]
    metadata: Option<BTreeMap<String, String>>,
    /// UTC, to the microsecond.
    created_at: OffsetDateTime,
}

/// A page of accounts, newest first.
#[derive(ToSchema)]
pub(crate) struct AccountList {
    data: Vec<Account>,
    /// What to send as `cursor` for the next page; null after the last one.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// One leg of a transfer.
#[derive(ToSchema)]
pub(crate) struct Posting {
    account_id: Uuid,
    /// Counts the account's postings from 1, without a gap.
    sequence: i64,
    transfer_id: Uuid,
    /// In minor units: negative debits the account, positive credits it.
    amount: i64,
    /// The account's posted balance after this posting.
    balance_after: i64,
    created_at: OffsetDateTime,
}

/// A page of postings, newest first.
#[derive(ToSchema)]
pub(crate) struct PostingList {
    data: Vec<Posting>,
    /// What to send as `cursor` for the next page; null after the last one.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// What is asked for when money is to move.
#[derive(ToSchema)]
pub(crate) struct PostTransfer {
    /// The account that is debited.
    source_account_id: Uuid,
    /// The account that is credited.
    destination_account_id: Uuid,
    /// In minor units of the currency, as a JSON integer without fraction or exponent.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, example = 1250)]
    amount: i64,
    /// The alphabetic code of ISO 4217, in upper case; that of both accounts.
    #[schema(example = "EUR")]
    currency: String,
    /// A text for people. Card numbers don't belong here.
    #[schema(schema_with = text::<500>)]
    description: Option<String>,
    /// Up to 20 members for the client's own use; names up to 40 characters. Card numbers don't belong here.
    #[schema(schema_with = metadata)]
    metadata: Option<BTreeMap<String, String>>,
}

/// How far a transfer has come.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(crate) enum TransferStatus {
    Posted,
}

/// A transfer.
#[derive(ToSchema)]
pub(crate) struct Transfer {
    id: Uuid,
    /// Always `transfer`.
    #[schema(pattern = "^transfer$")]
    object: String,
    #[schema(inline)]
    status: TransferStatus,
    source_account_id: Uuid,
    destination_account_id: Uuid,
    /// In minor units of the currency.
    amount: i64,
    #[schema(example = "EUR")]
    currency: String,
    #[schema(required)]
    description: Option<String>,
    #[schema(required, schema_with = metadata)]
    metadata: Option<BTreeMap<String, String>>,
    /// UTC, to the microsecond.
    created_at: OffsetDateTime,
}

/// A page of transfers, newest first.
#[derive(ToSchema)]
pub(crate) struct TransferList {
    data: Vec<Transfer>,
    /// What to send as `cursor` for the next page; null after the last one.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// How far accepted work has come.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(crate) enum OperationStatus {
    Processing,
    Succeeded,
    Failed,
}

/// The final answer of accepted work.
#[derive(ToSchema)]
pub(crate) struct OperationResult {
    /// The HTTP status that a retry of the request is answered with.
    status: u16,
    #[schema(required)]
    location: Option<String>,
    /// The body: what was made, or a problem.
    #[schema(value_type = Object)]
    body: serde_json::Value,
}

/// Work that is accepted at once and done later.
#[derive(ToSchema)]
pub(crate) struct Operation {
    id: Uuid,
    /// Always `operation`.
    #[schema(pattern = "^operation$")]
    object: String,
    #[schema(inline)]
    status: OperationStatus,
    /// The parts that are done.
    done: u32,
    /// The parts that there are.
    total: u32,
    /// Null until it is done, and once the answer is past its retention.
    #[schema(required)]
    result: Option<OperationResult>,
    created_at: OffsetDateTime,
    #[schema(required)]
    finished_at: Option<OffsetDateTime>,
}

/// Which key is asked about.
#[derive(ToSchema)]
pub(crate) struct LookUpKey {
    /// The key as it is meant: without the quotes of a header.
    #[schema(min_length = 1, max_length = 255, pattern = "^[\\x20-\\x7E]+$")]
    key: String,
}

/// How far a key has come.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(crate) enum KeyState {
    Unused,
    Running,
    Accepted,
    Completed,
    Expired,
}

/// What became of an idempotency key.
#[derive(ToSchema)]
pub(crate) struct IdempotencyKey {
    /// Always `idempotency_key`.
    #[schema(pattern = "^idempotency_key$")]
    object: String,
    #[schema(inline)]
    state: KeyState,
    /// What ran under it, such as `transfer.post`.
    #[schema(required)]
    operation: Option<String>,
    /// How often it was sent, as far as it was counted.
    attempts: u64,
    #[schema(required)]
    first_attempt_at: Option<OffsetDateTime>,
    #[schema(required)]
    last_attempt_at: Option<OffsetDateTime>,
    #[schema(required)]
    original: Option<OriginalAnswer>,
}

/// Which part of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParameters {
    /// The most items of the page.
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<u8>,
    /// The `next_cursor` of the page before, with the same filters.
    #[param(min_length = 1)]
    cursor: Option<String>,
}

/// Which transfers.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TransferParameters {
    /// Only those of which this account is source or destination.
    account_id: Option<Uuid>,
    /// Only those created at this time or later.
    created_from: Option<OffsetDateTime>,
    /// Only those created before this time.
    created_to: Option<OffsetDateTime>,
}

/// One fault of a request.
#[derive(ToSchema)]
pub(crate) struct RequestFault {
    /// A JSON pointer into the body, or `?name` for a query parameter.
    pointer: String,
    /// What is wrong there.
    detail: String,
}

/// The first answer under an idempotency key, in short.
#[derive(ToSchema)]
pub(crate) struct OriginalAnswer {
    status: u16,
    #[schema(required)]
    location: Option<String>,
    completed_at: OffsetDateTime,
}

/// What a text is made of: anything but control characters, of which it takes tab and newline.
const TEXT: &str = "^[^\\x00-\\x08\\x0B-\\x1F\\x7F-\\x9F]*$";

/// A text of at most `MAX` characters, or null.
fn text<const MAX: usize>() -> Object {
    let types = SchemaType::from_iter([Type::String, Type::Null]);
    ObjectBuilder::new().schema_type(types).max_length(Some(MAX)).pattern(Some(TEXT)).build()
}

/// Members with texts as values, or null.
fn metadata() -> Object {
    let text = |most| ObjectBuilder::new().schema_type(Type::String).pattern(Some(TEXT)).max_length(Some(most));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .property_names(Some(text(Metadata::MAX_NAME).min_length(Some(1)).build()))
        .additional_properties(Some(text(Metadata::MAX_VALUE)))
        .max_properties(Some(Metadata::MAX_MEMBERS))
        .build()
}
