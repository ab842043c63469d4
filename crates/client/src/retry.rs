//! How often, how long and with which pauses the same thing is tried.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, Fault, Miss};

/// The bounds of a call. Every call ends within [`Policy::deadline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The most requests that a call sends; at least one is sent.
    pub attempts: u32,
    /// How long a call may take, pauses included.
    pub deadline: Duration,
    /// How long one attempt may take. It should be more than the 15 s within which the service answers, so that its own word on what it
    /// doesn't know yet arrives.
    pub attempt_timeout: Duration,
    /// The longest first pause; each later one may be twice as long.
    pub backoff: Duration,
    /// The longest pause that the client chooses by itself.
    pub backoff_max: Duration,
}

/// Ten attempts, whose longest pauses make 43 s, fit into a minute unless some of them time out.
impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts: 10,
            deadline: Duration::from_secs(60),
            attempt_timeout: Duration::from_secs(20),
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(10),
        }
    }
}

impl Policy {
    /// The pause after the attempt of this number, from 1: what the service asks for, and on top a random part of the backoff, so
    /// that those who were all told the same don't come back together. Any part of it, from nothing to all, is what spreads clients
    /// best: "full jitter" in Marc Brooker's "Exponential Backoff And Jitter"
    /// (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
    fn pause(&self, attempt: u32, asked: Option<Duration>, part: f64) -> Duration {
        let doubled = self.backoff.saturating_mul(2_u32.saturating_pow(attempt - 1));
        asked.unwrap_or_default().saturating_add(doubled.min(self.backoff_max).mul_f64(part))
    }
}

/// Tries until there is something final, and tells how many attempts it took.
///
/// It takes no `AsyncFnMut`, because the compiler can't see of its futures that they may move between threads.
pub(crate) async fn persist<T, F: Future<Output = Result<T, Miss>>>(
    policy: &Policy,
    mut attempt: impl FnMut() -> F,
) -> (Result<T, Error>, u32) {
    let begun = Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let limit = policy.attempt_timeout.min(policy.deadline.saturating_sub(begun.elapsed()));
        let (last, retry_after) = match timeout(limit, attempt()).await {
            Ok(Ok(value)) => return (Ok(value), attempts),
            Ok(Err(Miss::Final(error))) => return (Err(error), attempts),
            Ok(Err(Miss::Again(fault, asked))) => (fault, asked),
            Err(_) => (Fault::Timeout(limit), None),
        };
        let pause = policy.pause(attempts, retry_after, rand::random());
        // Where the service asks for more time than there is, asking it sooner would be of no use.
        if attempts >= policy.attempts || pause >= policy.deadline.saturating_sub(begun.elapsed()) {
            return (Err(Error::Unresolved { attempts, retry_after, last }), attempts);
        }
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn again(after: Option<Duration>) -> Miss {
        Miss::Again(Fault::Status { status: 503, problem: None }, after)
    }

    #[test]
    fn pauses_double_up_to_their_bound_and_come_on_top_of_what_is_asked_for() {
        let policy = Policy::default();
        let longest: Vec<_> = (1..=10).map(|attempt| policy.pause(attempt, None, 1.0).as_millis()).collect();
        assert_eq!(longest, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000, 10_000]);
        assert_eq!(policy.pause(u32::MAX, None, 1.0), policy.backoff_max);
        assert_eq!(policy.pause(3, None, 0.0), Duration::ZERO);
        assert_eq!(policy.pause(1, Some(SECOND), 0.5), Duration::from_millis(1_100));
        assert_eq!(policy.pause(1, Some(Duration::MAX), 0.5), Duration::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_service_is_not_asked_sooner_than_it_wants() {
        let begun = Instant::now();
        let mut count = 0;
        let attempt = || {
            count += 1;
            std::future::ready(if count == 1 { Err(again(Some(7 * SECOND))) } else { Ok(begun.elapsed()) })
        };
        let (result, attempts) = persist(&Policy::default(), attempt).await;
        let waited = result.unwrap();
        assert_eq!(attempts, 2);
        assert!(waited >= 7 * SECOND && waited < 8 * SECOND, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_asks_for_more_time_than_there_is_ends_the_call_at_once() {
        let begun = Instant::now();
        let (result, _) = persist::<(), _>(&Policy::default(), || async { Err(again(Some(3_600 * SECOND))) }).await;
        assert!(
            matches!(result, Err(Error::Unresolved { attempts: 1, retry_after: Some(asked), .. }) if asked == 3_600 * SECOND)
        );
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_is_given_up_and_another_one_made() {
        let begun = Instant::now();
        let mut count = 0;
        let attempt = || {
            count += 1;
            let hangs = count == 1;
            async move { if hangs { std::future::pending().await } else { Ok(begun.elapsed()) } }
        };
        let (result, attempts) = persist(&Policy::default(), attempt).await;
        let waited = result.unwrap();
        assert_eq!(attempts, 2);
        assert!(waited >= 20 * SECOND && waited < 21 * SECOND, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_with_its_attempts_and_within_its_deadline() {
        let begun = Instant::now();
        let (result, attempts) = persist::<(), _>(&Policy::default(), std::future::pending).await;
        assert!(matches!(result, Err(Error::Unresolved { last: Fault::Timeout(_), .. })), "{result:?}");
        assert!(attempts >= 3, "{attempts}");
        // The clock counts in milliseconds.
        assert!(begun.elapsed() <= 60 * SECOND + Duration::from_millis(2), "{:?}", begun.elapsed());

        let few = Policy { attempts: 3, ..Policy::default() };
        let (result, _) = persist::<(), _>(&few, || async { Err(again(None)) }).await;
        assert!(matches!(result, Err(Error::Unresolved { attempts: 3, .. })), "{result:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_final_is_not_tried_again() {
        let (result, attempts) = persist::<(), _>(&Policy::default(), async || {
            Err(Miss::Final(Error::Refused { status: 400, problem: None }))
        })
        .await;
        assert!(matches!(result, Err(Error::Refused { status: 400, .. })));
        assert_eq!(attempts, 1);
    }
}
