//! `load compare`: what regressed from one result to another.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;

use crate::answer::Class;
use crate::error::{Error, Result};
use crate::report::{Counts, Report};
use crate::{Ending, print};

/// A latency that rises by less than this, in milliseconds, is noise, whatever its share.
const SMALLEST_RISE_MS: f64 = 0.2;
/// A share of failed requests that rises by less than this many percentage points is noise.
const SMALLEST_RISE_POINTS: f64 = 0.1;
/// A percentile needs so many answers beyond it before it says something.
const ANSWERS_BEYOND: f64 = 10.0;

/// Which results.
#[derive(Args)]
pub(crate) struct CompareArguments {
    /// The result before the change, from `load run --json`.
    before: PathBuf,
    /// The result with it.
    after: PathBuf,
    /// From how many percent on a lower throughput or a longer latency is a regression.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    threshold: f64,
}

/// Counts the requests that ended in one way.
type Share = fn(&Counts) -> u64;

/// One figure of both results.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    before: f64,
    after: f64,
    regressed: bool,
}

/// Compares and tells.
pub(crate) fn compare(arguments: &CompareArguments) -> Result<Ending> {
    let (before, after) = (Report::read(&arguments.before)?, Report::read(&arguments.after)?);
    let lines = judge(&before, &after, arguments.threshold)?;
    print(&format!("{}\n\n{}", before.load, table(&lines)))?;
    let regressed: Vec<&str> = lines.iter().filter(|line| line.regressed).map(|line| line.name.as_str()).collect();
    if regressed.is_empty() {
        print("\nnothing regressed\n")?;
        return Ok(Ending::Well);
    }
    print(&format!("\nregressed: {}\n", regressed.join(", ")))?;
    Ok(Ending::Badly)
}

/// Every figure that both results have, each with a verdict.
fn judge(before: &Report, after: &Report, threshold: f64) -> Result<Vec<Line>> {
    let same = |report: &Report| (report.load.mix, report.load.connections, report.load.rate.map(f64::to_bits));
    if same(before) != same(after) || before.load.accounts != after.load.accounts {
        return Err(Error::DifferentLoads { one: before.load.to_string(), other: after.load.to_string() });
    }
    let share = threshold / 100.0;
    let mut lines = vec![Line {
        name: "accepted a second".to_owned(),
        before: before.throughput,
        after: after.throughput,
        regressed: after.throughput < before.throughput * (1.0 - share),
    }];
    for class in Class::ALL {
        let (Some(one), Some(other)) = (before.latencies.get(&class), after.latencies.get(&class)) else { continue };
        let beyond = [0.5, 0.1, 0.01, 0.001].map(|beyond| beyond * one.count.min(other.count) as f64);
        // The longest of all is one answer: it says nothing, and is left out.
        for (((name, before), (_, after)), beyond) in one.figures().into_iter().zip(other.figures()).zip(beyond) {
            let rise = after - before;
            let regressed = beyond >= ANSWERS_BEYOND && rise > before * share && rise > SMALLEST_RISE_MS;
            lines.push(Line { name: format!("{} {name}, ms", class.name()), before, after, regressed });
        }
    }
    let failures: [(&str, Share); 5] = [
        ("shed", |counts| counts.answers.shed),
        ("other", |counts| counts.answers.other),
        ("lost", |counts| counts.lost),
        ("not sent", |counts| counts.unsent),
        ("unresolved", |counts| counts.unresolved),
    ];
    for (name, of) in failures {
        let percent = |counts: &Counts| {
            let all = counts.answers.all() + counts.lost + counts.unsent;
            100.0 * of(counts) as f64 / all.max(1) as f64
        };
        let (before, after) = (percent(&before.counts), percent(&after.counts));
        lines.push(Line {
            name: format!("{name}, %"),
            before,
            after,
            regressed: after - before > SMALLEST_RISE_POINTS,
        });
    }
    let (before, after) = (before.violations.count as f64, after.violations.count as f64);
    lines.push(Line { name: "violations".to_owned(), before, after, regressed: after > 0.0 });
    Ok(lines)
}

fn table(lines: &[Line]) -> String {
    let mut table = format!("{:<20}{:>12}{:>12}{:>10}\n", "", "before", "after", "change");
    for Line { name, before, after, regressed } in lines {
        let change =
            if *before == 0.0 { String::new() } else { format!("{:+.1} %", 100.0 * (after - before) / before) };
        let verdict = if *regressed { "  regressed" } else { "" };
        // Writing to a string can't fail.
        let _ = writeln!(table, "{name:<20}{before:>12.2}{after:>12.2}{change:>10}{verdict}");
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::mix::Mix;
    use crate::report::{Answers, Generator, Latency, Load, Violations};

    fn report() -> Report {
        let latency = Latency { count: 100_000, p50: 5.0, p90: 9.0, p99: 20.0, p99_9: 30.0, max: 40.0 };
        Report {
            format: Report::FORMAT,
            load: Load {
                mix: Mix::Uniform,
                connections: 64,
                rate: None,
                seconds: 20,
                warm_up_seconds: 2,
                seed: 1,
                accounts: 200,
            },
            throughput: 5_000.0,
            counts: Counts { answers: Answers { first: 100_000, ..Answers::default() }, ..Counts::default() },
            statuses: BTreeMap::new(),
            latencies: BTreeMap::from([(Class::First, latency)]),
            timeline: Vec::new(),
            histogram: Vec::new(),
            violations: Violations::default(),
            generator: Generator::default(),
        }
    }

    /// What regressed at a threshold of ten percent.
    fn regressed(change: impl FnOnce(&mut Report)) -> Vec<String> {
        let mut after = report();
        change(&mut after);
        let lines = judge(&report(), &after, 10.0).unwrap();
        lines.into_iter().filter(|line| line.regressed).map(|line| line.name).collect()
    }

    fn first(report: &mut Report) -> &mut Latency {
        report.latencies.get_mut(&Class::First).unwrap()
    }

    #[test]
    fn what_is_within_the_threshold_is_no_regression_and_what_is_beyond_it_is() {
        assert!(regressed(|_| {}).is_empty());
        assert!(regressed(|report| report.throughput = 4_501.0).is_empty());
        assert_eq!(regressed(|report| report.throughput = 4_499.0), ["accepted a second"]);
        assert!(regressed(|report| report.throughput = 50_000.0).is_empty());
        assert!(regressed(|report| first(report).p99 = 21.9).is_empty());
        assert_eq!(regressed(|report| first(report).p99 = 22.1), ["first p99, ms"]);
        assert_eq!(regressed(|report| report.counts.answers.shed = 200), ["shed, %"]);
        assert_eq!(regressed(|report| report.counts.lost = 200), ["lost, %"]);
        assert!(regressed(|report| report.counts.answers.other = 50).is_empty());
        assert_eq!(regressed(|report| report.violations.count = 1), ["violations"]);
    }

    #[test]
    fn noise_is_no_regression() {
        // The longest of all is one answer, and so is nearly every one beyond a percentile of few.
        assert!(regressed(|report| first(report).max = 4_000.0).is_empty());
        let few = |report: &mut Report| *first(report) = Latency { count: 900, p99: 90.0, ..*first(report) };
        assert!(regressed(few).is_empty());
        let quick = |report: &mut Report| *first(report) = Latency { p50: 5.6, ..*first(report) };
        assert_eq!(regressed(quick), ["first p50, ms"]);
    }

    #[test]
    fn results_of_different_loads_are_not_compared() {
        let mut other = report();
        other.load.connections = 65;
        assert!(matches!(judge(&report(), &other, 10.0), Err(Error::DifferentLoads { .. })));
    }
}
