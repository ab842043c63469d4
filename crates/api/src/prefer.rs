//! `Prefer` (RFC 7240): what a client would like of the way it is answered. Preferences that are unknown or can't be read
//! are passed over, as the RFC has it.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};

/// What a client would like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preferences {
    /// To hear of long work at once, and of its end later (section 4.1).
    pub(crate) respond_async: bool,
    /// How long it is ready to wait (section 4.3).
    pub(crate) wait: Option<Duration>,
}

pub(crate) const PREFER: HeaderName = HeaderName::from_static("prefer");
/// Tells that a preference was followed (section 3).
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// The preference for an answer before the work is done.
pub(crate) const RESPOND_ASYNC: &str = "respond-async";

/// The longest wait that is granted: within a request's 15 s.
const MAX_WAIT: Duration = Duration::from_secs(10);

impl Preferences {
    /// Several header lines are one list; of a preference that stands there twice the first counts (section 2).
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut preferences = Self::default();
        let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
        for preference in lines.flat_map(|line| line.split(',')) {
            // Parameters come after a semicolon; none is defined for what is known here.
            let preference = preference.split(';').next().unwrap_or_default();
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                RESPOND_ASYNC => preferences.respond_async = true,
                "wait" if preferences.wait.is_none() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                    preferences.wait = value.parse().ok().map(|seconds| MAX_WAIT.min(Duration::from_secs(seconds)));
                }
                _ => {}
            }
        }
        preferences
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(lines: &[&'static str]) -> Preferences {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, HeaderValue::from_static(line));
        }
        Preferences::of(&headers)
    }

    #[test]
    fn preferences_are_read_and_strangers_passed_over() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(of(&[]), Preferences::default());
        assert_eq!(of(&["respond-async"]), Preferences { respond_async: true, wait: None });
        assert_eq!(of(&["Respond-Async; foo=bar, wait=3"]), Preferences { respond_async: true, wait: seconds(3) });
        assert_eq!(of(&["wait = \"7\"", "respond-async"]), Preferences { respond_async: true, wait: seconds(7) });
        assert_eq!(of(&["wait=2, wait=9"]).wait, seconds(2));
        assert_eq!(of(&["wait=99999"]).wait, Some(MAX_WAIT));
        for passed_over in ["wait=", "wait=-1", "wait=1.5", "wait=99999999999999999999999", "handling=strict", ",;=,"] {
            assert_eq!(of(&[passed_over]), Preferences::default(), "{passed_over}");
        }
    }
}
