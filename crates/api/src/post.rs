//! The way of every POST, in the order that the contract promises to clients.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use ledger::principal::KeyScope;
use ledger::{AcceptWork, Answer, Operation, OperationId, Origin, Outcome, Render, Scope, Submission, failpoint};
use opentelemetry::trace::SpanContext;
use uuid::Uuid;

use crate::Api;
use crate::access::Access;
use crate::fault::Fault;
use crate::fingerprint::{self, KNOWN_MEMBERS};
use crate::json::Value;
use crate::layers::RequestId;
use crate::parameters::Parameters;
use crate::prefer::{PREFERENCE_APPLIED, Preferences, RESPOND_ASYNC};
use crate::problem::{PROBLEM_JSON, Problem, Unavailability};
use crate::rate_limit::Admission;
use crate::staged_fault::Staged;
use crate::{body, idempotency_key, json, operations};

/// The parameter that has a request decided and nothing recorded.
const DRY_RUN: &str = "dry_run";

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

/// How long a duplicate waits for its running original, where it doesn't ask for less.
const DUPLICATE_WAIT: Duration = Duration::from_secs(5);
/// How soon accepted work is worth asking for again, in seconds.
const ACCEPTED_RETRY_AFTER_SECONDS: u16 = 2;

/// Answers a POST. What is refused before the ledger is asked is not recorded, and the key stays free.
///
/// # Errors
/// Every problem of a POST.
pub(crate) async fn answer(api: &Api, route: &PostRoute, request: Request) -> Result<Response, Problem> {
    // Whoever can't be served costs next to nothing, so that those who can are not late, too.
    if api.ledger().sheds() {
        return Err(Problem::Unavailable { why: Unavailability::Busy, cause: None });
    }
    let (parts, unread) = request.into_parts();
    let caller = api.authenticator().authenticate(&parts).await?;
    caller.require(route.needs)?;
    body::check_headers(&parts.headers)?;
    let scope = caller.scope;
    let staged = Staged::read(&parts.headers, scope.environment)?;
    let mut parameters = Parameters::of(&parts.uri);
    if parameters.flag(DRY_RUN) == Some(true) {
        let read = body::read(unread).await?;
        return try_out(api, route, &scope, &json::parse(&read)?, parameters, &parts).await;
    }
    // Before the body is read, so that a client that waits for permission to send hears of a bad key at once.
    let key = idempotency_key::read(&parts.headers)?;
    let preferences = Preferences::of(&parts.headers);
    let read = body::read(unread).await?;
    let value = json::parse(&read)?;

    let fingerprint = fingerprint::take(&parts.method, parts.uri.path(), parts.uri.query(), &value);
    let key = api.ledger().seal(&scope, &key, &fingerprint);
    let access = Access::of(&parts.extensions);
    access.note_key(key.primary());
    let request_id = RequestId::of(&parts.extensions);
    let (answer, admission) = match parse(route, &value, parameters) {
        Ok(operation) => {
            let submission = Submission {
                scope,
                key,
                fingerprint,
                known_members: KNOWN_MEMBERS,
                operation,
                render: render(route.path.into(), request_id),
                wait: preferences.wait.map_or(DUPLICATE_WAIT, |wait| wait.min(DUPLICATE_WAIT)),
                staged_fault: staged.and_then(Staged::in_ledger),
                trace: parts.extensions.get::<SpanContext>().cloned().unwrap_or(SpanContext::NONE),
            };
            run(api, route, submission, request_id, &preferences).await?
        }
        // A version with looser rules may have run it: then its answer stands. Only otherwise is it a fault.
        Err(faults) => {
            let admission = api.rate_limits().admit_reader(&scope);
            admission.require()?;
            let answer = api.ledger().look_up(&scope, &key, &fingerprint, KNOWN_MEMBERS).await?;
            (answer.ok_or_else(|| Problem::from(faults))?, admission)
        }
    };
    let answered = name(&answer);
    access.note_answer(answered);
    crate::metrics::count_idempotency_answer(route.path, scope.environment.name(), answered);
    let strikes = matches!(answer, Answer::Fresh(_));
    let mut response = respond(api, answer)?;
    admission.add_headers(response.headers_mut());
    if let Some(staged) = staged.filter(|_| strikes) {
        response.extensions_mut().insert(staged);
    }
    Ok(response)
}

/// Runs the request, or answers it from its record, within what its principal may send.
async fn run(
    api: &Api,
    route: &PostRoute,
    submission: Submission,
    request_id: Uuid,
    preferences: &Preferences,
) -> Result<(Answer, Admission), Problem> {
    let scope = submission.scope;
    let admission = api.rate_limits().admit(&scope);
    if let Admission::ReplayOnly(standing) = admission {
        let Submission { key, fingerprint, known_members, .. } = &submission;
        let answer = api.ledger().look_up(&scope, key, fingerprint, known_members).await?;
        return Ok((answer.ok_or(Problem::RateLimited { standing })?, admission));
    }
    admission.require()?;
    let answer = if preferences.respond_async {
        accept(api, route, submission, request_id, preferences.wait).await?
    } else {
        api.ledger().submit(submission).await?
    };
    let admission = if matches!(answer, Answer::Fresh(_)) { admission } else { api.rate_limits().give_back(&scope) };
    Ok((answer, admission))
}

