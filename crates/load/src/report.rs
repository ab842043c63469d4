//! The result of a load, for programs and for people.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::answer::Class;
use crate::error::{Error, Result};
use crate::mix::Mix;

/// The whole result. Latencies are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The version of this form.
    pub(crate) format: u32,
    /// What was sent.
    pub(crate) load: Load,
    /// Accepted answers a second: first ones, replays and reads.
    pub(crate) throughput: f64,
    /// How requests ended.
    pub(crate) counts: Counts,
    /// How often each HTTP status came.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// By kind of answer.
    pub(crate) latencies: BTreeMap<Class, Latency>,
    /// Second by second.
    pub(crate) timeline: Vec<Second>,
    /// How the latencies of accepted answers are spread.
    pub(crate) histogram: Vec<Bar>,
    /// Broken promises.
    pub(crate) violations: Violations,
    /// What making the load has cost.
    pub(crate) generator: Generator,
}

/// What was sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Which requests.
    pub(crate) mix: Mix,
    /// How many requests are under way at most.
    pub(crate) connections: usize,
    /// Requests a second in an open loop; none in a closed one.
    pub(crate) rate: Option<f64>,
    /// For how long it was measured.
    pub(crate) seconds: u64,
    /// For how long it ran before that.
    pub(crate) warm_up_seconds: u64,
    /// What chance began with.
    pub(crate) seed: u64,
    /// Between how many accounts money moved.
    pub(crate) accounts: usize,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.mix.name())?;
        match self.rate {
            Some(rate) => write!(f, "open loop of {rate} a second on at most {} connections", self.connections)?,
            None => write!(f, "closed loop of {} connections", self.connections)?,
        }
        write!(f, ", {} accounts", self.accounts)
    }
}

/// How many answers of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answers {
    pub(crate) first: u64,
    pub(crate) replay: u64,
    pub(crate) read: u64,
    pub(crate) shed: u64,
    pub(crate) other: u64,
}

impl Answers {
    pub(crate) const fn of(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::First => &mut self.first,
            Class::Replay => &mut self.replay,
            Class::Read => &mut self.read,
            Class::Shed => &mut self.shed,
            Class::Other => &mut self.other,
        }
    }

    pub(crate) const fn accepted(&self) -> u64 {
        self.first + self.replay + self.read
    }

    pub(crate) const fn all(&self) -> u64 {
        self.accepted() + self.shed + self.other
    }
}

/// How requests ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    #[serde(flatten)]
    pub(crate) answers: Answers,
    /// Sent, and the connection broke or timed out; what the load itself cuts is not counted.
    pub(crate) lost: u64,
    /// Due, and no connection was free in time.
    pub(crate) unsent: u64,
    /// Without a final answer after every retry.
    pub(crate) unresolved: u64,
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Of how many answers.
    pub(crate) count: u64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

impl Latency {
    /// The figures with their names.
    pub(crate) const fn figures(&self) -> [(&'static str, f64); 5] {
        [("p50", self.p50), ("p90", self.p90), ("p99", self.p99), ("p99.9", self.p99_9), ("max", self.max)]
    }
}

/// One second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Second {
    #[serde(flatten)]
    pub(crate) answers: Answers,
    /// Of the answers accepted in this second.
    pub(crate) latency: Latency,
}

/// How many latencies lie between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bar {
    pub(crate) from_ms: f64,
    pub(crate) to_ms: f64,
    pub(crate) count: u64,
}

/// Acknowledged requests that were answered otherwise when they were sent again, or took effect twice or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Violations {
    pub(crate) count: u64,
    pub(crate) examples: Vec<String>,
}

/// What the generator itself has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Generator {
    /// Of one processor.
    pub(crate) processor_seconds: f64,
    pub(crate) microseconds_per_answer: f64,
}

impl Report {
    /// The form that this version writes and reads.
    pub(crate) const FORMAT: u32 = 1;

    /// Reads a result.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(Error::file("read", path))?;
        serde_json::from_slice(&text).map_err(|source| Error::Json { path: path.to_owned(), source })
    }

    /// Writes it for programs.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|source| Error::Json { path: path.to_owned(), source })?;
        std::fs::write(path, text).map_err(Error::file("write", path))
    }

    /// The result for people.
    pub(crate) fn text(&self) -> String {
        let Self { load, throughput, counts, statuses, violations, generator, .. } = self;
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{load}; {} s after {} s of warm-up, seed {}\n",
            load.seconds, load.warm_up_seconds, load.seed
        );
        let _ = writeln!(text, "accepted    {throughput:.0} a second\n");
        let _ = writeln!(
            text,
            "{:<8}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "ms", "count", "p50", "p90", "p99", "p99.9", "max"
        );
        for (class, latency) in &self.latencies {
            let _ = write!(text, "{:<8}{:>12}", class.name(), latency.count);
            for (_, figure) in latency.figures() {
                let _ = write!(text, "{figure:>10.2}");
            }
            text.push('\n');
        }
        let statuses: Vec<String> = statuses.iter().map(|(status, count)| format!("{status} × {count}")).collect();
        let _ = writeln!(text, "\nstatuses    {}", statuses.join(", "));
        let Counts { lost, unsent, unresolved, .. } = counts;
        let _ = writeln!(text, "no answer   {lost} lost, {unsent} not sent in time, {unresolved} unresolved");
        let Generator { processor_seconds, microseconds_per_answer } = generator;
        let _ = writeln!(
            text,
            "generator   {processor_seconds:.1} s of a processor, {microseconds_per_answer:.0} µs for each answer"
        );
        let _ = writeln!(text, "violations  {}", violations.count);
        for example in &violations.examples {
            let _ = writeln!(text, "            {example}");
        }
        text
    }
}
