//! The shop's connections: one request each, and ended without an answer where that is what the panel shows.

use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::Service as _;

/// The most connections at a time; more wait to be accepted. A browser opens six.
const CONNECTIONS_MAX: usize = 256;
/// How long a client may take to send its header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may last: its header, a slow network both ways and the API's 18 s.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(45);
/// How long accepting rests where the process has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests that are under way may take once the shop stops. What it cuts is safe: the browser keeps its key.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Marks a response that does not reach the browser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection ends without an answer")
    }
}

impl std::error::Error for Cut {}

/// Answers requests until `stop` is ready, and returns when the last connection has ended.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let accept = async {
            // The semaphore is never closed, and without a slot nothing is accepted.
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, stream) = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_ended) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept => match accepted {
                (slot, Ok((stream, _))) => (slot, stream),
                (_, Err(_)) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let router = router.clone();
        connections.spawn(async move {
            let _slot = slot;
            // What ends early has been ended by the browser, or by the panel's switch.
            let _ended = tokio::time::timeout(CONNECTION_TIMEOUT, answer(stream, router)).await;
        });
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
        connections.shutdown().await;
    }
}

/// Answers the one request of a connection. It is not kept for another: where a kept connection breaks, Chrome sends the
/// request again by itself, and nobody would see that attempt.
async fn answer(stream: TcpStream, router: Router) -> Result<(), hyper::Error> {
    let service = service_fn(move |request| respond(router.clone(), request));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn respond(mut router: Router, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let response: Result<_, Infallible> = router.call(request.map(Body::new)).await;
    match response {
        Ok(response) => match response.extensions().get::<Cut>() {
            Some(cut) => Err(*cut),
            None => Ok(response),
        },
        Err(never) => match never {},
    }
}
