//! Connections: accepted, told apart, timed and stopped here, because the usual server has no timer while it waits for a
//! connection's first bytes, and none for a client that does not read.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::header::EXPECT;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::Service;
use uuid::Uuid;

use crate::Api;
use crate::body::PatientBody;
use crate::metrics::InFlight;
use crate::operations;
use crate::problem::{Problem, Unavailability};
use crate::staged_fault::Staged;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 1024;
/// From a connection's first moment to its first whole header; over HTTP/1 also from one answer to the next header, which
/// bounds an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// What is left of that time where the first bytes took most of it.
const HEADER_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The largest header in bytes, and the most lines in it.
const HEADER_MAX: u32 = 16 * 1024;
const HEADER_LINES_MAX: usize = 64;
/// The most requests at a time on one HTTP/2 connection.
const STREAMS_MAX: u32 = 100;
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection on which no request runs, begins or ends for this long is asked to close, and closed after as long again.
/// It bounds what no other timer does: HTTP/2 without requests, and answers that the client does not read.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The same while the server stops.
const IDLE_TIMEOUT_STOPPING: Duration = Duration::from_secs(1);
/// How long requests that are under way may take once the server stops: a request's 15 s and its answer. What comes after,
/// such as committing what is queued, has the rest of 30 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long accepting rests where the process has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most connections beyond the limit that hear so; more are closed unheard.
const REFUSALS_MAX: usize = 256;
/// How long a refused connection may take to hear so.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Listens for connections.
///
/// # Errors
/// What the operating system says, such as that the address is taken.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait until the connections of the process before it are forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers requests until `stop` is ready; then accepts no more, answers what is under way, and returns when the last
/// connection is closed, at most 20 s later. The ledger is the caller's to close.
pub async fn serve(listener: TcpListener, api: Api, stop: impl Future<Output = ()>) {
    let max_connections = api.settings().max_connections;
    metrics::gauge!("oncepost_http_connections_max").set(max_connections as f64);
    let slots = Arc::new(Semaphore::new(max_connections));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let (stopping, told) = watch::channel(false);
    let router = api.router();
    let left_behind = tokio::spawn(operations::finish_left_behind(api.clone()));
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);

    loop {
        let stream = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_ended) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            },
        };
        if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
            let connection = answer(stream, router.clone(), told.clone());
            connections.spawn(async move {
                let _connected = InFlight::connect();
                connection.await;
                drop(slot);
            });
        } else if let Ok(refusal) = Arc::clone(&refusals).try_acquire_owned() {
            connections.spawn(async move {
                // A client that doesn't listen has lost nothing that it could have used.
                let _heard = tokio::time::timeout(REFUSAL_TIMEOUT, refuse(stream)).await;
                drop(refusal);
            });
        }
    }

    drop(listener);
    left_behind.abort();
    api.stop();
    stopping.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "connections that did not end in time are cut");
        connections.shutdown().await;
    }
}

/// Most errors of `accept` are of the connection that failed; those of the process need a pause, or the loop would spin.
async fn pause_after(error: &io::Error) {
    let of_the_connection = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    );
    if !of_the_connection {
        tracing::warn!(%error, "connections can't be accepted");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Tells a client that there are too many connections, and reads on until it has heard: closing a socket with unread data
/// would reset it before.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let problem = Problem::Unavailable { why: Unavailability::Connections, cause: None };
    let id = Uuid::now_v7();
    let body = problem.body("/", id);
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nx-request-id: {id}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Answers one connection until it ends.
async fn answer(stream: TcpStream, router: Router, mut stopping: watch::Receiver<bool>) {
    let begun = Instant::now();
    // Answers are small and complete; waiting to fill a segment only delays them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY can't be set");
    }
    let told_apart = tokio::select! {
        told_apart = tokio::time::timeout(HEADER_TIMEOUT, tell_apart(stream)) => told_apart,
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    let Ok(Ok(Some((protocol, stream)))) = told_apart else { return };
    let header_timeout = HEADER_TIMEOUT.saturating_sub(begun.elapsed()).max(HEADER_TIMEOUT_MIN);

    let activity = Arc::new(Activity::default());
    let service = service_fn({
        let activity = Arc::clone(&activity);
        move |request| respond(router.clone(), Arc::clone(&activity), request)
    });
    let io = TokioIo::new(stream);
    match protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(header_timeout)
                .max_header_size(usize::try_from(HEADER_MAX).unwrap_or(usize::MAX))
                .max_buf_size(usize::try_from(HEADER_MAX).unwrap_or(usize::MAX))
                .serve_connection(io, service);
            run(connection, &activity, stopping).await;
        }
        Protocol::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS_MAX)
                .max_header_list_size(HEADER_MAX)
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .serve_connection(io, service);
            run(connection, &activity, stopping).await;
        }
    }
}

