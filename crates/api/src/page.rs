//! A page for each problem: what `type` leads to. Its example is made by the code that makes the real ones, so that it shows
//! the members and headers that clients get.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use ledger::principal::KeyScope;
use ledger::{AccountId, Currency, Environment, Original, Rejection};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::Api;
use crate::body::BODY_MAX;
use crate::fault::Fault;
use crate::problem::{MediaFault, Problem, ProblemKind, Unavailability};
use crate::rate_limit::Standing;

/// What a page says, as HTML.
struct Page {
    /// What the problem means.
    meaning: &'static str,
    /// Whether anything happened, and whether it was recorded.
    effect: &'static str,
    /// What to do: whether to send again, and with which key.
    remedy: &'static str,
    /// One such problem.
    example: Option<Problem>,
}

const NOTHING: &str =
    "Nothing happened and nothing was recorded. The <code>Idempotency-Key</code>, if there was one, is still free.";
const REFUSAL_RECORDED: &str = "No money moved. The refusal is recorded as the answer to this <code>Idempotency-Key</code>: a retry gets it again, byte for byte, \
     even if the rule would no longer refuse.";
const FIRST_STANDS: &str =
    "This request did nothing. The first request under the <code>Idempotency-Key</code> stays as it is.";

/// What is told of a kind. `conflict` is how this server answers a key that belongs to another request.
fn page(kind: ProblemKind, conflict: StatusCode) -> Page {
    let account = AccountId(Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0001));
    let original = || Original {
        status: 201,
        operation: "transfer.post".into(),
        resource_id: Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0002),
        completed_at: OffsetDateTime::UNIX_EPOCH.replace_year(2026).unwrap_or(OffsetDateTime::UNIX_EPOCH),
    };
    let (meaning, effect, remedy, example) = match kind {
        ProblemKind::MalformedRequest => (
            "The body is not strict JSON, or a member or parameter is missing, unknown or out of its range. Strict JSON has no duplicate members, no second value, no byte order mark, no NUL, no lone surrogates and at most 16 levels.",
            NOTHING,
            "Don't send it again as it is. Correct everything that <code>errors</code> names, and send it with the same key or another.",
            Some(Problem::from(Fault::of_member("amount", "is required"))),
        ),
        ProblemKind::IdempotencyKeyMissing => (
            "Every POST needs a header <code>Idempotency-Key</code>. It is what lets a request be sent again without running twice.",
            "Nothing happened and nothing was recorded.",
            "Make a random key, such as a UUID, for each intent. Keep it until there is a final answer, and send it with every retry.",
            Some(Problem::IdempotencyKeyMissing),
        ),
        ProblemKind::IdempotencyKeyMalformed => (
            "The header <code>Idempotency-Key</code> stands there once, with one key. A bare key has 1 to 255 printable ASCII characters other than the space, <code>\"</code>, <code>,</code>, <code>;</code> and <code>\\</code>. A quoted key, <code>\"…\"</code>, may hold any printable ASCII characters. Lists and parameters are not taken.",
            "Nothing happened and nothing was recorded.",
            "Make a random key such as a UUID, keep it, and send the request with it.",
            Some(Problem::IdempotencyKeyMalformed { why: "There is more than one Idempotency-Key header." }),
        ),
        ProblemKind::Unauthenticated => (
            "The header <code>Authorization: Bearer</code> is missing, or its API key is mistyped, unknown, revoked or expired.",
            NOTHING,
            "Check the API key. Then send the request with the same <code>Idempotency-Key</code>: it belongs to the service account, not to one of its API keys.",
            Some(Problem::Unauthenticated { why: "The API key is unknown, revoked or expired." }),
        ),
        ProblemKind::Forbidden => (
            "The API key is valid, but lacks the scope that the header <code>WWW-Authenticate</code> names.",
            NOTHING,
            "Send the request with an API key that has the scope. The same <code>Idempotency-Key</code> may be used.",
            Some(Problem::Forbidden { needs: KeyScope::TransfersWrite }),
        ),
        ProblemKind::NotFound => (
            "No resource of yours has this address in this environment. Those of other tenants, and those of the other environment, look the same.",
            NOTHING,
            "Check the address, and whether the API key is one for test or for live.",
            Some(Problem::NotFound),
        ),
        ProblemKind::MethodNotAllowed => (
            "The address exists, but not with this method.",
            NOTHING,
            "Use a method that the header <code>Allow</code> names.",
            Some(Problem::MethodNotAllowed),
        ),
        ProblemKind::RequestInProgress => (
            "The first request with this <code>Idempotency-Key</code> is still running, and did not end while this one waited.",
            "This request did nothing. What becomes of the first one is not known yet.",
            "Send the same request again with the same key after <code>Retry-After</code> seconds. A fresh key could make it happen twice.",
            Some(Problem::RequestInProgress),
        ),
        ProblemKind::BodyTooLarge => (
            "The body has more bytes than <code>detail</code> allows.",
            NOTHING,
            "Don't send it again as it is. Send less, with the same key or another.",
            Some(Problem::BodyTooLarge { limit: BODY_MAX }),
        ),
        ProblemKind::UnsupportedMediaType => (
            "The body has to be JSON in UTF-8, sent with <code>Content-Type: application/json</code> and not compressed.",
            NOTHING,
            "Don't send it again as it is. Send it as JSON, with the same key or another.",
            Some(Problem::UnsupportedMediaType(MediaFault::Type)),
        ),
        ProblemKind::IdempotencyKeyReused => (
            "The <code>Idempotency-Key</code> was used before, for a request that differs from this one.",
            FIRST_STANDS,
            "If this is a new intent, send it with a fresh key. If it was meant as a retry, send exactly what was sent first.",
            Some(Problem::IdempotencyKeyReused {
                members: vec!["amount".to_owned()],
                original: original(),
                status: conflict,
            }),
        ),
        ProblemKind::IdempotencyKeyEnvironmentMismatch => (
            "This service account used the <code>Idempotency-Key</code> in the other environment, test or live. That is nearly always a mixed-up API key.",
            FIRST_STANDS,
            "Check which API key is in use. For a new intent, send the request with a fresh key.",
            Some(Problem::IdempotencyKeyEnvironmentMismatch { used_in: Environment::Test }),
        ),
        ProblemKind::IdempotencyKeyExpired => (
            "The request ran before, so long ago that its answer is no longer kept. It never runs a second time.",
            FIRST_STANDS,
            "Don't send it again. Read the resource to learn what became of it. For a new intent, use a fresh key.",
            Some(Problem::IdempotencyKeyExpired { original: original() }),
        ),
        ProblemKind::AccountNotFound => (
            "Source or destination is no account of yours in this environment.",
            REFUSAL_RECORDED,
            "Check <code>account_id</code>. Send the corrected transfer with a fresh key.",
            Some(Problem::Rejected(Rejection::AccountNotFound { account })),
        ),
        ProblemKind::SameAccount => (
            "Source and destination are the same account.",
            REFUSAL_RECORDED,
            "Choose two accounts. Send the corrected transfer with a fresh key.",
            Some(Problem::Rejected(Rejection::SameAccount { account })),
        ),
        ProblemKind::CurrencyMismatch => (
            "Both accounts have to hold the currency of the transfer.",
            REFUSAL_RECORDED,
            "Check the accounts' currencies. Send the corrected transfer with a fresh key.",
            Currency::parse("JPY")
                .zip(Currency::parse("EUR"))
                .map(|(holds, asked)| Problem::Rejected(Rejection::CurrencyMismatch { account, holds, asked })),
        ),
        ProblemKind::InsufficientFunds => (
            "The source's available balance would fall below its <code>min_balance</code>.",
            REFUSAL_RECORDED,
            "Once the account has enough, send the transfer with a fresh key.",
            Some(Problem::Rejected(Rejection::InsufficientFunds { account })),
        ),
        ProblemKind::BalanceLimitExceeded => (
            "A balance would pass the account's <code>max_balance</code>, or ±9007199254740991 minor units, the largest number that every JSON reader takes.",
            REFUSAL_RECORDED,
            "Choose a smaller amount or another account, and send the transfer with a fresh key.",
            Some(Problem::Rejected(Rejection::BalanceLimitExceeded { account })),
        ),
        ProblemKind::AccountFrozen => (
            "The account takes part in nothing until it is unfrozen.",
            REFUSAL_RECORDED,
            "Once it is unfrozen, send the transfer with a fresh key.",
            Some(Problem::Rejected(Rejection::AccountFrozen { account })),
        ),
        ProblemKind::AccountClosed => (
            "The account is closed for good.",
            REFUSAL_RECORDED,
            "Choose another account, and send the transfer with a fresh key.",
            Some(Problem::Rejected(Rejection::AccountClosed { account })),
        ),
        ProblemKind::RateLimited => (
            "The principal has sent more requests within a second than it may. Replays are not counted: they are answered as long as ten times the limit is not asked for.",
            NOTHING,
            "Send the same request again with the same key after <code>Retry-After</code> seconds, and spread requests over time. <code>RateLimit</code> and <code>RateLimit-Policy</code> tell what is left.",
            Some(Problem::RateLimited { standing: Standing::exhausted(100) }),
        ),
        ProblemKind::Internal => (
            "A fault of the service kept the request from being carried out.",
            NOTHING,
            "Send the same request again with the same key. If it stays so, tell the operators the <code>request_id</code>.",
            Some(Problem::Internal { cause: "an example".into() }),
        ),
        ProblemKind::Unavailable => (
            "The service can't answer now: it is overloaded or stopping, the database can't be reached, or it is not known yet whether a commit succeeded.",
            "Perhaps nothing, perhaps all of it: this answer promises nothing about the past.",
            "Send the same request again with the same key after <code>Retry-After</code> seconds. It never runs twice. A fresh key could make it happen twice.",
            Some(Problem::Unavailable { why: Unavailability::Database, cause: None }),
        ),
    };
    Page { meaning, effect, remedy, example }
}

