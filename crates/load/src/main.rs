//! Load for trying a change: a generator whose latencies are honest, a ledger filled with production's volume, a comparison
//! of two results, and the reference that the README quotes. `docs/staging.md` tells how to use them together.

mod accounts;
mod answer;
mod comparison;
mod connection;
mod demo;
mod error;
mod measurement;
mod mix;
mod page;
mod preload;
mod reference;
mod report;
mod request;
mod run;
mod schedule;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::{Error, Result};

/// Load for trying a change.
#[derive(Parser)]
#[command(name = "load", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends load to a running API and says how it was answered; exits with 1 if a promise was broken.
    Run(run::RunArguments),
    /// Fills a ledger with production-like volume, straight into PostgreSQL.
    Preload(preload::PreloadArguments),
    /// Says what regressed from one result to another; exits with 1 if something did.
    Compare(comparison::CompareArguments),
    /// Starts the demo in a folder of its own, runs load in turn with pgbench, and prints the ratios.
    AgainstPgbench(reference::ReferenceArguments),
}

/// How a command that did its work ends.
enum Ending {
    /// Everything is as it should be.
    Well,
    /// A promise was broken, or something regressed: it is told already.
    Badly,
}

/// One thread: the generator shares its machine with what it measures, and takes as little of it as it can.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(arguments) => run::run(arguments).await,
        Command::Preload(arguments) => preload::preload(arguments).await,
        Command::Compare(arguments) => comparison::compare(&arguments),
        Command::AgainstPgbench(arguments) => reference::run(arguments).await,
    };
    match done {
        Ok(Ending::Well) => ExitCode::SUCCESS,
        Ok(Ending::Badly) => ExitCode::FAILURE,
        Err(error) => {
            drop(writeln!(io::stderr().lock(), "load: {error}"));
            // Another code than for a bad result, so that a pipeline can tell a broken set-up from a regression.
            ExitCode::from(2)
        }
    }
}

/// Prints a result.
fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::io("print"))
}

/// Tells how far it is.
fn say(text: &str) {
    // Who closed stderr does not want to know.
    drop(writeln!(io::stderr().lock(), "{text}"));
}
