//! What stands around every request: its id, its deadline, the form of its refusal, and the traces that it leaves.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request};
use axum::http::header::CACHE_CONTROL;
use axum::http::{Extensions, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use ledger::trace;
use opentelemetry::KeyValue;
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status};
use uuid::Uuid;

use crate::access::{Access, Line};
use crate::metrics::{self, InFlight};
use crate::problem::{Problem, Unavailability};
use crate::staged_fault::Staged;

/// How long a request may take from its header to its answer: the body's 10 s, the wait for a running original of 5 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Names the answer to one request, for support and logs.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Names the trace that a request belongs to (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The endpoint under which requests that match no route are counted.
const UNMATCHED: &str = "unmatched";

/// The id of a request: fresh for every answer, replays included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId(Uuid);

impl RequestId {
    /// The id that this layer has given the request.
    pub(crate) fn of(extensions: &Extensions) -> Uuid {
        extensions.get::<Self>().map_or_else(Uuid::now_v7, |id| id.0)
    }
}

/// Answers a request within its time, whatever happens inside.
pub(crate) async fn surround(mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let _in_flight = InFlight::enter();
    let id = Uuid::now_v7();
    let access = Access::default();
    let mut span = begin_span(&request);
    let context = span.span_context().clone();
    // A request that nobody traces is its own trace in the log.
    let trace_id = if context.is_valid() { Uuid::from_bytes(context.trace_id().to_bytes()) } else { id };
    request.extensions_mut().insert(context);
    request.extensions_mut().insert(RequestId(id));
    request.extensions_mut().insert(access.clone());
    let endpoint = request.extensions().get::<MatchedPath>().map_or(UNMATCHED, MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let uri = request.uri().clone();

    let answered = tokio::time::timeout(REQUEST_TIMEOUT, unpanicked(next.run(request))).await;
    let (mut response, problem) = match answered {
        Ok(Ok(mut response)) => {
            let problem = response.extensions_mut().remove::<Problem>().or_else(|| Problem::of_framework(&response));
            (response, problem)
        }
        Ok(Err(panic)) => (Response::default(), Some(Problem::Internal { cause: panic.into() })),
        Err(_) => (Response::default(), Some(Problem::Unavailable { why: Unavailability::Deadline, cause: None })),
    };
    if let Some(problem) = &problem {
        // What layers further in have added, such as the headers of CORS, stays.
        let added = std::mem::take(response.headers_mut());
        response = problem.answer(uri.path(), id);
        for (name, value) in added {
            if let Some(name) = name
                && !response.headers().contains_key(&name)
                && name != axum::http::header::CONTENT_LENGTH
            {
                response.headers_mut().insert(name, value);
            }
        }
    }
    if let Ok(id) = HeaderValue::try_from(id.to_string()) {
        response.headers_mut().insert(X_REQUEST_ID, id);
    }
    if uri.path().starts_with("/v1/") {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if let Some(Staged::Delay(delay)) = response.extensions().get() {
        tokio::time::sleep(*delay).await;
    }
    let (took, status) = (begun.elapsed(), response.status());
    access.write(&Line {
        trace_id,
        request_id: id,
        endpoint: &endpoint,
        method: &method,
        status,
        problem: problem.as_ref(),
        took,
    });
    end_span(&mut span, &endpoint, status, &access);
    if let Some(problem) = &problem {
        metrics::count_problem(endpoint.clone(), problem.kind());
    }
    metrics::count_request(endpoint, &method, status, took);
    response
}

/// The span of a request, below that of its client if it has one. Its name is the route, of which there are few.
fn begin_span(request: &Request) -> BoxedSpan {
    let caller = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(trace::parse);
    let endpoint = request.extensions().get::<MatchedPath>().map_or(UNMATCHED, MatchedPath::as_str);
    let method = metrics::method_name(request.method());
    let mut span = trace::begin(method, SpanKind::Server, &caller.unwrap_or(SpanContext::NONE));
    if span.is_recording() {
        span.update_name(format!("{method} {endpoint}"));
    }
    span
}

/// Ends it with what OpenTelemetry's conventions for HTTP servers ask for, and with who asked.
fn end_span(span: &mut BoxedSpan, endpoint: &str, status: StatusCode, access: &Access) {
    if !span.is_recording() {
        return;
    }
    span.set_attribute(KeyValue::new("http.route", endpoint.to_owned()));
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
    if let Some(principal) = access.principal() {
        span.set_attribute(KeyValue::new("oncepost.principal_id", principal.to_string()));
    }
    if status.is_server_error() {
        span.set_status(Status::error(""));
    }
    span.end();
}

/// Runs a future; a panic in it becomes its message, and the connection lives on.
async fn unpanicked<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    // The future is never polled again after a panic, so nobody sees what it left half done.
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(message(panic.as_ref()))),
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a handler panicked: {}", text.unwrap_or("without a message"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::http::header::ALLOW;
    use axum::routing::get;
    use axum::{Router, middleware};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn panics() -> Response {
        panic!("on purpose")
    }

    async fn ask(method: &str, path: &str) -> (StatusCode, axum::http::HeaderMap, serde_json::Value) {
        let router = Router::new()
            .route("/v1/panics", get(panics))
            .fallback(|| async { Problem::NotFound })
            .method_not_allowed_fallback(|| async { Problem::MethodNotAllowed })
            .layer(middleware::from_fn(surround));
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn a_panic_is_answered_and_its_message_kept_inside() {
        let (status, headers, body) = ask("GET", "/v1/panics").await;
        assert_eq!(status, 500);
        assert_eq!(headers["content-type"], "application/problem+json");
        assert_eq!(body["type"], "/problems/internal");
        assert_eq!(body["request_id"], headers["x-request-id"].to_str().unwrap());
        assert!(!body.to_string().contains("on purpose"));
    }

    #[tokio::test]
    async fn refusals_of_the_router_are_problems_too() {
        let (status, headers, body) = ask("GET", "/v1/nothing").await;
        assert_eq!((status, &body["type"]), (StatusCode::NOT_FOUND, &"/problems/not-found".into()));
        assert_eq!(body["instance"], "/v1/nothing");
        assert_eq!(headers["cache-control"], "no-store");

        let (status, headers, body) = ask("DELETE", "/v1/panics").await;
        assert_eq!((status, &body["type"]), (StatusCode::METHOD_NOT_ALLOWED, &"/problems/method-not-allowed".into()));
        assert_eq!(headers[ALLOW], "GET,HEAD");
    }
}