/// Every member that a problem may have, in the order in which they stand there.
const MEMBERS: [(&str, &str); 11] = [
    ("type", "Names the kind of problem. Programs branch on it."),
    ("title", "The same for every problem of the kind."),
    ("status", "The HTTP status."),
    ("detail", "What is wrong with this request, for people."),
    ("instance", "The path that was asked for."),
    ("request_id", "Names the answer in the logs; in a replay, the first answer."),
    (
        "errors",
        "Every fault: <code>pointer</code> is a JSON pointer into the body, or <code>?name</code> for a query parameter.",
    ),
    (
        "members",
        "What differs from the first request; <code>:path</code> and <code>:query</code> stand for parts of the address.",
    ),
    ("used_in", "Where the key was used."),
    ("original", "What became of the first request: its status, where its resource is, and when it was decided."),
    ("account_id", "The account that the rule is about."),
];

/// No script, nothing from elsewhere, in nobody's frame. The one style is the page's own, and no text of others is in it.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = ":root { color-scheme: light dark } \
     body { font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem } \
     pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 1rem; border: 1px solid } \
     th, td { text-align: left; vertical-align: top; padding: .25rem 1rem .25rem 0; overflow-wrap: anywhere }";

/// The page of one problem.
#[utoipa::path(
    get,
    path = "/problems/{name}",
    operation_id = "read_problem",
    tag = "operations",
    params(("name" = String, Path, description = "The last part of a problem's `type`.")),
    responses((status = 200, description = "What the problem means, and what to do.", body = String, content_type = "text/html"))
)]
pub(crate) async fn read(
    State(api): State<Api>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::NotFound)?;
    let kind = ProblemKind::parse(&name).ok_or(Problem::NotFound)?;
    let mut response = Response::new(Body::from(render(kind, api.settings().conflict_status.status())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

fn render(kind: ProblemKind, conflict: StatusCode) -> String {
    let (name, title) = (kind.name(), kind.title());
    let Page { meaning, effect, remedy, example } = page(kind, conflict);
    let status = example.as_ref().map_or_else(|| kind.status(), Problem::status).as_u16();
    let shown = example.map(|example| show(&example)).unwrap_or_default();
    let others: String = ProblemKind::ALL
        .into_iter()
        .map(|other| format!("<li><a href=\"{}\">{}</a></li>\n", other.type_uri(), other.name()))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{name}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n<p><code>{name}</code>, status {status}</p>\n\
         <h2>What it means</h2>\n<p>{meaning}</p>\n<h2>What happened</h2>\n<p>{effect}</p>\n\
         <h2>What to do</h2>\n<p>{remedy}</p>\n{shown}</main>\n\
         <nav aria-labelledby=\"all\">\n<h2 id=\"all\">All problems</h2>\n<ul>\n{others}</ul>\n</nav>\n</body>\n</html>\n"
    )
}

/// An example as it is sent, and what its members are.
fn show(example: &Problem) -> String {
    let path =
        if matches!(example, Problem::NotFound | Problem::MethodNotAllowed) { "/v1/transfer" } else { "/v1/transfers" };
    let id = Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0003);
    let mut answer = example.answer(path, id);
    if matches!(example, Problem::MethodNotAllowed) {
        // As the router adds it.
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET,HEAD"));
    }
    let headers: String = answer
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let body = example.body(path, id);
    let object: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let members: String = MEMBERS
        .into_iter()
        .filter_map(|(name, meaning)| {
            let value = escape(&object.get(name)?.to_string());
            Some(format!(
                "<tr><th scope=\"row\"><code>{name}</code></th><td><code>{value}</code></td><td>{meaning}</td></tr>\n"
            ))
        })
        .collect();
    format!(
        "<h2>Example</h2>\n<pre><code>HTTP/1.1 {}\n{}\n{}</code></pre>\n<table>\n<caption>Its members</caption>\n\
         <thead><tr><th scope=\"col\">member</th><th scope=\"col\">here</th><th scope=\"col\">meaning</th></tr></thead>\n\
         <tbody>\n{members}</tbody>\n</table>\n",
        answer.status(),
        escape(&headers),
        escape(&String::from_utf8_lossy(&body)),
    )
}