/// Answers one request of a connection.
async fn respond(
    mut router: Router,
    activity: Arc<Activity>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Cut> {
    let _running = activity.begin();
    if request.headers().len() > HEADER_LINES_MAX {
        // Like the parser's own refusals, it comes before routing, and is bare.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Ok(response);
    }
    let expects_continue = request.headers().contains_key(EXPECT);
    let response = match router.call(request.map(|body| Body::new(PatientBody::new(body, expects_continue)))).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    match response.extensions().get() {
        Some(Staged::DropReply) => Err(Cut),
        Some(Staged::Delay(_) | Staged::Ledger(_)) | None => Ok(response),
    }
}

/// The client asked to lose its answer: hyper closes the connection without one.
#[derive(Debug, Error)]
#[error("the answer is dropped, as was asked for")]
struct Cut;

/// Drives a connection to its end, which comes from the client, from one of hyper's timers, from idleness, or from a stop.
async fn run<C: GracefulConnection>(connection: C, activity: &Activity, mut stopping: watch::Receiver<bool>) {
    let mut connection = pin!(connection);
    let mut stopped = false;
    let mut idle = false;
    let mut seen = activity.changes();
    let mut timer = pin!(tokio::time::sleep(IDLE_TIMEOUT));
    loop {
        let timeout = if stopped { IDLE_TIMEOUT_STOPPING } else { IDLE_TIMEOUT };
        tokio::select! {
            // An error here is the client's end of the connection, or a request that hyper has refused already.
            _ended = connection.as_mut() => return,
            _ = stopping.wait_for(|stopping| *stopping), if !stopped => {
                stopped = true;
                connection.as_mut().graceful_shutdown();
                timer.as_mut().reset(tokio::time::Instant::now() + IDLE_TIMEOUT_STOPPING);
            }
            () = timer.as_mut() => {
                let changes = activity.changes();
                let still = changes == seen && !activity.running();
                seen = changes;
                if still && idle {
                    return;
                }
                if still {
                    connection.as_mut().graceful_shutdown();
                }
                idle = still;
                timer.as_mut().reset(tokio::time::Instant::now() + timeout);
            }
        }
    }
}

/// What happens on a connection, for telling whether it is idle.
#[derive(Default)]
struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A request that is under way.
struct Running<'a>(&'a Activity);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Activity {
    fn begin(&self) -> Running<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }

    fn running(&self) -> bool {
        self.begun.load(Ordering::Relaxed) != self.ended.load(Ordering::Relaxed)
    }

    fn changes(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// What an HTTP/2 client that knows beforehand begins with (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads until the first bytes tell the protocol; `None` where the client leaves before.
async fn tell_apart<T: AsyncRead + Unpin>(mut stream: T) -> io::Result<Option<(Protocol, Rewound<T>)>> {
    let mut first = [0; PREFACE.len()];
    let mut filled: usize = 0;
    loop {
        let Some(free) = first.get_mut(filled..) else { return Ok(None) };
        let read = stream.read(free).await?;
        filled = filled.saturating_add(read);
        let so_far = first.get(..filled).unwrap_or_default();
        let protocol = if !PREFACE.starts_with(so_far) {
            Protocol::Http1
        } else if filled == PREFACE.len() {
            Protocol::Http2
        } else if read == 0 {
            return Ok(None);
        } else {
            continue;
        };
        return Ok(Some((protocol, Rewound { first, filled, taken: 0, stream })));
    }
}

/// A stream whose first bytes, which were read to tell the protocol, are read again.
struct Rewound<T> {
    first: [u8; PREFACE.len()],
    filled: usize,
    taken: usize,
    stream: T,
}

impl<T: AsyncRead + Unpin> AsyncRead for Rewound<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken < self.filled {
            let end = self.taken.saturating_add(buffer.remaining()).min(self.filled);
            if let Some(again) = self.first.get(self.taken..end) {
                buffer.put_slice(again);
            }
            self.taken = end;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Rewound<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn protocols_are_told_apart_and_nothing_is_lost() {
        for (sent, expected) in [
            (&b"POST /v1/transfers HTTP/1.1\r\n"[..], Some(Protocol::Http1)),
            (b"PRO", Some(Protocol::Http1)),
            (b"x", Some(Protocol::Http1)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", Some(Protocol::Http2)),
            (b"PRI * HTTP/2.0\r\n", None),
            (b"", None),
        ] {
            // One byte at a time is what a slow client sends.
            let (mut client, server) = tokio::io::duplex(1);
            let sending = tokio::spawn(async move { client.write_all(sent).await });
            match (tell_apart(server).await.unwrap(), expected) {
                (Some((protocol, mut stream)), Some(expected)) => {
                    assert_eq!(protocol, expected);
                    let mut received = Vec::new();
                    stream.read_to_end(&mut received).await.unwrap();
                    assert_eq!(received, sent);
                }
                (None, None) => {}
                (told_apart, expected) => {
                    panic!("{:?} instead of {expected:?}", told_apart.map(|(protocol, _)| protocol))
                }
            }
            sending.await.unwrap().unwrap();
        }
    }
}
