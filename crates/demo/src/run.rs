//! The demo itself: starts everything in order, tells that it serves, and stops everything in order.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use api::Api;
use api::config::{ServerConfig, Variables};
use ledger::principal::Principals;
use ledger::{Database, Ledger};
use process::recorder;
use relay::{Relay, State};
use stack::Kafka;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::controls::{ApiServer, controls};
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::guide::Ready;
use crate::progress::{say, step};
use crate::seed::{Seeded, seed};
use crate::servers::{Servers, start_kafka, start_postgres};
use crate::shop::{self, Hosts, Shop};
use crate::signals::Signals;
use crate::{RunArguments, print_line};

/// How long the relay may take to read its position. It takes a second, and up to 40 s where it waits for a transaction
/// that another relay left open.
const POSITION_WITHIN: Duration = Duration::from_secs(60);

/// Runs the demo until it is asked to stop, and returns when all of it has stopped. Dropped before, it kills its servers.
pub(crate) async fn run(arguments: RunArguments, signals: &Signals) -> Result<()> {
    refuse_production()?;
    let folder = Folder::open(&arguments.data)?;
    say(&format!("Oncepost starts; its data is in {}", folder.path().display()));
    // Taken first: a port that is taken is better heard of now than after everything else has started. Whoever connects
    // early waits.
    let api_port = listen(arguments.port).map_err(|source| Error::ApiPort { port: arguments.port, source })?;
    let shop_port = listen(arguments.shop_port).map_err(|source| Error::ShopPort {
        option: "--shop-port",
        port: arguments.shop_port,
        source,
    })?;
    if arguments.fresh {
        let begun = Instant::now();
        folder.clear()?;
        step("Data", "deleted", begun);
    }
    let mut servers = Servers::default();
    let started = tokio::select! {
        started = start(&arguments, &folder, &mut servers) => started.map(Some),
        () = signals.asked() => Ok(None),
    };
    let ended = match started {
        Ok(Some(started)) => {
            let listeners = Listeners { api: api_port, shop: shop_port };
            serve(started, listeners, servers.kafka_mut(), &folder, signals).await
        }
        Ok(None) => {
            say_stopping();
            Ok(())
        }
        Err(error) => Err(error),
    };
    let stopped = servers.stop().await;
    ended.and(stopped)
}

