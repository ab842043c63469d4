//! The body of a request: what is told of it by the headers, and reading it within bounds.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use crate::problem::{MediaFault, Problem};

/// The largest body in bytes: fifty times the largest sensible transfer.
pub(crate) const BODY_MAX: usize = 64 * 1024;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How much of a refused body is read and thrown away, and for how long. Closing a socket with unread data resets it, and
/// a client that is still writing would never see the answer.
const DRAIN_MAX: usize = 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Judges a body by its headers, before any of it is read.
///
/// # Errors
/// [`Problem::UnsupportedMediaType`] and [`Problem::BodyTooLarge`].
pub(crate) fn check_headers(headers: &HeaderMap) -> Result<(), Problem> {
    if headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
    {
        return Err(Problem::UnsupportedMediaType(MediaFault::Coding));
    }
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let json = types.next().and_then(|value| value.to_str().ok()).is_some_and(utf8_json);
    if !json || types.next().is_some() {
        return Err(Problem::UnsupportedMediaType(MediaFault::Type));
    }
    // Where there is no length, or none that fits, the reader counts.
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_MAX as u64) {
        return Err(Problem::BodyTooLarge { limit: BODY_MAX });
    }
    Ok(())
}

/// Whether a media type is JSON, and its charset, if it names one, UTF-8: the only one that JSON has (RFC 8259, section
/// 8.1). Other parameters mean nothing here and are passed over (section 11).
fn utf8_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    json && parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        Some(_) | None => true,
    })
}

/// Reads a whole body.
///
/// # Errors
/// [`Problem::BodyTooLarge`] as soon as it is known, so memory stays flat however much is sent; [`Problem::BodyBroken`]
/// where the body breaks off or takes too long.
pub(crate) async fn read(body: axum::body::Body) -> Result<Vec<u8>, Problem> {
    ledger::failpoint::hit("read-body");
    match tokio::time::timeout(BODY_TIMEOUT, collect(body)).await {
        Ok(read) => read,
        Err(_) => Err(Problem::BodyBroken { why: "The body took longer than 10 seconds to arrive." }),
    }
}

async fn collect(mut body: axum::body::Body) -> Result<Vec<u8>, Problem> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(BODY_MAX);
    let mut read = Vec::with_capacity(expected.min(BODY_MAX));
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Problem::BodyBroken { why: "The body broke off before its end." })?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len().saturating_add(data.len()) > BODY_MAX {
            return Err(Problem::BodyTooLarge { limit: BODY_MAX });
        }
        read.extend_from_slice(&data);
    }
    Ok(read)
}

/// A body from the network that, if it is dropped unread, is read to its end in the background, within bounds.
pub(crate) struct PatientBody {
    body: Option<Incoming>,
    /// Whether the client waits for permission to send: then there is nothing to read away, and reading would ask for it.
    expects_continue: bool,
}

impl PatientBody {
    pub(crate) const fn new(body: Incoming, expects_continue: bool) -> Self {
        Self { body: Some(body), expects_continue }
    }
}

impl hyper::body::Body for PatientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // Whoever reads has let the client send.
        self.expects_continue = false;
        let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), hyper::body::Body::size_hint)
    }
}

impl Drop for PatientBody {
    fn drop(&mut self) {
        let Some(body) = self.body.take() else { return };
        if self.expects_continue || body.is_end_stream() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(DRAIN_TIMEOUT, drain(body)));
        }
    }
}

async fn drain(mut body: Incoming) {
    let mut drained: usize = 0;
    while drained <= DRAIN_MAX {
        match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            Some(Ok(frame)) => drained = drained.saturating_add(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(_)) | None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn only_json_in_utf_8_is_taken() {
        for taken in [
            "application/json",
            "APPLICATION/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/json; x=y",
        ] {
            assert!(check_headers(&headers(&[(CONTENT_TYPE, taken)])).is_ok(), "{taken}");
        }
        for refused in [
            "text/plain",
            "",
            "application/json; charset=utf-16",
            "application/jsonp",
            "application/vnd.api+json",
            "json",
        ] {
            let answer = check_headers(&headers(&[(CONTENT_TYPE, refused)]));
            assert!(matches!(answer, Err(Problem::UnsupportedMediaType(MediaFault::Type))), "{refused}");
        }
        assert!(matches!(check_headers(&HeaderMap::new()), Err(Problem::UnsupportedMediaType(MediaFault::Type))));
        for coding in ["gzip", "br", "identity, gzip"] {
            let answer = check_headers(&headers(&[(CONTENT_TYPE, "application/json"), (CONTENT_ENCODING, coding)]));
            assert!(matches!(answer, Err(Problem::UnsupportedMediaType(MediaFault::Coding))), "{coding}");
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_unread() {
        let of =
            |length: &str| check_headers(&headers(&[(CONTENT_TYPE, "application/json"), (CONTENT_LENGTH, length)]));
        assert!(of("65536").is_ok());
        for length in ["65537", "18446744073709551615"] {
            assert!(matches!(of(length), Err(Problem::BodyTooLarge { limit: BODY_MAX })), "{length}");
        }
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_the_limit() {
        let read_of = |length: usize| read(axum::body::Body::from(vec![b'x'; length]));
        for length in [0, BODY_MAX - 1, BODY_MAX] {
            assert_eq!(read_of(length).await.unwrap().len(), length);
        }
        assert!(matches!(read_of(BODY_MAX + 1).await, Err(Problem::BodyTooLarge { .. })));
    }
}
