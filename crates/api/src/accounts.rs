//! Accounts over HTTP.

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::Response;
use ledger::principal::KeyScope;
use ledger::{AccountId, Balance, OpenAccount, Operation};

use crate::Api;
use crate::fault::Fault;
use crate::get::{self, ListObject, PathId, path_id, reader};
use crate::json::Value;
use crate::members::{Limit, Members, uuid};
use crate::parameters::Parameters;
use crate::post::{self, PostRoute};
use crate::problem::Problem;

pub(crate) const OPEN: PostRoute = PostRoute { path: "/v1/accounts", needs: KeyScope::AccountsWrite, parse: read_open };

/// Opens an account.
///
/// The account holds one currency. Its `available` balance never falls below `min_balance`: 0 unless said otherwise, null
/// for an account without a floor, such as the outside world from which money enters.
#[utoipa::path(
    post,
    path = "/v1/accounts",
    operation_id = "open_account",
    tag = "accounts",
    request_body(content = crate::schema::OpenAccount, content_type = "application/json"),
    responses((status = 201, description = "The account is open.", body = crate::schema::Account)),
    security(("api_key" = []))
)]
pub(crate) async fn open(State(api): State<Api>, request: Request) -> Result<Response, Problem> {
    post::answer(&api, &OPEN, request).await
}

/// Reads an account.
#[utoipa::path(
    get,
    path = "/v1/accounts/{id}",
    operation_id = "read_account",
    tag = "accounts",
    params(("id" = uuid::Uuid, Path, description = "The account's identifier.")),
    responses((status = 200, description = "The account as it stands now.", body = crate::schema::Account)),
    security(("api_key" = []))
)]
pub(crate) async fn read(State(api): State<Api>, id: PathId, parts: Parts) -> Result<Response, Problem> {
    let caller = reader(&api, &parts).await?;
    refuse_parameters(&parts)?;
    let account = api.ledger().account(&caller.scope, AccountId(path_id(id)?)).await?;
    get::json(&account.ok_or(Problem::NotFound)?)
}

/// Lists accounts, newest first.
#[utoipa::path(
    get,
    path = "/v1/accounts",
    operation_id = "list_accounts",
    tag = "accounts",
    params(crate::schema::PageParameters),
    responses((status = 200, description = "A page of accounts.", body = crate::schema::AccountList)),
    security(("api_key" = []))
)]
pub(crate) async fn list(State(api): State<Api>, parts: Parts) -> Result<Response, Problem> {
    let caller = reader(&api, &parts).await?;
    let mut parameters = Parameters::of(&parts.uri);
    let limit = parameters.limit();
    let after = parameters.cursor(|kind, rest| uuid(rest).filter(|_| kind == 'a').map(AccountId));
    refuse(parameters.finish())?;
    let page = api.ledger().accounts(&caller.scope, after, limit).await?;
    get::json(&ListObject { data: page.items, next_cursor: page.next.map(|id| format!("a{id}")) })
}

/// Lists an account's postings, newest first.
#[utoipa::path(
    get,
    path = "/v1/accounts/{id}/postings",
    operation_id = "list_postings",
    tag = "accounts",
    params(("id" = uuid::Uuid, Path, description = "The account's identifier."), crate::schema::PageParameters),
    responses((status = 200, description = "A page of postings.", body = crate::schema::PostingList)),
    security(("api_key" = []))
)]
pub(crate) async fn postings(State(api): State<Api>, id: PathId, parts: Parts) -> Result<Response, Problem> {
    let caller = reader(&api, &parts).await?;
    let mut parameters = Parameters::of(&parts.uri);
    let limit = parameters.limit();
    let before = parameters.cursor(|kind, rest| sequence(rest).filter(|_| kind == 's'));
    refuse(parameters.finish())?;
    let page = api.ledger().postings(&caller.scope, AccountId(path_id(id)?), before, limit).await?;
    let page = page.ok_or(Problem::NotFound)?;
    get::json(&ListObject { data: page.items, next_cursor: page.next.map(|sequence| format!("s{sequence}")) })
}

/// Reads a posting's sequence from a cursor.
pub(crate) fn sequence(text: &str) -> Option<i64> {
    text.parse().ok().filter(|sequence| *sequence > 0)
}

/// # Errors
/// [`Problem::MalformedRequest`] where there is a fault.
pub(crate) fn refuse(faults: Vec<Fault>) -> Result<(), Problem> {
    if faults.is_empty() { Ok(()) } else { Err(faults.into()) }
}

/// # Errors
/// [`Problem::MalformedRequest`] where there is any parameter.
pub(crate) fn refuse_parameters(parts: &Parts) -> Result<(), Problem> {
    refuse(Parameters::of(&parts.uri).finish())
}

fn read_open(body: &Value<'_>) -> Result<Operation, Vec<Fault>> {
    let mut members = Members::of(body);
    let currency = members.currency("currency");
    let name = members.text("name");
    let min_balance = members.limit("min_balance");
    let max_balance = members.limit("max_balance");
    let metadata = members.metadata();
    // An account opens empty, so zero must be within its limits.
    if let Some(Limit::At(floor)) = min_balance
        && floor > Balance::ZERO
    {
        members.refuse("min_balance", "must not be above 0, where every account begins");
    }
    if let Some(Limit::At(ceiling)) = max_balance
        && ceiling < Balance::ZERO
    {
        members.refuse("max_balance", "must not be below 0, where every account begins");
    }
    let faults = members.finish();
    match (currency, name, min_balance, max_balance, metadata) {
        (Some(currency), Some(name), Some(min_balance), Some(max_balance), Some(metadata)) if faults.is_empty() => {
            Ok(Operation::OpenAccount(OpenAccount {
                id: AccountId::fresh(),
                currency,
                name,
                min_balance: match min_balance {
                    Limit::Absent => Some(Balance::ZERO),
                    Limit::None => None,
                    Limit::At(floor) => Some(floor),
                },
                max_balance: match max_balance {
                    Limit::Absent | Limit::None => None,
                    Limit::At(ceiling) => Some(ceiling),
                },
                metadata,
            }))
        }
        _ => Err(faults),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn read_body(body: &str) -> Result<OpenAccount, Vec<String>> {
        match read_open(&json::parse(body.as_bytes()).unwrap()) {
            Ok(Operation::OpenAccount(open)) => Ok(open),
            Ok(other) => panic!("{other:?}"),
            Err(faults) => Err(faults.into_iter().map(|fault| fault.pointer).collect()),
        }
    }

    #[test]
    fn a_floor_is_zero_unless_given_and_null_means_none() {
        let floor = |body: &str| read_body(body).unwrap().min_balance.map(Balance::minor_units);
        assert_eq!(floor(r#"{"currency":"EUR"}"#), Some(0));
        assert_eq!(floor(r#"{"currency":"EUR","min_balance":null}"#), None);
        assert_eq!(floor(r#"{"currency":"EUR","min_balance":-500}"#), Some(-500));
    }

    #[test]
    fn limits_that_an_empty_account_breaks_are_refused() {
        assert_eq!(
            read_body(r#"{"currency":"EUR","min_balance":1,"max_balance":-1}"#).unwrap_err(),
            ["/min_balance", "/max_balance"]
        );
        assert_eq!(
            read_body(r#"{"min_balance":"0","balance":1}"#).unwrap_err(),
            ["/currency", "/min_balance", "/balance"]
        );
        assert_eq!(read_body("[]").unwrap_err(), ["", "/currency"]);
    }
}
