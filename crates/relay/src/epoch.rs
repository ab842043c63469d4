//! `relay new-epoch`: lets a shard go on after PostgreSQL has lost events that Kafka holds, or Kafka what PostgreSQL holds.
//!
//! | step | what | why so |
//! |---|---|---|
//! | 1 | S0 to S4 as a relay takes them | another relay keeps the command out; every predecessor is fenced; without a doubt there is nothing to begin |
//! | 2 | the last position that outbox and topic agree on, or the one that a person names | the new epoch begins behind it |
//! | 3 | PostgreSQL: the epoch, where it begins, and the events behind that, in one transaction | from now on no event gets the old epoch |
//! | 4 | Kafka: the position at which it begins, in one transaction | the relay goes on from there |
//! | 5 | the floor | as after any position |
//!
//! Before step 3 nothing has changed. Between 3 and 4 the relay halts, since Kafka's position is of an epoch that has ended;
//! the same command again takes step 4.

use std::time::Duration;

use ledger::failpoint;
use ledger::outbox::{Outbox, Stamp};
use thiserror::Error;
use uuid::Uuid;

use crate::config::Settings;
use crate::failure::Failure;
use crate::lag::Published;
use crate::meters::Meters;
use crate::position::Position;
use crate::publisher::Publisher;
use crate::reason::HaltReason;
use crate::reconciliation::{Agreement, Comparison, Rows, later};
use crate::state::StateSender;
use crate::stop::{Panicked, unstopped};
use crate::verification::check_rows;

/// How long the shard's lock is waited for. A halted relay looks again every 30 s, and holds it for a second or two then.
const LOCKED_WITHIN: Duration = Duration::from_secs(10);

/// Why no epoch was begun, or not to its end.
#[derive(Debug, Error)]
pub enum EpochError {
    /// Outbox and Kafka agree, so a relay can go on.
    #[error("nothing is in doubt: the outbox and Kafka agree, and the relay can go on without a new epoch")]
    NothingInDoubt,
    /// Something else is in doubt, which a new epoch doesn't settle.
    #[error("a new epoch doesn't settle this: {0}; see {page}", page = .0.page())]
    OtherDoubt(HaltReason),
    /// Not the epoch that comes next.
    #[error("the epoch that comes next is {next}, not {asked}")]
    NotNext {
        /// What was asked for.
        asked: i32,
        /// What comes next.
        next: i32,
    },
    /// What the topic holds doesn't prove what is published.
    #[error(
        "the topic doesn't prove how far the outbox is published: find out, and name the last position that was published \
         as it stands in the outbox, with --after; the topic shows it up to {at_least}"
    )]
    NotProven {
        /// The last position that they agree on for certain.
        at_least: i64,
    },
    /// The position that was named can't be the last one that both agree on.
    #[error(
        "the new epoch can't begin after position {after}: the topic proves {at_least}, or the outbox doesn't hold it"
    )]
    NotThere {
        /// The position that was named.
        after: i64,
        /// The last position that they agree on for certain.
        at_least: i64,
    },
    /// PostgreSQL or Kafka did not do its part, or a relay works on the shard. Run it again: that finishes what was begun.
    #[error("{0}")]
    Unfinished(String),
}

impl From<Failure> for EpochError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Halt(reason) => Self::OtherDoubt(reason),
            Failure::Stopped
            | Failure::LockTaken
            | Failure::LockLost
            | Failure::Kafka { .. }
            | Failure::BatchTooLarge { .. }
            | Failure::TimedOut { .. }
            | Failure::Topic(_)
            | Failure::Outbox(_)
            | Failure::Panicked => Self::Unfinished(failure.to_string()),
        }
    }
}

impl From<Panicked> for EpochError {
    fn from(panicked: Panicked) -> Self {
        Failure::from(panicked).into()
    }
}

