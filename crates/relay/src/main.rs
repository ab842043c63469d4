//! The `relay` binary: publishes one shard's events to Kafka, or tells how far they are published.

mod probes;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use process::{health_check, log, recorder, stop_signal, traces};
use relay::{Config, Difference, METRICS, Relay, begin_epoch, read_status, reconcile};
use serde::Serialize;

/// Publishes a ledger's events to Kafka, each position exactly once.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Publishes until it is asked to stop. This is what happens without a command, too.
    Run,
    /// Tells how far the shard is published, and ends.
    Status,
    /// Lists the events that Kafka holds and the outbox lacks or differs in, after PostgreSQL has gone back in time: one line
    /// of JSON for each, and a last line that tells how far both agree. It reads only.
    Reconcile,
    /// Lets a halted shard go on in a new epoch, behind the last position that the outbox and Kafka agree on. It is refused
    /// while a relay publishes the shard, and where nothing is in doubt. Run again, it finishes what it has begun.
    NewEpoch {
        /// The epoch that comes next, as `relay reconcile` tells it.
        #[arg(long, value_name = "EPOCH")]
        begin: i32,
        /// The last position that was published as it stands in the outbox; only where the topic doesn't prove it.
        #[arg(long, value_name = "POSITION")]
        after: Option<i64>,
    },
    /// Asks the relay of this machine whether it does its part, and exits with 1 if it does not.
    Health,
}

type AnyError = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::from_environment() {
        Ok(config) => config,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "relay: {error}");
            return ExitCode::from(2);
        }
    };
    log::begin("info");
    let result = match arguments.command {
        None | Some(Command::Run) => run(config).await,
        Some(Command::Status) => tell_status(&config).await,
        Some(Command::Reconcile) => tell_differences(&config).await,
        Some(Command::NewEpoch { begin, after }) => tell_new_epoch(config, begin, after).await,
        Some(Command::Health) => health_check::check(config.listen).await.map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "relay: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Publishes and answers probes until SIGTERM or Ctrl-C.
async fn run(config: Config) -> Result<(), AnyError> {
    let stop = stop_signal()?;
    let _traces = traces::begin("oncepost-relay", config.traces.as_ref())?;
    let metrics = recorder::install(&METRICS)?;
    let relay = Relay::new(config.settings);
    let probes = probes::serve(config.listen, relay.state(), metrics);
    tokio::select! {
        ended = relay.run(stop) => Ok(ended?),
        failed = probes => failed.map_err(|error| format!("RELAY_LISTEN {}: {error}", config.listen).into()),
    }
}

async fn tell_status(config: &Config) -> Result<(), AnyError> {
    let status = read_status(&config.settings).await?;
    Ok(writeln!(std::io::stdout(), "{status}")?)
}

async fn tell_differences(config: &Config) -> Result<(), AnyError> {
    let show = |difference: &Difference| tell_json(difference);
    Ok(tell_json(&reconcile(&config.settings, show).await?)?)
}

fn tell_json(line: &impl Serialize) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string(line)?)
}

async fn tell_new_epoch(config: Config, epoch: i32, after: Option<i64>) -> Result<(), AnyError> {
    let start = begin_epoch(config.settings, epoch, after).await?;
    Ok(writeln!(std::io::stdout(), "epoch {} begins after position {}", start.epoch, start.position)?)
}
