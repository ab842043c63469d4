//! What watches a relay from outside asks here: `/livez`, `/readyz` and `/metrics`.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use process::recorder::PrometheusHandle;
use relay::State;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The text format that Prometheus reads.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves as long as the process lives, also while the relay stops.
///
/// # Errors
/// The address can't be listened at.
pub(crate) async fn serve(
    listen: SocketAddr,
    state: watch::Receiver<State>,
    metrics: PrometheusHandle,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    tracing::info!(address = %listener.local_addr()?, "serving");
    let router = Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(state)
        .route("/metrics", get(async move || ([(CONTENT_TYPE, METRICS_TYPE)], metrics.render())));
    axum::serve(listener, router).await
}

async fn ready(Shared(state): Shared<watch::Receiver<State>>) -> impl IntoResponse {
    let state = state.borrow().clone();
    let status = if state.ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let text = match &state {
        State::Halted { reason } => format!("halted: {reason}; see {}\n", reason.page()),
        State::Starting | State::Waiting | State::Verifying | State::Publishing | State::Idle | State::Stopped => {
            format!("{}\n", state.name())
        }
    };
    (status, text)
}
