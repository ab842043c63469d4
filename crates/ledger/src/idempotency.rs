//! Idempotency keys, what is kept of a request under them, and how a request is judged against the record (I3, I4, I10).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretBox};
use sha2::Sha256;
use thiserror::Error;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::scope::{Environment, Scope};

/// The client's key, unquoted. It is a secret of the client: it has no `Display`, and `Debug` hides it (I10).
#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The longest key in bytes.
    pub const MAX_BYTES: usize = 255;

    /// `None` unless the key has 1 to 255 bytes, all printable ASCII (0x20 to 0x7E).
    pub fn new(key: String) -> Option<Self> {
        let fits = (1..=Self::MAX_BYTES).contains(&key.len()) && key.bytes().all(|byte| (0x20..=0x7E).contains(&byte));
        fits.then_some(Self(key))
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey(hidden)")
    }
}

/// What a key becomes before it is stored: HMAC-SHA256(secret, tenant, principal, key), each with its length before it,
/// so that no two different triples give the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    /// The first eight hexadecimal digits: enough to follow a key through logs, too few to guess it by.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// All 64 hexadecimal digits, as events carry them and as `encode(key_hash, 'hex')` shows them.
impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What makes two requests the same: SHA-256 over method, path as received, sorted query and canonical JSON (RFC 8785).
///
/// `members` lets a refusal name what differs: a name and the SHA-256 of the value's canonical form, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The hash over everything.
    pub whole: [u8; 32],
    /// The parts that a refusal may name.
    pub members: Vec<(Cow<'static, str>, [u8; 32])>,
}

type HmacSha256 = Hmac<Sha256>;

/// One secret with the short name that records store beside what was made with it.
#[derive(Clone)]
pub struct Secret {
    id: Arc<str>,
    /// Keyed once; each use copies the state instead of hashing the secret again.
    mac: HmacSha256,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, hidden)", self.id)
    }
}

/// Why secrets are refused at start.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SecretError {
    /// The text does not have the form `id:secret[,id:secret…]`.
    #[error("must have the form id:secret, several separated by commas")]
    Malformed,
    /// An id that is not 1 to 16 letters, digits, `-` or `_`.
    #[error("an id must be 1 to 16 letters, digits, '-' or '_'")]
    BadId,
    /// Fewer than 32 bytes.
    #[error("secret {id} must have at least {min} bytes", min = Secret::MIN_BYTES)]
    TooShort {
        /// The secret's id.
        id: String,
    },
    /// Two secrets with one id.
    #[error("secret {id} is given twice")]
    Twice {
        /// The secret's id.
        id: String,
    },
    /// None, or more than two, to write with.
    #[error("one secret is needed to write with, or two during a rollout")]
    WriteCount,
}

impl Secret {
    /// The fewest bytes: the output size of SHA-256 (RFC 2104, section 3).
    pub const MIN_BYTES: usize = 32;

