//! From the inbox to the mail server.
//!
//! | step | what is done | a crash after it |
//! |---|---|---|
//! | 1 claim | the receipt becomes `sending`, committed | nothing was sent; it is sent after the lease |
//! | 2 send | the mail goes out by SMTP | it was sent, or not; the same mail is sent again after the lease |
//! | 3 settle | `sent`, or `waiting` for the next attempt, or `parked`, committed | – |
//!
//! Between 2 and 3 nobody can know. What makes the repetition harmless is the message id, the same each time, for the mail
//! store to recognize: `docs/side-effects.md`.

use std::sync::Arc;
use std::time::Duration;

use lettre::address::Envelope;
use lettre::transport::smtp::{self, response::Severity};
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use rand::RngExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::failpoint;
use crate::health::{Health, Part};
use crate::inbox::{Claim, Inbox, Outcome};
use crate::meters::Meters;

/// How often a sender with nothing to do looks whether something is due.
const IDLE: Duration = Duration::from_secs(1);
/// The pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause. The default of 40 attempts then lasts about a day: 12 doublings are over after an hour.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);
/// The reply codes that refuse this mail or its recipient (RFC 5321, section 4.2.3), whoever asks and however often. The
/// other permanent codes refuse us, for a wrong password as an example: every mail would be given up.
const REFUSALS: std::ops::RangeInclusive<u16> = 550..=556;

/// Sends what is due. It may run several times at once.
pub(crate) struct Sender {
    pub(crate) smtp: AsyncSmtpTransport<Tokio1Executor>,
    /// The envelope's sender, where the mail system's complaints go.
    pub(crate) from: Address,
    /// How long one attempt may take, from connection to the last reply.
    pub(crate) timeout: Duration,
    /// After so many attempts a receipt is parked.
    pub(crate) max_attempts: i32,
    pub(crate) inbox: Inbox,
    pub(crate) meters: Meters,
    pub(crate) health: Health,
    pub(crate) wake: Arc<Notify>,
}

impl Sender {
    /// Sends until it should stop. A mail that is under way is brought to its end.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        // Twice the bound of an attempt: what is claimed again is over, unless its process was frozen.
        let lease = self.timeout.saturating_mul(2);
        while !stop.is_cancelled() {
            let Some(claim) = self.inbox.claim(lease).await else { return };
            let Some(claim) = claim else {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep(IDLE) => {}
                }
                continue;
            };
            failpoint::hit("receipts-before-send");
            let outcome = self.attempt(&claim).await;
            failpoint::hit("receipts-after-send");
            if self.inbox.settle(&claim, &outcome).await.is_none() {
                return;
            }
            self.tell(&claim, &outcome);
        }
    }

    async fn attempt(&self, claim: &Claim) -> Outcome {
        // An attempt that ends its process, each time, is given up as well.
        if claim.attempts > self.max_attempts {
            return Outcome::Parked { reason: "no attempt came to an end".to_owned() };
        }
        let envelope = claim.recipient.parse().map(|to| Envelope::new(Some(self.from.clone()), vec![to]));
        let Ok(Ok(envelope)) = envelope else {
            return Outcome::Parked { reason: "the recipient's address can't be read".to_owned() };
        };
        let sent = tokio::time::timeout(self.timeout, self.smtp.send_raw(&envelope, &claim.message)).await;
        match sent {
            Ok(Ok(_)) => {
                self.health.works(Part::Smtp);
                Outcome::Sent
            }
            Ok(Err(error)) if refuses_mail(&error) => {
                self.health.works(Part::Smtp);
                Outcome::Parked { reason: error.to_string() }
            }
            Ok(Err(error)) => {
                self.health.fails(Part::Smtp, describe(&error));
                self.failed(claim, error.to_string())
            }
            Err(_) => {
                let reason = format!("no answer within {} s", self.timeout.as_secs());
                self.health.fails(Part::Smtp, reason.clone());
                self.failed(claim, reason)
            }
        }
    }

    fn failed(&self, claim: &Claim, reason: String) -> Outcome {
        if claim.attempts >= self.max_attempts {
            return Outcome::Parked { reason };
        }
        Outcome::Failed { reason, pause: pause_after(claim.attempts) }
    }

    /// No recipient is named in the log. It is in the receipt's row.
    fn tell(&self, claim: &Claim, outcome: &Outcome) {
        let Claim { event_id, message_id, attempts, .. } = claim;
        match outcome {
            Outcome::Sent => {
                self.meters.sent.increment(1);
                tracing::info!(event_id, message_id, attempts, "sent");
            }
            Outcome::Failed { pause, .. } => {
                self.meters.failed.increment(1);
                tracing::info!(event_id, message_id, attempts, ?pause, "an attempt failed");
            }
            Outcome::Parked { .. } => {
                self.meters.parked.increment(1);
                tracing::warn!(event_id, message_id, attempts, "parked: see last_error of its row in receipts");
            }
        }
    }
}

/// For the log: a reply by its code alone, since its text may name the recipient. The receipt's row has all of it.
fn describe(error: &smtp::Error) -> String {
    error.status().map_or_else(|| error.to_string(), |code| format!("the mail server answered {code}"))
}

fn refuses_mail(error: &smtp::Error) -> bool {
    error.status().is_some_and(|code| {
        code.severity == Severity::PermanentNegativeCompletion && REFUSALS.contains(&u16::from(code))
    })
}

/// Half of the pause is left to chance, so that mails that failed together are not sent together again.
fn pause_after(attempts: i32) -> Duration {
    let doublings = attempts.saturating_sub(1).clamp(0, 20).unsigned_abs();
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_PAUSE);
    pause.mul_f64(rand::rng().random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        for (attempts, longest) in [(1, 1), (2, 2), (5, 16), (12, 2_048), (13, 3_600), (i32::MAX, 3_600)] {
            let pause = pause_after(attempts);
            let longest = Duration::from_secs(longest);
            assert!(pause <= longest && pause >= longest / 2, "{attempts}: {pause:?}");
        }
    }
}
