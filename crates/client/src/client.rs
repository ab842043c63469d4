//! Who is asked, by whom, and what may be asked without a key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::error::{Error, Fault, Miss};
use crate::intent::Intent;
use crate::key::ApiKey;
use crate::reply::Reply;
use crate::resource::{Account, Operation, OperationStatus, Transfer};
use crate::retry::{Policy, persist};
use crate::store::Store;

/// How long connecting may take: a host that is gone must not use up a whole attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may idle: less than the 30 s after which the service closes it, which a request could meet half-way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Asks one service as one principal. Cheap to clone.
pub struct Client<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    http: reqwest::Client,
    base: String,
    headers: HeaderMap,
    policy: Policy,
    store: S,
}

impl<S> Clone for Client<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S> fmt::Debug for Client<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("base", &self.inner.base).finish_non_exhaustive()
    }
}

impl<S: Store> Client<S> {
    /// Begins a client of the service at `base`, such as `https://ledger.example`.
    pub fn builder(base: impl Into<String>, api_key: ApiKey, store: S) -> ClientBuilder<S> {
        let (policy, headers) = (Policy::default(), HeaderMap::new());
        ClientBuilder { base: base.into(), api_key, store, policy, headers, proxies: true }
    }

    /// One thing that is to be done once, under a name that the caller will know again after a crash.
    pub fn intent(&self, name: impl Into<String>) -> Intent<S> {
        Intent::new(self.clone(), name.into())
    }

    /// Reads an account.
    ///
    /// # Errors
    /// [`Error::Refused`] with `not-found`, or for another reason; [`Error::Unresolved`].
    pub async fn account(&self, id: Uuid) -> Result<Account, Error> {
        self.get(format!("/v1/accounts/{id}")).await
    }

    /// Reads a transfer.
    ///
    /// # Errors
    /// As of [`Client::account`].
    pub async fn transfer(&self, id: Uuid) -> Result<Transfer, Error> {
        self.get(format!("/v1/transfers/{id}")).await
    }

    /// Reads an operation.
    ///
    /// # Errors
    /// As of [`Client::account`].
    pub async fn operation(&self, id: Uuid) -> Result<Operation, Error> {
        self.get(operation_path(id)).await
    }

    /// Looks at an operation until it has ended. Then the intent that it belongs to has its final answer: send it again to get it.
    ///
    /// # Errors
    /// As of [`Client::account`]; [`Error::Unresolved`] with [`Fault::Processing`] where it still runs after `patience`.
    pub async fn wait_for(&self, id: Uuid, patience: Duration) -> Result<Operation, Error> {
        let policy = Policy { attempts: u32::MAX, deadline: patience, ..self.inner.policy };
        let path = &operation_path(id);
        let look = || async move {
            let reply = self.fetch(path).await?;
            let operation: Operation = reply.read()?;
            match operation.status {
                OperationStatus::Processing => Err(Miss::Again(Fault::Processing, reply.retry_after())),
                OperationStatus::Succeeded | OperationStatus::Failed | OperationStatus::Unknown => Ok(operation),
            }
        };
        persist(&policy, look).await.0
    }

    /// Where intents are kept.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    async fn get<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        let path = &path;
        persist(&self.inner.policy, || async move { self.fetch(path).await?.read() }).await.0
    }

    async fn fetch(&self, path: &str) -> Result<Reply, Miss> {
        let request = self.inner.http.get(self.url(path)).headers(self.inner.headers.clone());
        let reply = Reply::receive(request).await?;
        if reply.status == 200 { Ok(reply) } else { Err(reply.refusal()) }
    }

    /// Posts the body once.
    pub(crate) async fn post(&self, path: &str, headers: HeaderMap, body: String) -> Result<Reply, Miss> {
        Reply::receive(self.inner.http.post(self.url(path)).headers(headers).body(body)).await
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.inner.headers
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.inner.base)
    }
}

fn operation_path(id: Uuid) -> String {
    format!("/v1/operations/{id}")
}

/// A client in the making.
pub struct ClientBuilder<S> {
    base: String,
    api_key: ApiKey,
    store: S,
    policy: Policy,
    headers: HeaderMap,
    proxies: bool,
}

impl<S: Store> ClientBuilder<S> {
    /// Other bounds than [`Policy::default`].
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// A header of every request.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Leaves the proxies alone that the environment names.
    #[must_use]
    pub fn no_proxy(self) -> Self {
        Self { proxies: false, ..self }
    }

    /// Completes the client.
    ///
    /// # Errors
    /// [`Error::Setup`] where the address or the API key can't be used.
    pub fn build(self) -> Result<Client<S>, Error> {
        let Self { base, api_key, store, policy, mut headers, proxies } = self;
        let setup = |what: &str| Error::Setup(what.to_owned());
        let url = reqwest::Url::parse(&base).map_err(|error| Error::Setup(format!("the address: {error}")))?;
        let bare =
            url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !bare {
            return Err(setup(
                "the address must be http:// or https:// with a host, and without user, query and fragment",
            ));
        }
        let bearer = HeaderValue::try_from(format!("Bearer {}", api_key.expose()));
        let mut bearer = bearer.map_err(|_| setup("the API key has characters that no key has"))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, application/problem+json"));
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("oncepost-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            // A redirected POST becomes a GET, or reaches somebody else.
            .redirect(redirect::Policy::none())
            // There is one place that tries again, and it counts.
            .retry(reqwest::retry::never());
        if !proxies {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|error| Error::Setup(error.to_string()))?;
        let base = url.as_str().trim_end_matches('/').to_owned();
        Ok(Client { inner: Arc::new(Inner { http, base, headers, policy, store }) })
    }
}