/// Begins an epoch of the shard's stream behind the last position that outbox and topic agree on, and returns where it
/// begins. `epoch` must be the one that comes next, so that the same command never begins two. `after` names that position
/// where the topic doesn't prove it: a person has found out what is published. Run again after a failure, it finishes what
/// was begun.
///
/// # Errors
/// [`EpochError`].
pub async fn begin_epoch(settings: Settings, epoch: i32, after: Option<i64>) -> Result<Position, EpochError> {
    let shard = settings.shard.to_string();
    unstopped(move |stop| {
        let states = StateSender::new(shard.clone());
        let mut publisher = Publisher::new(settings, states, Published::unknown(), Meters::new(&shard), stop);
        begin(&mut publisher, epoch, after)
    })
    .await
}

fn begin(publisher: &mut Publisher, epoch: i32, after: Option<i64>) -> Result<Position, EpochError> {
    publisher.take_lock(Some(LOCKED_WITHIN))?;
    let mut session = publisher.open()?;
    let doubt = match session.doubt.take() {
        Some(reason) => reason,
        None => {
            let rows = publisher.read_rows(&mut session)?;
            match check_rows(session.at, &rows, &session.stream) {
                Ok(_) => return Err(EpochError::NothingInDoubt),
                Err(reason) => reason,
            }
        }
    };
    let mut comparison = Comparison::open(&publisher.settings, &publisher.stop)?;
    let agreement = comparison.find(session.at)?;
    let published = later(session.at, agreement.topic_end);
    let next = comparison.next_epoch(published);
    if epoch != next {
        return Err(EpochError::NotNext { asked: epoch, next });
    }
    let start = match comparison.unfinished_start(published) {
        Some(start) => start,
        None => {
            let start = Position { epoch, ..find_start(doubt, &mut comparison.outbox, &agreement, after)? };
            failpoint::hit("new-epoch-before-ledger");
            publisher.check_lock()?;
            let stamp = Stamp { epoch, position: start.position, event_id: start.event };
            let begun = Outbox::begin_epoch(&publisher.settings.database, publisher.settings.shard, stamp);
            publisher.stop.finish(begun).map_err(Failure::from)?;
            failpoint::hit("new-epoch-after-ledger");
            start
        }
    };
    session.at = Some(start);
    publisher.transact(&mut session, &[])?;
    publisher.raise_floor(&mut session)?;
    Ok(start)
}

/// The last position that outbox and Kafka agree on, position 0 if there is none: what the topic proves, or what a person
/// has named.
fn find_start(
    doubt: HaltReason,
    outbox: &mut Rows,
    agreement: &Agreement,
    after: Option<i64>,
) -> Result<Position, EpochError> {
    let agreed = agreement.agreed.unwrap_or(Position { epoch: 1, position: 0, event: Uuid::nil() });
    let at_least = agreed.position;
    let proven = match doubt {
        // The topic and Kafka's position are right, and tell what is published.
        HaltReason::OutboxBehind { .. } | HaltReason::OutboxEventDiffers { .. } | HaltReason::EpochChanged { .. } => {
            // Behind the last row there is nothing that could have been published or not.
            agreement.complete || outbox.last()?.map_or(0, |last| last.position) == at_least
        }
        HaltReason::PositionMissing { .. }
        | HaltReason::PositionUnreadable { .. }
        | HaltReason::PositionBehindFloor { .. }
        | HaltReason::PositionBehindTopic { .. }
        | HaltReason::TopicTailLost { .. }
        | HaltReason::TopicEventDiffers { .. } => false,
        HaltReason::ClusterChanged { .. } | HaltReason::OutboxGap { .. } | HaltReason::EventTooLarge { .. } => {
            return Err(EpochError::OtherDoubt(doubt));
        }
    };
    match after {
        None if proven => Ok(agreed),
        None => Err(EpochError::NotProven { at_least }),
        Some(after) if after == at_least => Ok(agreed),
        Some(after) => {
            let found = outbox.at([after])?.remove(&after).filter(|_| after > at_least && !proven);
            found.ok_or(EpochError::NotThere { after, at_least })
        }
    }
}
