//! HTTP: routes, authentication, problems, the OpenAPI document and metrics of Oncepost.
//!
//! A request travels through `layers`, which give it an id and a deadline, to its handler. `post` is the way of every POST,
//! in the order in which clients are promised their refusals; it ends in the one call [`Ledger::submit`]. HTTP types stand
//! only in this crate.

mod access;
mod accounts;
mod api_key;
mod authentication;
mod body;
pub mod config;
mod document;
mod fault;
mod fingerprint;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod get;
mod health;
mod idempotency_key;
mod json;
mod keys;
mod layers;
mod members;
pub mod metrics;
mod operations;
mod page;
mod parameters;
mod post;
mod prefer;
mod problem;
mod rate_limit;
mod schema;
mod server;
mod staged_fault;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::{Router, middleware};
use ledger::Ledger;
use ledger::principal::Principals;
use process::recorder::PrometheusHandle;
use tower_http::cors::{AllowOrigin, CorsLayer};

pub use api_key::{FreshKey, Peppers};
pub use document::text as openapi_document;
pub use server::{listen, serve};

use crate::authentication::Authenticator;
use crate::problem::Problem;
use crate::rate_limit::RateLimits;

/// How a key that belongs to another request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictStatus {
    /// 422, as the IETF draft has it: 409 is kept for a request that is still running.
    #[default]
    UnprocessableContent,
    /// 409, for clients that expect it.
    Conflict,
}

impl ConflictStatus {
    const fn status(self) -> StatusCode {
        match self {
            Self::UnprocessableContent => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Conflict => StatusCode::CONFLICT,
        }
    }
}

/// Which pages of other origins may call the API from a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CorsOrigins {
    /// None.
    #[default]
    Closed,
    /// Those of these origins, such as `https://shop.example`.
    Listed(Vec<HeaderValue>),
    /// All.
    Any,
}

/// What can be chosen about the HTTP side.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How a key that belongs to another request is answered.
    pub conflict_status: ConflictStatus,
    /// Which pages may call the API from a browser.
    pub cors_origins: CorsOrigins,
    /// The most connections at a time; beyond, each gets 503.
    pub max_connections: usize,
    /// The requests a second that each principal may have run in each environment; `None` for no limit.
    pub rate_limit: Option<u32>,
}

impl Settings {
    /// The most connections where nothing is said: ten times what a busy client pool opens, and a file descriptor each.
    pub const DEFAULT_MAX_CONNECTIONS: usize = 4_096;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            conflict_status: ConflictStatus::default(),
            cors_origins: CorsOrigins::default(),
            max_connections: Self::DEFAULT_MAX_CONNECTIONS,
            rate_limit: None,
        }
    }
}

/// The HTTP side of a ledger; cheap to clone.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    ledger: Ledger,
    authenticator: Arc<Authenticator>,
    rate_limits: RateLimits,
    settings: Settings,
    metrics: Option<PrometheusHandle>,
    stopping: AtomicBool,
}

impl Api {
    /// Puts an API before a ledger. `principals` says whose keys are valid, `peppers` how they are checked; without a
    /// handle on the process's recorder, `/metrics` is empty.
    pub fn new(
        ledger: Ledger,
        principals: Principals,
        peppers: Peppers,
        settings: Settings,
        metrics: Option<PrometheusHandle>,
    ) -> Self {
        let authenticator = Arc::new(Authenticator::new(principals, peppers));
        let rate_limits = RateLimits::new(settings.rate_limit);
        let stopping = AtomicBool::new(false);
        Self { inner: Arc::new(Inner { ledger, authenticator, rate_limits, settings, metrics, stopping }) }
    }

    fn ledger(&self) -> &Ledger {
        &self.inner.ledger
    }

    fn authenticator(&self) -> &Arc<Authenticator> {
        &self.inner.authenticator
    }

    fn rate_limits(&self) -> &RateLimits {
        &self.inner.rate_limits
    }

    fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    fn metrics(&self) -> Option<&PrometheusHandle> {
        self.inner.metrics.as_ref()
    }

    fn stopping(&self) -> bool {
        self.inner.stopping.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.inner.stopping.store(true, Ordering::Relaxed);
    }

    /// The routes with everything around them.
    pub fn router(&self) -> Router {
        for endpoint in [transfers::POST.path, accounts::OPEN.path] {
            metrics::begin_at_zero(endpoint);
        }
        let mut router = document::routes()
            .fallback(|| async { Problem::NotFound })
            .method_not_allowed_fallback(|| async { Problem::MethodNotAllowed });
        if let Some(cors) = cors(&self.inner.settings.cors_origins) {
            router = router.layer(cors);
        }
        router.layer(middleware::from_fn(layers::surround)).with_state(self.clone())
    }
}

/// How long a browser may remember what a preflight allowed.
const PREFLIGHT_KEPT: Duration = Duration::from_secs(600);

fn cors(origins: &CorsOrigins) -> Option<CorsLayer> {
    let allowed = match origins {
        CorsOrigins::Closed => return None,
        CorsOrigins::Listed(origins) => AllowOrigin::list(origins.clone()),
        CorsOrigins::Any => AllowOrigin::any(),
    };
    let replayed: HeaderName = post::IDEMPOTENT_REPLAYED;
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::HEAD, Method::POST])
            .allow_headers([
                header::AUTHORIZATION,
                header::CONTENT_TYPE,
                idempotency_key::IDEMPOTENCY_KEY,
                prefer::PREFER,
                staged_fault::ONCEPOST_FAULT,
            ])
            .expose_headers([
                header::LOCATION,
                header::RETRY_AFTER,
                replayed,
                prefer::PREFERENCE_APPLIED,
                layers::X_REQUEST_ID,
                rate_limit::RATE_LIMIT,
                rate_limit::RATE_LIMIT_POLICY,
            ])
            .max_age(PREFLIGHT_KEPT),
    )
}
