//! Everything that can go wrong for a client, as RFC 9457 answers: one text for the client, another for the log.
//!
//! Matches here have no wildcard arm, so that a new error of the ledger breaks the build until someone has decided what
//! clients hear of it.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, LINK, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ledger::principal::KeyScope;
use ledger::{Environment, Original, ReadError, Rejection, SubmitError, format_time};
use serde::Serialize;
use uuid::Uuid;

use crate::fault::{FAULTS_MAX, Fault};
use crate::json;
use crate::rate_limit::Standing;

/// The media type of every problem.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// When to try again, in seconds, where nothing tells better: long enough for a batch, a lock or a failover's first
/// attempts, short enough for a person who waits.
const RETRY_AFTER_SECONDS: u16 = 1;

/// The kinds of problems: the names that clients branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProblemKind {
    MalformedRequest,
    IdempotencyKeyMissing,
    IdempotencyKeyMalformed,
    Unauthenticated,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestInProgress,
    BodyTooLarge,
    UnsupportedMediaType,
    IdempotencyKeyReused,
    IdempotencyKeyEnvironmentMismatch,
    IdempotencyKeyExpired,
    AccountNotFound,
    SameAccount,
    CurrencyMismatch,
    InsufficientFunds,
    BalanceLimitExceeded,
    AccountFrozen,
    AccountClosed,
    RateLimited,
    Internal,
    Unavailable,
}

impl ProblemKind {
    /// Every kind, in the order of statuses.
    pub(crate) const ALL: [Self; 23] = [
        Self::MalformedRequest,
        Self::IdempotencyKeyMissing,
        Self::IdempotencyKeyMalformed,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestInProgress,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::IdempotencyKeyReused,
        Self::IdempotencyKeyEnvironmentMismatch,
        Self::IdempotencyKeyExpired,
        Self::AccountNotFound,
        Self::SameAccount,
        Self::CurrencyMismatch,
        Self::InsufficientFunds,
        Self::BalanceLimitExceeded,
        Self::AccountFrozen,
        Self::AccountClosed,
        Self::RateLimited,
        Self::Internal,
        Self::Unavailable,
    ];

    /// The last part of `type`, and of the page's address.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MalformedRequest => "malformed-request",
            Self::IdempotencyKeyMissing => "idempotency-key-missing",
            Self::IdempotencyKeyMalformed => "idempotency-key-malformed",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::RequestInProgress => "request-in-progress",
            Self::BodyTooLarge => "body-too-large",
            Self::UnsupportedMediaType => "unsupported-media-type",
            Self::IdempotencyKeyReused => "idempotency-key-reused",
            Self::IdempotencyKeyEnvironmentMismatch => "idempotency-key-environment-mismatch",
            Self::IdempotencyKeyExpired => "idempotency-key-expired",
            Self::AccountNotFound => "account-not-found",
            Self::SameAccount => "same-account",
            Self::CurrencyMismatch => "currency-mismatch",
            Self::InsufficientFunds => "insufficient-funds",
            Self::BalanceLimitExceeded => "balance-limit-exceeded",
            Self::AccountFrozen => "account-frozen",
            Self::AccountClosed => "account-closed",
            Self::RateLimited => "rate-limited",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
        }
    }

    /// The inverse of [`ProblemKind::name`].
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn type_uri(self) -> String {
        format!("/problems/{}", self.name())
    }

    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::MalformedRequest | Self::IdempotencyKeyMissing | Self::IdempotencyKeyMalformed => {
                StatusCode::BAD_REQUEST
            }
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestInProgress => StatusCode::CONFLICT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::IdempotencyKeyReused
            | Self::IdempotencyKeyEnvironmentMismatch
            | Self::IdempotencyKeyExpired
            | Self::AccountNotFound
            | Self::SameAccount
            | Self::CurrencyMismatch
            | Self::InsufficientFunds
            | Self::BalanceLimitExceeded
            | Self::AccountFrozen
            | Self::AccountClosed => StatusCode::UNPROCESSABLE_ENTITY,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::MalformedRequest => "The request can't be read.",
            Self::IdempotencyKeyMissing => "The request has no Idempotency-Key.",
            Self::IdempotencyKeyMalformed => "The Idempotency-Key can't be read.",
            Self::Unauthenticated => "The request has no valid API key.",
            Self::Forbidden => "The API key may not do this.",
            Self::NotFound => "There is nothing here.",
            Self::MethodNotAllowed => "The resource doesn't have this method.",
            Self::RequestInProgress => "The first request with this key is still running.",
            Self::BodyTooLarge => "The body is too large.",
            Self::UnsupportedMediaType => "The body is not JSON.",
            Self::IdempotencyKeyReused => "The Idempotency-Key belongs to another request.",
            Self::IdempotencyKeyEnvironmentMismatch => "The Idempotency-Key was used in the other environment.",
            Self::IdempotencyKeyExpired => "The Idempotency-Key was used too long ago.",
            Self::AccountNotFound => "An account of the request doesn't exist.",
            Self::SameAccount => "Source and destination are the same account.",
            Self::CurrencyMismatch => "An account holds another currency.",
            Self::InsufficientFunds => "The source account doesn't have enough.",
            Self::BalanceLimitExceeded => "A balance would pass its limit.",
            Self::AccountFrozen => "An account is frozen.",
            Self::AccountClosed => "An account is closed.",
            Self::RateLimited => "Too many requests.",
            Self::Internal => "Something is wrong with the service.",
            Self::Unavailable => "The service can't answer now.",
        }
    }
}

