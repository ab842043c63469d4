//! What an API key looks like, and how it is kept: `sk_test_` or `sk_live_`, 8 characters of id, `_`, 30 characters of
//! randomness and 6 of checksum.
//!
//! The fixed prefix lets scanners find a leaked key; the checksum lets the API refuse a mistyped one without a look-up.
//! 30 base62 characters are about 178 bits, so no slow hash is needed: nobody guesses such a key.

use crc32fast::hash as crc32;
use ledger::principal::{KeyMac, NewKey};
use ledger::{Environment, Secret, SecretError};
use rand::RngExt;
use secrecy::{SecretBox, SecretString};
use subtle::ConstantTimeEq;
use time::OffsetDateTime;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

const TEST_PREFIX: &str = "sk_test_";
const LIVE_PREFIX: &str = "sk_live_";
/// Characters of the public part.
const ID_LENGTH: usize = 8;
/// Characters of the secret part.
const RANDOM_LENGTH: usize = 30;
/// Characters of the checksum: 62^6 is more than 2^32.
const CHECKSUM_LENGTH: usize = 6;

/// The public part of a key: names it in lists, logs and commands.
pub(crate) type KeyId = [u8; ID_LENGTH];

/// A key as a client sent it, well formed and with a right checksum; whether it opens anything is not known yet. It has
/// no `Debug` (I10).
#[derive(Clone, Copy)]
pub(crate) struct ApiKey<'a> {
    text: &'a str,
    /// The public part.
    pub(crate) id: KeyId,
}

impl<'a> ApiKey<'a> {
    /// `None` for anything that no key can look like.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(TEST_PREFIX).or_else(|| text.strip_prefix(LIVE_PREFIX))?;
        let (id, secret) = rest.split_once('_')?;
        let base62 = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if id.len() != ID_LENGTH || secret.len() != RANDOM_LENGTH + CHECKSUM_LENGTH || !base62(id) || !base62(secret) {
            return None;
        }
        let (body, sum) = text.split_at_checked(text.len().checked_sub(CHECKSUM_LENGTH)?)?;
        if sum.as_bytes() != checksum(body) {
            return None;
        }
        Some(Self { text, id: id.as_bytes().try_into().ok()? })
    }
}

/// The CRC-32 of everything before it, in base62, the most significant digit first.
fn checksum(body: &str) -> [u8; CHECKSUM_LENGTH] {
    let mut left = crc32(body.as_bytes());
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        let value = usize::try_from(left % 62).unwrap_or(0);
        *digit = BASE62.get(value).copied().unwrap_or(b'0');
        left /= 62;
    }
    digits
}

/// A fresh key: `text` is for its owner, once; `stored` for the database.
pub struct FreshKey {
    /// The whole key. It is never stored.
    pub text: SecretString,
    /// What is stored of it.
    pub stored: NewKey,
}

/// The secrets that keys are hashed with. The first one is used for new keys; all of them are tried by their id.
#[derive(Clone, Debug)]
pub struct Peppers {
    ring: Vec<Secret>,
}

impl Peppers {
    /// Reads `id:pepper[,id:pepper…]`, newest first.
    ///
    /// # Errors
    /// [`SecretError`] by variant; [`SecretError::Malformed`] also for an empty list.
    pub fn parse(text: &SecretBox<str>) -> Result<Self, SecretError> {
        let ring = Secret::parse_list(text)?;
        if ring.is_empty() { Err(SecretError::Malformed) } else { Ok(Self { ring }) }
    }

    /// Makes a key.
    pub fn generate(&self, environment: Environment, expires_at: Option<OffsetDateTime>) -> FreshKey {
        // The thread's generator is a ChaCha seeded by the operating system, made for keys.
        let mut rng = rand::rng();
        let digits = std::iter::repeat_with(|| rng.random_range(0..BASE62.len()));
        self.assemble(environment, expires_at, digits)
    }

    /// Makes the key that follows from a secret, the newest pepper where none is given: the same one for the same
    /// environment and number every time. It is as secret as what it follows from, so it is for demos and tests only.
    pub fn derive(&self, from: Option<&Secret>, environment: Environment, number: u32) -> FreshKey {
        let from = from.or(self.ring.first());
        let blocks = (0_u32..).map_while(|block| {
            let parts = [environment.name().as_bytes(), &number.to_be_bytes(), &block.to_be_bytes()];
            from.map(|secret| secret.mac(&parts))
        });
        // Bytes of the last, incomplete round of 62 are left out, so that all digits are equally likely.
        let digits = blocks.flatten().filter(|byte| *byte < 248).map(|byte| usize::from(byte % 62));
        self.assemble(environment, None, digits)
    }

