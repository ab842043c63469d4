//! All of Oncepost in one command: a private PostgreSQL and Kafka, the API and the relay, money to move, and a shop to
//! move it in.
//!
//! `run.rs` tells what happens in which order; `seed.rs` makes what the demo moves money with.

mod controls;
mod error;
mod events;
mod folder;
mod guide;
mod progress;
mod run;
mod seed;
mod servers;
mod shop;
mod signals;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use process::log;
use uuid::Uuid;

use crate::error::Result;
use crate::shop::{ShopArguments, run_alone};
use crate::signals::Signals;

/// All of Oncepost in one command: a private PostgreSQL and Kafka, the API and the relay, money to move, and a shop.
#[derive(Parser)]
#[command(name = "demo", version, about, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArguments,
}

/// How the demo runs.
#[derive(Args)]
pub(crate) struct RunArguments {
    /// The API's port on 127.0.0.1; 0 for any free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// The shop's port on 127.0.0.1; 0 for any free one.
    #[arg(long, default_value_t = 8081)]
    shop_port: u16,
    /// Kafka's port on 127.0.0.1; 0 for any free one.
    #[arg(long, default_value_t = KAFKA_PORT, conflicts_with = "external")]
    kafka_port: u16,
    /// The folder for data and keys, made where it is missing.
    #[arg(long, value_name = "DIR", default_value = ".oncepost")]
    data: PathBuf,
    /// Deletes the data first.
    #[arg(long, conflicts_with = "external")]
    fresh: bool,
    /// Uses the PostgreSQL at DATABASE_URL, as the owner of its schema, and the Kafka at KAFKA_BROKERS (none if that is not
    /// set) instead of private ones.
    #[arg(long)]
    external: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Makes the demo's tenant, keys and accounts in the database at DATABASE_URL where they are missing, and prints them.
    /// Only with ONCEPOST_PROFILE=demo.
    Seed,
    /// Serves the shop before the API at API_URL, with the demo's keys and accounts in the database at DATABASE_URL. Only
    /// with ONCEPOST_PROFILE=demo.
    Shop(ShopArguments),
    /// Shows the events in Kafka as a read_committed consumer sees them, one line each, up to the end.
    Events {
        /// Only those of this transfer.
        transfer: Option<Uuid>,
        /// Where Kafka is.
        #[arg(long, value_name = "HOST:PORT", default_value_t = format!("127.0.0.1:{KAFKA_PORT}"))]
        brokers: String,
        /// Goes on and shows new ones as they come.
        #[arg(long)]
        follow: bool,
    },
}

/// Where the demo's Kafka listens unless told otherwise.
pub(crate) const KAFKA_PORT: u16 = 9092;

/// What is logged unless `RUST_LOG` says otherwise: little, so that logs don't drown what people came to read. librdkafka
/// tells of everything that it tries again; the relay tells what comes of it.
const LOGGED: &str = "warn,librdkafka=off";

/// The shell's code for a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { command, run } = Arguments::parse();
    log::begin(LOGGED);
    match command {
        None => until_asked_twice(async |signals| run::run(run, signals).await).await,
        Some(Command::Seed) => exit_code(seed::show().await),
        Some(Command::Shop(shop)) => until_asked_twice(async |signals| run_alone(shop, signals).await).await,
        Some(Command::Events { transfer, brokers, follow }) => exit_code(events::show(brokers, transfer, follow).await),
    }
}

/// Runs until it is done. Whoever asks a second time to stop does not want to wait: dropping the demo then kills its
/// servers.
async fn until_asked_twice(run: impl AsyncFnOnce(&Signals) -> Result<()>) -> ExitCode {
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return exit_code(Err(error)),
    };
    tokio::select! {
        done = run(&signals) => exit_code(done),
        () = signals.asked_twice() => ExitCode::from(INTERRUPTED),
    }
}

fn exit_code(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::say(&format!("demo: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints one line of JSON for programs.
pub(crate) fn print_line(value: &impl serde::Serialize) -> Result<()> {
    let mut line = serde_json::to_string(value)
        .map_err(|error| error::Error::Io { doing: "cannot write JSON".to_owned(), source: error.into() })?;
    line.push('\n');
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    match written {
        // Whoever read it has gone, which does not end the demo.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(source) => Err(error::Error::Io { doing: "cannot print".to_owned(), source }),
        Ok(()) => Ok(()),
    }
}
