//! What the API's processes are told by their environment.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::HeaderValue;
use ledger::{Database, Retention, Secret, Secrets};
use process::environment::{
    self, Bounds, ConfigError, DATABASE_URL, LOG_FORMAT, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER_ARG, Profile,
    RUST_LOG, Reader, Unset, Variable,
};
use process::traces;
use secrecy::{ExposeSecret, SecretString};

use crate::api_key::Peppers;
use crate::{ConflictStatus, CorsOrigins, Settings};

/// Secrets that anyone can read here, so that a demo starts without any being made. The production profile refuses them.
pub mod demo_secrets {
    /// For `IDEMPOTENCY_SECRETS`.
    pub const IDEMPOTENCY_SECRETS: &str = "demo:a-demo-secret-that-everybody-can-read";
    /// For `API_KEY_PEPPERS`.
    pub const API_KEY_PEPPERS: &str = "demo:a-demo-pepper-that-everybody-can-read";
}

/// What the server needs.
pub struct ServerConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The ledger's settings.
    pub ledger: ledger::Settings,
    /// Where traces go, if anywhere.
    pub traces: Option<traces::Settings>,
    /// The most sessions for reading API keys.
    pub key_pool_size: u32,
    /// What API keys are checked with.
    pub peppers: Peppers,
    /// The HTTP side's settings.
    pub settings: Settings,
}

/// What commands on API keys need.
pub struct KeyConfig {
    /// Where the ledger is.
    pub database: Database,
    /// What API keys are hashed with.
    pub peppers: Peppers,
}

const SECRETS_FORM: &str = "id:secret, several separated by commas, each secret at least 32 bytes long";
const ONE_OR_TWO_SECRETS_FORM: &str =
    "id:secret, or two of them separated by a comma, each secret at least 32 bytes long";

const PROFILE: Variable = Variable::plain(
    "ONCEPOST_PROFILE",
    Unset::Default("production"),
    Bounds::OneOf(&["production", "demo"]),
    "In `production` secrets must be given, and not be the demo's. In `demo`, secrets that everybody can read serve where none are given.",
);
const IDEMPOTENCY_SECRETS: Variable = Variable::secret(
    "IDEMPOTENCY_SECRETS",
    Unset::Refused,
    Bounds::Form(ONE_OR_TWO_SECRETS_FORM),
    "What idempotency keys are hashed with before they are stored; two while they are rotated.",
);
const IDEMPOTENCY_LOOKUP_SECRETS: Variable = Variable::secret(
    "IDEMPOTENCY_LOOKUP_SECRETS",
    Unset::Nothing,
    Bounds::Form(SECRETS_FORM),
    "Earlier secrets that records may still stand under. They are read with, and never written with.",
);
const API_KEY_PEPPERS: Variable = Variable::secret(
    "API_KEY_PEPPERS",
    Unset::Refused,
    Bounds::Form(SECRETS_FORM),
    "What API keys are hashed with before they are stored. New keys are hashed with the first; all serve for checking.",
);
const LISTEN: Variable = Variable::plain(
    "LISTEN",
    Unset::Default("127.0.0.1:8080"),
    Bounds::Form("an address and port such as 127.0.0.1:8080"),
    "Where the API is served. Port 0 takes any free one.",
);
const IDEMPOTENCY_CONFLICT_STATUS: Variable = Variable::plain(
    "IDEMPOTENCY_CONFLICT_STATUS",
    Unset::Default("422"),
    Bounds::OneOf(&["422", "409"]),
    "The status of `idempotency-key-reused`, where a key belongs to another request.",
);
const IDEMPOTENCY_RETENTION_DAYS: Variable = Variable::plain(
    "IDEMPOTENCY_RETENTION_DAYS",
    Unset::Default("7"),
    Bounds::Number(1, 90),
    "For how many days answers can be replayed. A later retry is refused; it never runs again.",
);
/// Each reads the whole ledger.
const AUDIT_INTERVAL_SECONDS: Variable = Variable::plain(
    "AUDIT_INTERVAL_SECONDS",
    Unset::Default("86400"),
    Bounds::Number(1, 604_800),
    "How often the books are audited, in seconds. One of the API's processes does it for all; it reads whole tables.",
);
const CORS_ORIGINS: Variable = Variable::plain(
    "CORS_ORIGINS",
    Unset::Nothing,
    Bounds::Form("`*`, or origins such as https://shop.example separated by commas"),
    "Whose pages may call the API from a browser: none unless set, `*` for all.",
);
/// Each session costs PostgreSQL some megabytes.
const DATABASE_POOL_SIZE: Variable = Variable::plain(
    "DATABASE_POOL_SIZE",
    Unset::Default("8"),
    Bounds::Number(1, 100),
    "The most database sessions for reading. Writing and API keys have sessions of their own.",
);
/// Each connection takes a file descriptor.
const MAX_CONNECTIONS: Variable = Variable::plain(
    "MAX_CONNECTIONS",
    Unset::Default("4096"),
    Bounds::Number(1, 100_000),
    "The most HTTP connections at a time; beyond, each is answered 503. Each takes a file descriptor.",
);
const RATE_LIMIT_PER_SECOND: Variable = Variable::plain(
    "RATE_LIMIT_PER_SECOND",
    Unset::Nothing,
    Bounds::Number(1, 100_000),
    "How many requests a second may run for each principal in each environment, at each API process: unlimited unless set. Replays don't count; they and reads have a ceiling of ten times as many.",
);
/// Every variable that the server reads.
pub const VARIABLES: [&Variable; 17] = [
    &DATABASE_URL,
    &PROFILE,
    &IDEMPOTENCY_SECRETS,
    &IDEMPOTENCY_LOOKUP_SECRETS,
    &API_KEY_PEPPERS,
    &LISTEN,
    &IDEMPOTENCY_CONFLICT_STATUS,
    &IDEMPOTENCY_RETENTION_DAYS,
    &AUDIT_INTERVAL_SECONDS,
    &CORS_ORIGINS,
    &DATABASE_POOL_SIZE,
    &MAX_CONNECTIONS,
    &RATE_LIMIT_PER_SECOND,
    &OTEL_EXPORTER_OTLP_ENDPOINT,
    &OTEL_TRACES_SAMPLER_ARG,
    &RUST_LOG,
    &LOG_FORMAT,
];

