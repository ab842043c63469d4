//! What a relay is doing, for those who wait for it and those who watch it.

use metrics::gauge;
use tokio::sync::watch;

use crate::reason::HaltReason;

/// What a relay is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It reaches for PostgreSQL and Kafka; after an error it is here again.
    #[default]
    Starting,
    /// Another relay holds the shard's lock; this one takes over when that one stops.
    Waiting,
    /// It has fenced its predecessor and checks what was published.
    Verifying,
    /// It knows its position and has events to publish.
    Publishing,
    /// It knows its position, and everything is published.
    Idle,
    /// It is in doubt and stands still until a person has decided. It looks again every 30 s, so that nobody has to start
    /// it anew.
    Halted {
        /// What is in doubt.
        reason: HaltReason,
    },
    /// It has ended.
    Stopped,
}

/// Every name of [`State::name`], for the metric, which has one series for each.
const NAMES: [&str; 7] = ["starting", "waiting", "verifying", "publishing", "idle", "halted", "stopped"];

impl State {
    /// The state in one word, as metrics and logs have it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Verifying => "verifying",
            Self::Publishing => "publishing",
            Self::Idle => "idle",
            Self::Halted { .. } => "halted",
            Self::Stopped => "stopped",
        }
    }

    /// Whether the relay does its part. One that waits does: it stands ready to take over, and a rolling update that
    /// waited for more would never end.
    #[must_use]
    pub const fn ready(&self) -> bool {
        match self {
            Self::Waiting | Self::Publishing | Self::Idle => true,
            Self::Starting | Self::Verifying | Self::Halted { .. } | Self::Stopped => false,
        }
    }

    /// Whether the relay has read its position and works from it.
    #[must_use]
    pub const fn positioned(&self) -> bool {
        match self {
            Self::Publishing | Self::Idle => true,
            Self::Starting | Self::Waiting | Self::Verifying | Self::Halted { .. } | Self::Stopped => false,
        }
    }
}

/// Where the publisher shows its state: to those who watch the channel, and as a metric.
pub(crate) struct StateSender {
    sender: watch::Sender<State>,
    shard: String,
}

impl StateSender {
    pub(crate) fn new(shard: String) -> Self {
        let states = Self { sender: watch::Sender::new(State::Starting), shard };
        states.show(&State::Starting);
        states
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.sender.subscribe()
    }

    /// Whether the relay stands still in doubt.
    pub(crate) fn halted(&self) -> bool {
        matches!(*self.sender.borrow(), State::Halted { .. })
    }

    /// Takes on a state. A halt is logged when it begins and when its reason changes, once, with the page to read.
    pub(crate) fn set(&self, state: State) {
        let changed = self.sender.send_if_modified(|current| {
            let differs = *current != state;
            current.clone_from(&state);
            differs
        });
        if !changed {
            return;
        }
        self.show(&state);
        if let State::Halted { reason } = &state {
            tracing::error!(shard = self.shard, %reason, page = reason.page(), "the relay has halted");
        }
    }

    fn show(&self, state: &State) {
        for name in NAMES {
            let value = if name == state.name() { 1.0 } else { 0.0 };
            gauge!("oncepost_relay_state", "shard" => self.shard.clone(), "state" => name).set(value);
        }
        let halted = match state {
            State::Halted { reason } => Some(reason.name()),
            State::Starting | State::Waiting | State::Verifying | State::Publishing | State::Idle | State::Stopped => {
                None
            }
        };
        for name in HaltReason::NAMES {
            let value = if halted == Some(name) { 1.0 } else { 0.0 };
            gauge!("oncepost_relay_halt", "shard" => self.shard.clone(), "reason" => name).set(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_halt_shows_its_reason_and_no_other() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let shown = || {
            let text = recorder.handle().render();
            let lines = text.lines().filter(|line| line.starts_with("oncepost_relay_halt{") && line.ends_with(" 1"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        metrics::with_local_recorder(&recorder, || {
            let states = StateSender::new("0".to_owned());
            assert!(shown().is_empty());
            states.set(State::Halted { reason: HaltReason::OutboxGap { expected: 2, found: 3 } });
            assert_eq!(shown(), [r#"oncepost_relay_halt{shard="0",reason="outbox-gap"} 1"#]);
            states.set(State::Starting);
            assert!(shown().is_empty());
        });
    }

    #[test]
    fn a_halted_relay_is_not_ready_and_a_waiting_one_is() {
        let halted = State::Halted { reason: HaltReason::OutboxGap { expected: 2, found: 3 } };
        assert!(!halted.ready());
        assert!(State::Waiting.ready());
        assert!(!State::Waiting.positioned());
        assert!(State::Idle.positioned());
    }
}
