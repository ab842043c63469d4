//! One thing that is to be done once.

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::Client;
use crate::error::Error;
use crate::key::IdempotencyKey;
use crate::problem::OF_THE_BODY;
use crate::reply::Reply;
use crate::resource::{Account, OpenAccount, Operation, PostTransfer, Transfer};
use crate::retry::persist;
use crate::store::{Entry, Store};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// What came of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It is done.
    Done(Answer<T>),
    /// It is accepted, and will be done whatever happens to any process. [`Client::wait_for`] its end, then send the same intent again
    /// for the final answer.
    Accepted(Answer<Operation>),
}

/// A good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What it brings: the state at the time of the first answer.
    pub value: T,
    /// Whether an earlier attempt had this answer: it took effect then, and nothing happened now.
    pub replayed: bool,
    /// What to tell the operators if something is odd.
    pub request_id: Option<String>,
}

/// One thing that is to be done once. Sending it again is always safe.
#[derive(Debug)]
pub struct Intent<S> {
    client: Client<S>,
    name: String,
    headers: HeaderMap,
    settled: bool,
}

impl<S: Store> Intent<S> {
    pub(crate) fn new(client: Client<S>, name: String) -> Self {
        Self { client, name, headers: HeaderMap::new(), settled: false }
    }

    /// One more header for this intent's requests. Headers aren't kept, and no part of what makes two requests the same.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Asks for [`Outcome::Accepted`] instead of waiting for the end.
    #[must_use]
    pub fn respond_async(self) -> Self {
        self.header(PREFER, HeaderValue::from_static("respond-async"))
    }

    /// Moves money.
    ///
    /// # Errors
    /// [`Error::Rejected`] by a rule of the ledger, [`Error::Refused`] for another reason, [`Error::Unresolved`] where it isn't known yet;
    /// [`Error::IntentChanged`] where the name stands for another request; [`Error::Store`].
    pub async fn post_transfer(&mut self, transfer: &PostTransfer) -> Result<Outcome<Transfer>, Error> {
        self.post("/v1/transfers", transfer).await
    }

    /// Opens an account.
    ///
    /// # Errors
    /// As of [`Intent::post_transfer`].
    pub async fn open_account(&mut self, account: &OpenAccount) -> Result<Outcome<Account>, Error> {
        self.post("/v1/accounts", account).await
    }

    /// Removes the key. Call it once the outcome is recorded: from then on the same name is a new intent.
    ///
    /// It is free to go after [`Outcome::Done`] and [`Error::Rejected`], and where the very first attempt was refused for its body, so
    /// that the corrected request may bear the same name. What a person has settled otherwise is removed from [`Client::store`].
    ///
    /// # Errors
    /// [`Error::Unsettled`] where this intent's last call had another end; [`Error::Store`].
    pub async fn forget(self) -> Result<(), Error> {
        if !self.settled {
            return Err(Error::Unsettled { name: self.name });
        }
        Ok(self.client.store().forget(&self.name).await?)
    }

    async fn post<T: DeserializeOwned>(&mut self, path: &str, request: &impl Serialize) -> Result<Outcome<T>, Error> {
        // A call that is dropped half-way leaves it so.
        self.settled = false;
        let body = serde_json::to_string(request).map_err(|error| Error::Store(error.into()))?;
        let fresh = Entry { key: IdempotencyKey::fresh(), path: path.to_owned(), body };
        let kept = self.client.store().keep(&self.name, fresh.clone()).await?;
        if !same_request(&kept, &fresh) {
            return Err(Error::IntentChanged { name: self.name.clone() });
        }
        let mut headers = self.client.headers().clone();
        headers.extend(self.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let key = HeaderValue::try_from(kept.key.expose());
        let mut key = key.map_err(|_| Error::Store("a kept key has characters that no key has".into()))?;
        key.set_sensitive(true);
        headers.insert(IDEMPOTENCY_KEY, key);

        let (client, entry, headers) = (&self.client, &kept, &headers);
        let attempt = || async move {
            let reply = client.post(&entry.path, headers.clone(), entry.body.clone()).await?;
            match reply.status {
                200 | 201 => Ok(Outcome::Done(answer(&reply, reply.read()?))),
                202 => Ok(Outcome::Accepted(answer(&reply, reply.read()?))),
                _ => Err(reply.refusal()),
            }
        };
        let (result, attempts) = persist(client.policy(), attempt).await;
        self.settled = match &result {
            Ok(Outcome::Done(_)) | Err(Error::Rejected { .. }) => true,
            // These bytes are no request for anybody, and nothing under this key can be on its way.
            Err(Error::Refused { problem: Some(problem), .. }) => {
                OF_THE_BODY.contains(&problem.name()) && kept.key == fresh.key && attempts == 1
            }
            Ok(Outcome::Accepted(_))
            | Err(
                Error::Refused { problem: None, .. }
                | Error::Unresolved { .. }
                | Error::Unsettled { .. }
                | Error::IntentChanged { .. }
                | Error::Store(_)
                | Error::Setup(_),
            ) => false,
        };
        result
    }
}

fn answer<T>(reply: &Reply, value: T) -> Answer<T> {
    Answer { value, replayed: reply.replayed(), request_id: reply.request_id() }
}

/// Whether two entries ask for the same. A later version of this client may write the same request in another order.
fn same_request(one: &Entry, other: &Entry) -> bool {
    let read = |entry: &Entry| serde_json::from_str::<Value>(&entry.body).ok();
    one.path == other.path && (one.body == other.body || read(one).is_some_and(|value| read(other) == Some(value)))
}