/// Sessions for reading API keys: their own, so that slow lists don't keep anyone out.
const KEY_POOL_SIZE: u32 = 2;

/// Reads what the API's processes need.
pub struct Variables<F>(Reader<F>);

/// The process's own variables.
pub fn process_variables() -> Variables<impl Fn(&str) -> Option<OsString>> {
    Variables(environment::process_variables())
}

impl<F: Fn(&str) -> Option<V>, V: Into<OsString>> Variables<F> {
    /// Variables that `find` finds by their names.
    pub const fn new(find: F) -> Self {
        Self(Reader::new(find))
    }

    /// What the server needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn server(mut self) -> Result<ServerConfig, ConfigError> {
        self.0.read_profile(&PROFILE);
        let read = self.read_server();
        self.0.finish(read)
    }

    fn read_server(&mut self) -> Option<ServerConfig> {
        // Everything is read before anything is asked for, so that every fault is told.
        let listen = self.0.parsed(&LISTEN, |text| text.parse().ok());
        let database = self.0.database();
        let secrets = self.secrets();
        let peppers = self.peppers();
        let pool_size = self.0.parsed(&DATABASE_POOL_SIZE, |text| text.parse().ok());
        let retention = self.retention_days();
        let audit_interval = self.0.parsed(&AUDIT_INTERVAL_SECONDS, |text| text.parse().ok().map(Duration::from_secs));
        let conflict_status = self.0.parsed(&IDEMPOTENCY_CONFLICT_STATUS, |text| match text {
            "422" => Some(ConflictStatus::UnprocessableContent),
            "409" => Some(ConflictStatus::Conflict),
            _ => None,
        });
        let cors_origins = self.0.parsed(&CORS_ORIGINS, read_origins).unwrap_or_default();
        let max_connections = self.0.parsed(&MAX_CONNECTIONS, |text| text.parse().ok());
        let rate_limit = self.0.parsed(&RATE_LIMIT_PER_SECOND, |text| text.parse().ok());
        let ratio =
            self.0.parsed(&OTEL_TRACES_SAMPLER_ARG, |text| text.parse().ok().filter(|part| (0.0..=1.0).contains(part)));
        let traces = self.0.traces(ratio.unwrap_or_default());
        self.0.judge_log();
        Some(ServerConfig {
            listen: listen?,
            ledger: ledger::Settings {
                database: database?,
                secrets: secrets?,
                pool_size: pool_size?,
                retention: retention?,
                audit_interval: audit_interval?,
            },
            traces,
            key_pool_size: KEY_POOL_SIZE,
            peppers: peppers?,
            settings: Settings {
                conflict_status: conflict_status?,
                cors_origins,
                max_connections: max_connections?,
                rate_limit,
            },
        })
    }

    /// What commands on API keys need.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn keys(mut self) -> Result<KeyConfig, ConfigError> {
        self.0.read_profile(&PROFILE);
        let (database, peppers) = (self.0.database(), self.peppers());
        self.0.finish(database.zip(peppers).map(|(database, peppers)| KeyConfig { database, peppers }))
    }

    /// What questions about records need.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn records(mut self) -> Result<(Database, Secrets), ConfigError> {
        self.0.read_profile(&PROFILE);
        let (database, secrets) = (self.0.database(), self.secrets());
        self.0.finish(database.zip(secrets))
    }

    /// What looking after retention needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn retention(mut self) -> Result<(Database, Retention), ConfigError> {
        let (database, retention) = (self.0.database(), self.retention_days());
        self.0.finish(database.zip(retention))
    }

    /// What every other command needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn database_only(mut self) -> Result<Database, ConfigError> {
        let database = self.0.database();
        self.0.finish(database)
    }

    fn retention_days(&mut self) -> Option<Retention> {
        self.0.parsed(&IDEMPOTENCY_RETENTION_DAYS, |text| text.parse().ok().and_then(Retention::of_days))
    }

    /// A list of secrets under the rules of the profile: in `demo`, the demo's where none is given; in `production`, never
    /// the demo's.
    fn guarded(&mut self, variable: &Variable, demo: &str) -> Option<SecretString> {
        match self.0.profile() {
            Profile::Demo => {
                let faults = self.0.faults();
                let given = self.0.secret(variable);
                given.or_else(|| (self.0.faults() == faults).then(|| demo.into()))
            }
            Profile::Production => {
                let given = match variable.unset {
                    Unset::Refused => self.0.required_secret(variable),
                    Unset::Nothing | Unset::Default(_) | Unset::ByProfile { .. } => self.0.secret(variable),
                }?;
                if holds_demo_secret(&given) {
                    self.0.fault(variable.name, "holds a secret of the demo, which everybody can read");
                    return None;
                }
                Some(given)
            }
        }
    }

    fn secrets(&mut self) -> Option<Secrets> {
        let write = self.guarded(&IDEMPOTENCY_SECRETS, demo_secrets::IDEMPOTENCY_SECRETS);
        let look_up = self.guarded(&IDEMPOTENCY_LOOKUP_SECRETS, "").unwrap_or_else(|| "".into());
        let mut list = |variable: &Variable, text: &SecretString| match Secret::parse_list(text) {
            Ok(list) => Some(list),
            Err(error) => {
                self.0.fault(variable.name, format!("can't be used: {error}"));
                None
            }
        };
        let look_up = list(&IDEMPOTENCY_LOOKUP_SECRETS, &look_up);
        let write = list(&IDEMPOTENCY_SECRETS, &write?);
        match Secrets::new(write?, look_up?) {
            Ok(secrets) => Some(secrets),
            Err(error) => {
                let (write, look_up) = (IDEMPOTENCY_SECRETS.name, IDEMPOTENCY_LOOKUP_SECRETS.name);
                self.0.fault(format!("{write}, {look_up}"), format!("can't be used: {error}"));
                None
            }
        }
    }

    fn peppers(&mut self) -> Option<Peppers> {
        let text = self.guarded(&API_KEY_PEPPERS, demo_secrets::API_KEY_PEPPERS)?;
        match Peppers::parse(&text) {
            Ok(peppers) => Some(peppers),
            Err(error) => {
                self.0.fault(API_KEY_PEPPERS.name, format!("can't be used: {error}"));
                None
            }
        }
    }
}