fn refuse_production() -> Result<()> {
    match std::env::var("ONCEPOST_PROFILE").as_deref().map(str::trim) {
        Ok("demo" | "") | Err(_) => Ok(()),
        Ok("production") => Err(Error::ProductionProfile),
        Ok(_) => Err(Error::UnknownProfile),
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    api::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn say_stopping() {
    say("\nStopping; a second Ctrl-C ends everything at once");
}

/// The ports, bound before anything serves on them.
struct Listeners {
    api: TcpListener,
    shop: TcpListener,
}

/// Makes an API before the books. Each start of the API has one of its own.
type MakeApi = Box<dyn Fn() -> Api + Send>;

/// What has been started and serves nobody yet.
struct Started {
    make_api: MakeApi,
    ledger: Ledger,
    database: Database,
    postgres: String,
    kafka: Option<String>,
    seeded: Seeded,
}

/// Starts the servers and opens the books. Kafka takes the longest, so that the books are made meanwhile.
async fn start(arguments: &RunArguments, folder: &Folder, servers: &mut Servers) -> Result<Started> {
    let (postgres, url) = match variable("DATABASE_URL") {
        Some(url) if arguments.external => (url.clone(), url),
        None if arguments.external => return Err(Error::DatabaseMissing),
        Some(_) | None => start_postgres(servers, folder).await?,
    };
    let books = open_books(&url, folder);
    let kafka = async {
        if arguments.external {
            return Ok(variable("KAFKA_BROKERS"));
        }
        start_kafka(servers.kafka_mut(), folder, arguments.kafka_port).await
    };
    let ((make_api, ledger, database, seeded), kafka) = tokio::try_join!(books, kafka)?;
    Ok(Started { make_api, ledger, database, postgres, kafka, seeded })
}

/// Brings the schema up to date and makes what the demo moves money with.
async fn open_books(url: &str, folder: &Folder) -> Result<(MakeApi, Ledger, Database, Seeded)> {
    let ServerConfig { ledger, key_pool_size, peppers, settings, .. } = Variables::new(|name| match name {
        "DATABASE_URL" => Some(url.to_owned()),
        "ONCEPOST_PROFILE" => Some("demo".to_owned()),
        // The address is the command line's, and the database is known.
        "DATABASE_URL_FILE" | "LISTEN" => None,
        _ => variable(name),
    })
    .server()?;
    let begun = Instant::now();
    let database = ledger.database.clone();
    database.migrate(None).await?;
    step("Schema", "up to date", begun);

    let begun = Instant::now();
    let metrics =
        recorder::install(&[&ledger::metric::METRICS[..], &api::metrics::METRICS[..], &relay::METRICS[..]].concat())?;
    let principals = Principals::open(&database, key_pool_size);
    let ledger = Ledger::open(ledger).await?;
    let make_api: MakeApi = {
        let (ledger, principals, peppers) = (ledger.clone(), principals.clone(), peppers.clone());
        Box::new(move || {
            Api::new(ledger.clone(), principals.clone(), peppers.clone(), settings.clone(), Some(metrics.clone()))
        })
    };
    let seeded = seed(&make_api(), &principals, &peppers, Some(&folder.secret()?)).await?;
    step("Books", "open, with a customer and a merchant", begun);
    Ok((make_api, ledger, database, seeded))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Serves until it is asked to stop or something ends by itself. Then the shop closes, the API answers what is under way,
/// the books commit it, and the relay ends its batch.
async fn serve(
    started: Started,
    listeners: Listeners,
    kafka_server: &mut Option<Kafka>,
    folder: &Folder,
    signals: &Signals,
) -> Result<()> {
    let Started { make_api, ledger, database, postgres, kafka, seeded } = started;
    let begun = Instant::now();
    let mut api = ApiServer::serve(listeners.api, make_api)?;
    let url = format!("http://{}", api.address());
    step("API", &url, begun);

    let begun = Instant::now();
    let (controls, mut operator) = controls(kafka_server.is_some());
    let shop = Shop::open(shop::Settings {
        api: url.clone(),
        seeded: seeded.clone(),
        database: database.clone(),
        brokers: kafka.clone(),
        controls: Some(controls),
        hosts: Hosts::default(),
    })?;
    let address = listeners.shop.local_addr();
    let address = address.map_err(|source| Error::Io { doing: "cannot tell the shop's port".to_owned(), source })?;
    let shop_url = format!("http://{address}");
    let (stop_shop, stopped) = stopper();
    let shop_ended = tokio::spawn(shop::serve(listeners.shop, shop.router(), stopped));
    step("Shop", &shop_url, begun);

    let begun = Instant::now();
    let settings = kafka.as_ref().map(|kafka| relay::Settings::new(database, kafka.as_str(), relay::Profile::Demo));
    let relay = settings.map(Relay::new);
    let state = relay.as_ref().map(Relay::state);
    let relays = relay.is_some();
    let (stop_relay, stopped) = stopper();
    let mut relay_ended = tokio::spawn(async move {
        match relay {
            Some(relay) => relay.run(stopped).await,
            None => {
                stopped.await;
                Ok(())
            }
        }
    });

    let served = async {
        if let Some(state) = state {
            await_position(state).await?;
            step("Relay", "has read its position", begun);
        }
        tell(&Ready::new(url, shop_url, postgres, kafka, seeded), folder)?;
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = served => ended,
        () = signals.asked() => Ok(()),
        error = operator.operate(&mut api, kafka_server) => Err(error),
        ended = &mut relay_ended => Err(relay_error(ended)),
    };

    say_stopping();
    let begun = Instant::now();
    drop(stop_shop);
    // A task that failed has ended, too.
    drop(shop_ended.await);
    shop.close();
    step("Shop", "closed", begun);
    let begun = Instant::now();
    api.stop().await;
    ledger.close().await;
    step("API", "stopped", begun);
    let begun = Instant::now();
    drop(stop_relay);
    if !relay_ended.is_finished() {
        drop(relay_ended.await);
    }
    if relays {
        step("Relay", "stopped", begun);
    }
    ended
}

/// A future that is ready once its other half is dropped.
pub(crate) fn stopper() -> (oneshot::Sender<()>, impl Future<Output = ()> + Send + 'static) {
    let (dropped_to_stop, stopped) = oneshot::channel();
    (dropped_to_stop, async move { drop(stopped.await) })
}

/// Waits until the relay knows what is published. One that halts waits for a person instead.
async fn await_position(mut state: tokio::sync::watch::Receiver<State>) -> Result<()> {
    let settled = |state: &State| state.positioned() || matches!(state, State::Halted { .. } | State::Stopped);
    let reached = match timeout(POSITION_WITHIN, state.wait_for(settled)).await {
        Ok(Ok(reached)) => Some(reached.clone()),
        // What ended is told by its task.
        Ok(Err(_)) => std::future::pending().await,
        Err(_) => None,
    };
    match reached {
        Some(State::Halted { reason }) => Err(Error::RelayHalted { reason }),
        Some(_) => Ok(()),
        None => Err(Error::RelayLate { within: POSITION_WITHIN, state: state.borrow().name() }),
    }
}

fn relay_error(ended: std::result::Result<std::result::Result<(), relay::RunError>, tokio::task::JoinError>) -> Error {
    match ended {
        Ok(Err(error)) => error.into(),
        Ok(Ok(())) | Err(_) => relay::RunError::Ended.into(),
    }
}

/// Tells programs, and then people, that everything serves: the page is what should stand last on a person's screen.
fn tell(ready: &Ready, folder: &Folder) -> Result<()> {
    let kept = serde_json::to_string_pretty(&ready.seeded);
    let kept = kept.map_err(|error| Error::Io { doing: "cannot write JSON".to_owned(), source: error.into() })?;
    folder.keep_keys(&kept)?;
    print_line(ready)?;
    say(&ready.guide());
    Ok(())
}