/// Why the service can't answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailability {
    /// The committer's queue is full.
    Busy,
    /// Others held an account's lock.
    Contended,
    /// PostgreSQL can't be reached, or whether it committed isn't known.
    Database,
    /// Something can't be read; nothing was to be changed yet.
    Unreadable,
    /// The process is stopping.
    Stopping,
    /// The request's time is over.
    Deadline,
    /// There are as many connections as there may be.
    Connections,
}

impl Unavailability {
    const fn detail(self) -> &'static str {
        match self {
            Self::Busy => "Too many requests are waiting. Send the request again with the same Idempotency-Key.",
            Self::Contended => "An account is busy. Send the request again with the same Idempotency-Key.",
            Self::Database | Self::Deadline => {
                "Whether the request took effect isn't known yet. Send it again with the same Idempotency-Key: it never runs twice."
            }
            Self::Unreadable => "The database can't be read now, and nothing was changed. Send the request again.",
            Self::Stopping => "This process is stopping. Send the request again with the same Idempotency-Key.",
            Self::Connections => "Too many connections are open. Send the request again with the same Idempotency-Key.",
        }
    }
}

/// What is wrong with the way a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaFault {
    /// The type is not JSON in UTF-8.
    Type,
    /// The body is compressed.
    Coding,
}

/// One thing that went wrong.
#[derive(Clone, Debug)]
pub(crate) enum Problem {
    MalformedRequest {
        faults: Vec<Fault>,
    },
    /// The body didn't come, or not whole; nothing more can be read on this connection.
    BodyBroken {
        why: &'static str,
    },
    IdempotencyKeyMissing,
    IdempotencyKeyMalformed {
        why: &'static str,
    },
    Unauthenticated {
        why: &'static str,
    },
    Forbidden {
        needs: KeyScope,
    },
    NotFound,
    /// The router adds `Allow`.
    MethodNotAllowed,
    RequestInProgress,
    BodyTooLarge {
        limit: usize,
    },
    UnsupportedMediaType(MediaFault),
    IdempotencyKeyReused {
        members: Vec<String>,
        original: Original,
        status: StatusCode,
    },
    IdempotencyKeyEnvironmentMismatch {
        used_in: Environment,
    },
    IdempotencyKeyExpired {
        original: Original,
    },
    Rejected(Rejection),
    RateLimited {
        standing: Standing,
    },
    /// A fault of ours; the cause is for the log.
    Internal {
        cause: Cow<'static, str>,
    },
    /// The cause, if there is more to say than the reason, is for the log.
    Unavailable {
        why: Unavailability,
        cause: Option<String>,
    },
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::MalformedRequest { faults: vec![fault] }
    }
}

impl From<Vec<Fault>> for Problem {
    fn from(mut faults: Vec<Fault>) -> Self {
        faults.truncate(FAULTS_MAX);
        Self::MalformedRequest { faults }
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        let why = match error {
            SubmitError::Busy => Unavailability::Busy,
            SubmitError::Contended => Unavailability::Contended,
            SubmitError::Unavailable => Unavailability::Database,
            SubmitError::Stopping => Unavailability::Stopping,
            SubmitError::Failed => return Self::Internal { cause: "the operation failed in the committer".into() },
        };
        Self::Unavailable { why, cause: None }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable(_) => {
                Self::Unavailable { why: Unavailability::Unreadable, cause: Some(error.to_string()) }
            }
            ReadError::Refused(_) | ReadError::Corrupt { .. } => Self::Internal { cause: error.to_string().into() },
        }
    }
}