    /// Reads `id:secret[,id:secret…]`.
    ///
    /// # Errors
    /// [`SecretError`] by variant; no error holds a secret.
    pub fn parse_list(text: &SecretBox<str>) -> Result<Vec<Self>, SecretError> {
        let mut secrets: Vec<Self> = Vec::new();
        for entry in text.expose_secret().split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (id, secret) = entry.split_once(':').ok_or(SecretError::Malformed)?;
            if id.is_empty()
                || id.len() > 16
                || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            {
                return Err(SecretError::BadId);
            }
            if secret.len() < Self::MIN_BYTES {
                return Err(SecretError::TooShort { id: id.to_owned() });
            }
            if secrets.iter().any(|known| &*known.id == id) {
                return Err(SecretError::Twice { id: id.to_owned() });
            }
            let mac = HmacSha256::new_from_slice(secret.as_bytes()).map_err(|_| SecretError::Malformed)?;
            secrets.push(Self { id: id.into(), mac });
        }
        Ok(secrets)
    }

    /// The name that is stored beside what was made with this secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// HMAC-SHA256 of the parts, each with its length before it.
    pub fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.mac.clone();
        for part in parts {
            mac.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

/// The secrets that key hashes are made with. During a rotation {A} → {A,B} → {B, look up A}, replicas in the middle of a
/// rollout exclude each other: a record is written under every write secret and looked up under all.
#[derive(Clone, Debug)]
pub struct Secrets {
    write: Vec<Secret>,
    look_up: Vec<Secret>,
}

impl Secrets {
    /// The secrets to write with (one, or two during a rollout) and those only to look up with.
    ///
    /// # Errors
    /// [`SecretError::WriteCount`] and [`SecretError::Twice`].
    pub fn new(write: Vec<Secret>, look_up: Vec<Secret>) -> Result<Self, SecretError> {
        if !(1..=2).contains(&write.len()) {
            return Err(SecretError::WriteCount);
        }
        if let Some(twice) = look_up.iter().find(|secret| write.iter().any(|known| known.id == secret.id)) {
            return Err(SecretError::Twice { id: twice.id.to_string() });
        }
        Ok(Self { write, look_up })
    }

    /// Every hash under which a key's record may stand, the one to be written under first.
    pub(crate) fn hashes(&self, scope: &Scope, key: &IdempotencyKey) -> Vec<KeyHash> {
        self.all().map(|secret| hash(secret, scope, key)).collect()
    }

    /// Those that records are written with.
    pub(crate) fn write(&self) -> &[Secret] {
        &self.write
    }

    /// Every secret, those to write with first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Secret> {
        self.write.iter().chain(&self.look_up)
    }

    /// Everything that is stored of a key and a fingerprint, and nothing that they could be read from.
    pub(crate) fn seal(&self, scope: &Scope, key: &IdempotencyKey, fingerprint: &Fingerprint) -> SealedKey {
        SealedKey {
            write: self
                .write
                .iter()
                .map(|secret| SealedWrite {
                    hash: hash(secret, scope, key),
                    secret_id: secret.id.clone(),
                    members: seal_members(secret, fingerprint),
                })
                .collect(),
            look_up: self.look_up.iter().map(|secret| hash(secret, scope, key)).collect(),
        }
    }

    /// The names of the members that differ from a record, sorted. Names that only the first request had are not known,
    /// since names are not stored: the caller offers those that its routes know.
    fn differing(&self, record: &Record, fingerprint: &Fingerprint, known_names: &[&'static str]) -> Vec<String> {
        let Some(secret) = self.all().find(|secret| *secret.id == *record.secret_id) else {
            return Vec::new();
        };
        let stored: Vec<([u8; TAG], [u8; TAG])> = record
            .members
            .chunks_exact(2 * TAG)
            .filter_map(|pair| Some((pair.first_chunk()?.to_owned(), pair.last_chunk()?.to_owned())))
            .collect();
        let mut names: Vec<String> = fingerprint
            .members
            .iter()
            .filter(|(name, digest)| !stored.contains(&member_tags(secret, name, digest)))
            .map(|(name, _)| name.to_string())
            .collect();
        let only_first = known_names
            .iter()
            .filter(|name| !fingerprint.members.iter().any(|(present, _)| present == *name))
            .filter(|name| stored.iter().any(|(tag, _)| *tag == name_tag(secret, name)));
        names.extend(only_first.map(|name| (*name).to_owned()));
        names.sort();
        names
    }
}

fn hash(secret: &Secret, scope: &Scope, key: &IdempotencyKey) -> KeyHash {
    KeyHash(secret.mac(&[scope.tenant.0.as_bytes(), scope.principal.0.as_bytes(), key.0.as_bytes()]))
}

/// The bytes kept of a member's name and of its value: enough to tell a change, too few to search values by.
const TAG: usize = 4;

fn truncate(mac: [u8; 32]) -> [u8; TAG] {
    mac.first_chunk().copied().unwrap_or_default()
}

fn name_tag(secret: &Secret, name: &str) -> [u8; TAG] {
    truncate(secret.mac(&[b"name", name.as_bytes()]))
}

fn member_tags(secret: &Secret, name: &str, digest: &[u8; 32]) -> ([u8; TAG], [u8; TAG]) {
    (name_tag(secret, name), truncate(secret.mac(&[b"value", name.as_bytes(), digest])))
}

fn seal_members(secret: &Secret, fingerprint: &Fingerprint) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(fingerprint.members.len().saturating_mul(2 * TAG));
    for (name, digest) in &fingerprint.members {
        let (name, value) = member_tags(secret, name, digest);
        sealed.extend_from_slice(&name);
        sealed.extend_from_slice(&value);
    }
    sealed
}

