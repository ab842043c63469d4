//! The API as a process of its own, and the commands of those who run it.

mod administration;
mod inspection;

use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

use api::config::{ServerConfig, process_variables};
use api::{Api, listen, openapi_document, serve};
use clap::{Parser, Subcommand};
use ledger::principal::Principals;
use ledger::{Audit, Kept, Ledger};
use process::{health_check, log, recorder, stop_signal, traces};

use crate::administration::{KeysCommand, PrincipalChoice, PrincipalsCommand, TenantsCommand};

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
    /// Tells what stands under an idempotency key, which it reads from its input, so that the key is in no list of commands.
    Record {
        #[command(flatten)]
        principal: PrincipalChoice,
    },
    /// Lists accepted work that is not done.
    Operations {
        /// Only what was accepted so many seconds ago or earlier.
        #[arg(long, default_value_t = 0)]
        older_than_seconds: u32,
    },
    /// Lists the idempotency secrets that processes ever had, and what each is for in this configuration.
    Secrets,
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
    log::begin("info");
    let done = match arguments.command.unwrap_or(Command::Serve) {
        Command::Serve => run_server().await,
        Command::Migrate { app_role } => migrate(app_role.as_deref()).await,
        Command::Audit => audit().await,
        Command::Record { principal } => inspection::record(&principal).await,
        Command::Operations { older_than_seconds } => inspection::operations(older_than_seconds).await,
        Command::Secrets => inspection::secrets().await,
        Command::Retention => keep_retention().await,
        Command::Tenants(command) => administration::tenants(command).await,
        Command::Principals(command) => administration::principals(command).await,
        Command::Keys(command) => administration::keys(command).await,
        Command::Openapi => print(openapi_document()),
        Command::Health { listen } => health_check::check(listen).await.map_err(Failure),
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
    let ServerConfig { listen: address, ledger, traces, key_pool_size, peppers, settings } =
        process_variables().server()?;
    let stop = stop_signal()?;
    let _traces = traces::begin("oncepost-api", traces.as_ref()).map_err(Failure)?;
    let metrics = recorder::install(&[&ledger::metric::METRICS[..], &api::metrics::METRICS[..]].concat())?;
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
    let findings = Audit::run_and_record(&process_variables().database_only()?).await?;
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