/// Has the work accepted and begins it; then waits for its end as long as the client likes to.
async fn accept(
    api: &Api,
    route: &PostRoute,
    submission: Submission,
    request_id: Uuid,
    wait: Option<Duration>,
) -> Result<Answer, Problem> {
    let work = Box::new(submission.operation);
    let origin = Origin { endpoint: route.path.to_owned(), request_id };
    let operation = Operation::AcceptWork(AcceptWork { id: OperationId::fresh(), work, origin });
    let (answer, unfinished) = api.ledger().accept(Submission { operation, ..submission }).await?;
    let Some(unfinished) = unfinished else { return Ok(answer) };
    let run = operations::spawn_run(api, unfinished);
    let Some(wait) = wait else { return Ok(answer) };
    match tokio::time::timeout(wait, run).await {
        Ok(Ok(Ok(done))) => Ok(done),
        // It goes on, here or elsewhere, and the client asks again.
        Ok(Ok(Err(_)) | Err(_)) | Err(_) => Ok(answer),
    }
}

/// Answers what the request would come to, without a key and without recording anything.
async fn try_out(
    api: &Api,
    route: &PostRoute,
    scope: &Scope,
    value: &Value<'_>,
    parameters: Parameters,
    parts: &Parts,
) -> Result<Response, Problem> {
    let operation = parse(route, value, parameters)?;
    api.rate_limits().admit_reader(scope).require()?;
    let decided = api.ledger().try_out(scope, &operation).await?;
    let rendered = render(route.path.into(), RequestId::of(&parts.extensions))(Outcome::from(&decided));
    // Nothing was made, so nothing is found anywhere.
    let status = if decided.is_ok() { StatusCode::OK.as_u16() } else { rendered.status };
    send(ledger::Response { status, location: None, ..rendered })
}

fn parse(route: &PostRoute, value: &Value<'_>, parameters: Parameters) -> Result<Operation, Vec<Fault>> {
    let mut faults = parameters.finish();
    match (route.parse)(value) {
        Ok(_) if failpoint::refuses("stricter-rules") => {
            faults.push(Fault::new("", "is refused by a rule that came later"));
        }
        Ok(operation) if faults.is_empty() => return Ok(operation),
        Ok(_) => {}
        Err(more) => faults.splice(0..0, more).for_each(drop),
    }
    Err(faults)
}

/// Puts the outcome of the first attempt into the bytes that every replay sends again (I4).
pub(crate) fn render(path: Cow<'static, str>, request_id: Uuid) -> Render {
    let made = |status: StatusCode, location: String, body: Result<Vec<u8>, serde_json::Error>| ledger::Response {
        status: status.as_u16(),
        content_type: "application/json".into(),
        location: Some(location),
        // Serialising strings and numbers into memory has no way to fail.
        body: body.unwrap_or_default(),
    };
    Box::new(move |outcome| match outcome {
        Outcome::AccountOpened(account) => {
            made(StatusCode::CREATED, format!("/v1/accounts/{}", account.id), json::line(account))
        }
        Outcome::TransferPosted(transfer) => {
            made(StatusCode::CREATED, format!("/v1/transfers/{}", transfer.id), json::line(transfer))
        }
        Outcome::WorkAccepted(accepted) => {
            made(StatusCode::ACCEPTED, format!("/v1/operations/{}", accepted.id), json::line(accepted))
        }
        Outcome::Rejected(rejection) => {
            let problem = Problem::Rejected(rejection.clone());
            ledger::Response {
                status: problem.status().as_u16(),
                content_type: PROBLEM_JSON.into(),
                location: None,
                body: problem.body(&path, request_id),
            }
        }
    })
}

/// What a request under a key came to, in one word; one of [`crate::metrics::ANSWERS`].
const fn name(answer: &Answer) -> &'static str {
    match answer {
        Answer::Fresh(_) => "fresh",
        Answer::Replayed(_) => "replayed",
        Answer::KeyReused { .. } => "reused",
        Answer::EnvironmentMismatch { .. } => "environment_mismatch",
        Answer::Expired { .. } => "expired",
        Answer::InProgress => "in_progress",
    }
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
    if *response.status_mut() == StatusCode::ACCEPTED {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ACCEPTED_RETRY_AFTER_SECONDS));
        response.headers_mut().insert(PREFERENCE_APPLIED, HeaderValue::from_static(RESPOND_ASYNC));
    }
    if let Some(location) = location {
        response.headers_mut().insert(LOCATION, HeaderValue::try_from(location).map_err(|_| unfit("location"))?);
    }
    Ok(response)
}
