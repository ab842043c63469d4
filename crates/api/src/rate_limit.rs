//! How many requests a principal may send in each environment. Nothing is limited unless configured.
//!
//! A request that may run is charged when it comes, and gets its charge back where it ran nothing: a retry that is answered
//! from its record costs nothing, however often it is sent. So that replays can't be used to load the database without any
//! bound, everything together, reads and replays included, has a ceiling of ten times the limit.
//!
//! Each limit is a generic cell rate algorithm (ITU-T I.371): one moment per principal, which moves on with each request and
//! may lie ahead of now by a window at most. The headers are those of draft-ietf-httpapi-ratelimit-headers-10.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use ledger::{Environment, PrincipalId, Scope};

use crate::problem::Problem;

pub(crate) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The window over which a limit is counted.
const WINDOW: Duration = Duration::from_secs(1);
/// How much more may be asked for than run.
const CEILING: u32 = 10;
/// The most principals that are kept; those that have rested for a window are forgotten first.
const KEPT: usize = 10_000;

/// The limits of one process.
pub(crate) struct RateLimits {
    /// Requests a second that may run.
    per_second: Option<u32>,
    cells: Mutex<HashMap<(PrincipalId, Environment), Cells>>,
}

#[derive(Clone, Copy)]
struct Cells {
    running: Cell,
    asking: Cell,
}

/// How a principal stands after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    per_second: u32,
    /// Requests that may still run within this window.
    remaining: u32,
    /// Until another one may run, where none may now; otherwise until the whole limit is there again.
    reset: Duration,
}

/// What a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Nothing is limited.
    Unlimited,
    /// It may run.
    Charged(Standing),
    /// It may only be answered from its record.
    ReplayOnly(Standing),
    /// It may not even ask.
    Refused(Standing),
}

/// One limit of one principal.
#[derive(Clone, Copy)]
struct Cell {
    /// Requests are evenly spaced up to here.
    spaced_until: Instant,
}

impl Cell {
    /// The space between two requests.
    fn interval(per_second: u32) -> Duration {
        WINDOW.checked_div(per_second).unwrap_or(WINDOW)
    }

    fn charge(&mut self, now: Instant, per_second: u32) -> bool {
        let next = self.spaced_until.max(now) + Self::interval(per_second);
        let fits = next.saturating_duration_since(now) <= WINDOW;
        if fits {
            self.spaced_until = next;
        }
        fits
    }

    fn give_back(&mut self, now: Instant, per_second: u32) {
        self.spaced_until = self.spaced_until.checked_sub(Self::interval(per_second)).unwrap_or(now);
    }

    fn standing(&self, now: Instant, per_second: u32) -> Standing {
        let (ahead, interval) = (self.spaced_until.saturating_duration_since(now), Self::interval(per_second));
        let free = WINDOW.saturating_sub(ahead);
        let remaining = free.as_nanos().checked_div(interval.as_nanos().max(1)).unwrap_or(0);
        let remaining = u32::try_from(remaining).unwrap_or(per_second).min(per_second);
        let reset = if remaining == 0 { (ahead + interval).saturating_sub(WINDOW) } else { ahead };
        Standing { per_second, remaining, reset }
    }
}

