//! An example consumer, to be copied: it sends one receipt by e-mail for each transfer, however often the POST was retried,
//! the relay restarted, the record delivered, or this process killed.
//!
//! Two kinds of effect, and what makes each happen once:
//!
//! - The row in `receipts` is an effect inside this consumer's own database. It is written in the transaction of the
//!   inbox row, which is unique on the event's id: exactly once (`inbox.rs`).
//! - The mail is an effect in a foreign system. It is ordered by that row, sent afterwards, and may be sent again after a
//!   crash. It carries a message id made from the event's id: once, where the mail store honours that (`sender.rs`).
//!
//! `docs/side-effects.md` tells the pattern step by step, and what a foreign system must offer to be safe.

mod config;
mod event;
mod failpoint;
mod health;
mod inbox;
mod intake;
mod meters;
mod probes;
mod receipt;
mod sender;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::config::Config;
use crate::health::Health;
use crate::inbox::Inbox;
use crate::intake::Intake;
use crate::meters::{Meters, gauge_value};
use crate::sender::Sender;

/// How often the backlog is counted, and what is too old deleted.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How much longer a row stays than its event would be handled: the ledger's clock may be ahead of the database's.
const RETENTION_MARGIN: Duration = Duration::from_secs(86_400);
/// How much longer than one mail a stop may take. What is under way then is left as a kill would leave it.
const STOP_MARGIN: Duration = Duration::from_secs(10);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let config = match Config::from_environment() {
        Ok(config) => config,
        Err(faults) => {
            for fault in faults {
                let _ = writeln!(std::io::stderr(), "receipts: {fault}");
            }
            return ExitCode::from(2);
        }
    };
    log_to_stderr();
    let run = || -> Result<(), AnyError> {
        let runtime = tokio::runtime::Runtime::new()?;
        let ended = runtime.block_on(run(config));
        // Without waiting for a thread that Kafka may still hold up.
        runtime.shutdown_background();
        ended
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "receipts: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes events in, sends receipts and answers probes until SIGTERM or Ctrl-C, or until a task can't go on.
async fn run(config: Config) -> Result<(), AnyError> {
    let stop = CancellationToken::new();
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let (health, meters) = (Health::unknown(), Meters::new());
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.map_err(|error| format!("RECEIPTS_LISTEN {}: {error}", config.listen))?;
    tracing::info!(address = %listener.local_addr()?, "serving");
    tokio::spawn(probes::serve(listener, health.clone(), metrics.clone()));

    tokio::spawn(stop_on_signal(stop.clone()));
    let inbox = Inbox::new(config.database, health.clone(), stop.clone());
    if inbox.migrate().await.is_none() {
        return Ok(());
    }

    let wake = Arc::new(Notify::new());
    let sender = Sender {
        smtp: config.smtp,
        from: config.from.email,
        timeout: config.smtp_timeout,
        max_attempts: config.max_attempts,
        inbox: inbox.clone(),
        meters: meters.clone(),
        health: health.clone(),
        wake: Arc::clone(&wake),
    };
    let intake = Intake {
        kafka: config.kafka,
        topic: config.topic,
        selection: config.selection,
        inbox: inbox.clone(),
        meters: meters.clone(),
        health,
        wake,
    };
    // Only the intake may end by itself, by an error; then the rest has to end, too.
    let intake = async {
        let ended = intake.run(&stop).await;
        stop.cancel();
        ended
    };
    // Four mails are under way at once: a mail server takes some 0.1 to 0.5 s for each.
    let senders = async {
        tokio::join!(sender.run(&stop), sender.run(&stop), sender.run(&stop), sender.run(&stop));
    };
    let upkeep = keep_up(&inbox, &meters, &metrics, config.retention, &stop);
    let work = async { tokio::join!(intake, senders, upkeep).0 };
    let limit = async {
        stop.cancelled().await;
        tokio::time::sleep(config.smtp_timeout.saturating_add(STOP_MARGIN)).await;
    };
    tokio::select! {
        ended = work => Ok(ended?),
        () = limit => Err("what was under way did not end in time".into()),
    }
}

/// Counts the backlog, deletes what is too old, and puts metrics into their buckets, until it should stop.
async fn keep_up(
    inbox: &Inbox,
    meters: &Meters,
    metrics: &PrometheusHandle,
    retention: Duration,
    stop: &CancellationToken,
) {
    loop {
        metrics.run_upkeep();
        let Some(backlog) = inbox.backlog().await else { return };
        meters.waiting.set(gauge_value(backlog.waiting));
        meters.waiting_seconds.set(backlog.waiting_seconds);
        meters.parked_now.set(gauge_value(backlog.parked));
        let Some(deleted) = inbox.delete_older_than(retention.saturating_add(RETENTION_MARGIN)).await else { return };
        if deleted > 0 {
            tracing::info!(deleted, "forgot old events");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(UPKEEP_INTERVAL) => {}
        }
    }
}

/// Waits for SIGTERM or Ctrl-C.
async fn stop_on_signal(stop: CancellationToken) {
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
    stop.cancel();
}

/// Logs to stderr, by `RUST_LOG`; as JSON with `LOG_FORMAT=json`.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Colours are for a person at a terminal; in a container's log they would be noise.
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    if std::env::var("LOG_FORMAT").is_ok_and(|format| format == "json") {
        lines.json().init();
    } else {
        lines.init();
    }
}
