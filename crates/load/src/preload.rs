//! `load preload`: a ledger filled with production's volume.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::principal::{Principals, Tenant};
use ledger::volume::{Progress, Volume};
use ledger::{Database, Environment, Name, Outcome, PrincipalId, Response, Scope, Shard, TenantId};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::{Ending, print};

/// How often the bar is drawn.
const DRAW: Duration = Duration::from_millis(200);

/// Test or live.
#[derive(Clone, Copy, ValueEnum)]
enum Side {
    Test,
    Live,
}

/// What is to be filled in, and where.
#[derive(Args)]
pub(crate) struct PreloadArguments {
    /// The ledger's PostgreSQL, migrated, as the role that owns the tables.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: SecretString,
    /// How many accounts.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(3..=100_000_000))]
    accounts: u32,
    /// How many transfers, each with two postings, a record and an answer.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    transfers: u32,
    /// How many of the newest transfers still have their events in the outbox. A relay with a new Kafka needs all of them, and
    /// publishes them; with fewer it halts.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    events: u32,
    /// Over how many days, up to now, the transfers are spread. All their answers are kept.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=90))]
    days: u16,
    /// What chance begins with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The tenant, made if there is none of the name.
    #[arg(long, default_value = "load")]
    tenant: String,
    /// Its principal, made if there is none of the name.
    #[arg(long, default_value = "load")]
    principal: String,
    /// The side of the wall.
    #[arg(long, value_enum, default_value_t = Side::Test)]
    environment: Side,
    /// Adds to a ledger that has transfers already, from its newest event on. Then all new transfers have events.
    #[arg(long)]
    add: bool,
    /// Writes the ids of accounts that have money, for `load run --accounts`.
    #[arg(long, value_name = "FILE")]
    accounts_file: Option<PathBuf>,
}

/// Fills the ledger and tells what stands in it.
pub(crate) async fn preload(arguments: PreloadArguments) -> Result<Ending> {
    let begun = Instant::now();
    let database = Database::from_url(arguments.database_url.expose_secret())?;
    let principals = Principals::open(&database, 1);
    let scope = ensure_scope(&principals, &arguments).await;
    principals.close().await;
    let scope = scope?;
    let PreloadArguments { accounts, transfers, events, days, seed, add, .. } = arguments;
    let volume = Volume { scope, accounts, transfers, events, days, seed, render: Box::new(render), add };
    let mut bars = Bars::default();
    let funded = volume.fill(&database, |progress| bars.show(progress)).await?;
    bars.clear();
    if let Some(file) = arguments.accounts_file {
        let mut text = String::with_capacity(funded.len() * 37);
        for account in &funded {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{account}");
        }
        std::fs::write(&file, text).map_err(Error::file("write", &file))?;
    }
    print(&format!(
        "{accounts} accounts and {transfers} transfers in {:.0} s; {} accounts can pay; tenant {}, principal {}\n",
        begun.elapsed().as_secs_f64(),
        funded.len(),
        scope.tenant,
        scope.principal,
    ))?;
    Ok(Ending::Well)
}

async fn ensure_scope(principals: &Principals, arguments: &PreloadArguments) -> Result<Scope> {
    let name = |name: &str| Name::new(name.to_owned()).map_err(|_| Error::Name { name: name.to_owned() });
    let Tenant { id: tenant, shard, .. } = match principals.find_tenant(&arguments.tenant).await? {
        Some(tenant) => tenant,
        None => principals.create_tenant(TenantId::fresh(), &name(&arguments.tenant)?, Shard::default()).await?,
    };
    let principal = match principals.find_principal(tenant, &arguments.principal).await? {
        Some(principal) => principal.id,
        None => principals.create_principal(PrincipalId::fresh(), tenant, &name(&arguments.principal)?).await?.id,
    };
    let environment = match arguments.environment {
        Side::Test => Environment::Test,
        Side::Live => Environment::Live,
    };
    Ok(Scope { tenant, principal, environment, shard })
}

/// Answers as the API gives them.
fn render(outcome: Outcome<'_>) -> Response {
    fn created(path: &str, id: impl std::fmt::Display, object: &impl Serialize) -> Response {
        // Serialising strings and numbers into memory has no way to fail.
        let mut body = serde_json::to_vec(object).unwrap_or_default();
        body.push(b'\n');
        let location = Some(format!("{path}/{id}"));
        Response { status: 201, content_type: Cow::Borrowed("application/json"), location, body }
    }
    match outcome {
        Outcome::AccountOpened(account) => created("/v1/accounts", account.id, account),
        Outcome::TransferPosted(transfer) => created("/v1/transfers", transfer.id, transfer),
        Outcome::WorkAccepted(_) | Outcome::Rejected(_) => unreachable!("a volume holds accounts and transfers"),
    }
}

/// A bar for each step, on a terminal; elsewhere nothing.
#[derive(Default)]
struct Bars {
    current: Option<(&'static str, ProgressBar)>,
}

impl Bars {
    fn show(&mut self, progress: Progress) {
        let Progress { step, done, total } = progress;
        if self.current.as_ref().is_none_or(|(shown, _)| *shown != step) {
            self.clear();
            let (bar, template) = if total > 0 {
                (ProgressBar::new(total), "{msg:<12} [{bar:40}] {human_pos}/{human_len} rows, {per_sec}, {elapsed}")
            } else {
                (ProgressBar::new_spinner(), "{msg:<12} {spinner} {elapsed}")
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(step);
            bar.enable_steady_tick(DRAW);
            self.current = Some((step, bar));
        }
        if let Some((_, bar)) = &self.current {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.current.take() {
            bar.finish();
        }
    }
}
