//! The API as the shop's backend calls it: with the secret key, which never reaches a browser.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, LINK, LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use super::attempts::Reply;

/// Names the intent; it travels from the browser through here to the API as it is.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What of an answer the browser needs to hear.
const PASSED_ON: [HeaderName; 7] = [
    CONTENT_TYPE,
    LOCATION,
    RETRY_AFTER,
    LINK,
    CACHE_CONTROL,
    IDEMPOTENT_REPLAYED,
    HeaderName::from_static("x-request-id"),
];

/// How long the API may take to answer: longer than its own bound of 15 s, so that its answer arrives first.
const ANSWER_WITHIN: Duration = Duration::from_secs(18);
/// How long it may take to answer a question of the panel, which is asked again in a second.
const FACT_WITHIN: Duration = Duration::from_secs(3);
/// The longest answer that is read, in bytes: a page of 100 transfers with everything that may be attached to them.
const ANSWER_BYTES: usize = 2 * 1024 * 1024;

/// Calls the API as one principal.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    key: SecretString,
}

/// An answer of the API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Those that are passed on.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn reply(&self) -> Reply {
        let replayed = self.headers.get(IDEMPOTENT_REPLAYED).is_some_and(|value| value == "true");
        Reply { status: self.status.as_u16(), replayed }
    }

    /// The body where the API found what it was asked for.
    pub(crate) fn found(&self) -> Option<Value> {
        self.status.is_success().then(|| serde_json::from_slice(&self.body).ok()).flatten()
    }
}

/// No whole answer came, which says nothing about what has happened.
#[derive(Debug)]
pub(crate) struct Unanswered;

impl Client {
    /// A client of the API at `url`, such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// What the operating system refuses at the start.
    pub(crate) fn new(url: &str, key: SecretString) -> Result<Self, reqwest::Error> {
        // A connection for each request: one that was kept could have been closed by an API that stopped meanwhile, and the
        // panel would show a failure that is none.
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build()?;
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), key })
    }

    /// Sends a POST under the keys that the browser has sent: one, unless something is wrong with them, which is the API's
    /// to say.
    pub(crate) async fn post(
        &self,
        path: &str,
        keys: impl Iterator<Item = HeaderValue>,
        body: &Value,
    ) -> Result<Answer, Unanswered> {
        let mut request = self.http.post(self.at(path)).timeout(ANSWER_WITHIN).header(CONTENT_TYPE, "application/json");
        for key in keys {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        self.send(request.body(body.to_string())).await
    }

    /// Asks for something.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer, Unanswered> {
        self.send(self.http.get(self.at(path)).timeout(FACT_WITHIN)).await
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Answer, Unanswered> {
        let mut bearer =
            HeaderValue::try_from(format!("Bearer {}", self.key.expose_secret())).map_err(|_| Unanswered)?;
        bearer.set_sensitive(true);
        let mut response = request.header(AUTHORIZATION, bearer).send().await.map_err(|_| Unanswered)?;
        let status = response.status();
        let mut headers = HeaderMap::new();
        for name in &PASSED_ON {
            if let Some(value) = response.headers().get(name) {
                headers.insert(name, value.clone());
            }
        }
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|_| Unanswered)? {
            if body.len() + part.len() > ANSWER_BYTES {
                return Err(Unanswered);
            }
            body.extend_from_slice(&part);
        }
        Ok(Answer { status, headers, body: body.into() })
    }
}
