//! The one line that each request leaves in the log.
//!
//! Its form is a promise to whoever searches logs: the target `api::access`, the message `request`, and these fields. The
//! endpoint stands for the path, which may hold anything, and the key for its hash's first 8 hexadecimal digits (I10).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{Extensions, Method, StatusCode};
use ledger::{KeyHash, PrincipalId, Scope};
use uuid::Uuid;

use crate::metrics::method_name;
use crate::problem::Problem;

/// What becomes known of a request on its way, for its line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    scope: OnceLock<Scope>,
    key: OnceLock<KeyHash>,
    answer: OnceLock<&'static str>,
}

impl Access {
    /// The notes that go with a request; lost ones where nobody will write a line.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Notes who asks.
    pub(crate) fn note_scope(&self, scope: Scope) {
        let _known_already = self.0.scope.set(scope);
    }

    /// Who asks, once that is known.
    pub(crate) fn principal(&self) -> Option<PrincipalId> {
        self.0.scope.get().map(|scope| scope.principal)
    }

    /// Notes under which key.
    pub(crate) fn note_key(&self, key: KeyHash) {
        let _known_already = self.0.key.set(key);
    }

    /// Notes what it came to; one of [`crate::metrics::ANSWERS`].
    pub(crate) fn note_answer(&self, answer: &'static str) {
        let _known_already = self.0.answer.set(answer);
    }

    /// Writes the line: an error where a person has to look, a warning where the client has to come again.
    pub(crate) fn write(&self, line: &Line<'_>) {
        macro_rules! write_line {
            ($level:ident, $cause:expr) => {
                tracing::$level!(
                    target: "api::access",
                    trace_id = %line.trace_id.simple(),
                    request_id = %line.request_id,
                    principal_id = self.principal().map(tracing::field::display),
                    environment = self.0.scope.get().map(|scope| scope.environment.name()),
                    operation = line.endpoint,
                    method = method_name(line.method),
                    status = line.status.as_u16(),
                    outcome = self.outcome(line.problem),
                    duration_seconds = line.took.as_secs_f64(),
                    key_hash = self.0.key.get().map(tracing::field::debug),
                    cause = $cause,
                    "request"
                )
            };
        }
        match line.status {
            StatusCode::INTERNAL_SERVER_ERROR => write_line!(error, line.problem.and_then(Problem::cause)),
            status if status.is_server_error() => write_line!(warn, line.problem.and_then(Problem::cause)),
            _ => write_line!(info, None::<&str>),
        }
    }

    /// What the request came to, in one word: the problem's name, the answer under its key, or `ok`.
    fn outcome(&self, problem: Option<&Problem>) -> &'static str {
        match problem {
            Some(problem) => problem.kind().name(),
            None => self.0.answer.get().copied().unwrap_or("ok"),
        }
    }
}

/// What every request's line tells.
pub(crate) struct Line<'a> {
    /// The trace that the request belongs to.
    pub(crate) trace_id: Uuid,
    /// The id that the answer carries.
    pub(crate) request_id: Uuid,
    /// The route.
    pub(crate) endpoint: &'a str,
    /// The method.
    pub(crate) method: &'a Method,
    /// The status of the answer.
    pub(crate) status: StatusCode,
    /// What it was refused with, if it was.
    pub(crate) problem: Option<&'a Problem>,
    /// From the header to the answer.
    pub(crate) took: Duration,
}
