//! Problems (RFC 9457).

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use time::OffsetDateTime;
use time::serde::rfc3339;
use uuid::Uuid;

/// The first attempt still runs: the one problem that is tried again for its name, whatever its status.
pub(crate) const REQUEST_IN_PROGRESS: &str = "request-in-progress";

/// Problems of the key itself. They share a status with the ledger's rejections, but say nothing of the kind "nothing moved":
/// an expired key's transfer may have been posted long ago.
pub(crate) const OF_THE_KEY: [&str; 3] =
    ["idempotency-key-reused", "idempotency-key-environment-mismatch", "idempotency-key-expired"];

/// Problems of what is sent: only another request can do better.
pub(crate) const OF_THE_BODY: [&str; 2] = ["malformed-request", "body-too-large"];

/// Why the service said no. Branch on [`Problem::name`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// A reference to the problem's page, `/problems/NAME`.
    pub r#type: String,
    /// One sentence about the type.
    #[serde(default, deserialize_with = "lenient")]
    pub title: String,
    /// What happened this time.
    #[serde(default, deserialize_with = "lenient")]
    pub detail: String,
    /// What to tell the operators. In a replay it is the first attempt's.
    #[serde(default, deserialize_with = "lenient")]
    pub request_id: Option<Uuid>,
    /// Every fault of a malformed request.
    #[serde(default, deserialize_with = "lenient")]
    pub errors: Vec<RequestFault>,
    /// The account that the problem is about.
    #[serde(default, deserialize_with = "lenient")]
    pub account_id: Option<Uuid>,
    /// Which members differ from the request that the key belongs to.
    #[serde(default, deserialize_with = "lenient")]
    pub members: Vec<String>,
    /// What became of the request that the key belongs to.
    #[serde(default, deserialize_with = "lenient")]
    pub original: Option<Original>,
}

/// One fault of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RequestFault {
    /// A JSON pointer into the body, or `?name` for a query parameter.
    pub pointer: String,
    /// What is wrong there.
    pub detail: String,
}

/// The first answer under a key, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Original {
    /// Its HTTP status.
    pub status: u16,
    /// The resource that it made.
    pub location: Option<String>,
    /// When it was given.
    #[serde(with = "rfc3339")]
    pub completed_at: OffsetDateTime,
}

impl Problem {
    /// Reads a problem, or finds that the body is none.
    pub(crate) fn read(body: &[u8]) -> Option<Box<Self>> {
        serde_json::from_slice(body).ok()
    }

    /// The last part of the type, such as `insufficient-funds`.
    pub fn name(&self) -> &str {
        self.r#type.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.name(), if self.detail.is_empty() { &self.title } else { &self.detail })
    }
}

/// A member of another form than this version knows is taken for absent, as RFC 9457, section 3.1, asks for. The name must stay
/// readable whatever becomes of the rest.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(deserializer: D) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}
