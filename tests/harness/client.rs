//! An HTTP client of one principal. It retries nothing by itself.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use uuid::Uuid;

use crate::Patience;
use crate::books::{Account, transfer};
use crate::process::Process;

/// How long a request may take: longer than any bound of the server.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends requests with one API key to one process.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: String,
}

/// What came back, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// Whether the answer is marked as a replay.
    pub fn replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    /// The last part of the problem's type, such as `insufficient-funds`.
    pub fn problem(&self) -> String {
        let kind = self.json()["type"].as_str().unwrap_or_default().to_owned();
        kind.strip_prefix("/problems/").unwrap_or(&kind).to_owned()
    }

    /// A header as text; empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Whether the answer means "same key again".
    pub fn try_again(&self) -> bool {
        matches!(self.status, 409 | 503) && !self.header("retry-after").is_empty()
    }
}

impl Client {
    /// A client of the API key at the process.
    pub fn new(process: &Process, key: &str) -> Self {
        Self::of(process.url(), key)
    }

    /// A client of the API key at whatever process serves at this port.
    pub fn at_port(port: u16, key: &str) -> Self {
        Self::of(format!("http://127.0.0.1:{port}"), key)
    }

    fn of(base: String, key: &str) -> Self {
        let http = reqwest::Client::builder().timeout(TIMEOUT).no_proxy().build().unwrap();
        Self { http, base, key: key.to_owned() }
    }

    /// The same client at another process.
    pub fn at(&self, process: &Process) -> Self {
        Self { base: process.url(), ..self.clone() }
    }

    /// The same process with another API key.
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// An idempotency key that was never used.
    pub fn fresh_key(&self) -> String {
        Uuid::new_v4().to_string()
    }

    /// A request with this client's API key, to be completed and sent.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.key)
    }

    /// Sends a request as it is.
    ///
    /// # Errors
    /// Where no answer came.
    pub async fn send(&self, request: RequestBuilder) -> Result<Reply, reqwest::Error> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Reply { status, headers, body: response.bytes().await?.to_vec() })
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await.unwrap()
    }

    /// POST of bytes with headers as they are.
    pub async fn post_raw(&self, path: &str, headers: &[(&str, &[u8])], body: impl Into<Vec<u8>>) -> Reply {
        let mut request = self.request(Method::POST, path).body(body.into());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        if !map.contains_key("content-type") {
            map.insert("content-type", HeaderValue::from_static("application/json"));
        }
        request = request.headers(map);
        self.send(request).await.unwrap()
    }

    /// POST of JSON under a key.
    ///
    /// # Errors
    /// Where no answer came.
    pub async fn try_post(&self, path: &str, key: &str, body: &Value) -> Result<Reply, reqwest::Error> {
        let request = self.request(Method::POST, path).header("idempotency-key", key);
        self.send(request.header("content-type", "application/json").body(body.to_string())).await
    }

    /// POST of JSON under a key.
    pub async fn post(&self, path: &str, key: &str, body: &Value) -> Reply {
        self.try_post(path, key, body).await.unwrap()
    }

    /// POST of a transfer in euro cents.
    pub async fn transfer(&self, key: &str, source: &Account, destination: &Account, amount: i64) -> Reply {
        self.post("/v1/transfers", key, &transfer(source, destination, amount)).await
    }

    /// POST of a transfer in euro cents.
    ///
    /// # Errors
    /// Where no answer came.
    pub async fn try_transfer(
        &self,
        key: &str,
        from: &Account,
        to: &Account,
        amount: i64,
    ) -> Result<Reply, reqwest::Error> {
        self.try_post("/v1/transfers", key, &transfer(from, to, amount)).await
    }

    /// Sends a transfer with the same key until it has a final answer.
    ///
    /// # Panics
    /// After [`crate::PATIENCE`].
    pub async fn transfer_until_final(&self, key: &str, source: &Account, destination: &Account, amount: i64) -> Reply {
        let patience = Patience::start();
        loop {
            match self.try_transfer(key, source, destination, amount).await {
                Ok(reply) if !reply.try_again() => return reply,
                Ok(_) | Err(_) => patience.turn("a final answer").await,
            }
        }
    }
}
