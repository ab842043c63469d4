//! What may be believed: pure rules over what Kafka and PostgreSQL say. In doubt they give a reason to halt.

use ledger::outbox::{Event, Floor, Stamp, Stream};

use crate::position::Position;
use crate::reason::HaltReason;

/// What the end of one partition of the topic looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The low watermark: above 0, records before it were removed by retention.
    pub(crate) low: i64,
    /// The high-water mark, taken after the predecessor was fenced.
    pub(crate) high: i64,
    /// The last committed record of this shard between the two.
    pub(crate) last: Option<Position>,
}

impl Tail {
    /// Whether retention has moved the partition's start to its end.
    const fn emptied(&self) -> bool {
        self.low > 0 && self.low == self.high
    }
}

/// Decides which position to continue from, `None` for the very beginning.
///
/// `committed` is the position that Kafka has, `floor` the one that the ledger has, `tails` the ends of all partitions,
/// `home` the partition that the committed position's record belongs to, if the outbox still tells, and `stream` the epochs
/// as the ledger has them.
///
/// | committed | topic's greatest record | decision |
/// |---|---|---|
/// | P | P, the same event | P |
/// | P | P, another event | halt: topic-event-differs |
/// | P | greater | halt: position-behind-topic |
/// | P, where an epoch began | of an earlier epoch, or none: nothing of the new one is published yet | P |
/// | P, of an epoch that the ledger doesn't know | smaller or none | P: the outbox can't hold it, and [`check_rows`] halts |
/// | P | smaller or none, P's partition (or every one, if the outbox doesn't tell) emptied by retention | P |
/// | P | smaller or none, otherwise | halt: topic-tail-lost |
/// | P below the floor | any | halt: position-behind-floor |
/// | missing | none, nothing was ever removed, no floor | the beginning |
/// | missing | G, every partition scanned to a record or to offset 0, G not below the floor | G |
/// | missing | of an earlier epoch or none, likewise scanned, and the floor is where the epoch began | the floor |
/// | missing | anything else | halt: position-missing, or topic-tail-lost if the floor proves the loss |
pub(crate) fn decide(
    committed: Option<Position>,
    floor: Option<Floor>,
    tails: &[Tail],
    home: Option<usize>,
    stream: &Stream,
) -> Result<Option<Position>, HaltReason> {
    let greatest = tails.iter().filter_map(|tail| tail.last).max_by_key(Position::order);
    let floor_order = floor.map(|floor| (floor.epoch, floor.position));
    // Whether an epoch began there and nothing of it is in the topic.
    let fresh_start =
        |position: Position| started(stream, position) && greatest.is_none_or(|topic| topic.epoch < position.epoch);
    // Where the outbox doesn't tell the position's partition, it is one of those that there are.
    let emptied = match home {
        Some(home) => tails.get(home).is_some_and(Tail::emptied),
        None => !tails.is_empty() && tails.iter().all(Tail::emptied),
    };
    if let Some(position) = committed {
        if let Some(floor) = floor.filter(|floor| (floor.epoch, floor.position) > position.order()) {
            return Err(HaltReason::PositionBehindFloor {
                position,
                floor_epoch: floor.epoch,
                floor_position: floor.position,
            });
        }
        return match greatest {
            Some(topic) if topic.order() > position.order() => Err(HaltReason::PositionBehindTopic { position, topic }),
            Some(topic) if topic.order() == position.order() && topic.event == position.event => Ok(committed),
            Some(topic) if topic.order() == position.order() => Err(HaltReason::TopicEventDiffers { position, topic }),
            Some(_) | None if fresh_start(position) || position.epoch > stream.epoch => Ok(committed),
            Some(_) | None if emptied => Ok(committed),
            Some(_) | None => Err(HaltReason::TopicTailLost { position: position.to_string(), topic: greatest }),
        };
    }
    let start = stream.starts.last().map(|start| Position::from(*start));
    let published = start.filter(|start| Some(start.order()) == floor_order && fresh_start(*start)).or(greatest);
    if let Some(floor) = floor
        && published.is_none_or(|published| Some(published.order()) < floor_order)
        && tails.iter().all(|tail| tail.last.is_some() || tail.low == 0)
    {
        let position = format!("epoch {} position {}", floor.epoch, floor.position);
        return Err(HaltReason::TopicTailLost { position, topic: greatest });
    }
    // A partition whose start was moved by retention, and that shows no record of ours, may have held a later one.
    if let Some(partition) = tails.iter().position(|tail| tail.last.is_none() && tail.low > 0) {
        let detail =
            format!("retention has removed records from partition {partition}, and none of ours is left there");
        return Err(HaltReason::PositionMissing { detail });
    }
    Ok(published)
}

