//! When requests are meant to be sent.
//!
//! In an open loop each request has its moment, whatever became of those before it, and its latency counts from that moment.
//! A server that stops for a second is then seen by all the requests that were due in that second, not only by those few that
//! happened to be under way: a closed loop, which waits with them, would leave the others out.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// A request that no connection was free for is given up this long after its moment.
pub(crate) const UNSENT_AFTER: Duration = Duration::from_secs(1);

/// Evenly spaced moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    begin: Instant,
    per_second: f64,
    count: u64,
}

impl Schedule {
    pub(crate) fn new(begin: Instant, per_second: f64, length: Duration) -> Self {
        // Rates and lengths are bounded on the command line, far below where a float stops counting.
        Self { begin, per_second, count: (length.as_secs_f64() * per_second) as u64 }
    }

    /// The moment of a request, counted from 0. Each is computed from the beginning, so that nothing adds up.
    pub(crate) fn at(&self, request: u64) -> Instant {
        self.begin + Duration::from_secs_f64(request as f64 / self.per_second)
    }

    /// How many requests are due.
    pub(crate) fn due(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.begin).as_secs_f64();
        let due = if now < self.begin { 0 } else { (since * self.per_second) as u64 + 1 };
        due.min(self.count)
    }
}

/// Says when a worker is to send its next request.
pub(crate) enum Pace {
    /// As soon as its last one is answered.
    Closed {
        /// Until then.
        until: Instant,
    },
    /// When the next one is due.
    Open(Open),
}

/// Gives the moments of a schedule to whichever worker is free.
pub(crate) struct Open {
    schedule: Schedule,
    due: Arc<Semaphore>,
    taken: Cell<u64>,
}

/// A worker's next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// To be sent at once; its latency counts from this moment.
    Send(Instant),
    /// Too late to be sent.
    Late(Instant),
    /// There are no more.
    End,
}

impl Pace {
    /// An open loop. A thread of its own tells what is due: the runtime's timer counts in whole milliseconds.
    pub(crate) fn open(schedule: Schedule, workers: usize) -> Self {
        let due = Arc::new(Semaphore::new(0));
        let told = Arc::clone(&due);
        thread::spawn(move || {
            let mut released = 0;
            while released < schedule.count {
                let now = Instant::now();
                let more = schedule.due(now) - released;
                if more == 0 {
                    thread::sleep(schedule.at(released).saturating_duration_since(now));
                } else {
                    told.add_permits(more as usize);
                    released += more;
                }
            }
            // One more for each worker, which tells it that there are no more.
            told.add_permits(workers);
        });
        Self::Open(Open { schedule, due, taken: Cell::new(0) })
    }

    pub(crate) async fn next(&self) -> Turn {
        match self {
            Self::Closed { until } => {
                let now = Instant::now();
                if now < *until { Turn::Send(now) } else { Turn::End }
            }
            Self::Open(Open { schedule, due, taken }) => {
                // Nobody closes it.
                if let Ok(permit) = due.acquire().await {
                    permit.forget();
                }
                let request = taken.replace(taken.get() + 1);
                if request >= schedule.count {
                    return Turn::End;
                }
                let moment = schedule.at(request);
                if moment.elapsed() > UNSENT_AFTER { Turn::Late(moment) } else { Turn::Send(moment) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_evenly_spaced_and_do_not_drift_in_an_hour() {
        let begin = Instant::now();
        let schedule = Schedule::new(begin, 3_000.0, Duration::from_secs(3_600));
        assert_eq!(schedule.count, 10_800_000);
        assert_eq!(schedule.at(0), begin);
        let last = schedule.at(schedule.count) - begin;
        assert!(last.abs_diff(Duration::from_secs(3_600)) < Duration::from_micros(1), "{last:?}");
        for request in [0, 1, 2_999, 3_000, 9_999_999] {
            let gap = schedule.at(request + 1) - schedule.at(request);
            assert!(gap.abs_diff(Duration::from_nanos(333_333)) < Duration::from_nanos(100), "{gap:?}");
        }
    }

    #[test]
    fn what_is_due_is_what_has_its_moment_behind_it() {
        let begin = Instant::now() + Duration::from_secs(60);
        let schedule = Schedule::new(begin, 1_000.0, Duration::from_secs(2));
        assert_eq!(schedule.due(begin - Duration::from_millis(1)), 0);
        assert_eq!(schedule.due(begin), 1);
        assert_eq!(schedule.due(begin + Duration::from_micros(1_500)), 2);
        assert_eq!(schedule.due(begin + Duration::from_secs(1)), 1_001);
        assert_eq!(schedule.due(begin + Duration::from_secs(60)), 2_000);
    }

    #[tokio::test]
    async fn a_stalled_worker_finds_the_moments_that_it_missed_and_gives_up_those_that_are_too_old() {
        // As if the schedule had begun three seconds ago, and no worker had been free since.
        let begin = Instant::now() - Duration::from_secs(3);
        let schedule = Schedule::new(begin, 100.0, Duration::from_secs(3));
        let pace = Pace::open(schedule, 1);
        let (mut late, mut sent) = (0, 0);
        loop {
            match pace.next().await {
                Turn::Late(moment) => {
                    assert_eq!(sent, 0, "what is older comes first");
                    assert_eq!(moment, schedule.at(late));
                    late += 1;
                }
                Turn::Send(moment) => {
                    // Its latency begins where it was meant to be sent, although it is sent only now.
                    assert_eq!(moment, schedule.at(late + sent));
                    sent += 1;
                }
                Turn::End => break,
            }
        }
        assert_eq!(late + sent, 300);
        assert!((200..=215).contains(&late), "{late} were more than a second late");
    }
}
