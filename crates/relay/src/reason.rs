//! Why a relay stands still. It never guesses: where what Kafka, PostgreSQL and the relay's own record say can't all be
//! true, a person decides, by the page that the reason names.

use thiserror::Error;

use crate::position::Position;

/// Why the relay has halted. The text says what was seen; [`HaltReason::page`] says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HaltReason {
    /// This ledger has published to another Kafka cluster before.
    #[error("this ledger publishes to the Kafka cluster {recorded}, but the brokers belong to {found}")]
    ClusterChanged {
        /// The cluster id in the ledger.
        recorded: String,
        /// The cluster id that the brokers gave.
        found: String,
    },
    /// Kafka has no position, and the topic doesn't prove one.
    #[error("Kafka has no committed position, and the topic's records don't prove one: {detail}")]
    PositionMissing {
        /// What stands against the scan's result.
        detail: String,
    },
    /// Kafka has a position that no relay has written.
    #[error("the committed position {offset} can't be read: its metadata is {metadata:?}")]
    PositionUnreadable {
        /// The committed offset.
        offset: i64,
        /// What stands beside it.
        metadata: String,
    },
    /// The position lies before one that the ledger knows to be published.
    #[error("the committed position {position} lies before the floor, epoch {floor_epoch} position {floor_position}")]
    PositionBehindFloor {
        /// The committed position.
        position: Position,
        /// The floor's epoch.
        floor_epoch: i32,
        /// The floor's position.
        floor_position: i64,
    },
    /// The topic holds a committed record that lies after the position.
    #[error("the committed position {position} lies before the topic's last record, {topic}")]
    PositionBehindTopic {
        /// The committed position.
        position: Position,
        /// The position of the topic's last committed record.
        topic: Position,
    },
    /// The topic's records end before the position, and retention doesn't explain it.
    #[error("the topic's records end at {}, before the position {position}",
        .topic.map_or_else(|| "none".to_owned(), |topic| topic.to_string()))]
    TopicTailLost {
        /// The last position that is known to have been published: the committed one, or the floor.
        position: String,
        /// The position of the topic's last committed record, if it has one.
        topic: Option<Position>,
    },
    /// The topic's last record and the position name different events.
    #[error("the committed position is {position}, but the topic's record at that position is another event, {topic}")]
    TopicEventDiffers {
        /// The committed position.
        position: Position,
        /// What the topic holds.
        topic: Position,
    },
    /// The outbox doesn't hold the position that was published last.
    #[error("the outbox doesn't hold the position that was published last, {position}")]
    OutboxBehind {
        /// The published position.
        position: Position,
    },
    /// Another event stands at the position that was published last.
    #[error("the position that was published last is {published}, but the outbox holds {outbox} there")]
    OutboxEventDiffers {
        /// The published position.
        published: Position,
        /// What the outbox holds.
        outbox: Position,
    },
    /// A position is missing in the outbox (I7).
    #[error("the outbox has a gap: position {expected} is missing and {found} follows")]
    OutboxGap {
        /// The position that should come next.
        expected: i64,
        /// The position that comes.
        found: i64,
    },
    /// The outbox continues in another epoch, which nobody has begun there, or not to its end.
    #[error("the outbox continues in epoch {found} at position {position}, but epoch {published} was published so far")]
    EpochChanged {
        /// The epoch so far.
        published: i32,
        /// The epoch of the next row.
        found: i32,
        /// The position of the next row.
        position: i64,
    },
    /// An event is longer than the topic takes, even alone.
    #[error("the event at position {position} is longer than Kafka takes ({detail}); it is not skipped")]
    EventTooLarge {
        /// The event's position.
        position: i64,
        /// Kafka's word for it.
        detail: String,
    },
}

impl HaltReason {
    /// Every name of [`HaltReason::name`], for the metric, which has one series for each.
    pub const NAMES: [&str; 12] = [
        "cluster-changed",
        "position-missing",
        "position-unreadable",
        "position-behind-floor",
        "position-behind-topic",
        "topic-tail-lost",
        "topic-event-differs",
        "outbox-behind",
        "outbox-event-differs",
        "outbox-gap",
        "epoch-changed",
        "event-too-large",
    ];

    /// The reason in a few words, as metrics have it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ClusterChanged { .. } => "cluster-changed",
            Self::PositionMissing { .. } => "position-missing",
            Self::PositionUnreadable { .. } => "position-unreadable",
            Self::PositionBehindFloor { .. } => "position-behind-floor",
            Self::PositionBehindTopic { .. } => "position-behind-topic",
            Self::TopicTailLost { .. } => "topic-tail-lost",
            Self::TopicEventDiffers { .. } => "topic-event-differs",
            Self::OutboxBehind { .. } => "outbox-behind",
            Self::OutboxEventDiffers { .. } => "outbox-event-differs",
            Self::OutboxGap { .. } => "outbox-gap",
            Self::EpochChanged { .. } => "epoch-changed",
            Self::EventTooLarge { .. } => "event-too-large",
        }
    }

    /// The runbook's page for the reason.
    #[must_use]
    pub fn page(&self) -> String {
        format!("runbook/relay-halted.md#{}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_section_on_the_page() {
        let page = include_str!("../../../runbook/relay-halted.md");
        let headings = page.lines().filter(|line| line.starts_with("##"));
        let anchor = |heading: &str| heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchors: Vec<String> = headings.map(anchor).collect();
        for name in HaltReason::NAMES {
            assert!(anchors.iter().any(|anchor| anchor == name), "no section for {name}");
        }
        let reason = HaltReason::OutboxGap { expected: 2, found: 3 };
        assert!(HaltReason::NAMES.contains(&reason.name()));
        assert_eq!(reason.page(), "runbook/relay-halted.md#outbox-gap");
    }
}
