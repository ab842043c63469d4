//! Faults on request: `Oncepost-Fault` lets integrators see how their retries fare, in the test environment. A fault strikes
//! a first answer only. A replay always comes through, so a client that sends the header with every attempt gets its answer.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use ledger::{Environment, StagedFault};

use crate::fault::Fault;
use crate::problem::Problem;

pub(crate) const ONCEPOST_FAULT: HeaderName = HeaderName::from_static("oncepost-fault");

/// The longest delay.
const MAX_DELAY_MS: u64 = 30_000;

/// What is to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staged {
    /// The transfer stands, and the connection is cut instead of an answer.
    DropReply,
    /// The transfer stands, and the answer comes late.
    Delay(Duration),
    /// In the ledger.
    Ledger(StagedFault),
}

impl Staged {
    /// What the header asks for, if it is there.
    ///
    /// # Errors
    /// [`Problem::MalformedRequest`] for a fault that is not known, and for any in the live environment.
    pub(crate) fn read(headers: &HeaderMap, environment: Environment) -> Result<Option<Self>, Problem> {
        let Some(asked) = headers.get(ONCEPOST_FAULT) else { return Ok(None) };
        let refuse = |detail: &'static str| Err(vec![Fault::new("Oncepost-Fault", detail)].into());
        if environment == Environment::Live {
            return refuse("is understood in the test environment only");
        }
        let staged = match asked.to_str().unwrap_or_default().trim() {
            "drop-reply" => Self::DropReply,
            "fail-before-commit" => Self::Ledger(StagedFault::BeforeCommit),
            "fail-after-commit" => Self::Ledger(StagedFault::AfterCommit),
            other => {
                let delay = other.strip_prefix("delay=").and_then(|ms| ms.parse().ok());
                match delay.filter(|ms| *ms <= MAX_DELAY_MS) {
                    Some(ms) => Self::Delay(Duration::from_millis(ms)),
                    None => {
                        return refuse(
                            "must be drop-reply, delay=MS with at most 30000, fail-before-commit or fail-after-commit",
                        );
                    }
                }
            }
        };
        Ok(Some(staged))
    }

    /// The ledger's part in it.
    pub(crate) const fn in_ledger(self) -> Option<StagedFault> {
        match self {
            Self::Ledger(fault) => Some(fault),
            Self::DropReply | Self::Delay(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn faults_are_read_in_the_test_environment_only() {
        let read = |value: &'static str, environment| {
            let headers = [(ONCEPOST_FAULT, HeaderValue::from_static(value))].into_iter().collect();
            Staged::read(&headers, environment).ok().flatten()
        };
        let test = |value| read(value, Environment::Test);
        assert_eq!(test("drop-reply"), Some(Staged::DropReply));
        assert_eq!(test("delay=30000"), Some(Staged::Delay(Duration::from_secs(30))));
        assert_eq!(test("fail-before-commit"), Some(Staged::Ledger(StagedFault::BeforeCommit)));
        assert_eq!(test("fail-after-commit"), Some(Staged::Ledger(StagedFault::AfterCommit)));
        for refused in ["", "delay", "delay=", "delay=30001", "delay=-1", "drop-reply, delay=1", "explode"] {
            assert_eq!(test(refused), None, "{refused}");
        }
        assert_eq!(read("drop-reply", Environment::Live), None);
        assert!(matches!(Staged::read(&HeaderMap::new(), Environment::Live), Ok(None)));
    }
}