/// A key as it is written and looked up: what is left of a key and a fingerprint once the key itself may be forgotten.
#[derive(Clone, Debug)]
pub struct SealedKey {
    pub(crate) write: Vec<SealedWrite>,
    pub(crate) look_up: Vec<KeyHash>,
}

#[derive(Clone, Debug)]
pub(crate) struct SealedWrite {
    pub(crate) hash: KeyHash,
    pub(crate) secret_id: Arc<str>,
    pub(crate) members: Vec<u8>,
}

impl SealedKey {
    /// For what has no key: the parts of accepted work.
    pub(crate) const NONE: Self = Self { write: Vec::new(), look_up: Vec::new() };

    /// Every hash under which a record may stand.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        self.write.iter().map(|write| write.hash).chain(self.look_up.iter().copied())
    }

    /// The hash under which this process knows the key: the first write secret's.
    pub fn primary(&self) -> KeyHash {
        self.write.first().map_or(KeyHash([0; 32]), |write| write.hash)
    }
}

/// An answer as it is stored and sent: the bytes never change (I4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The media type of the body.
    pub content_type: Cow<'static, str>,
    /// Where the resource that was made is found.
    pub location: Option<String>,
    /// The body, byte for byte.
    pub body: Vec<u8>,
}

/// A record as it stands in the books or is about to.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) secret_id: Cow<'static, str>,
    pub(crate) environment: Environment,
    /// The name of what ran, or runs, under the key.
    pub(crate) operation: Cow<'static, str>,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) members: Vec<u8>,
    pub(crate) status: u16,
    pub(crate) response_id: Uuid,
    pub(crate) completed_at: OffsetDateTime,
    /// `None` once the bytes are past their retention.
    pub(crate) response: Option<Response>,
}

/// What is shown of the first answer to a request that may not have it replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    /// Its HTTP status.
    pub status: u16,
    /// The name of what ran, such as `transfer.post`.
    pub operation: Cow<'static, str>,
    /// What a success made, by its identifier.
    pub resource_id: Uuid,
    /// When it was decided.
    pub completed_at: OffsetDateTime,
}

/// What a request under a key comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It ran, here and now.
    Fresh(Response),
    /// It ran before: the first answer (I4).
    Replayed(Response),
    /// The key belongs to another request.
    KeyReused {
        /// The names of the members that differ.
        members: Vec<String>,
        /// The first answer in short.
        original: Original,
    },
    /// The same principal used the key in the other environment.
    EnvironmentMismatch {
        /// Where it was used.
        used_in: Environment,
    },
    /// It ran before, and the answer is past its retention. It never runs again.
    Expired {
        /// The first answer in short.
        original: Original,
    },
    /// The first request with this key is still running.
    InProgress,
}

impl Record {
    pub(crate) fn original(&self) -> Original {
        Original {
            status: self.status,
            operation: self.operation.clone(),
            resource_id: self.response_id,
            completed_at: self.completed_at,
        }
    }

    /// Judges a request against the record. The order is the contract's: environment, then the request, then retention.
    pub(crate) fn judge(
        &self,
        secrets: &Secrets,
        environment: Environment,
        fingerprint: &Fingerprint,
        known_names: &[&'static str],
    ) -> Answer {
        if self.environment != environment {
            return Answer::EnvironmentMismatch { used_in: self.environment };
        }
        if self.fingerprint != fingerprint.whole {
            let members = secrets.differing(self, fingerprint, known_names);
            return Answer::KeyReused { members, original: self.original() };
        }
        match &self.response {
            Some(response) => Answer::Replayed(response.clone()),
            None => Answer::Expired { original: self.original() },
        }
    }
}
