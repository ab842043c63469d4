//! The checkout shop: a small shop's page, and its backend, which holds the secret API key.
//!
//! The page is plain files, `crates/demo/shop`. `checkout.rs` is what a shop's own backend has to do; `network.rs` and
//! `panel.rs` are there to show what happens when something breaks.

mod alone;
mod attempts;
mod catalogue;
mod checkout;
mod client;
mod guard;
mod network;
mod orders;
mod panel;
mod server;
mod stream;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router, middleware};
use ledger::Database;
use secrecy::SecretString;
use serde_json::json;

pub(crate) use self::alone::{ShopArguments, run_alone};
pub(crate) use self::guard::Hosts;
pub(crate) use self::server::serve;

use self::attempts::Attempts;
use self::client::Client;
use self::network::Network;
use self::panel::OutboxSession;
use self::stream::Stream;
use crate::controls::Controls;
use crate::error::{Error, Result};
use crate::seed::{Accounts, Seeded};

/// The longest body of a request, in bytes: a full basket is a few hundred.
const BODY_BYTES: usize = 16 * 1024;

/// The page: each file with its path and its type.
const FILES: [(&str, &str, &str); 8] = [
    ("/", "text/html; charset=utf-8", include_str!("../../shop/index.html")),
    ("/shop.css", "text/css; charset=utf-8", include_str!("../../shop/shop.css")),
    ("/favicon.svg", "image/svg+xml", include_str!("../../shop/favicon.svg")),
    ("/shop.js", SCRIPT, include_str!("../../shop/shop.js")),
    ("/basket.js", SCRIPT, include_str!("../../shop/basket.js")),
    ("/page.js", SCRIPT, include_str!("../../shop/page.js")),
    ("/panel.js", SCRIPT, include_str!("../../shop/panel.js")),
    ("/retry.js", SCRIPT, include_str!("../../shop/retry.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// What a shop needs.
pub(crate) struct Settings {
    /// Where the API is.
    pub(crate) api: String,
    /// The keys and the accounts.
    pub(crate) seeded: Seeded,
    /// Where the outbox is.
    pub(crate) database: Database,
    /// Where Kafka is, if there is one.
    pub(crate) brokers: Option<String>,
    /// What of the rest can be stopped from here.
    pub(crate) controls: Option<Controls>,
    /// Names that the shop is known by.
    pub(crate) hosts: Hosts,
}

/// The shop's backend; cheap to clone.
#[derive(Clone)]
pub(crate) struct Shop {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    accounts: Accounts,
    attempts: Attempts,
    network: Network,
    controls: Option<Controls>,
    database: Database,
    outbox: OutboxSession,
    stream: Option<Stream>,
    hosts: Hosts,
}

impl Shop {
    /// Opens the shop in the test environment.
    pub(crate) fn open(settings: Settings) -> Result<Self> {
        let Settings { api, seeded, database, brokers, controls, hosts } = settings;
        let failed = |error| Error::Io {
            doing: "the shop cannot call the API".to_owned(),
            source: std::io::Error::other(error),
        };
        let client = Client::new(&api, SecretString::from(seeded.keys.test)).map_err(failed)?;
        let inner = Inner {
            client,
            accounts: seeded.accounts.test,
            attempts: Attempts::default(),
            network: Network::default(),
            controls,
            database,
            outbox: OutboxSession::default(),
            stream: brokers.as_deref().map(Stream::new),
            hosts,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Everything that the shop answers.
    pub(crate) fn router(&self) -> Router {
        let mut router = Router::new()
            .route("/products", get(|| async { Json(&catalogue::PRODUCTS) }))
            .route("/checkout", post(checkout::pay))
            .route("/orders", get(orders::list))
            .route("/panel", post(panel::show))
            .route("/panel/switches", post(panel::turn));
        for (path, kind, text) in FILES {
            router = router.route(path, file(kind, text));
        }
        router
            .layer(DefaultBodyLimit::max(BODY_BYTES))
            .layer(middleware::from_fn_with_state(self.inner.hosts.clone(), guard::admit))
            .with_state(self.clone())
    }

    /// Stops reading Kafka.
    pub(crate) fn close(&self) {
        if let Some(stream) = &self.inner.stream {
            stream.close();
        }
    }

    fn client(&self) -> &Client {
        &self.inner.client
    }

    fn accounts(&self) -> &Accounts {
        &self.inner.accounts
    }

    fn attempts(&self) -> &Attempts {
        &self.inner.attempts
    }

    fn network(&self) -> &Network {
        &self.inner.network
    }

    fn controls(&self) -> Option<&Controls> {
        self.inner.controls.as_ref()
    }

    fn database(&self) -> &Database {
        &self.inner.database
    }

    fn outbox(&self) -> &OutboxSession {
        &self.inner.outbox
    }

    fn stream(&self) -> Option<&Stream> {
        self.inner.stream.as_ref()
    }
}

fn file(kind: &'static str, text: &'static str) -> MethodRouter<Shop> {
    get(move || async move { ([(CONTENT_TYPE, HeaderValue::from_static(kind))], text) })
}

/// A refusal of the shop's own, in the form that the API's have.
fn problem(status: StatusCode, name: &str, title: &str, detail: &str) -> Response {
    let kind = format!("/problems/{name}");
    let body = json!({"type": kind, "title": title, "status": status.as_u16(), "detail": detail});
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))];
    (status, headers, body.to_string()).into_response()
}