/// Text as HTML takes it between tags.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_an_example_of_its_own_kind_whose_members_are_all_explained() {
        for kind in ProblemKind::ALL {
            let example = page(kind, StatusCode::CONFLICT).example.unwrap();
            assert_eq!(example.kind(), kind);
            let body: serde_json::Value = serde_json::from_slice(&example.body("/v1/transfers", Uuid::nil())).unwrap();
            let page = render(kind, StatusCode::CONFLICT);
            for name in body.as_object().unwrap().keys() {
                assert!(
                    page.contains(&format!("<th scope=\"row\"><code>{name}</code></th>")),
                    "{}: {name}",
                    kind.name()
                );
            }
            assert!(page.contains(&format!("status {}<", example.status().as_u16())), "{page}");
        }
    }

    #[test]
    fn text_of_an_example_is_no_markup() {
        let shown = show(&Problem::from(Fault::of_member("<script>&", "is not known")));
        assert!(shown.contains("/&lt;script&gt;&amp; is not known") && !shown.contains("<script"), "{shown}");
    }

    #[test]
    fn the_policy_allows_what_the_page_holds_and_no_more() {
        let page = ProblemKind::ALL.map(|kind| render(kind, StatusCode::UNPROCESSABLE_ENTITY)).concat();
        for refused in ["<script", "<link", "<img", "<form", "javascript:", "style=", "url("] {
            assert!(!page.contains(refused), "{refused}");
        }
    }
}
