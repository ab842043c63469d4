//! What every GET has in common.

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::Response;
use ledger::principal::KeyScope;
use serde::Serialize;
use uuid::Uuid;

use crate::Api;
use crate::authentication::Caller;
use crate::json;
use crate::members::uuid;
use crate::problem::Problem;

/// The identifier in a path, as far as the router could read it.
pub(crate) type PathId = Result<Path<String>, PathRejection>;

/// Who asks, if they may read.
///
/// # Errors
/// [`Problem::Unauthenticated`], [`Problem::Forbidden`], [`Problem::RateLimited`] and [`Problem::Unavailable`].
pub(crate) async fn reader(api: &Api, parts: &Parts) -> Result<Caller, Problem> {
    let caller = api.authenticator().authenticate(parts).await?;
    caller.require(KeyScope::Read)?;
    api.rate_limits().admit_reader(&caller.scope).require()?;
    Ok(caller)
}

/// The identifier in the path. What is no identifier names nothing.
///
/// # Errors
/// [`Problem::NotFound`].
pub(crate) fn path_id(path: PathId) -> Result<Uuid, Problem> {
    let Path(text) = path.map_err(|_| Problem::NotFound)?;
    uuid(&text).ok_or(Problem::NotFound)
}

/// A list as clients see it.
#[derive(Serialize)]
pub(crate) struct ListObject<T> {
    pub(crate) data: Vec<T>,
    pub(crate) next_cursor: Option<String>,
}

/// Answers 200 with a value.
///
/// # Errors
/// [`Problem::Internal`] where the value can't be written.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<Response, Problem> {
    let body = json::line(value).map_err(|error| Problem::Internal { cause: error.to_string().into() })?;
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