/// Whether the demo's secrets are among these, under whatever id.
fn holds_demo_secret(given: &SecretString) -> bool {
    [demo_secrets::IDEMPOTENCY_SECRETS, demo_secrets::API_KEY_PEPPERS]
        .iter()
        .filter_map(|demo| demo.split_once(':'))
        .any(|(_, secret)| given.expose_secret().contains(secret))
}

fn read_origins(text: &str) -> Option<CorsOrigins> {
    if text == "*" {
        return Some(CorsOrigins::Any);
    }
    let origin = |text: &str| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
        let plain = !host.is_empty() && !host.contains(['/', '*', ' ', '?', '#']);
        plain.then(|| HeaderValue::from_str(text).ok())?
    };
    text.split(',').map(str::trim).map(origin).collect::<Option<Vec<_>>>().map(CorsOrigins::Listed)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    fn variables(set: &[(&'static str, &'static str)]) -> Variables<impl Fn(&str) -> Option<String>> {
        let set: std::collections::HashMap<_, _> = set.iter().copied().collect();
        Variables::new(move |name: &str| set.get(name).map(|text| (*text).to_owned()))
    }

    const URL: (&str, &str) = ("DATABASE_URL", "postgres://oncepost:hidden-password@localhost/oncepost");
    const SECRETS: (&str, &str) = ("IDEMPOTENCY_SECRETS", "one:0123456789abcdef0123456789abcdef");
    const PEPPERS: (&str, &str) = ("API_KEY_PEPPERS", "one:fedcba9876543210fedcba9876543210");

    fn faults(set: &[(&'static str, &'static str)]) -> Vec<String> {
        variables(set).server().err().map(|error| error.0.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    #[test]
    fn three_variables_are_enough() {
        let config = variables(&[URL, SECRETS, PEPPERS]).server().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.settings.conflict_status, ConflictStatus::UnprocessableContent);
        assert_eq!(config.settings.cors_origins, CorsOrigins::Closed);
    }

    #[test]
    fn the_table_holds_every_variable_that_is_read_and_its_defaults_are_the_settings_own() {
        let asked = RefCell::new(BTreeSet::new());
        let nothing = Variables::new(|name: &str| {
            asked.borrow_mut().insert(name.to_owned());
            None::<String>
        });
        assert!(nothing.server().is_err());
        let known = VARIABLES.iter().flat_map(|variable| {
            let file = variable.secret.then(|| format!("{}_FILE", variable.name));
            [Some(variable.name.to_owned()), file].into_iter().flatten()
        });
        assert_eq!(asked.into_inner(), known.collect());

        let config = variables(&[URL, SECRETS, PEPPERS]).server().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.settings.max_connections, Settings::DEFAULT_MAX_CONNECTIONS);
    }

    #[test]
    fn numbers_are_taken_up_to_their_bounds() {
        for variable in VARIABLES {
            let Bounds::Number(min, max) = variable.bounds else { continue };
            let faults = |text: String| faults(&[URL, SECRETS, PEPPERS, (variable.name, text.leak())]).len();
            for (text, expected) in [(min, 0), (max, 0), (min - 1, 1), (max + 1, 1)].map(|(n, e)| (n.to_string(), e)) {
                assert_eq!(faults(text.clone()), expected, "{} = {text}", variable.name);
            }
        }
    }

    #[test]
    fn every_fault_is_reported_at_once_and_no_value_with_it() {
        let found = faults(&[
            ("DATABASE_URL", "postgres://u:hidden-password@[/x"),
            ("IDEMPOTENCY_SECRETS", "one:short"),
            ("LISTEN", "hidden-place"),
            ("DATABASE_POOL_SIZE", "0"),
            ("IDEMPOTENCY_CONFLICT_STATUS", "418"),
            ("CORS_ORIGINS", "shop.example"),
            ("MAX_CONNECTIONS", "many"),
            ("ONCEPOST_PROFILE", "staging"),
            ("RUST_LOG", "api=hidden"),
            ("LOG_FORMAT", "hidden"),
        ]);
        assert_eq!(found.len(), 11, "{found:#?}");
        assert!(!found.concat().contains("hidden") && !found.concat().contains("short:"), "{found:#?}");
    }

    #[test]
    fn production_takes_no_secret_of_the_demo_and_the_demo_needs_none() {
        let demo = ("IDEMPOTENCY_SECRETS", "mine:a-demo-secret-that-everybody-can-read");
        assert_eq!(faults(&[URL, demo, PEPPERS]).len(), 1);
        assert_eq!(faults(&[URL, SECRETS, ("API_KEY_PEPPERS", demo_secrets::API_KEY_PEPPERS)]).len(), 1);
        assert_eq!(faults(&[URL]).len(), 2);
        assert_eq!(faults(&[URL, ("ONCEPOST_PROFILE", "demo")]), Vec::<String>::new());
    }

    #[test]
    fn origins_are_listed_or_all() {
        let listed = |origins: &[&'static str]| {
            Some(CorsOrigins::Listed(origins.iter().map(|origin| HeaderValue::from_static(origin)).collect()))
        };
        assert_eq!(read_origins("*"), Some(CorsOrigins::Any));
        assert_eq!(
            read_origins("https://shop.example, http://localhost:3000"),
            listed(&["https://shop.example", "http://localhost:3000"])
        );
        for refused in ["shop.example", "https://", "https://shop.example/", "https://*.example", "https://a,"] {
            assert_eq!(read_origins(refused), None, "{refused}");
        }
    }
}
