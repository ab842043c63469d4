//! What is counted while a load runs. One thread runs it, so nothing here is shared between threads.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::answer::{Answer, Class};
use crate::report::{Bar, Counts, Generator, Latency, Load, Report, Second, Violations};

/// The longest latency that is told apart, in microseconds: a minute, beyond every bound of the server and of this program.
const LONGEST_US: u64 = 60_000_000;
/// Three digits of each latency are kept: no percentile is off by more than a thousandth.
const DIGITS: u8 = 3;
/// The most broken promises that are told one by one.
const EXAMPLES_MAX: usize = 20;
/// How much wider each bar of the histogram is than the one before it.
const BAR_GROWTH: f64 = 1.25;
/// The end of the first bar, in microseconds.
const FIRST_BAR_US: f64 = 100.0;

/// Counts.
pub(crate) struct Measurement {
    /// What was meant to be sent before this is preparation or warm-up, and not counted.
    begin: Option<Instant>,
    seconds: u64,
    latencies: BTreeMap<Class, Histogram<u64>>,
    statuses: BTreeMap<u16, u64>,
    counts: Counts,
    timeline: Vec<Second>,
    current: Histogram<u64>,
    violations: Violations,
    processor: Option<Duration>,
}

impl Measurement {
    pub(crate) fn new(seconds: u64) -> Self {
        Self {
            begin: None,
            seconds,
            latencies: BTreeMap::new(),
            statuses: BTreeMap::new(),
            counts: Counts::default(),
            timeline: vec![Second::default()],
            current: histogram(),
            violations: Violations::default(),
            processor: None,
        }
    }

    /// From when on it counts.
    pub(crate) fn start(&mut self, begin: Instant) {
        self.begin = Some(begin);
    }

    /// The beginning, for what was meant to be sent after it.
    fn counts(&self, intended: Instant) -> Option<Instant> {
        self.begin.filter(|begin| intended >= *begin)
    }

    /// An answer to a request that was meant to be sent at `intended`.
    pub(crate) fn answered(&mut self, intended: Instant, answer: &Answer) {
        let now = Instant::now();
        let Some(begin) = self.counts(intended) else { return };
        self.processor.get_or_insert_with(processor_time);
        let class = answer.class();
        let latency = u64::try_from((now - intended).as_micros()).unwrap_or(LONGEST_US);
        self.latencies.entry(class).or_insert_with(histogram).saturating_record(latency);
        *self.statuses.entry(answer.status).or_default() += 1;
        *self.counts.answers.of(class) += 1;
        // What is answered after the end belongs to no second, and not to the throughput.
        let second = (now - begin).as_secs();
        if second >= self.seconds {
            return;
        }
        while (self.timeline.len() as u64) <= second {
            self.end_second();
            self.timeline.push(Second::default());
        }
        if class.accepted() {
            self.current.saturating_record(latency);
        }
        if let Some(last) = self.timeline.last_mut() {
            *last.answers.of(class) += 1;
        }
    }

    fn end_second(&mut self) {
        if let Some(last) = self.timeline.last_mut() {
            last.latency = latency(&self.current);
        }
        self.current.reset();
    }

    /// A request that no answer came for.
    pub(crate) fn lost(&mut self, intended: Instant) {
        if self.counts(intended).is_some() {
            self.counts.lost += 1;
        }
    }

    /// A request that could not be sent in time.
    pub(crate) fn unsent(&mut self, intended: Instant) {
        if self.counts(intended).is_some() {
            self.counts.unsent += 1;
        }
    }

    /// A request that had no final answer when its retries were used up.
    pub(crate) fn unresolved(&mut self) {
        self.counts.unresolved += 1;
    }

    /// A broken promise. It counts in the warm-up, too.
    pub(crate) fn violated(&mut self, what: String) {
        self.violations.count += 1;
        if self.violations.examples.len() < EXAMPLES_MAX {
            self.violations.examples.push(what);
        }
    }