impl RateLimits {
    pub(crate) fn new(per_second: Option<u32>) -> Self {
        Self { per_second: per_second.filter(|limit| *limit > 0), cells: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(PrincipalId, Environment), Cells>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges a request that may run.
    pub(crate) fn admit(&self, scope: &Scope) -> Admission {
        self.at(scope, |cells, now, per_second| {
            if !cells.asking.charge(now, per_second.saturating_mul(CEILING)) {
                return Admission::Refused(cells.running.standing(now, per_second));
            }
            let charged = cells.running.charge(now, per_second);
            let standing = cells.running.standing(now, per_second);
            if charged { Admission::Charged(standing) } else { Admission::ReplayOnly(standing) }
        })
    }

    /// Charges a request that only reads.
    pub(crate) fn admit_reader(&self, scope: &Scope) -> Admission {
        self.at(scope, |cells, now, per_second| {
            let ceiling = per_second.saturating_mul(CEILING);
            let charged = cells.asking.charge(now, ceiling);
            let standing = cells.asking.standing(now, ceiling);
            if charged { Admission::Charged(standing) } else { Admission::Refused(standing) }
        })
    }

    /// Gives the charge back to a request that ran nothing.
    pub(crate) fn give_back(&self, scope: &Scope) -> Admission {
        self.at(scope, |cells, now, per_second| {
            cells.running.give_back(now, per_second);
            Admission::Charged(cells.running.standing(now, per_second))
        })
    }

    fn at(&self, scope: &Scope, act: impl FnOnce(&mut Cells, Instant, u32) -> Admission) -> Admission {
        let Some(per_second) = self.per_second else { return Admission::Unlimited };
        let now = Instant::now();
        let mut cells = self.lock();
        if cells.len() >= KEPT {
            cells.retain(|_, cells| cells.running.spaced_until > now || cells.asking.spaced_until > now);
        }
        let rested = Cell { spaced_until: now };
        let cells =
            cells.entry((scope.principal, scope.environment)).or_insert(Cells { running: rested, asking: rested });
        act(cells, now, per_second)
    }
}

impl Standing {
    /// That of a principal who has used its limit up at once.
    pub(crate) const fn exhausted(per_second: u32) -> Self {
        Self { per_second, remaining: 0, reset: WINDOW }
    }

    /// Whole seconds until another request is worth sending.
    pub(crate) fn retry_after(&self) -> u64 {
        self.reset.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(u64::MAX)
    }

    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        let policy = format!("\"principal\";q={};w={}", self.per_second, WINDOW.as_secs());
        let standing = format!("\"principal\";r={};t={}", self.remaining, self.reset.as_secs_f64().ceil());
        headers.extend(HeaderValue::try_from(policy).ok().map(|policy| (RATE_LIMIT_POLICY, policy)));
        headers.extend(HeaderValue::try_from(standing).ok().map(|standing| (RATE_LIMIT, standing)));
    }
}

impl Admission {
    /// # Errors
    /// [`Problem::RateLimited`].
    pub(crate) const fn require(self) -> Result<(), Problem> {
        match self {
            Self::Unlimited | Self::Charged(_) => Ok(()),
            Self::ReplayOnly(standing) | Self::Refused(standing) => Err(Problem::RateLimited { standing }),
        }
    }

    /// Tells the client how it stands, where anything is limited.
    pub(crate) fn add_headers(self, headers: &mut HeaderMap) {
        match self {
            Self::Unlimited => {}
            Self::Charged(standing) | Self::ReplayOnly(standing) | Self::Refused(standing) => {
                standing.add_headers(headers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ledger::{Shard, TenantId};

    use super::*;

    fn scope() -> Scope {
        Scope {
            tenant: TenantId::fresh(),
            principal: PrincipalId::fresh(),
            environment: Environment::Test,
            shard: Shard(0),
        }
    }

    /// A rate so low that no time passes in a test: at 2 a second the third is half a second away.
    const SLOW: u32 = 2;

    #[test]
    fn a_burst_of_a_window_may_run_and_then_only_replays_are_answered_up_to_the_ceiling() {
        let (limits, scope) = (RateLimits::new(Some(SLOW)), scope());
        let admitted: Vec<_> = (0..21).map(|_| limits.admit(&scope)).collect();
        let count = |of: fn(&Admission) -> bool| admitted.iter().filter(|admission| of(admission)).count();
        assert_eq!(count(|admission| matches!(admission, Admission::Charged(_))), 2);
        assert_eq!(count(|admission| matches!(admission, Admission::ReplayOnly(_))), 18);
        assert!(matches!(admitted[20], Admission::Refused(standing) if standing.retry_after() == 1));

        let other = Scope { environment: Environment::Live, ..scope };
        assert!(matches!(limits.admit(&other), Admission::Charged(_)), "another environment has a limit of its own");
    }

    #[test]
    fn what_is_given_back_can_be_used() {
        let (limits, scope) = (RateLimits::new(Some(SLOW)), scope());
        for _ in 0..8 {
            assert!(matches!(limits.admit(&scope), Admission::Charged(_)));
            limits.give_back(&scope);
        }
        assert!(matches!(limits.admit(&scope), Admission::Charged(standing) if standing.remaining == 1));
        assert!(matches!(limits.admit(&scope), Admission::Charged(standing) if standing.remaining == 0));
    }

    #[test]
    fn nothing_is_limited_unless_configured() {
        let (limits, scope) = (RateLimits::new(None), scope());
        assert!((0..1_000).all(|_| limits.admit(&scope) == Admission::Unlimited));
    }

    #[test]
    fn a_cell_lets_through_its_rate_and_no_more() {
        let begun = Instant::now();
        let mut cell = Cell { spaced_until: begun };
        // 100 a second over three seconds, asked for a thousand times a second: the burst, and then the rate.
        let passed = (0..3_000).filter(|ms| cell.charge(begun + Duration::from_millis(*ms), 100)).count();
        assert_eq!(passed, 100 + 300 - 1);
    }
}