    /// Puts a key together from base62 digits drawn at random.
    fn assemble(
        &self,
        environment: Environment,
        expires_at: Option<OffsetDateTime>,
        mut digits: impl Iterator<Item = usize>,
    ) -> FreshKey {
        let mut random = |length: usize| -> String {
            let drawn = digits.by_ref().take(length);
            drawn.filter_map(|digit| BASE62.get(digit)).map(|byte| char::from(*byte)).collect()
        };
        let prefix = match environment {
            Environment::Test => TEST_PREFIX,
            Environment::Live => LIVE_PREFIX,
        };
        let id = random(ID_LENGTH);
        let mut text = format!("{prefix}{id}_{}", random(RANDOM_LENGTH));
        text.extend(checksum(&text).map(char::from));
        let last_four = text.get(text.len().saturating_sub(4)..).unwrap_or_default().to_owned();
        let mac = match self.ring.first() {
            Some(pepper) => KeyMac { pepper_id: pepper.id().to_owned(), mac: pepper.mac(&[text.as_bytes()]) },
            // `parse` admits no empty ring, and a MAC that no pepper made opens nothing.
            None => KeyMac { pepper_id: String::new(), mac: [0; 32] },
        };
        FreshKey { text: text.into(), stored: NewKey { id, mac, last_four, expires_at } }
    }

    /// Whether this is the key that the MAC was made of. It takes as long for a wrong key as for the right one.
    pub(crate) fn verify(&self, key: ApiKey<'_>, stored: &KeyMac) -> bool {
        self.ring
            .iter()
            .find(|pepper| pepper.id() == stored.pepper_id)
            .is_some_and(|pepper| pepper.mac(&[key.text.as_bytes()]).ct_eq(&stored.mac).into())
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn peppers(text: &str) -> Peppers {
        Peppers::parse(&text.into()).unwrap()
    }

    const ONE: &str = "one:0123456789abcdef0123456789abcdef";
    const TWO: &str = "two:fedcba9876543210fedcba9876543210";

    #[test]
    fn a_fresh_key_has_the_form_and_opens_its_own_lock_only() {
        let peppers = peppers(ONE);
        for (environment, prefix) in [(Environment::Test, "sk_test_"), (Environment::Live, "sk_live_")] {
            let fresh = peppers.generate(environment, None);
            let text = fresh.text.expose_secret();
            assert!(text.starts_with(prefix) && text.len() == 53, "{} characters", text.len());
            assert!(text.ends_with(&fresh.stored.last_four));
            let key = ApiKey::parse(text).unwrap();
            assert_eq!(key.id.as_slice(), fresh.stored.id.as_bytes());
            assert!(peppers.verify(key, &fresh.stored.mac));
            let other = peppers.generate(environment, None);
            assert!(!peppers.verify(ApiKey::parse(other.text.expose_secret()).unwrap(), &fresh.stored.mac));
        }
    }

    #[test]
    fn a_key_outlives_the_rotation_of_peppers_as_long_as_its_pepper_is_there() {
        let fresh = peppers(ONE).generate(Environment::Test, None);
        let key = ApiKey::parse(fresh.text.expose_secret()).unwrap();
        assert!(peppers(&format!("{TWO},{ONE}")).verify(key, &fresh.stored.mac));
        assert!(!peppers(TWO).verify(key, &fresh.stored.mac));
        assert!(!peppers("one:another-pepper-under-the-same-short-name").verify(key, &fresh.stored.mac));
    }

    #[test]
    fn a_derived_key_is_the_same_every_time_and_another_for_other_input() {
        let peppers = peppers(&format!("{TWO},{ONE}"));
        let secret = Secret::parse_list(&ONE.into()).unwrap().remove(0);
        let text = |from: Option<&Secret>, environment, number| {
            let derived = peppers.derive(from, environment, number);
            let text = derived.text.expose_secret().to_owned();
            assert!(peppers.verify(ApiKey::parse(&text).unwrap(), &derived.stored.mac));
            text
        };
        let first = text(Some(&secret), Environment::Test, 0);
        assert_eq!(first, text(Some(&secret), Environment::Test, 0));
        for (from, environment, number) in
            [(None, Environment::Test, 0), (Some(&secret), Environment::Live, 0), (Some(&secret), Environment::Test, 1)]
        {
            assert_ne!(first, text(from, environment, number));
        }
    }

    #[test]
    fn what_is_no_key_is_told_without_a_look_up() {
        let fresh = peppers(ONE).generate(Environment::Test, None);
        let text = fresh.text.expose_secret();
        for at in 0..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            assert!(ApiKey::parse(std::str::from_utf8(&bytes).unwrap()).is_none(), "a change at {at} goes unnoticed");
        }
        for text in [
            "",
            "sk_test_",
            "sk_test_a_b",
            &text[1..],
            &format!("{text}0"),
            "sk_live_ääää_ß",
            &text.replace("test", "live"),
        ] {
            assert!(ApiKey::parse(text).is_none());
        }
    }
}
