//! Metrics for Prometheus. One recorder serves the whole process, a relay in it included.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use metrics::{counter, describe_counter, describe_histogram, histogram};
pub use metrics_exporter_prometheus::{BuildError, PrometheusHandle};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

use crate::Api;

/// Upper bounds of the buckets of every `_seconds` histogram: a batch commits in about a millisecond, and nothing takes
/// longer than a request's 15 s.
const SECONDS: [f64; 14] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];
/// Upper bounds of the buckets of batch sizes; a batch holds at most 2,000.
const OPERATIONS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0];

/// How often samples are folded into their buckets, so that memory stays flat where nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Installs the process's recorder. It is called once, before anything is measured, inside a Tokio runtime.
///
/// # Errors
/// [`BuildError`] if a recorder is installed already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Full("oncepost_batch_operations".to_owned()), &OPERATIONS)?
        .install_recorder()?;
    describe_counter!("oncepost_http_requests_total", "Requests answered, by endpoint, method and status.");
    describe_histogram!("oncepost_http_request_seconds", "Time from a request's header to its answer, by endpoint.");
    describe_counter!(
        "oncepost_idempotency_answers_total",
        "What requests under an idempotency key came to, by endpoint, environment and answer."
    );
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Counts a request that was answered.
pub(crate) fn count_request(endpoint: String, method: &Method, status: StatusCode, took: Duration) {
    counter!(
        "oncepost_http_requests_total",
        "endpoint" => endpoint.clone(), "method" => method_name(method), "status" => status.as_str().to_owned()
    )
    .increment(1);
    histogram!("oncepost_http_request_seconds", "endpoint" => endpoint).record(took);
}

/// Counts what a request under a key came to.
pub(crate) fn count_idempotency_answer(endpoint: &'static str, environment: &'static str, answer: &'static str) {
    counter!(
        "oncepost_idempotency_answers_total",
        "endpoint" => endpoint, "environment" => environment, "answer" => answer
    )
    .increment(1);
}

/// A method's name as a label. Clients may invent methods, and labels must not grow with them.
fn method_name(method: &Method) -> &'static str {
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
    let text = api.metrics().map(PrometheusHandle::render).unwrap_or_default();
    ([(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"))], text).into_response()
}