    /// The result.
    pub(crate) fn finish(mut self, load: Load) -> Report {
        self.end_second();
        self.timeline.resize_with(usize::try_from(self.seconds).unwrap_or_default(), Second::default);
        let processor = self.processor.map_or(Duration::ZERO, |begin| processor_time().saturating_sub(begin));
        let accepted: u64 = self.timeline.iter().map(|second| second.answers.accepted()).sum();
        let answers = self.counts.answers.all().max(1);
        let mut all = histogram();
        for (_, one) in self.latencies.iter().filter(|(class, _)| class.accepted()) {
            // Both have the same bounds.
            let _ = all.add(one);
        }
        Report {
            format: Report::FORMAT,
            load,
            throughput: accepted as f64 / self.seconds as f64,
            counts: self.counts,
            statuses: self.statuses,
            latencies: self.latencies.iter().map(|(class, histogram)| (*class, latency(histogram))).collect(),
            timeline: self.timeline,
            histogram: bars(&all),
            violations: self.violations,
            generator: Generator {
                processor_seconds: processor.as_secs_f64(),
                microseconds_per_answer: processor.as_secs_f64() * 1e6 / answers as f64,
            },
        }
    }
}

fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, LONGEST_US, DIGITS) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("the bounds are constants: {error}"),
    }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Latency {
        count: histogram.len(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p99_9: at(0.999),
        max: histogram.max() as f64 / 1e3,
    }
}

/// How many latencies there are between bounds that grow evenly, from the first to the last that has any.
fn bars(histogram: &Histogram<u64>) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let (mut from, mut to) = (0.0, FIRST_BAR_US);
    let mut count = 0;
    let mut end_bar = |from: f64, to: f64, count: u64| {
        if count > 0 || !bars.is_empty() {
            bars.push(Bar { from_ms: from / 1e3, to_ms: to / 1e3, count });
        }
    };
    for value in histogram.iter_recorded() {
        while value.value_iterated_to() as f64 > to {
            end_bar(from, to, count);
            (from, to, count) = (to, to * BAR_GROWTH, 0);
        }
        count += value.count_at_value();
    }
    end_bar(from, to, count);
    bars
}

/// The processor time that this process has used, in all its threads.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::Mix;

    fn load() -> Load {
        Load { mix: Mix::Uniform, connections: 1, rate: None, seconds: 3, warm_up_seconds: 1, seed: 1, accounts: 2 }
    }

    fn answer(status: u16, replayed: bool) -> Answer {
        Answer { status, replayed, body: Vec::new() }
    }

    #[test]
    fn warm_up_counts_for_nothing_and_latency_is_counted_from_the_intended_moment() {
        let begin = Instant::now() - Duration::from_millis(1_500);
        let mut measurement = Measurement::new(3);
        measurement.answered(begin, &answer(201, false));
        measurement.start(begin);
        measurement.answered(begin - Duration::from_millis(1), &answer(201, false));
        measurement.answered(begin + Duration::from_millis(500), &answer(201, false));
        measurement.answered(Instant::now(), &answer(201, true));
        measurement.answered(Instant::now(), &answer(503, false));
        measurement.unsent(begin - Duration::from_millis(1));
        measurement.unsent(begin);
        let report = measurement.finish(load());
        let Counts { answers, unsent, .. } = report.counts;
        assert_eq!((answers.first, answers.replay, answers.shed, unsent), (1, 1, 1, 1));
        let first = report.latencies[&Class::First];
        assert!((1_000.0..1_100.0).contains(&first.p50), "{first:?}");
        // Both accepted answers came in the second second of three.
        assert_eq!(report.timeline.iter().map(|second| second.answers.accepted()).collect::<Vec<_>>(), [0, 2, 0]);
        assert!((report.throughput - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn bars_hold_every_latency_once() {
        let mut histogram = histogram();
        for value in [50, 99, 150, 3_000, 3_000, 59_000_000] {
            histogram.record(value).unwrap();
        }
        let bars = bars(&histogram);
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), 6);
        assert_eq!(bars[0].count, 2);
        assert!(bars.windows(2).all(|pair| pair[0].to_ms == pair[1].from_ms));
        assert!(bars.iter().any(|bar| bar.count == 2 && bar.from_ms < 3.0 && bar.to_ms >= 3.0));
    }
}