/// Whether an epoch began at the position.
pub(crate) fn started(stream: &Stream, position: Position) -> bool {
    stream.starts.iter().any(|start| Position::from(*start) == position)
}

/// Checks rows that were read from the published position on, and returns those that are to be published: the first row
/// must be the published one, which is of an earlier epoch where one began behind it, and the rest follow without a gap, in
/// the same epoch or in one that began there (I7).
pub(crate) fn check_rows<'a>(
    published: Option<Position>,
    rows: &'a [Event],
    stream: &Stream,
) -> Result<&'a [Event], HaltReason> {
    let (mut expected, mut epoch, fresh) = match published {
        None => (1, None, rows),
        // Where an epoch begins before the first event, no row is the published one.
        Some(start) if start.position == 0 && started(stream, start) => (1, Some(start.epoch), rows),
        Some(published) => {
            // An epoch began before it, which Kafka has not come to: `relay new-epoch` did not finish.
            let overtaken = |start: &&Stamp| start.epoch > published.epoch && start.position < published.position;
            if let Some(start) = stream.starts.last().filter(overtaken) {
                let position = start.position.saturating_add(1);
                return Err(HaltReason::EpochChanged { published: published.epoch, found: start.epoch, position });
            }
            let first = rows.first().filter(|row| row.position == published.position);
            let Some((first, fresh)) = first.zip(rows.get(1..)) else {
                return Err(HaltReason::OutboxBehind { position: published });
            };
            let outbox = Position::from(first);
            if outbox != published && !(outbox.event == published.event && started(stream, published)) {
                return Err(HaltReason::OutboxEventDiffers { published, outbox });
            }
            (published.position.saturating_add(1), Some(published.epoch), fresh)
        }
    };
    for row in fresh {
        if row.position != expected {
            return Err(HaltReason::OutboxGap { expected, found: row.position });
        }
        let published = *epoch.get_or_insert(row.epoch);
        let begins = |start: &Stamp| start.epoch == row.epoch && start.position.checked_add(1) == Some(row.position);
        if row.epoch > published && stream.starts.iter().any(begins) {
            epoch = Some(row.epoch);
        } else if row.epoch != published {
            return Err(HaltReason::EpochChanged { published, found: row.epoch, position: row.position });
        }
        expected = expected.saturating_add(1);
    }
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use ledger::{Environment, KeyHash, TenantId};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn at(epoch: i32, position: i64) -> Position {
        Position { epoch, position, event: Uuid::from_u128(u128::from(position.unsigned_abs())) }
    }

    fn tail(low: i64, high: i64, last: Option<Position>) -> Tail {
        Tail { low, high, last }
    }

    /// A ledger without a restore.
    const FIRST: Stream = Stream { epoch: 1, starts: Vec::new() };

    /// A ledger in which epoch 2 began after position 7.
    fn second() -> Stream {
        Stream { epoch: 2, starts: vec![Stamp { epoch: 2, position: 7, event_id: at(1, 7).event }] }
    }

    const NEVER_USED: Tail = Tail { low: 0, high: 0, last: None };
    const EMPTIED: Tail = Tail { low: 90, high: 90, last: None };

    fn floor(epoch: i32, position: i64) -> Option<Floor> {
        Some(Floor { epoch, position })
    }

    #[test]
    fn a_new_topic_starts_at_the_beginning() {
        assert_eq!(decide(None, None, &[NEVER_USED, NEVER_USED], None, &FIRST), Ok(None));
        // What was aborted leaves offsets behind, but no record.
        assert_eq!(decide(None, None, &[tail(0, 12, None), NEVER_USED], None, &FIRST), Ok(None));
    }

    #[test]
    fn a_position_that_the_topic_confirms_is_believed() {
        let tails = [tail(0, 9, Some(at(1, 6))), tail(3, 9, Some(at(1, 7))), NEVER_USED];
        assert_eq!(decide(Some(at(1, 7)), floor(1, 7), &tails, Some(1), &FIRST), Ok(Some(at(1, 7))));
        assert_eq!(decide(Some(at(1, 7)), floor(1, 2), &tails, None, &FIRST), Ok(Some(at(1, 7))));
        assert_eq!(decide(Some(at(1, 7)), None, &tails, None, &FIRST), Ok(Some(at(1, 7))));
    }

    #[test]
    fn a_position_below_the_floor_halts() {
        let tails = [tail(0, 9, Some(at(1, 7)))];
        let halt = decide(Some(at(1, 7)), floor(1, 8), &tails, Some(0), &FIRST).unwrap_err();
        assert!(matches!(halt, HaltReason::PositionBehindFloor { .. }), "{halt:?}");
        let halt = decide(Some(at(1, 7)), floor(2, 1), &tails, Some(0), &FIRST).unwrap_err();
        assert!(matches!(halt, HaltReason::PositionBehindFloor { .. }), "{halt:?}");
    }

    #[test]
    fn a_topic_that_knows_more_than_the_position_halts() {
        let tails = [tail(0, 9, Some(at(1, 8))), tail(0, 9, Some(at(1, 7)))];
        let halt = decide(Some(at(1, 7)), None, &tails, Some(1), &FIRST).unwrap_err();
        assert!(matches!(halt, HaltReason::PositionBehindTopic { .. }), "{halt:?}");
        let tails = [tail(0, 9, Some(at(2, 1)))];
        let halt = decide(Some(at(1, 7)), None, &tails, Some(0), &FIRST).unwrap_err();
        assert!(matches!(halt, HaltReason::PositionBehindTopic { .. }), "{halt:?}");
    }

    #[test]
    fn a_topic_that_holds_another_event_at_the_position_halts() {
        let other = Position { event: Uuid::from_u128(99), ..at(1, 7) };
        let halt = decide(Some(at(1, 7)), None, &[tail(0, 9, Some(other))], Some(0), &FIRST).unwrap_err();
        assert!(matches!(halt, HaltReason::TopicEventDiffers { .. }), "{halt:?}");
    }

    #[test]
    fn a_tail_that_retention_removed_is_no_loss_and_any_other_is() {
        let tails = [tail(0, 9, Some(at(1, 6))), EMPTIED];
        assert_eq!(decide(Some(at(1, 7)), floor(1, 7), &tails, Some(1), &FIRST), Ok(Some(at(1, 7))));
        assert_eq!(decide(Some(at(1, 7)), floor(1, 7), &[EMPTIED, EMPTIED], Some(1), &FIRST), Ok(Some(at(1, 7))));
        assert_eq!(decide(Some(at(1, 7)), floor(1, 7), &[EMPTIED, EMPTIED], None, &FIRST), Ok(Some(at(1, 7))));
        for (tails, home) in [
            (vec![tail(0, 9, Some(at(1, 6))), EMPTIED], Some(0)),
            (vec![tail(0, 9, Some(at(1, 6))), EMPTIED], None),
            (vec![NEVER_USED, NEVER_USED], Some(1)),
            (vec![tail(5, 9, None), NEVER_USED], Some(0)),
        ] {
            let halt = decide(Some(at(1, 7)), None, &tails, home, &FIRST).unwrap_err();
            assert!(matches!(halt, HaltReason::TopicTailLost { .. }), "{halt:?} {tails:?}");
        }
    }

    #[test]
    fn a_missing_position_is_taken_from_a_scan_that_proves_it() {
        let tails = [tail(0, 9, Some(at(1, 6))), tail(4, 9, Some(at(1, 7))), tail(0, 3, None)];
        assert_eq!(decide(None, floor(1, 5), &tails, None, &FIRST), Ok(Some(at(1, 7))));
        assert_eq!(decide(None, None, &tails, None, &FIRST), Ok(Some(at(1, 7))));
    }

    #[test]
    fn a_missing_position_that_nothing_proves_halts() {
        for (tails, floor) in [
            (vec![EMPTIED, NEVER_USED], None),
            (vec![tail(0, 9, Some(at(1, 6))), EMPTIED], None),
            (vec![tail(0, 9, Some(at(1, 6))), tail(4, 9, None)], floor(1, 6)),
            (vec![EMPTIED, EMPTIED], floor(1, 6)),
        ] {
            let halt = decide(None, floor, &tails, None, &FIRST).unwrap_err();
            assert!(matches!(halt, HaltReason::PositionMissing { .. }), "{halt:?} {tails:?}");
        }
    }

    #[test]
    fn a_floor_that_the_topic_does_not_reach_is_a_lost_tail() {
        for tails in [vec![NEVER_USED, NEVER_USED], vec![tail(0, 9, Some(at(1, 6))), NEVER_USED]] {
            let halt = decide(None, floor(1, 7), &tails, None, &FIRST).unwrap_err();
            assert!(matches!(halt, HaltReason::TopicTailLost { .. }), "{halt:?} {tails:?}");
        }
    }

    fn row(epoch: i32, position: i64) -> Event {
        Event {
            epoch,
            position,
            event_id: at(epoch, position).event,
            event_type: "transfer.posted".to_owned(),
            resource_id: Uuid::nil(),
            tenant: TenantId(Uuid::nil()),
            environment: Environment::Live,
            key_hash: KeyHash([0; 32]),
            payload: Vec::new(),
            traceparent: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn rows_after_the_published_one_are_to_be_published() {
        let rows = [row(1, 7), row(1, 8), row(1, 9)];
        assert_eq!(check_rows(Some(at(1, 7)), &rows, &FIRST), Ok(&rows[1..]));
        assert_eq!(check_rows(Some(at(1, 7)), &rows[..1], &FIRST), Ok(&rows[..0]));
        assert_eq!(check_rows(None, &[row(1, 1), row(1, 2)], &FIRST).map(<[Event]>::len), Ok(2));
        assert_eq!(check_rows(None, &[], &FIRST), Ok(&rows[..0]));
    }

    #[test]
    fn an_outbox_that_lost_the_published_row_halts() {
        for rows in [vec![], vec![row(1, 8)]] {
            assert_eq!(check_rows(Some(at(1, 7)), &rows, &FIRST), Err(HaltReason::OutboxBehind { position: at(1, 7) }));
        }
    }

    #[test]
    fn another_event_or_epoch_at_the_published_position_halts() {
        let mut other = row(1, 7);
        other.event_id = Uuid::from_u128(99);
        for rows in [vec![other], vec![row(2, 7)]] {
            let halt = check_rows(Some(at(1, 7)), &rows, &FIRST).unwrap_err();
            assert!(matches!(halt, HaltReason::OutboxEventDiffers { .. }), "{halt:?}");
        }
    }

    #[test]
    fn a_gap_or_a_change_of_epoch_halts() {
        let gap = Err(HaltReason::OutboxGap { expected: 8, found: 9 });
        assert_eq!(check_rows(Some(at(1, 7)), &[row(1, 7), row(1, 9)], &FIRST), gap);
        assert_eq!(check_rows(None, &[row(1, 2)], &FIRST), Err(HaltReason::OutboxGap { expected: 1, found: 2 }));
        let changed = Err(HaltReason::EpochChanged { published: 1, found: 2, position: 8 });
        assert_eq!(check_rows(Some(at(1, 7)), &[row(1, 7), row(2, 8)], &FIRST), changed);
        let changed = Err(HaltReason::EpochChanged { published: 1, found: 2, position: 2 });
        assert_eq!(check_rows(None, &[row(1, 1), row(2, 2)], &FIRST), changed);
    }

    #[test]
    fn an_epoch_that_began_and_published_nothing_is_confirmed_by_what_the_earlier_one_left() {
        let start = Some(at(2, 7));
        for tails in [vec![tail(0, 20, Some(at(1, 10))), NEVER_USED], vec![EMPTIED, EMPTIED], vec![NEVER_USED]] {
            assert_eq!(decide(start, floor(1, 10), &tails, None, &second()), Ok(start), "{tails:?}");
            assert_eq!(decide(start, floor(2, 7), &tails, None, &second()), Ok(start), "{tails:?}");
            // The same without the epoch in the ledger is a lost end.
            let unknown = Stream { epoch: 2, ..FIRST };
            let halt = decide(start, None, &[tail(0, 20, Some(at(1, 10)))], None, &unknown).unwrap_err();
            assert!(matches!(halt, HaltReason::TopicTailLost { .. }), "{halt:?}");
        }
        let halt = decide(start, None, &[tail(0, 20, Some(at(2, 8)))], None, &second()).unwrap_err();
        assert!(matches!(halt, HaltReason::PositionBehindTopic { .. }), "{halt:?}");
        // Behind its start an epoch is judged as any other.
        let halt = decide(Some(at(2, 8)), None, &[tail(0, 20, Some(at(1, 10)))], None, &second()).unwrap_err();
        assert!(matches!(halt, HaltReason::TopicTailLost { .. }), "{halt:?}");
    }

    #[test]
    fn a_missing_position_is_the_epochs_start_only_if_the_floor_says_so() {
        let tails = [tail(0, 20, Some(at(1, 10))), NEVER_USED];
        assert_eq!(decide(None, floor(2, 7), &tails, None, &second()), Ok(Some(at(2, 7))));
        assert_eq!(decide(None, floor(1, 10), &tails, None, &second()), Ok(Some(at(1, 10))));
        let tails = [tail(0, 20, Some(at(2, 9))), NEVER_USED];
        assert_eq!(decide(None, floor(2, 7), &tails, None, &second()), Ok(Some(at(2, 9))));
        let halt = decide(None, floor(2, 8), &[tail(0, 20, Some(at(1, 10)))], None, &second()).unwrap_err();
        assert!(matches!(halt, HaltReason::TopicTailLost { .. }), "{halt:?}");
    }

    #[test]
    fn a_position_of_an_epoch_that_the_ledger_has_forgotten_is_the_outboxs_doubt() {
        let committed = Some(at(3, 7));
        assert_eq!(decide(committed, None, &[tail(0, 9, Some(at(1, 10)))], None, &second()), Ok(committed));
        let halt = check_rows(committed, &[row(1, 7), row(2, 8)], &second()).unwrap_err();
        assert!(matches!(halt, HaltReason::OutboxEventDiffers { .. }), "{halt:?}");
    }

    #[test]
    fn rows_go_on_in_a_new_epoch_where_one_was_begun_and_nowhere_else() {
        let rows = [row(1, 7), row(2, 8), row(2, 9)];
        assert_eq!(check_rows(Some(at(2, 7)), &rows, &second()), Ok(&rows[1..]));
        assert_eq!(check_rows(Some(at(2, 8)), &rows[1..], &second()), Ok(&rows[2..]));
        // A topic that is filled anew gets both.
        let all: Vec<Event> = (1..=7).map(|position| row(1, position)).chain([row(2, 8), row(2, 9)]).collect();
        assert_eq!(check_rows(None, &all, &second()), Ok(all.as_slice()));
        for (published, rows) in [
            (at(2, 7), vec![row(1, 7), row(1, 8)]),
            (at(1, 6), vec![row(1, 6), row(2, 7)]),
            (at(2, 8), vec![row(2, 8), row(1, 9)]),
            (at(2, 8), vec![row(2, 8), row(3, 9)]),
        ] {
            let halt = check_rows(Some(published), &rows, &second()).unwrap_err();
            assert!(matches!(halt, HaltReason::EpochChanged { .. }), "{halt:?} {rows:?}");
        }
        let other = Position { event: Uuid::from_u128(99), ..at(2, 7) };
        let halt = check_rows(Some(other), &rows, &second()).unwrap_err();
        assert!(matches!(halt, HaltReason::OutboxEventDiffers { .. }), "{halt:?}");
    }

    #[test]
    fn an_epoch_that_began_before_the_first_event_has_no_published_row() {
        let start = Position { epoch: 2, position: 0, event: Uuid::nil() };
        let stream = Stream { epoch: 2, starts: vec![Stamp { epoch: 2, position: 0, event_id: Uuid::nil() }] };
        assert_eq!(check_rows(Some(start), &[], &stream).map(<[Event]>::len), Ok(0));
        let rows = [row(2, 1), row(2, 2)];
        assert_eq!(check_rows(Some(start), &rows, &stream), Ok(rows.as_slice()));
        assert_eq!(check_rows(Some(start), &[], &FIRST), Err(HaltReason::OutboxBehind { position: start }));
    }

    #[test]
    fn an_epoch_that_kafka_has_not_come_to_halts_until_it_is_finished() {
        let halt = Err(HaltReason::EpochChanged { published: 1, found: 2, position: 8 });
        for rows in [vec![], vec![row(2, 10)], vec![row(1, 10)]] {
            assert_eq!(check_rows(Some(at(1, 10)), &rows, &second()), halt);
        }
        let rows = [row(1, 6), row(1, 7), row(2, 8)];
        assert_eq!(check_rows(Some(at(1, 6)), &rows, &second()), Ok(&rows[1..]), "the relay gets there by itself");
    }
}
