//! The `relay` binary: publishes one shard's events to Kafka, or tells how far they are published.

mod health_check;
mod probes;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use relay::{Config, Profile, Relay, read_status};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

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
    /// Asks the relay of this machine whether it does its part, and exits with 1 if it does not.
    Health,
}

/// Bounds of the transactions' histogram in seconds: some 18 ms is usual, 15 s is the end.
const TRANSACTION_BUCKETS: [f64; 10] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0];
/// How often the recorder puts its samples into their buckets, so that they don't pile up where nobody asks for them.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

type AnyError = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::from_environment() {
        Ok(config) => config,
        Err(faults) => {
            for fault in faults {
                let _ = writeln!(std::io::stderr(), "relay: {fault}");
            }
            return ExitCode::from(2);
        }
    };
    log_to_stderr(config.profile);
    let result = match arguments.command {
        None | Some(Command::Run) => run(config).await,
        Some(Command::Status) => tell_status(&config).await,
        Some(Command::Health) => health_check::check(config.listen).await,
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
    let metrics = record_metrics()?;
    let relay = Relay::new(config.settings);
    let probes = probes::serve(config.listen, relay.state(), metrics);
    tokio::select! {
        ended = relay.run(asked_to_stop()) => Ok(ended?),
        failed = probes => failed.map_err(|error| format!("RELAY_LISTEN {}: {error}", config.listen).into()),
    }
}

async fn tell_status(config: &Config) -> Result<(), AnyError> {
    let status = read_status(&config.settings).await?;
    Ok(writeln!(std::io::stdout(), "{status}")?)
}

/// Keeps metrics in this process for `/metrics` to show.
fn record_metrics() -> Result<PrometheusHandle, AnyError> {
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &TRANSACTION_BUCKETS)?
        .install_recorder()?;
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_INTERVAL).await;
            upkeep.run_upkeep();
        }
    });
    Ok(metrics)
}

/// Logs to stderr, by `RUST_LOG`: lines for people in the demo, JSON for programs in production.
fn log_to_stderr(profile: Profile) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Colours are for a person at a terminal; in a container's log they would be noise.
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    match profile {
        Profile::Demo => lines.init(),
        Profile::Production => lines.json().init(),
    }
}

/// Waits for SIGTERM or Ctrl-C.
async fn asked_to_stop() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                terminate.recv().await;
            }
            Err(error) => {
                tracing::warn!(%error, "SIGTERM can't be heard");
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = terminated => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