/// The first answer under a key, in short.
#[derive(Serialize)]
pub(crate) struct OriginalObject {
    status: u16,
    location: Option<String>,
    completed_at: String,
}

impl From<&Original> for OriginalObject {
    fn from(original: &Original) -> Self {
        let Original { status, operation, resource_id, completed_at } = original;
        let made = match (*status, &**operation) {
            (202, _) => Some("operations"),
            (201, "account.open") => Some("accounts"),
            (201, "transfer.post") => Some("transfers"),
            _ => None,
        };
        Self {
            status: *status,
            location: made.map(|resource| format!("/v1/{resource}/{resource_id}")),
            completed_at: format_time(*completed_at),
        }
    }
}

/// The members of RFC 9457, `request_id`, and those that a kind adds.
#[derive(Serialize)]
struct Object<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: Cow<'static, str>,
    instance: &'a str,
    request_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<&'a [Fault]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_in: Option<Environment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original: Option<OriginalObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account_id: Option<ledger::AccountId>,
}

impl Problem {
    pub(crate) const fn kind(&self) -> ProblemKind {
        match self {
            Self::MalformedRequest { .. } | Self::BodyBroken { .. } => ProblemKind::MalformedRequest,
            Self::IdempotencyKeyMissing => ProblemKind::IdempotencyKeyMissing,
            Self::IdempotencyKeyMalformed { .. } => ProblemKind::IdempotencyKeyMalformed,
            Self::Unauthenticated { .. } => ProblemKind::Unauthenticated,
            Self::Forbidden { .. } => ProblemKind::Forbidden,
            Self::NotFound => ProblemKind::NotFound,
            Self::MethodNotAllowed => ProblemKind::MethodNotAllowed,
            Self::RequestInProgress => ProblemKind::RequestInProgress,
            Self::BodyTooLarge { .. } => ProblemKind::BodyTooLarge,
            Self::UnsupportedMediaType(_) => ProblemKind::UnsupportedMediaType,
            Self::IdempotencyKeyReused { .. } => ProblemKind::IdempotencyKeyReused,
            Self::IdempotencyKeyEnvironmentMismatch { .. } => ProblemKind::IdempotencyKeyEnvironmentMismatch,
            Self::IdempotencyKeyExpired { .. } => ProblemKind::IdempotencyKeyExpired,
            Self::Rejected(rejection) => match rejection {
                Rejection::AccountNotFound { .. } => ProblemKind::AccountNotFound,
                Rejection::SameAccount { .. } => ProblemKind::SameAccount,
                Rejection::CurrencyMismatch { .. } => ProblemKind::CurrencyMismatch,
                Rejection::InsufficientFunds { .. } => ProblemKind::InsufficientFunds,
                Rejection::BalanceLimitExceeded { .. } => ProblemKind::BalanceLimitExceeded,
                Rejection::AccountFrozen { .. } => ProblemKind::AccountFrozen,
                Rejection::AccountClosed { .. } => ProblemKind::AccountClosed,
            },
            Self::RateLimited { .. } => ProblemKind::RateLimited,
            Self::Internal { .. } => ProblemKind::Internal,
            Self::Unavailable { .. } => ProblemKind::Unavailable,
        }
    }

    pub(crate) const fn status(&self) -> StatusCode {
        if let Self::IdempotencyKeyReused { status, .. } = self { *status } else { self.kind().status() }
    }

