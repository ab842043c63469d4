//! Whether the process lives, and whether it can do its work.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::Api;
use crate::problem::{Problem, Unavailability};

/// Whether the process lives.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    tag = "operations",
    responses((status = 200, description = "The process lives.", body = String, content_type = "text/plain"))
)]
pub(crate) async fn live() -> Response {
    (StatusCode::OK, "live\n").into_response()
}

/// Whether the service can do its work: whether PostgreSQL answers. Kafka is not asked, since events can wait.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "operations",
    responses((status = 200, description = "PostgreSQL answers.", body = String, content_type = "text/plain"))
)]
pub(crate) async fn ready(State(api): State<Api>) -> Result<Response, Problem> {
    if api.stopping() {
        return Err(Problem::Unavailable { why: Unavailability::Stopping, cause: None });
    }
    if api.ledger().ready().await {
        Ok((StatusCode::OK, "ready\n").into_response())
    } else {
        Err(Problem::Unavailable { why: Unavailability::Unreadable, cause: Some("not ready".to_owned()) })
    }
}
