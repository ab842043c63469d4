//! The way of every POST, in the order that the contract promises to clients.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use ledger::principal::KeyScope;
use ledger::{Answer, Environment, Operation, Outcome, Render, Submission};
use uuid::Uuid;

use crate::Api;
use crate::fault::Fault;
use crate::fingerprint::{self, KNOWN_MEMBERS};
use crate::json::Value;
use crate::layers::RequestId;
use crate::parameters::Parameters;
use crate::problem::{PROBLEM_JSON, Problem};
use crate::{body, idempotency_key, json};

/// Tells that an answer was given before. It is not part of the answer itself.
pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What tells one POST route from another.
pub(crate) struct PostRoute {
    /// The path, which is also the endpoint's name in metrics.
    pub(crate) path: &'static str,
    /// What the API key must be allowed to do.
    pub(crate) needs: KeyScope,
    /// Reads the operation from the body, or names every fault.
    pub(crate) parse: fn(&Value<'_>) -> Result<Operation, Vec<Fault>>,
}

/// Answers a POST. What is refused before the ledger is asked is not recorded, and the key stays free.
///
/// # Errors
/// Every problem of a POST.
pub(crate) async fn answer(api: &Api, route: &PostRoute, request: Request) -> Result<Response, Problem> {
    let (parts, unread) = request.into_parts();
    let caller = api.authenticator().authenticate(&parts.headers).await?;
    caller.require(route.needs)?;
    body::check_headers(&parts.headers)?;
    // Before the body is read, so that a client that waits for permission to send hears of a bad key at once.
    let key = idempotency_key::read(&parts.headers)?;
    let read = body::read(unread).await?;
    let value = json::parse(&read)?;

    let fingerprint = fingerprint::take(&parts.method, parts.uri.path(), parts.uri.query(), &value);
    let scope = caller.scope;
    let answer = match parse(route, &value, &parts) {
        Ok(operation) => {
            let render = render(route.path, RequestId::of(&parts.extensions));
            api.ledger()
                .submit(Submission { scope, key, fingerprint, known_members: KNOWN_MEMBERS, operation, render })
                .await?
        }
        // A version with looser rules may have run it: then its answer stands. Only otherwise is it a fault.
        Err(faults) => match api.ledger().look_up(&scope, &key, &fingerprint, KNOWN_MEMBERS).await? {
            Some(answer) => answer,
            None => return Err(faults.into()),
        },
    };
    count(route.path, scope.environment, &answer);
    respond(api, answer)
}

fn parse(route: &PostRoute, value: &Value<'_>, parts: &axum::http::request::Parts) -> Result<Operation, Vec<Fault>> {
    let strangers = Parameters::of(&parts.uri).finish();
    match (route.parse)(value) {
        Ok(operation) if strangers.is_empty() => Ok(operation),
        Ok(_) => Err(strangers),
        Err(mut faults) => {
            faults.extend(strangers);
            Err(faults)
        }
    }
}

/// Puts the outcome of the first attempt into the bytes that every replay sends again (I4).
fn render(path: &'static str, request_id: Uuid) -> Render {
    let created = |location: String, body: Result<Vec<u8>, serde_json::Error>| ledger::Response {
        status: StatusCode::CREATED.as_u16(),
        content_type: "application/json".into(),
        location: Some(location),
        // Serialising strings and numbers into memory has no way to fail.
        body: body.unwrap_or_default(),
    };
    Box::new(move |outcome| match outcome {
        Outcome::AccountOpened(account) => created(format!("/v1/accounts/{}", account.id), json::line(account)),
        Outcome::TransferPosted(transfer) => created(format!("/v1/transfers/{}", transfer.id), json::line(transfer)),
        Outcome::Rejected(rejection) => {
            let problem = Problem::Rejected(rejection.clone());
            ledger::Response {
                status: problem.status().as_u16(),
                content_type: PROBLEM_JSON.into(),
                location: None,
                body: problem.body(path, request_id),
            }
        }
    })
}

fn count(endpoint: &'static str, environment: Environment, answer: &Answer) {
    let answer = match answer {
        Answer::Fresh(_) => "fresh",
        Answer::Replayed(_) => "replayed",
        Answer::KeyReused { .. } => "reused",
        Answer::EnvironmentMismatch { .. } => "environment_mismatch",
        Answer::Expired { .. } => "expired",
        Answer::InProgress => "in_progress",
    };
    crate::metrics::count_idempotency_answer(endpoint, environment.name(), answer);
}

fn respond(api: &Api, answer: Answer) -> Result<Response, Problem> {
    match answer {
        Answer::Fresh(recorded) => send(recorded),
        Answer::Replayed(recorded) => {
            let mut response = send(recorded)?;
            response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
            Ok(response)
        }
        Answer::KeyReused { members, original } => {
            Err(Problem::IdempotencyKeyReused { members, original, status: api.settings().conflict_status.status() })
        }
        Answer::EnvironmentMismatch { used_in } => Err(Problem::IdempotencyKeyEnvironmentMismatch { used_in }),
        Answer::Expired { original } => Err(Problem::IdempotencyKeyExpired { original }),
        Answer::InProgress => Err(Problem::RequestInProgress),
    }
}

/// Sends a recorded answer as it is.
fn send(recorded: ledger::Response) -> Result<Response, Problem> {
    let ledger::Response { status, content_type, location, body } = recorded;
    let unfit = |what: &'static str| Problem::Internal { cause: format!("a recorded {what} can't be sent").into() };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| unfit("status"))?;
    let content_type = match content_type {
        std::borrow::Cow::Borrowed(known) => HeaderValue::from_static(known),
        std::borrow::Cow::Owned(stored) => HeaderValue::try_from(stored).map_err(|_| unfit("content type"))?,
    };
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    if let Some(location) = location {
        response.headers_mut().insert(LOCATION, HeaderValue::try_from(location).map_err(|_| unfit("location"))?);
    }
    Ok(response)
}
