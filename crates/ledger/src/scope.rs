//! Who asks, and on which side of the wall between test and live.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares an identifier type around a UUID.
macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub uuid::Uuid);

        impl $name {
            /// A fresh identifier, UUID version 7 (RFC 9562, section 5.7): it grows with time, so indexes grow at their end.
            #[must_use]
            pub fn fresh() -> Self {
                Self(uuid::Uuid::now_v7())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
pub(crate) use identifier;

identifier! {
    /// A customer of the ledger: nothing crosses from one tenant to another (I9).
    TenantId
}
identifier! {
    /// A service account of a tenant. Idempotency keys belong to it, not to the API key that it happens to use.
    PrincipalId
}

/// The unit of order: one committer lane, one stream of outbox positions, one relay producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shard(pub i32);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `test` or `live`; nothing crosses from one to the other (I9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Environment {
    /// For integrators: no real money, faults on request.
    Test,
    /// Real money.
    Live,
}

impl Environment {
    /// The name used in columns, headers and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Live => "live",
        }
    }

    /// The inverse of [`Environment::name`]; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "test" => Some(Self::Test),
            "live" => Some(Self::Live),
            _ => None,
        }
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who asks: it comes from the API key and is part of every query (I9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The tenant that owns what is read or written.
    pub tenant: TenantId,
    /// The service account that idempotency keys belong to.
    pub principal: PrincipalId,
    /// The side of the wall.
    pub environment: Environment,
    /// Where the tenant lives.
    pub shard: Shard,
}
