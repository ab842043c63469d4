//! `load against-pgbench`: the ratios that the README quotes.
//!
//! The API under load and pgbench, with the transaction that a service usually makes for a transfer, run in turn on one
//! PostgreSQL. A machine's own speed and its noise then strike both; single figures would say little.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use stack::TemporaryFolder;
use tokio::process::Command;

use crate::accounts::{self, AccountId};
use crate::connection::Connection;
use crate::demo::Demo;
use crate::error::{Error, Result};
use crate::mix::Mix;
use crate::request::Target;
use crate::run::{ACCOUNTS, Plan};
use crate::{Ending, print, say};

/// The tables of the reference.
const SCHEMA: &str = include_str!("../pgbench/schema.sql");
/// Its transaction.
const USUAL: &str = include_str!("../pgbench/usual.sql");

/// Clients of the reference beside the many connections.
const CLIENTS: usize = 64;
/// The many connections.
const MANY: usize = 256;
/// How long the relay may be behind after a load.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(30);
/// How often it is asked for.
const ASK: Duration = Duration::from_millis(100);

/// How the reference is run.
#[derive(Args)]
pub(crate) struct ReferenceArguments {
    /// The release build of the demo; the one beside this program unless given.
    #[arg(long, value_name = "PROGRAM")]
    demo: Option<PathBuf>,
    /// How often everything is measured; the medians of the ratios are told.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// For how many seconds each load runs.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

/// What is compared with what.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Round {
    many: f64,
    some: f64,
    one: f64,
    hot: f64,
    replays_some: f64,
    replays_one: f64,
    pgbench_some: f64,
    pgbench_one: f64,
}

/// Runs everything and prints the ratios.
pub(crate) async fn run(arguments: ReferenceArguments) -> Result<Ending> {
    let pgbench = find_pgbench().ok_or(Error::PgbenchMissing)?;
    let demo = Demo::start(arguments.demo).await?;
    let measured = measure(&demo, pgbench, arguments.rounds, arguments.seconds).await;
    let stopped = demo.stop().await;
    print(&measured?)?;
    stopped.map(|()| Ending::Well)
}

async fn measure(demo: &Demo, pgbench: PathBuf, rounds: u16, seconds: u64) -> Result<String> {
    let scripts = TemporaryFolder::create()?;
    let pgbench = Pgbench { program: pgbench, database: &demo.ready.postgres, scripts: &scripts, seconds };
    pgbench.prepare().await?;
    let target = Target::find(&demo.ready.api, &demo.ready.keys.test.clone().into()).await?;
    let accounts = accounts::open(&target, ACCOUNTS).await?.into();
    let api = Loads { target, accounts, seconds, relays: demo.ready.kafka.is_some() };
    say("Warming up");
    api.run(Mix::Uniform, CLIENTS).await?;
    let mut all = Vec::new();
    for number in 1..=rounds {
        say(&format!("Round {number} of {rounds}"));
        let round = Round {
            many: api.run(Mix::Uniform, MANY).await?,
            pgbench_some: pgbench.run(CLIENTS).await?,
            some: api.run(Mix::Uniform, CLIENTS).await?,
            hot: api.run(Mix::HotAccount, MANY).await?,
            one: api.run(Mix::Uniform, 1).await?,
            pgbench_one: pgbench.run(1).await?,
            replays_some: api.run(Mix::Replays, CLIENTS).await?,
            replays_one: api.run(Mix::Replays, 1).await?,
        };
        all.push(round);
    }
    Ok(table(&all))
}

/// Loads on the API.
struct Loads {
    target: Target,
    accounts: Rc<[AccountId]>,
    seconds: u64,
    relays: bool,
}

impl Loads {
    /// Accepted answers a second. The relay's part of the work is waited for, so that the next load does not pay for it.
    async fn run(&self, mix: Mix, connections: usize) -> Result<f64> {
        let plan = Plan { mix, connections, rate: None, seconds: self.seconds, warm_up_seconds: 1, seed: 1 };
        let report = plan.run(&self.target, &self.accounts).await?;
        if report.violations.count > 0 || report.counts.answers.all() == 0 || report.counts.answers.other > 0 {
            return Err(Error::Reference(report.text()));
        }
        let (per_second, accepted) = (report.throughput, report.latencies.values().next());
        let (p50, p99) = accepted.map_or((0.0, 0.0), |latency| (latency.p50, latency.p99));
        let waited = self.await_relay().await?;
        say(&format!(
            "{:<12} {connections:>3} connections: {per_second:>6.0} a second, p50 {p50:.2} ms, p99 {p99:.2} ms, published {:.1} s later",
            mix.name(),
            waited.as_secs_f64()
        ));
        Ok(per_second)
    }

