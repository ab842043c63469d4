//! Answers, and what kind of answer each is.

use serde::{Deserialize, Serialize};

/// The kinds of answers that are counted apart: each has latencies of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Class {
    /// A POST that ran.
    First,
    /// A POST that was answered from its record.
    Replay,
    /// A GET.
    Read,
    /// 503: the server has too much to do, or does not know yet.
    Shed,
    /// Everything else: rejections, refusals, failures.
    Other,
}

impl Class {
    /// All of them, in the order in which they are shown.
    pub(crate) const ALL: [Self; 5] = [Self::First, Self::Replay, Self::Read, Self::Shed, Self::Other];

    /// The name in texts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Replay => "replay",
            Self::Read => "read",
            Self::Shed => "shed",
            Self::Other => "other",
        }
    }

    /// Whether the request got what it came for.
    pub(crate) const fn accepted(self) -> bool {
        match self {
            Self::First | Self::Replay | Self::Read => true,
            Self::Shed | Self::Other => false,
        }
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// Whether it says that it was given before.
    pub(crate) replayed: bool,
    /// The body, byte for byte.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// What kind of answer it is.
    pub(crate) fn class(&self) -> Class {
        match self.status {
            200 => Class::Read,
            201 if self.replayed => Class::Replay,
            201 => Class::First,
            503 => Class::Shed,
            _ => Class::Other,
        }
    }

    /// Whether a retry must get it again: what ran, and what the ledger's rules refused.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.status, 201 | 422)
    }

    /// Whether it means "the same again, later".
    pub(crate) const fn asks_again(&self) -> bool {
        matches!(self.status, 409 | 429 | 503)
    }

    /// The id of what was made: the first member of its object.
    pub(crate) fn id(&self) -> Option<&str> {
        let body = std::str::from_utf8(&self.body).ok()?;
        let (_, rest) = body.split_once("\"id\":\"")?;
        rest.split('"').next()
    }

    /// Status and body, for people.
    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body).trim_end())
    }
}
