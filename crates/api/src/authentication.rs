//! Who asks: from the `Authorization` header to a scope of the ledger.
//!
//! Keys are read from the database once and kept for a few seconds, so that the usual request costs one MAC and no query.
//! What is kept is a row, never a verdict: every request's key is checked against the row's MAC.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use ledger::principal::{KeyScope, KeyScopes, Principals, StoredKey};
use ledger::{ReadError, Scope, Sessions};
use time::OffsetDateTime;

use crate::access::Access;
use crate::api_key::{ApiKey, KeyId, Peppers};
use crate::problem::{Problem, Unavailability};

/// How long a row is used. A revocation acts within 5 s: this, and room for clocks and schedulers.
const KEPT: Duration = Duration::from_secs(4);
/// From this age on, one request has the row read again while the others go on with it, so that no one waits.
const REFRESHED: Duration = Duration::from_secs(2);
/// How long an id is remembered as unknown: a new key works within this time even if someone tried it before.
const UNKNOWN_KEPT: Duration = Duration::from_secs(1);
/// The most rows that are kept; about 300 bytes each.
const KNOWN_MAX: usize = 10_000;
/// The most unknown ids that are remembered; whoever invents ids can't push real ones out.
const UNKNOWN_MAX: usize = 10_000;
/// How long a request waits for its key's row.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Requests that need the same row wait for one of them to read it. Ids are spread over this many locks.
const READERS: usize = 64;

/// Someone who may ask, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// Who asks.
    pub(crate) scope: Scope,
    scopes: KeyScopes,
}

impl Caller {
    /// # Errors
    /// [`Problem::Forbidden`].
    pub(crate) fn require(&self, needs: KeyScope) -> Result<(), Problem> {
        if self.scopes.allow(needs) { Ok(()) } else { Err(Problem::Forbidden { needs }) }
    }
}

/// A row and its age.
struct Known {
    key: StoredKey,
    /// When the row began to be read: what happened later may not show in it.
    read_at: Instant,
    refreshing: AtomicBool,
}

/// Checks API keys.
pub(crate) struct Authenticator {
    principals: Principals,
    peppers: Peppers,
    known: RwLock<HashMap<KeyId, Arc<Known>>>,
    unknown: Mutex<HashMap<KeyId, Instant>>,
    readers: [tokio::sync::Mutex<()>; READERS],
    spread: RandomState,
}

const NO_KEY: Problem =
    Problem::Unauthenticated { why: "The request needs one header `Authorization: Bearer` with an API key." };
const NOT_A_KEY: Problem =
    Problem::Unauthenticated { why: "This is not an API key: its form or its checksum is wrong." };
const NO_SUCH_KEY: Problem = Problem::Unauthenticated { why: "The API key is unknown, revoked or expired." };

impl Authenticator {
    pub(crate) fn new(principals: Principals, peppers: Peppers) -> Self {
        Self {
            principals,
            peppers,
            known: RwLock::default(),
            unknown: Mutex::default(),
            readers: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            spread: RandomState::new(),
        }
    }

    /// Who sends this request, which is noted for its line in the log.
    ///
    /// # Errors
    /// [`Problem::Unauthenticated`]; [`Problem::Unavailable`] where the key isn't kept and can't be read.
    pub(crate) async fn authenticate(self: &Arc<Self>, parts: &Parts) -> Result<Caller, Problem> {
        let key = ApiKey::parse(bearer(&parts.headers).ok_or(NO_KEY)?).ok_or(NOT_A_KEY)?;
        let known = match self.kept(&key.id) {
            Some(known) => known,
            None => self.read(key.id).await?.ok_or(NO_SUCH_KEY)?,
        };
        let stored = &known.key;
        let expired = stored.expires_at.is_some_and(|at| at <= OffsetDateTime::now_utc());
        if !self.peppers.verify(key, &stored.mac) || stored.revoked_at.is_some() || expired {
            return Err(NO_SUCH_KEY);
        }
        Access::of(&parts.extensions).note_scope(stored.scope);
        Ok(Caller { scope: stored.scope, scopes: stored.scopes })
    }

    /// The sessions for reading keys.
    pub(crate) fn sessions(&self) -> Sessions {
        self.principals.sessions()
    }

    /// The row, if it is kept and young enough; an ageing one is read again in the background.
    fn kept(self: &Arc<Self>, id: &KeyId) -> Option<Arc<Known>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)?;
        let age = known.read_at.elapsed();
        if age >= KEPT {
            return None;
        }
        if age >= REFRESHED && !known.refreshing.swap(true, Ordering::Relaxed) {
            let this = Arc::clone(self);
            let id = *id;
            tokio::spawn(async move {
                if let Err(error) = this.fetch(id).await {
                    tracing::debug!(?error, "a key's row can't be read again");
                }
            });
        }
        Some(known)
    }

    /// The row from the database. Of many requests that need the same one, one reads it.
    async fn read(self: &Arc<Self>, id: KeyId) -> Result<Option<Arc<Known>>, Problem> {
        let slot = self
            .spread
            .hash_one(id)
            .checked_rem(READERS as u64)
            .and_then(|slot| usize::try_from(slot).ok())
            .unwrap_or(0);
        let reading = async {
            let _reader = match self.readers.get(slot) {
                Some(reader) => Some(reader.lock().await),
                None => None,
            };
            if let Some(known) = self.kept(&id) {
                return Ok(Some(known));
            }
            if self.known_as_unknown(&id) {
                return Ok(None);
            }
            self.fetch(id).await
        };
        match tokio::time::timeout(READ_TIMEOUT, reading).await {
            Ok(read) => Ok(read?),
            Err(_) => Err(Problem::Unavailable {
                why: Unavailability::Unreadable,
                cause: Some("an API key could not be read in time".to_owned()),
            }),
        }
    }

    async fn fetch(&self, id: KeyId) -> Result<Option<Arc<Known>>, ReadError> {
        let read_at = Instant::now();
        let text: String = id.iter().copied().map(char::from).collect();
        let key = self.principals.find_key(&text).await?;
        let mut all = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Some(key) = key else {
            all.remove(&id);
            drop(all);
            self.remember_unknown(id);
            return Ok(None);
        };
        let known = Arc::new(Known { key, read_at, refreshing: AtomicBool::new(false) });
        if all.len() >= KNOWN_MAX && !all.contains_key(&id) {
            all.retain(|_, known| known.read_at.elapsed() < KEPT);
            if all.len() >= KNOWN_MAX {
                all.clear();
            }
        }
        all.insert(id, Arc::clone(&known));
        Ok(Some(known))
    }

    fn known_as_unknown(&self, id: &KeyId) -> bool {
        let unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        unknown.get(id).is_some_and(|at| at.elapsed() < UNKNOWN_KEPT)
    }

    fn remember_unknown(&self, id: KeyId) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if unknown.len() >= UNKNOWN_MAX {
            unknown.clear();
        }
        unknown.insert(id, Instant::now());
    }
}

/// The token of the one `Authorization: Bearer` header (RFC 6750, section 2.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let line = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let (scheme, token) = line.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn one_bearer_header_is_read_and_nothing_else() {
        let read = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(AUTHORIZATION, HeaderValue::from_static(line));
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(read(&["Bearer sk"]).as_deref(), Some("sk"));
        assert_eq!(read(&["bearer  sk "]).as_deref(), Some("sk"));
        for lines in [&[][..], &["sk"], &["Basic sk"], &["Bearer"], &["Bearer sk", "Bearer sk"]] {
            assert_eq!(read(lines), None, "{lines:?}");
        }
    }
}
