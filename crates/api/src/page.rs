//! A page for each problem: what `type` leads to.

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

use crate::problem::{Problem, ProblemKind};

/// What a problem means, and what to do.
const fn text(kind: ProblemKind) -> (&'static str, &'static str) {
    match kind {
        ProblemKind::MalformedRequest => (
            "The body is not strict JSON, or a member or parameter is missing, unknown or out of its range. <code>errors</code> names every fault: <code>pointer</code> is a JSON pointer into the body, or <code>?name</code> for a query parameter. JSON is strict here: no duplicate members, no second value, no byte order mark, no NUL, no lone surrogates, at most 16 levels.",
            "Correct the request. Nothing was recorded, so the same Idempotency-Key may carry the corrected request.",
        ),
        ProblemKind::IdempotencyKeyMissing => (
            "Every POST needs a header <code>Idempotency-Key</code>. It is what lets a request be sent again without running twice.",
            "Make a fresh random key, such as a UUID, for each intent. Keep it until a final answer, and send it with every retry.",
        ),
        ProblemKind::IdempotencyKeyMalformed => (
            "The header <code>Idempotency-Key</code> must stand there once. A bare key has 1 to 255 printable ASCII characters other than the space, <code>\"</code>, <code>,</code>, <code>;</code> and <code>\\</code>. A quoted key, <code>\"…\"</code>, may hold all printable ASCII characters. Lists and parameters are not taken.",
            "Use a UUID. Nothing was recorded.",
        ),
        ProblemKind::Unauthenticated => (
            "The header <code>Authorization: Bearer</code> is missing, or its API key is mistyped, unknown, revoked or expired.",
            "Check the key. The request can be sent again with the same Idempotency-Key and a valid API key.",
        ),
        ProblemKind::Forbidden => (
            "The API key is valid, but lacks the scope that the header <code>WWW-Authenticate</code> names.",
            "Use a key with that scope.",
        ),
        ProblemKind::NotFound => (
            "No resource of yours in this environment has this address. Those of other tenants, and those of the other environment, look the same.",
            "Check the address, and whether the API key is of the right environment.",
        ),
        ProblemKind::MethodNotAllowed => {
            ("The resource exists, but not with this method.", "Use a method that <code>Allow</code> names.")
        }
        ProblemKind::RequestInProgress => (
            "The first request with this Idempotency-Key is still running, and did not end while this one waited.",
            "Send the request again with the same key after <code>Retry-After</code>.",
        ),
        ProblemKind::BodyTooLarge => ("The body has more than 65,536 bytes.", "Send less. Nothing was recorded."),
        ProblemKind::UnsupportedMediaType => (
            "The body must be JSON in UTF-8 with <code>Content-Type: application/json</code>, and not compressed.",
            "Send it so. Nothing was recorded.",
        ),
        ProblemKind::IdempotencyKeyReused => (
            "The Idempotency-Key was used before for a request that differs from this one. <code>members</code> names what differs (<code>:path</code> and <code>:query</code> stand for parts of the address); <code>original</code> tells what became of the first request. Nothing was carried out.",
            "If this is a new intent, use a fresh key. If it was meant as a retry, send exactly what was sent first.",
        ),
        ProblemKind::IdempotencyKeyEnvironmentMismatch => (
            "This principal used the Idempotency-Key in the other environment, test or live. That is almost always a mixed-up API key. Nothing was carried out.",
            "Check which API key is configured. For a new intent, use a fresh key.",
        ),
        ProblemKind::IdempotencyKeyExpired => (
            "The request ran before, but its answer is older than the retention and no longer kept. It will never run a second time; <code>original</code> tells its status and time.",
            "Read the resource to learn its state. For a new intent, use a fresh key.",
        ),
        ProblemKind::AccountNotFound => (
            "Source or destination is no account of yours in this environment.",
            "Check <code>account_id</code>. The refusal is recorded: use a fresh key for the corrected transfer.",
        ),
        ProblemKind::SameAccount => (
            "Source and destination are the same account.",
            "Choose two accounts. The refusal is recorded: use a fresh key for the corrected transfer.",
        ),
        ProblemKind::CurrencyMismatch => (
            "Both accounts must hold the currency of the transfer.",
            "Check the accounts' currencies. The refusal is recorded: use a fresh key for the corrected transfer.",
        ),
        ProblemKind::InsufficientFunds => (
            "The source's available balance would fall below its <code>min_balance</code>.",
            "Fund the account, then use a fresh key: under the same one the refusal is final.",
        ),
        ProblemKind::BalanceLimitExceeded => (
            "A balance would pass the account's <code>max_balance</code>, or ± 9007199254740991 minor units.",
            "Choose a smaller amount, and a fresh key: under the same one the refusal is final.",
        ),
        ProblemKind::AccountFrozen => (
            "The account takes part in nothing until it is unfrozen.",
            "Unfreeze it, then use a fresh key: under the same one the refusal is final.",
        ),
        ProblemKind::AccountClosed => ("The account is closed for good.", "Use another account and a fresh key."),
        ProblemKind::Internal => (
            "A fault of the service kept the request from being carried out. Nothing was recorded.",
            "Send the request again with the same key; if it stays so, tell the operators the <code>request_id</code>.",
        ),
        ProblemKind::Unavailable => (
            "The service can't answer now: it is overloaded or stopping, the database can't be reached, or whether a commit succeeded is not known yet. This promises nothing about the past.",
            "Send the request again with the same key after <code>Retry-After</code>. It never runs twice.",
        ),
    }
}

/// The page of one problem.
#[utoipa::path(
    get,
    path = "/problems/{name}",
    operation_id = "read_problem",
    tag = "operations",
    params(("name" = String, Path, description = "The last part of a problem's `type`.")),
    responses((status = 200, description = "What the problem means, and what to do.", body = String, content_type = "text/html"))
)]
pub(crate) async fn read(name: Result<Path<String>, PathRejection>) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::NotFound)?;
    let kind = ProblemKind::parse(&name).ok_or(Problem::NotFound)?;
    let (meaning, remedy) = text(kind);
    let (name, status, title) = (kind.name(), kind.status().as_u16(), kind.title());
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{name}</title>\n\
         <style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}</style>\n\
         <h1>{title}</h1>\n<p><code>{name}</code>, status {status}</p>\n\
         <h2>What it means</h2>\n<p>{meaning}</p>\n<h2>What to do</h2>\n<p>{remedy}</p>\n</html>\n"
    );
    let mut response = Response::new(Body::from(page));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    Ok(response)
}