    /// What the client reads. Nothing internal is in it, and no key (I10).
    fn detail(&self) -> Cow<'static, str> {
        match self {
            Self::MalformedRequest { faults } => match faults.as_slice() {
                [Fault { pointer, detail }] if pointer.is_empty() => format!("The body {detail}.").into(),
                [Fault { pointer, detail }] => format!("{pointer} {detail}.").into(),
                _ => "Several parts of the request can't be accepted; `errors` names each of them.".into(),
            },
            Self::BodyBroken { why } | Self::IdempotencyKeyMalformed { why } | Self::Unauthenticated { why } => (*why).into(),
            Self::IdempotencyKeyMissing => {
                "A POST needs an Idempotency-Key header: a fresh random value for each intent, and the same one for each retry."
                    .into()
            }
            Self::Forbidden { needs } => format!("The API key needs the scope {}.", needs.name()).into(),
            Self::NotFound => "No resource of yours has this address.".into(),
            Self::MethodNotAllowed => "The header Allow names the methods that the resource has.".into(),
            Self::RequestInProgress => {
                "The first request with this Idempotency-Key is still running. Send the request again with the same key.".into()
            }
            Self::BodyTooLarge { limit } => format!("A body here has at most {limit} bytes.").into(),
            Self::UnsupportedMediaType(MediaFault::Type) => {
                "The body must be JSON in UTF-8, sent with `Content-Type: application/json`.".into()
            }
            Self::UnsupportedMediaType(MediaFault::Coding) => "The body must not be compressed.".into(),
            Self::IdempotencyKeyReused { .. } => {
                "This Idempotency-Key was used for another request; `members` names what differs. Use a fresh key for a fresh intent."
                    .into()
            }
            Self::IdempotencyKeyEnvironmentMismatch { used_in } => {
                format!("This Idempotency-Key was used in the {used_in} environment. Check which API key is in use.").into()
            }
            Self::IdempotencyKeyExpired { .. } => {
                "The request ran before, and its answer is no longer kept. It will not run again; `original` tells what became of it."
                    .into()
            }
            Self::Rejected(rejection) => rejected(rejection).into(),
            Self::RateLimited { .. } => {
                "Nothing ran and nothing was recorded. Send the same request with the same key after `Retry-After` seconds.".into()
            }
            Self::Internal { .. } => "The request was not carried out because of a fault in the service.".into(),
            Self::Unavailable { why, .. } => why.detail().into(),
        }
    }

    /// What the log says beside kind and status; `None` where that says all.
    pub(crate) fn cause(&self) -> Option<&str> {
        match self {
            Self::Internal { cause } => Some(cause),
            Self::Unavailable { cause, .. } => cause.as_deref(),
            Self::MalformedRequest { .. }
            | Self::BodyBroken { .. }
            | Self::IdempotencyKeyMissing
            | Self::IdempotencyKeyMalformed { .. }
            | Self::Unauthenticated { .. }
            | Self::Forbidden { .. }
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::RequestInProgress
            | Self::BodyTooLarge { .. }
            | Self::UnsupportedMediaType(_)
            | Self::IdempotencyKeyReused { .. }
            | Self::IdempotencyKeyEnvironmentMismatch { .. }
            | Self::IdempotencyKeyExpired { .. }
            | Self::Rejected(_)
            | Self::RateLimited { .. } => None,
        }
    }

    /// The body: bytes, because a rejection's are stored and sent again unchanged (I4).
    pub(crate) fn body(&self, instance: &str, request_id: Uuid) -> Vec<u8> {
        let mut object = Object {
            r#type: self.kind().type_uri(),
            title: self.kind().title(),
            status: self.status().as_u16(),
            detail: self.detail(),
            instance,
            request_id,
            errors: None,
            members: None,
            used_in: None,
            original: None,
            account_id: None,
        };
        let broken;
        match self {
            Self::MalformedRequest { faults } => object.errors = Some(faults),
            Self::BodyBroken { .. } => {
                broken = [Fault::new("", "did not arrive whole")];
                object.errors = Some(&broken);
            }
            Self::IdempotencyKeyReused { members, original, .. } => {
                object.members = Some(members);
                object.original = Some(original.into());
            }
            Self::IdempotencyKeyEnvironmentMismatch { used_in } => object.used_in = Some(*used_in),
            Self::IdempotencyKeyExpired { original } => object.original = Some(original.into()),
            Self::Rejected(rejection) => match rejection {
                Rejection::AccountNotFound { account }
                | Rejection::SameAccount { account }
                | Rejection::CurrencyMismatch { account, .. }
                | Rejection::InsufficientFunds { account }
                | Rejection::BalanceLimitExceeded { account }
                | Rejection::AccountFrozen { account }
                | Rejection::AccountClosed { account } => object.account_id = Some(*account),
            },
            Self::IdempotencyKeyMissing
            | Self::IdempotencyKeyMalformed { .. }
            | Self::Unauthenticated { .. }
            | Self::Forbidden { .. }
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::RequestInProgress
            | Self::BodyTooLarge { .. }
            | Self::UnsupportedMediaType(_)
            | Self::RateLimited { .. }
            | Self::Internal { .. }
            | Self::Unavailable { .. } => {}
        }
        // Serialising strings and numbers into memory has no way to fail.
        json::line(&object).unwrap_or_default()
    }

    fn add_headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::IdempotencyKeyMissing | Self::IdempotencyKeyMalformed { .. } => {
                let page = format!("<{}>; rel=\"describedby\"; type=\"text/html\"", self.kind().type_uri());
                headers.extend(HeaderValue::try_from(page).ok().map(|page| (LINK, page)));
            }
            Self::Unauthenticated { .. } => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Forbidden { needs } => {
                let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{}\"", needs.name());
                headers.extend(HeaderValue::try_from(challenge).ok().map(|challenge| (WWW_AUTHENTICATE, challenge)));
            }
            Self::RequestInProgress | Self::Unavailable { .. } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
            }
            Self::RateLimited { standing } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(standing.retry_after()));
                standing.add_headers(headers);
            }
            Self::UnsupportedMediaType(MediaFault::Type) => {
                headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            }
            Self::UnsupportedMediaType(MediaFault::Coding) => {
                headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            Self::BodyBroken { .. } => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Self::MalformedRequest { .. }
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::BodyTooLarge { .. }
            | Self::IdempotencyKeyReused { .. }
            | Self::IdempotencyKeyEnvironmentMismatch { .. }
            | Self::IdempotencyKeyExpired { .. }
            | Self::Rejected(_)
            | Self::Internal { .. } => {}
        }
    }

    /// The whole answer.
    pub(crate) fn answer(&self, instance: &str, request_id: Uuid) -> Response {
        let mut response = Response::new(Body::from(self.body(instance, request_id)));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        self.add_headers(response.headers_mut());
        response
    }

    /// The problem that a response of the framework stands for, so that no refusal leaves in another form. A recorded
    /// rejection has its form already.
    pub(crate) fn of_framework(response: &Response) -> Option<Self> {
        let status = response.status();
        let formed = response.headers().get(CONTENT_TYPE).is_some_and(|media_type| media_type == PROBLEM_JSON);
        if formed || !(status.is_client_error() || status.is_server_error()) {
            return None;
        }
        Some(match status {
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Self::MethodNotAllowed,
            other => Self::Internal { cause: format!("the framework answered {other}").into() },
        })
    }
}

