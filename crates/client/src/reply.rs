//! One answer of HTTP, and what it means.

use std::time::{Duration, SystemTime};

use reqwest::RequestBuilder;
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use serde::de::DeserializeOwned;

use crate::error::{Error, Fault, Miss};
use crate::problem::{OF_THE_KEY, Problem, REQUEST_IN_PROGRESS};

/// The longest answer that is read, in bytes. An answer repeats what a request of at most 64 KiB has sent, and each of its bytes may
/// come back as an escape of six.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Marks a replay.
pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Names the request for the operators.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A whole answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Sends a request and reads the answer to its end.
    pub(crate) async fn receive(request: RequestBuilder) -> Result<Self, Miss> {
        let mut response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Miss::Again(Fault::Unreadable { status }, None));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self { status, headers, body })
    }

    /// The resource in the body.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Miss> {
        let unreadable = |_| Miss::Again(Fault::Unreadable { status: self.status }, self.retry_after());
        serde_json::from_slice(&self.body).map_err(unreadable)
    }

    /// What an answer means that brings no resource. The type of the problem decides where there is one: the service may be configured to
    /// answer a reused key with the same status as a request that still runs.
    pub(crate) fn refusal(self) -> Miss {
        let (status, problem) = (self.status, Problem::read(&self.body));
        match (status, problem) {
            (429 | 500..=599, problem) => Miss::Again(Fault::Status { status, problem }, self.retry_after()),
            (_, Some(problem)) if problem.name() == REQUEST_IN_PROGRESS => {
                Miss::Again(Fault::Status { status, problem: Some(problem) }, self.retry_after())
            }
            (422, Some(problem)) if !OF_THE_KEY.contains(&problem.name()) => {
                Miss::Final(Error::Rejected { problem, replayed: self.replayed() })
            }
            (_, problem) => Miss::Final(Error::Refused { status, problem }),
        }
    }

    /// Whether an earlier attempt had this answer.
    pub(crate) fn replayed(&self) -> bool {
        self.headers.get(IDEMPOTENT_REPLAYED).is_some_and(|value| value == "true")
    }

    pub(crate) fn request_id(&self) -> Option<String> {
        self.headers.get(REQUEST_ID)?.to_str().ok().map(str::to_owned)
    }

    /// How long the service asks to be left alone: seconds or a date (RFC 9110, section 10.2.3). A date is compared with the answer's
    /// own, as this machine's clock may be wrong.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let text = |name| self.headers.get(name).and_then(|value| value.to_str().ok());
        let asked = text(RETRY_AFTER)?;
        if !asked.is_empty() && asked.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Duration::from_secs(asked.parse().unwrap_or(u64::MAX)));
        }
        let date = |text| httpdate::parse_http_date(text).ok();
        let now = text(DATE).and_then(date).unwrap_or_else(SystemTime::now);
        // A date that is over means: now.
        Some(date(asked)?.duration_since(now).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, headers: &[(HeaderName, &str)], body: &str) -> Reply {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        Reply { status, headers, body: body.into() }
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_as_a_date() {
        let asked = |after: &str, date: &str| reply(503, &[(RETRY_AFTER, after), (DATE, date)], "").retry_after();
        let now = "Fri, 31 Dec 1999 23:59:00 GMT";
        assert_eq!(asked("7", now), Some(Duration::from_secs(7)));
        assert_eq!(asked("Fri, 31 Dec 1999 23:59:59 GMT", now), Some(Duration::from_secs(59)));
        assert_eq!(asked("Fri, 31 Dec 1999 23:58:00 GMT", now), Some(Duration::ZERO));
        // Without the answer's own date, this machine's clock has to do.
        assert_eq!(asked("Fri, 31 Dec 1999 23:59:59 GMT", "?"), Some(Duration::ZERO));
        assert_eq!(asked("99999999999999999999999", now), Some(Duration::from_secs(u64::MAX)));
        for nonsense in ["", "-1", "1.5", "soon"] {
            assert_eq!(asked(nonsense, now), None, "{nonsense}");
        }
        assert_eq!(reply(503, &[], "").retry_after(), None);
    }

    #[test]
    fn the_type_decides_and_not_the_status_alone() {
        let refusal =
            |status, name: &str| reply(status, &[], &format!(r#"{{"type":"/problems/{name}","members":7}}"#)).refusal();
        assert!(matches!(refusal(409, "request-in-progress"), Miss::Again(Fault::Status { status: 409, .. }, None)));
        assert!(matches!(refusal(409, "idempotency-key-reused"), Miss::Final(Error::Refused { status: 409, .. })));
        assert!(matches!(refusal(422, "idempotency-key-reused"), Miss::Final(Error::Refused { status: 422, .. })));
        assert!(matches!(refusal(422, "a-rule-of-tomorrow"), Miss::Final(Error::Rejected { .. })));
        // Answers of something in between.
        for (status, body) in [(409, ""), (422, "<html>"), (403, "[]"), (307, ""), (204, ""), (404, "{}")] {
            let refusal = reply(status, &[], body).refusal();
            assert!(matches!(refusal, Miss::Final(Error::Refused { problem: None, .. })), "{refusal:?}");
        }
        for status in [429, 500, 502, 503, 504, 599] {
            assert!(matches!(reply(status, &[], "<html>").refusal(), Miss::Again(..)), "{status}");
        }
    }
}
