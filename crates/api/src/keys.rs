//! What became of an idempotency key, for a client that has lost the answer and doesn't want to send the request again.

use axum::extract::{Request, State};
use axum::response::Response;
use ledger::principal::KeyScope;
use ledger::{IdempotencyKey, KeyState, KeyUse, format_time};
use serde::Serialize;

use crate::Api;
use crate::accounts::{refuse, refuse_parameters};
use crate::members::Members;
use crate::problem::{OriginalObject, Problem};
use crate::{body, get, json};

/// What became of a key, as clients see it.
#[derive(Serialize)]
struct KeyObject<'a> {
    object: &'static str,
    state: &'static str,
    operation: Option<&'a str>,
    attempts: i64,
    first_attempt_at: Option<String>,
    last_attempt_at: Option<String>,
    original: Option<OriginalObject>,
}

/// Tells what became of an idempotency key.
///
/// The key stands in the body, since addresses end up in logs. Nothing runs and nothing is recorded; the request needs no
/// key of its own. `unused` means that nothing ran under the key, as far as is recorded at this moment: a request that is
/// still on its way may run later.
#[utoipa::path(
    post,
    path = "/v1/idempotency-keys/lookup",
    operation_id = "look_up_idempotency_key",
    tag = "idempotency keys",
    request_body(content = crate::schema::LookUpKey, content_type = "application/json"),
    responses((status = 200, description = "What became of the key.", body = crate::schema::IdempotencyKey)),
    security(("api_key" = []))
)]
pub(crate) async fn look_up(State(api): State<Api>, request: Request) -> Result<Response, Problem> {
    let (parts, unread) = request.into_parts();
    let caller = api.authenticator().authenticate(&parts).await?;
    caller.require(KeyScope::Read)?;
    body::check_headers(&parts.headers)?;
    let read = body::read(unread).await?;
    let value = json::parse(&read)?;
    refuse_parameters(&parts)?;
    let mut members = Members::of(&value);
    let key = members.idempotency_key("key");
    refuse(members.finish())?;
    let key: IdempotencyKey = key.ok_or(Problem::NotFound)?;

    api.rate_limits().admit_reader(&caller.scope).require()?;
    let KeyUse { state, environment, attempts, last_attempt_at, original } =
        api.ledger().key_use(&caller.scope, &key).await?;
    if environment != caller.scope.environment {
        return Err(Problem::IdempotencyKeyEnvironmentMismatch { used_in: environment });
    }
    get::json(&KeyObject {
        object: "idempotency_key",
        state: match state {
            KeyState::Unused => "unused",
            KeyState::Running => "running",
            KeyState::Accepted => "accepted",
            KeyState::Completed => "completed",
            KeyState::Expired => "expired",
        },
        operation: original.as_ref().map(|original| &*original.operation),
        attempts,
        first_attempt_at: original.as_ref().map(|original| format_time(original.completed_at)),
        last_attempt_at: last_attempt_at.map(format_time),
        original: original.as_ref().map(OriginalObject::from),
    })
}
