//! The two secrets of a request. Neither can be printed.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What says who asks: `sk_test_…` or `sk_live_…`.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key as it was issued.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKey(…)")
    }
}

/// The name of one intent towards the service. It serialises as its text, for stores.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// A key that was never used: 122 random bits.
    pub(crate) fn fresh() -> Self {
        Self(Uuid::new_v4().to_string())
    }

    /// The key itself, for a store that doesn't serialise.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for IdempotencyKey {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("IdempotencyKey(…)")
    }
}