fn rejected(rejection: &Rejection) -> String {
    match rejection {
        Rejection::AccountNotFound { account } => format!("You have no account {account} in this environment."),
        Rejection::SameAccount { account } => format!("Source and destination are both account {account}."),
        Rejection::CurrencyMismatch { account, holds, asked } => {
            format!("Account {account} holds {holds}, and the transfer is in {asked}.")
        }
        Rejection::InsufficientFunds { account } => {
            format!("The available balance of account {account} would fall below its min_balance.")
        }
        Rejection::BalanceLimitExceeded { account } => {
            format!("The balance of account {account} would pass its max_balance, or the largest balance there is.")
        }
        Rejection::AccountFrozen { account } => format!("Account {account} is frozen."),
        Rejection::AccountClosed { account } => format!("Account {account} is closed."),
    }
}

impl IntoResponse for Problem {
    /// An empty response that carries the problem outwards, to where the request's id and path are known.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found_again() {
        for kind in ProblemKind::ALL {
            assert_eq!(ProblemKind::parse(kind.name()), Some(kind));
        }
        assert_eq!(ProblemKind::parse("nothing"), None);
    }

    #[test]
    fn an_internal_cause_never_reaches_the_client() {
        let problem = Problem::Internal { cause: "a secret of the house".into() };
        let body = String::from_utf8(problem.body("/v1/transfers", Uuid::nil())).unwrap();
        assert!(!body.contains("secret"));
        assert_eq!(problem.cause(), Some("a secret of the house"));
    }

    #[test]
    fn a_refusal_names_every_fault_up_to_a_bound() {
        let faults = (0..200).map(|at| Fault::of_member(&format!("m{at}"), "is not known")).collect::<Vec<_>>();
        let body: serde_json::Value =
            serde_json::from_slice(&Problem::from(faults).body("/v1/transfers", Uuid::nil())).unwrap();
        assert_eq!(body["errors"].as_array().map(Vec::len), Some(FAULTS_MAX));
        assert_eq!(body["errors"][1], serde_json::json!({"pointer": "/m1", "detail": "is not known"}));
        assert_eq!(body["type"], "/problems/malformed-request");
        assert_eq!(body["status"], 400);
    }
}
