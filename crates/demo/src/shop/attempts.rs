//! What has arrived at the shop's backend: each attempt to pay, what the API answered, and whether the answer went back.
//! It is kept in memory for the panel only, by the number of the order; no key is kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The orders that are remembered: as many as a person pays for in a long session. Older ones are forgotten first.
const ORDERS_MAX: usize = 256;
/// The attempts that are remembered of an order. A client that never gives up would fill the memory otherwise.
const ATTEMPTS_MAX: usize = 64;

/// What the API said to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Reply {
    /// The HTTP status.
    pub(crate) status: u16,
    /// Whether it was the first answer again.
    pub(crate) replayed: bool,
}

/// What became of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fate {
    /// It is under way.
    Open,
    /// It went back to the browser.
    Delivered,
    /// It was lost on the way back: the switch.
    Lost,
    /// The browser had left.
    Abandoned,
}

/// One attempt.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Attempt {
    /// Counts the order's attempts from 1.
    number: u32,
    /// When it arrived, in milliseconds of Unix time.
    arrived_at_ms: u64,
    /// How long it took until its fate was known, in milliseconds.
    took_ms: Option<u64>,
    /// What the API said; nothing where it did not answer.
    reply: Option<Reply>,
    /// Whether the API was asked and did not answer.
    unanswered: bool,
    fate: Fate,
}

struct Paid {
    order: String,
    attempts: VecDeque<(Attempt, Instant)>,
    count: u32,
}

/// The attempts of the newest orders.
#[derive(Clone, Default)]
pub(crate) struct Attempts {
    orders: Arc<Mutex<VecDeque<Paid>>>,
}

impl Attempts {
    /// Notes that an attempt has arrived.
    pub(crate) fn begin(&self, order: &str) -> Running {
        let mut orders = self.lock();
        if !orders.iter().any(|paid| paid.order == order) {
            if orders.len() == ORDERS_MAX {
                orders.pop_front();
            }
            orders.push_back(Paid { order: order.to_owned(), attempts: VecDeque::new(), count: 0 });
        }
        let mut number = 0;
        if let Some(paid) = orders.iter_mut().find(|paid| paid.order == order) {
            paid.count = paid.count.saturating_add(1);
            number = paid.count;
            if paid.attempts.len() == ATTEMPTS_MAX {
                paid.attempts.pop_front();
            }
            let arrived_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let attempt = Attempt {
                number,
                arrived_at_ms: u64::try_from(arrived_at.as_millis()).unwrap_or(u64::MAX),
                took_ms: None,
                reply: None,
                unanswered: false,
                fate: Fate::Open,
            };
            paid.attempts.push_back((attempt, Instant::now()));
        }
        drop(orders);
        Running { attempts: self.clone(), order: order.to_owned(), number }
    }

    /// The attempts of an order, oldest first.
    pub(crate) fn of(&self, order: &str) -> Vec<Attempt> {
        let orders = self.lock();
        let paid = orders.iter().find(|paid| paid.order == order);
        paid.into_iter().flat_map(|paid| &paid.attempts).map(|(attempt, _)| *attempt).collect()
    }

    /// A holder that panicked has left nothing half done that would matter here.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Paid>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt that is under way. Where the last handle on it goes before its fate is known, the browser had left: a server
/// drops what it does for a client that leaves.
pub(crate) struct Running {
    attempts: Attempts,
    order: String,
    number: u32,
}

impl Running {
    /// Notes what the API said; nothing where it did not answer.
    pub(crate) fn replied(&self, reply: Option<Reply>) {
        self.change(|attempt, _| {
            attempt.reply = reply;
            attempt.unanswered = reply.is_none();
        });
    }

    /// Notes what became of the answer; the first word stands.
    pub(crate) fn end(&self, fate: Fate) {
        self.change(|attempt, begun| {
            if attempt.fate == Fate::Open {
                attempt.fate = fate;
                attempt.took_ms = Some(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Attempt, Instant)) {
        let mut orders = self.attempts.lock();
        let paid = orders.iter_mut().find(|paid| paid.order == self.order);
        if let Some((attempt, begun)) =
            paid.and_then(|paid| paid.attempts.iter_mut().find(|(attempt, _)| attempt.number == self.number))
        {
            change(attempt, *begun);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Fate::Abandoned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_for_each_order_and_their_fates_told() {
        let attempts = Attempts::default();
        let first = attempts.begin("A");
        first.replied(Some(Reply { status: 201, replayed: false }));
        first.end(Fate::Lost);
        drop(attempts.begin("A"));
        let third = attempts.begin("A");
        third.replied(None);
        attempts.begin("B").end(Fate::Delivered);

        let found = attempts.of("A");
        assert_eq!(found.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(
            found.iter().map(|attempt| attempt.fate).collect::<Vec<_>>(),
            [Fate::Lost, Fate::Abandoned, Fate::Open]
        );
        assert_eq!(found[0].reply, Some(Reply { status: 201, replayed: false }));
        assert!(found[0].took_ms.is_some() && found[2].took_ms.is_none() && found[2].unanswered);
        assert_eq!(attempts.of("B").len(), 1);
        assert!(attempts.of("C").is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let attempts = Attempts::default();
        for order in 0..ORDERS_MAX + 10 {
            attempts.begin(&order.to_string()).end(Fate::Delivered);
        }
        for _ in 0..ATTEMPTS_MAX + 10 {
            attempts.begin("busy").end(Fate::Delivered);
        }
        assert_eq!(attempts.lock().len(), ORDERS_MAX);
        assert!(attempts.of("0").is_empty());
        let busy = attempts.of("busy");
        assert_eq!(busy.len(), ATTEMPTS_MAX);
        assert_eq!(busy.last().map(|attempt| attempt.number), u32::try_from(ATTEMPTS_MAX + 10).ok());
    }
}
