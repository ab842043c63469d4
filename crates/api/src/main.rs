//! The API as a process of its own, and the commands of those who run it.

mod administration;
mod health_check;

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

use api::config::{ServerConfig, process_variables};
use api::{Api, listen, metrics, openapi_document, serve};
use clap::{Parser, Subcommand};
use ledger::principal::Principals;
use ledger::{Audit, Kept, Ledger};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use crate::administration::{KeysCommand, PrincipalsCommand, TenantsCommand};

/// Transfers over HTTP: post once, however often it is sent.
#[derive(Parser)]
#[command(name = "api", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serves the API until SIGTERM or SIGINT; what is meant where no command is given.
    Serve,
    /// Brings the database's schema up to date.
    Migrate {
        /// The role that the API and the relay use; it gets the rights that they need and no more.
        #[arg(long)]
        app_role: Option<String>,
    },
    /// Proves the books: prints every broken promise and exits with 1 if there is one.
    Audit,
    /// Drops the answers that are past their retention and makes room for days to come, as a running server does by itself.
    Retention,
    /// Tenants: the customers of the ledger.
    #[command(subcommand)]
    Tenants(TenantsCommand),
    /// Principals: the service accounts of tenants.
    #[command(subcommand)]
    Principals(PrincipalsCommand),
    /// API keys of principals.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Prints the OpenAPI document.
    Openapi,
    /// Asks the server of this machine whether it is ready, and exits with 1 if it is not.
    Health {
        /// Where the server listens.
        #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
}

/// Why a command failed, for the person at the terminal.
#[derive(Debug)]
struct Failure(String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log_to_stderr();
    let done = match arguments.command.unwrap_or(Command::Serve) {
        Command::Serve => run_server().await,
        Command::Migrate { app_role } => migrate(app_role.as_deref()).await,
        Command::Audit => audit().await,
        Command::Retention => keep_retention().await,
        Command::Tenants(command) => administration::tenants(command).await,
        Command::Principals(command) => administration::principals(command).await,
        Command::Keys(command) => administration::keys(command).await,
        Command::Openapi => print(openapi_document()),
        Command::Health { listen } => health_check::check(listen).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(why)) => {
            tracing::error!("{why}");
            ExitCode::FAILURE
        }
    }
}

async fn run_server() -> Result<(), Failure> {
    let ServerConfig { listen: address, ledger, key_pool_size, peppers, settings } = process_variables().server()?;
    let stop = stop_signal()?;
    let metrics = metrics::install()?;
    let principals = Principals::open(&ledger.database, key_pool_size);
    let ledger = Ledger::open(ledger).await?;
    let api = Api::new(ledger.clone(), principals, peppers, settings, Some(metrics));
    let listener = listen(address)?;
    tracing::info!(address = %listener.local_addr()?, "serving");
    serve(listener, api, stop).await;
    ledger.close().await;
    tracing::info!("stopped");
    Ok(())
}

async fn migrate(app_role: Option<&str>) -> Result<(), Failure> {
    process_variables().database_only()?.migrate(app_role).await?;
    tracing::info!("the schema is up to date");
    Ok(())
}

async fn audit() -> Result<(), Failure> {
    let findings = Audit::run(&process_variables().database_only()?).await?;
    findings.iter().try_for_each(|finding| print(format!("{finding}\n")))?;
    if findings.is_empty() { Ok(()) } else { Err(Failure("the books break a promise".to_owned())) }
}

async fn keep_retention() -> Result<(), Failure> {
    let (database, retention) = process_variables().retention()?;
    let Kept { added, dropped } = retention.keep_now(&database).await?;
    print(format!("{added} days added, {dropped} dropped\n"))
}

fn print(text: impl fmt::Display) -> Result<(), Failure> {
    Ok(write!(io::stdout().lock(), "{text}")?)
}

/// Ready once the process is asked to stop. Registered before anything is open, so that an early signal is not lost.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Lines go to stderr, so that stdout is for what commands print. `RUST_LOG` chooses them, `LOG_FORMAT=json` their form.
fn log_to_stderr() {
    let chosen = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Whatever is chosen, the HTTP libraries don't trace: they would write headers, and keys stand in those (I10).
    let quiet = ["hyper=info", "h2=info"].iter().filter_map(|directive| directive.parse::<Directive>().ok());
    let filter = quiet.fold(chosen, EnvFilter::add_directive);
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    if std::env::var("LOG_FORMAT").is_ok_and(|format| format == "json") {
        lines.json().init();
    } else {
        lines.init();
    }
}
