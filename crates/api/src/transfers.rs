//! Transfers over HTTP.

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::Response;
use ledger::principal::KeyScope;
use ledger::{AccountId, Operation, PostTransfer, TransferCursor, TransferFilter, TransferId};

use crate::Api;
use crate::accounts::{refuse, refuse_parameters, sequence};
use crate::fault::Fault;
use crate::get::{self, ListObject, PathId, path_id, reader};
use crate::json::Value;
use crate::members::{Members, uuid};
use crate::parameters::Parameters;
use crate::post::{self, PostRoute};
use crate::problem::Problem;

pub(crate) const POST: PostRoute =
    PostRoute { path: "/v1/transfers", needs: KeyScope::TransfersWrite, parse: read_post };

/// Moves money.
///
/// The source is debited and the destination credited, once, however often the request is sent with the same
/// `Idempotency-Key`.
#[utoipa::path(
    post,
    path = "/v1/transfers",
    operation_id = "post_transfer",
    tag = "transfers",
    request_body(content = crate::schema::PostTransfer, content_type = "application/json"),
    responses((status = 201, description = "The transfer is posted.", body = crate::schema::Transfer)),
    security(("api_key" = []))
)]
pub(crate) async fn post(State(api): State<Api>, request: Request) -> Result<Response, Problem> {
    post::answer(&api, &POST, request).await
}

/// Reads a transfer.
#[utoipa::path(
    get,
    path = "/v1/transfers/{id}",
    operation_id = "read_transfer",
    tag = "transfers",
    params(("id" = uuid::Uuid, Path, description = "The transfer's identifier.")),
    responses((status = 200, description = "The transfer as it stands now.", body = crate::schema::Transfer)),
    security(("api_key" = []))
)]
pub(crate) async fn read(State(api): State<Api>, id: PathId, parts: Parts) -> Result<Response, Problem> {
    let caller = reader(&api, &parts).await?;
    refuse_parameters(&parts)?;
    let transfer = api.ledger().transfer(&caller.scope, TransferId(path_id(id)?)).await?;
    get::json(&transfer.ok_or(Problem::NotFound)?)
}

/// Lists transfers, newest first.
#[utoipa::path(
    get,
    path = "/v1/transfers",
    operation_id = "list_transfers",
    tag = "transfers",
    params(crate::schema::PageParameters, crate::schema::TransferParameters),
    responses((status = 200, description = "A page of transfers.", body = crate::schema::TransferList)),
    security(("api_key" = []))
)]
pub(crate) async fn list(State(api): State<Api>, parts: Parts) -> Result<Response, Problem> {
    let caller = reader(&api, &parts).await?;
    let mut parameters = Parameters::of(&parts.uri);
    let limit = parameters.limit();
    let after = parameters.cursor(|kind, rest| match kind {
        't' => uuid(rest).map(|id| TransferCursor::Transfer(TransferId(id))),
        's' => sequence(rest).map(TransferCursor::Posting),
        _ => None,
    });
    let filter = TransferFilter {
        account: parameters.id("account_id").map(AccountId),
        created_from: parameters.time("created_from"),
        created_to: parameters.time("created_to"),
    };
    refuse(parameters.finish())?;
    let page = api.ledger().transfers(&caller.scope, &filter, after, limit).await?;
    let page = page.ok_or_else(|| Problem::from(Parameters::refuse_cursor()))?;
    let next_cursor = page.next.map(|cursor| match cursor {
        TransferCursor::Transfer(id) => format!("t{id}"),
        TransferCursor::Posting(sequence) => format!("s{sequence}"),
    });
    get::json(&ListObject { data: page.items, next_cursor })
}

fn read_post(body: &Value<'_>) -> Result<Operation, Vec<Fault>> {
    let mut members = Members::of(body);
    let source = members.account_id("source_account_id");
    let destination = members.account_id("destination_account_id");
    let amount = members.amount("amount");
    let currency = members.currency("currency");
    let description = members.text("description");
    let metadata = members.metadata();
    let faults = members.finish();
    match (source, destination, amount, currency, description, metadata) {
        (Some(source), Some(destination), Some(amount), Some(currency), Some(description), Some(metadata))
            if faults.is_empty() =>
        {
            Ok(Operation::PostTransfer(PostTransfer {
                id: TransferId::fresh(),
                source,
                destination,
                amount,
                currency,
                description,
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

    #[test]
    fn a_transfer_is_read_and_its_faults_are_named() {
        let read = |body: &str| read_post(&json::parse(body.as_bytes()).unwrap());
        let whole = r#"{"source_account_id":"0198c0de-0000-7000-8000-000000000001",
            "destination_account_id":"0198c0de-0000-7000-8000-000000000002","amount":1250,"currency":"EUR",
            "description":"\u202eright to left","metadata":{"order":"42"}}"#;
        let Ok(Operation::PostTransfer(transfer)) = read(whole) else { panic!("must be read") };
        assert_eq!(transfer.amount.minor_units(), 1250);
        assert_eq!(transfer.description.unwrap().as_str(), "\u{202e}right to left");

        let places = |body: &str| read(body).unwrap_err().into_iter().map(|fault| fault.pointer).collect::<Vec<_>>();
        assert_eq!(places("{}"), ["/source_account_id", "/destination_account_id", "/amount", "/currency"]);
        assert_eq!(places(&whole.replace("1250", "12.50")), ["/amount"]);
        assert_eq!(places(&whole.replace("\"amount\"", "\"Amount\"")), ["/amount", "/Amount"]);
        assert_eq!(places(&whole.replace("right to left", "\\u0007")), ["/description"]);
    }
}
