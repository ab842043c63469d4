//! What watches this consumer from outside asks here: `/livez`, `/readyz` and `/metrics`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::health::Health;

/// The text format that Prometheus reads.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves as long as the process lives, also while it stops.
pub(crate) async fn serve(listener: TcpListener, health: Health, metrics: PrometheusHandle) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(health)
        .route("/metrics", get(async move || ([(CONTENT_TYPE, METRICS_TYPE)], metrics.render())));
    axum::serve(listener, router).await
}

async fn ready(State(health): State<Health>) -> (StatusCode, String) {
    let faults = health.faults();
    let status = if faults.ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, faults.to_string())
}
