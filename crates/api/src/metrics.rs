//! The metrics of the HTTP side.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use ledger::metric::Metric;
use ledger::{Environment, Sessions};
use metrics::{counter, gauge, histogram};
use process::recorder::PrometheusHandle;

use crate::Api;
use crate::problem::ProblemKind;

/// Every metric of this crate.
pub const METRICS: [Metric; 7] = [
    Metric::counter(
        "oncepost_http_requests_total",
        &["endpoint", "method", "status"],
        "Requests answered, by route; `unmatched` stands for every path that is none.",
    ),
    Metric::seconds("oncepost_http_request_seconds", &["endpoint"], "Time from a request's header to its answer."),
    Metric::gauge("oncepost_http_requests_in_flight", &[], "Requests that are not answered yet."),
    Metric::gauge("oncepost_http_connections", &[], "Open connections."),
    Metric::gauge("oncepost_http_connections_max", &[], "The most connections that are served at a time."),
    Metric::counter(
        "oncepost_problems_total",
        &["endpoint", "kind"],
        "Requests that were refused or failed and left no record, by the problem that they were answered with.",
    ),
    Metric::counter(
        "oncepost_idempotency_answers_total",
        &["endpoint", "environment", "answer"],
        "What requests under an idempotency key came to: `fresh`, `replayed`, `reused` for another request, `in_progress`, `expired` or `environment_mismatch`.",
    ),
];

/// What a request under a key may come to.
pub(crate) const ANSWERS: [&str; 6] = ["fresh", "replayed", "reused", "in_progress", "expired", "environment_mismatch"];

/// Shows the answers and the failures of an endpoint's POST as 0 before there are any: the first conflict, and the first 503,
/// must show as a change.
pub(crate) fn begin_at_zero(endpoint: &'static str) {
    for status in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE] {
        requests(endpoint.to_owned(), &Method::POST, status).absolute(0);
    }
    for environment in [Environment::Test, Environment::Live] {
        for answer in ANSWERS {
            idempotency_answers(endpoint, environment.name(), answer).absolute(0);
        }
    }
}

/// Counts a request that was answered.
pub(crate) fn count_request(endpoint: String, method: &Method, status: StatusCode, took: Duration) {
    requests(endpoint.clone(), method, status).increment(1);
    histogram!("oncepost_http_request_seconds", "endpoint" => endpoint).record(took);
}

fn requests(endpoint: String, method: &Method, status: StatusCode) -> metrics::Counter {
    counter!(
        "oncepost_http_requests_total",
        "endpoint" => endpoint, "method" => method_name(method), "status" => status.as_str().to_owned()
    )
}

/// Counts a request that was refused or failed.
pub(crate) fn count_problem(endpoint: String, kind: ProblemKind) {
    counter!("oncepost_problems_total", "endpoint" => endpoint, "kind" => kind.name()).increment(1);
}

/// Counts what a request under a key came to; `answer` is one of [`ANSWERS`].
pub(crate) fn count_idempotency_answer(endpoint: &'static str, environment: &'static str, answer: &'static str) {
    idempotency_answers(endpoint, environment, answer).increment(1);
}

fn idempotency_answers(endpoint: &'static str, environment: &'static str, answer: &'static str) -> metrics::Counter {
    counter!(
        "oncepost_idempotency_answers_total",
        "endpoint" => endpoint, "environment" => environment, "answer" => answer
    )
}

/// A request that is in flight as long as this lives.
pub(crate) struct InFlight(metrics::Gauge);

impl InFlight {
    pub(crate) fn enter() -> Self {
        Self::among(gauge!("oncepost_http_requests_in_flight"))
    }

    /// A connection, which is counted the same way.
    pub(crate) fn connect() -> Self {
        Self::among(gauge!("oncepost_http_connections"))
    }

    fn among(gauge: metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A method's name as a label. Clients may invent methods, and labels must not grow with them.
pub(crate) fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// The metrics of the process.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "operations",
    responses((status = 200, description = "Metrics in the text format of Prometheus.", body = String, content_type = "text/plain"))
)]
pub(crate) async fn read(State(api): State<Api>) -> Response {
    api.ledger().show_queues();
    for (pool, Sessions { used, idle, max }) in
        [("reads", api.ledger().sessions()), ("keys", api.authenticator().sessions())]
    {
        gauge!("oncepost_pool_sessions", "pool" => pool, "state" => "used").set(used);
        gauge!("oncepost_pool_sessions", "pool" => pool, "state" => "idle").set(idle);
        gauge!("oncepost_pool_sessions_max", "pool" => pool).set(max);
    }
    let text = api.metrics().map(PrometheusHandle::render).unwrap_or_default();
    ([(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"))], text).into_response()
}
