//! The command `shop`: the shop before an API that runs elsewhere, as in the compose file.

use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;

use super::{Hosts, Settings, Shop, serve};
use crate::error::{Error, Result};
use crate::print_line;
use crate::progress::say;
use crate::seed::seed_from_environment;
use crate::signals::Signals;

/// What the shop is before.
#[derive(Args)]
pub(crate) struct ShopArguments {
    /// The API's URL.
    #[arg(long, env = "API_URL", value_name = "URL")]
    api: String,
    /// Where Kafka is; without it the panel shows no events.
    #[arg(long, env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    brokers: Option<String>,
    /// Where to listen.
    #[arg(long, env = "SHOP_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
    /// A name that browsers know the shop by, besides localhost and addresses; may be given several times.
    #[arg(long, env = "SHOP_HOSTS", value_name = "NAME", value_delimiter = ',')]
    host: Vec<String>,
}

/// Serves the shop until it is asked to stop. Its key and its accounts are the demo's, made where they are missing.
pub(crate) async fn run_alone(arguments: ShopArguments, signals: &Signals) -> Result<()> {
    let ShopArguments { api, brokers, listen, host } = arguments;
    let port = listen.port();
    let failed = |source| Error::ShopPort { option: "--listen", port, source };
    let listener = api::listen(listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (seeded, database) = seed_from_environment().await?;
    let brokers = brokers.filter(|brokers| !brokers.trim().is_empty());
    let hosts = Hosts::new(host);
    let shop = Shop::open(Settings { api, seeded, database, brokers, controls: None, hosts })?;

    /// The line for programs.
    #[derive(Serialize)]
    struct Line {
        event: &'static str,
        shop: String,
    }
    let url = format!("http://{address}");
    print_line(&Line { event: "ready", shop: url.clone() })?;
    say(&format!("The shop is at {url}"));
    serve(listener, shop.router(), signals.asked()).await;
    shop.close();
    Ok(())
}
