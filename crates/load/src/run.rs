//! `load run`.

use std::cell::{OnceCell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use secrecy::SecretString;
use tokio::task::{JoinSet, LocalSet};
use uuid::Uuid;

use crate::accounts::{self, AccountId};
use crate::error::{Error, Result};
use crate::measurement::Measurement;
use crate::mix::{Mix, Shared, Worker};
use crate::report::{Load, Report};
use crate::request::Target;
use crate::schedule::{Pace, Schedule};
use crate::{Ending, page, print, say};

/// How many accounts are opened where none are given.
pub(crate) const ACCOUNTS: usize = 200;
/// Connections of a closed loop, and the most of an open one, where nothing is said.
const CONNECTIONS: u16 = 64;
const CONNECTIONS_OPEN: u16 = 256;

/// Which load, and where.
#[derive(Args)]
pub(crate) struct RunArguments {
    /// Where the API is: plain HTTP.
    #[arg(long, env = "ONCEPOST_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// An API key that may open accounts, post transfers and read.
    #[arg(long, env = "ONCEPOST_KEY", hide_env_values = true)]
    key: SecretString,
    /// Which requests.
    #[arg(long, value_enum, default_value_t = Mix::Uniform)]
    mix: Mix,
    /// A file with ids of accounts in EUR that have money, one a line, such as `load preload` writes. Without it, accounts are
    /// opened first.
    #[arg(long, value_name = "FILE")]
    accounts: Option<PathBuf>,
    /// How many requests are under way at once; in an open loop, at most. [default: 64, with --rate 256]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: Option<u16>,
    /// Sends so many requests a second, whatever becomes of them (an open loop). Latency then counts from the moment at which
    /// a request was meant to be sent. Without it, each connection sends as soon as it is answered (a closed loop).
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// For how many seconds it is measured.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// For how many seconds the load runs before that.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    warm_up_seconds: u64,
    /// What chance begins with: the same seed chooses the same accounts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the result for `load compare`.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the result as a page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What a load is made of.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) mix: Mix,
    pub(crate) connections: usize,
    pub(crate) rate: Option<u32>,
    pub(crate) seconds: u64,
    pub(crate) warm_up_seconds: u64,
    pub(crate) seed: u64,
}

/// Runs it and tells the result.
pub(crate) async fn run(arguments: RunArguments) -> Result<Ending> {
    let RunArguments { url, key, mix, accounts, connections, rate, seconds, warm_up_seconds, seed, json, html } =
        arguments;
    let connections = connections.unwrap_or(if rate.is_some() { CONNECTIONS_OPEN } else { CONNECTIONS });
    let plan = Plan { mix, connections: connections.into(), rate, seconds, warm_up_seconds, seed };
    let target = Target::find(&url, &key).await?;
    let accounts = match accounts {
        Some(file) => accounts::read(&file)?,
        None => {
            let count = ACCOUNTS.max(mix.accounts_needed(plan.workers()));
            say(&format!("Opening {count} accounts"));
            accounts::open(&target, count).await?
        }
    };
    say(&format!("Running for {} s", warm_up_seconds + seconds));
    let report = plan.run(&target, &accounts.into()).await?;
    if let Some(file) = json {
        report.write(&file)?;
    }
    if let Some(file) = html {
        std::fs::write(&file, page::page(&report)).map_err(Error::file("write", &file))?;
    }
    print(&report.text())?;
    Ok(if report.violations.count == 0 { Ending::Well } else { Ending::Badly })
}

impl Plan {
    fn workers(&self) -> usize {
        (self.connections / self.mix.connections_per_worker()).max(1)
    }

    /// Runs the load and returns its result.
    ///
    /// # Errors
    /// [`Error::TooFewAccounts`].
    pub(crate) async fn run(&self, target: &Target, accounts: &Rc<[AccountId]>) -> Result<Report> {
        let Self { mix, connections, rate, seconds, warm_up_seconds, seed } = *self;
        let (workers, found) = (self.workers(), accounts.len());
        let needed = mix.accounts_needed(workers);
        if found < needed {
            return Err(Error::TooFewAccounts { mix: mix.name(), needed, found });
        }
        let shared = Rc::new(Shared {
            mix,
            target: target.clone(),
            accounts: Rc::clone(accounts),
            pace: OnceCell::new(),
            measurement: RefCell::new(Measurement::new(seconds)),
            run: Uuid::new_v4().simple().to_string(),
        });
        let crew = async {
            let mut crew = JoinSet::new();
            for number in 0..workers {
                let mut worker = Worker::new(&shared, number, seed);
                crew.spawn_local(async move {
                    worker.prepare().await;
                    worker
                });
            }
            let prepared = crew.join_all().await;

            let begin = Instant::now();
            let warm_up = Duration::from_secs(warm_up_seconds);
            let length = warm_up + Duration::from_secs(seconds);
            shared.measurement.borrow_mut().start(begin + warm_up);
            shared.pace.get_or_init(|| match rate {
                Some(rate) => Pace::open(Schedule::new(begin, rate.into(), length), workers),
                None => Pace::Closed { until: begin + length },
            });
            let mut crew = JoinSet::new();
            for worker in prepared {
                crew.spawn_local(worker.run());
            }
            crew.join_all().await;
        };
        LocalSet::new().run_until(crew).await;
        let measurement = shared.measurement.replace(Measurement::new(seconds));
        let rate = rate.map(f64::from);
        Ok(measurement.finish(Load { mix, connections, rate, seconds, warm_up_seconds, seed, accounts: found }))
    }
}