    async fn await_relay(&self) -> Result<Duration> {
        let begun = Instant::now();
        if !self.relays {
            return Ok(Duration::ZERO);
        }
        let mut connection = Connection::to(self.target.address);
        loop {
            let answer = connection.exchange(&self.target.get("/metrics")).await.map_err(Error::io("read /metrics"))?;
            let rows = lag(&String::from_utf8_lossy(&answer.body));
            if rows == 0 {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > PUBLISHED_WITHIN {
                return Err(Error::RelayBehind { seconds: PUBLISHED_WITHIN.as_secs(), rows });
            }
            tokio::time::sleep(ASK).await;
        }
    }
}

/// How many rows all relays are behind, from the text of `/metrics`.
fn lag(metrics: &str) -> u64 {
    let samples = metrics.lines().filter(|line| line.starts_with("oncepost_outbox_lag_rows"));
    samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
}

/// The reference.
struct Pgbench<'a> {
    program: PathBuf,
    database: &'a str,
    scripts: &'a TemporaryFolder,
    seconds: u64,
}

impl Pgbench<'_> {
    async fn prepare(&self) -> Result<()> {
        let schema = self.script("schema.sql", SCHEMA)?;
        self.script("usual.sql", USUAL)?;
        // pgbench itself makes the tables, so that no other program is needed.
        self.call(&["-t", "1"], &schema).await.map(drop)
    }

    fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.scripts.path().join(name);
        std::fs::write(&path, text).map_err(Error::file("write", &path))?;
        Ok(path)
    }

    /// Transactions a second.
    async fn run(&self, clients: usize) -> Result<f64> {
        let (clients, seconds) = (clients.to_string(), self.seconds.to_string());
        let arguments =
            ["-M", "prepared", "-c", &clients, "-j", if clients == "1" { "1" } else { "2" }, "-T", &seconds];
        let output = self.call(&arguments, &self.scripts.path().join("usual.sql")).await?;
        let per_second = transactions(&output).ok_or(Error::Pgbench { output })?;
        say(&format!("{:<12} {clients:>3} clients:     {per_second:>6.0} a second", "pgbench"));
        Ok(per_second)
    }

    async fn call(&self, arguments: &[&str], script: &Path) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["-n", "-f"]).arg(script).args(arguments).arg(self.database).kill_on_drop(true);
        let output = command.output().await.map_err(Error::io("run pgbench"))?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(text) } else { Err(Error::Pgbench { output: text }) }
    }
}

/// The figure in a line such as `tps = 1234.5 (without initial connection time)`.
fn transactions(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

/// On `PATH`, or beside the PostgreSQL that the private one is taken from.
fn find_pgbench() -> Option<PathBuf> {
    let named = std::env::var_os("ONCEPOST_POSTGRES_BIN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(named);
    folders.find_map(|folder| Some(folder.join("pgbench")).filter(|program| program.is_file()))
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => values.get(middle.wrapping_sub(1)..=middle).map_or(0.0, |pair| pair.iter().sum::<f64>() / 2.0),
        _ => values.get(middle).copied().unwrap_or_default(),
    }
}

/// What one round says.
type Ratio = fn(&Round) -> f64;

/// The table of the README.
fn table(rounds: &[Round]) -> String {
    let lines: [(&str, &str, Ratio); 6] = [
        ("256 connections", "pgbench, 64 clients", |round| round.many / round.pgbench_some),
        ("64 connections", "pgbench, 64 clients", |round| round.some / round.pgbench_some),
        ("256 connections, one account in every transfer", "256 connections, 200 accounts", |round| {
            round.hot / round.many
        }),
        ("one connection", "pgbench, one client", |round| round.one / round.pgbench_one),
        ("64 connections, every request a replay", "64 connections, none a replay", |round| {
            round.replays_some / round.some
        }),
        ("one connection, every request a replay", "one connection, none a replay", |round| {
            round.replays_one / round.one
        }),
    ];
    let mut table =
        "| transfers per second, over HTTP | compared with | ratio | rounds |\n|---|---|---|---|\n".to_owned();
    for (what, with, ratio) in lines {
        let each: Vec<String> = rounds.iter().map(|round| format!("{:.2}", ratio(round))).collect();
        table.push_str(&format!("| {what} | {with} | {:.2} | {} |\n", median(rounds, ratio), each.join(" ")));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_off_what_others_print() {
        let printed = "number of failed transactions: 0 (0.000%)\ntps = 1234.567 (without initial connection time)\n";
        assert_eq!(transactions(printed), Some(1234.567));
        assert_eq!(transactions("pgbench: error"), None);
        let metrics = "# TYPE oncepost_outbox_lag_rows gauge\noncepost_outbox_lag_rows{shard=\"0\"} 12\noncepost_outbox_lag_rows{shard=\"1\"} 3\n";
        assert_eq!(lag(metrics), 15);
    }

    #[test]
    fn the_median_is_of_the_ratios_of_each_round() {
        let round = |many, pgbench_some| Round { many, pgbench_some, ..Round::default() };
        let rounds = [round(40.0, 10.0), round(9.0, 9.0), round(30.0, 15.0)];
        let ratio = |round: &Round| round.many / round.pgbench_some;
        assert!((median(&rounds, ratio) - 2.0).abs() < 1e-9);
        assert!((median(&rounds[..2], ratio) - 2.5).abs() < 1e-9);
    }
}
