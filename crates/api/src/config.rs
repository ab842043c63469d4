//! Configuration from the environment. Every fault is reported at once, by the variable's name and never with its value.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::HeaderValue;
use ledger::{Database, Retention, Secret, Secrets};
use process::traces;
use secrecy::{ExposeSecret, SecretString};
use tracing_subscriber::EnvFilter;

use crate::api_key::Peppers;
use crate::{ConflictStatus, CorsOrigins, Settings};

/// Secrets that anyone can read here, so that a demo starts without any being made. The production profile refuses them.
pub mod demo_secrets {
    /// For `IDEMPOTENCY_SECRETS`.
    pub const IDEMPOTENCY_SECRETS: &str = "demo:a-demo-secret-that-everybody-can-read";
    /// For `API_KEY_PEPPERS`.
    pub const API_KEY_PEPPERS: &str = "demo:a-demo-pepper-that-everybody-can-read";
}

/// Whether secrets must be of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The demo's secrets serve where none are given.
    Demo,
    /// Secrets must be given, and not be the demo's.
    Production,
}

/// What is wrong with the environment: every fault, one line each.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    faults: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration can't be used:")?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for ConfigError {}

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

/// A variable of the environment: what reading it goes by, and what `docs/configuration.md` says of it.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name. A secret may stand in a file instead, which the variable of this name and `_FILE` names.
    pub name: &'static str,
    /// Whether it is a secret.
    pub secret: bool,
    /// What counts where it is not set.
    pub unset: Unset,
    /// What a value must be.
    pub bounds: Bounds,
    /// What it is for.
    pub meaning: &'static str,
}

/// What counts where a variable is not set.
#[derive(Clone, Copy, Debug)]
pub enum Unset {
    /// The start is refused.
    Refused,
    /// The server goes without.
    Nothing,
    /// This value, which is read as if it were set.
    Default(&'static str),
}

/// What a value must be. It is shown as the rest of a sentence that begins with the variable and "must be".
#[derive(Clone, Copy, Debug)]
pub enum Bounds {
    /// A whole number within a range, both ends included.
    Number(u64, u64),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Told in words; whoever reads the value judges it.
    Form(&'static str),
}

impl Bounds {
    fn allow(&self, text: &str) -> bool {
        match self {
            Self::Number(min, max) => text.parse().is_ok_and(|number: u64| (*min..=*max).contains(&number)),
            Self::OneOf(words) => words.contains(&text),
            Self::Form(_) => true,
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::OneOf(words) => write!(f, "one of {}", words.join(", ")),
            Self::Form(form) => f.write_str(form),
        }
    }
}

/// One that is no secret.
const fn plain(name: &'static str, unset: Unset, bounds: Bounds, meaning: &'static str) -> Variable {
    Variable { name, secret: false, unset, bounds, meaning }
}

/// A secret.
const fn secret(name: &'static str, unset: Unset, bounds: Bounds, meaning: &'static str) -> Variable {
    Variable { name, secret: true, unset, bounds, meaning }
}

const SECRETS_FORM: &str = "id:secret, several separated by commas, each secret at least 32 bytes long";
const ONE_OR_TWO_SECRETS_FORM: &str =
    "id:secret, or two of them separated by a comma, each secret at least 32 bytes long";

const DATABASE_URL: Variable = secret(
    "DATABASE_URL",
    Unset::Refused,
    Bounds::Form("a URL such as postgres://user:password@host:5432/name"),
    "Where PostgreSQL is, version 15 to 18.",
);
const PROFILE: Variable = plain(
    "ONCEPOST_PROFILE",
    Unset::Default("production"),
    Bounds::OneOf(&["production", "demo"]),
    "In `production` secrets must be given, and not be the demo's. In `demo`, secrets that everybody can read serve where none are given.",
);
const IDEMPOTENCY_SECRETS: Variable = secret(
    "IDEMPOTENCY_SECRETS",
    Unset::Refused,
    Bounds::Form(ONE_OR_TWO_SECRETS_FORM),
    "What idempotency keys are hashed with before they are stored; two while they are rotated.",
);
const IDEMPOTENCY_LOOKUP_SECRETS: Variable = secret(
    "IDEMPOTENCY_LOOKUP_SECRETS",
    Unset::Nothing,
    Bounds::Form(SECRETS_FORM),
    "Earlier secrets that records may still stand under. They are read with, and never written with.",
);
const API_KEY_PEPPERS: Variable = secret(
    "API_KEY_PEPPERS",
    Unset::Refused,
    Bounds::Form(SECRETS_FORM),
    "What API keys are hashed with before they are stored. New keys are hashed with the first; all serve for checking.",
);
const LISTEN: Variable = plain(
    "LISTEN",
    Unset::Default("127.0.0.1:8080"),
    Bounds::Form("an address and port such as 127.0.0.1:8080"),
    "Where the API is served. Port 0 takes any free one.",
);
const IDEMPOTENCY_CONFLICT_STATUS: Variable = plain(
    "IDEMPOTENCY_CONFLICT_STATUS",
    Unset::Default("422"),
    Bounds::OneOf(&["422", "409"]),
    "The status of `idempotency-key-reused`, where a key belongs to another request.",
);
const IDEMPOTENCY_RETENTION_DAYS: Variable = plain(
    "IDEMPOTENCY_RETENTION_DAYS",
    Unset::Default("7"),
    Bounds::Number(1, 90),
    "For how many days answers can be replayed. A later retry is refused; it never runs again.",
);
/// Each reads the whole ledger.
const AUDIT_INTERVAL_SECONDS: Variable = plain(
    "AUDIT_INTERVAL_SECONDS",
    Unset::Default("86400"),
    Bounds::Number(1, 604_800),
    "How often the books are audited, in seconds. One of the API's processes does it for all; it reads whole tables.",
);
const CORS_ORIGINS: Variable = plain(
    "CORS_ORIGINS",
    Unset::Nothing,
    Bounds::Form("`*`, or origins such as https://shop.example separated by commas"),
    "Whose pages may call the API from a browser: none unless set, `*` for all.",
);
/// Each session costs PostgreSQL some megabytes.
const DATABASE_POOL_SIZE: Variable = plain(
    "DATABASE_POOL_SIZE",
    Unset::Default("8"),
    Bounds::Number(1, 100),
    "The most database sessions for reading. Writing and API keys have sessions of their own.",
);
/// Each connection takes a file descriptor.
const MAX_CONNECTIONS: Variable = plain(
    "MAX_CONNECTIONS",
    Unset::Default("4096"),
    Bounds::Number(1, 100_000),
    "The most HTTP connections at a time; beyond, each is answered 503. Each takes a file descriptor.",
);
const RATE_LIMIT_PER_SECOND: Variable = plain(
    "RATE_LIMIT_PER_SECOND",
    Unset::Nothing,
    Bounds::Number(1, 100_000),
    "How many requests a second may run for each principal in each environment, at each API process: unlimited unless set. Replays don't count; they and reads have a ceiling of ten times as many.",
);
const OTEL_EXPORTER_OTLP_ENDPOINT: Variable = plain(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    Unset::Nothing,
    Bounds::Form("a URL that begins with http://, such as http://collector:4318"),
    "The OpenTelemetry collector that traces are sent to, by OTLP over HTTP; none are recorded unless set.",
);
const OTEL_TRACES_SAMPLER_ARG: Variable = plain(
    "OTEL_TRACES_SAMPLER_ARG",
    Unset::Default("1"),
    Bounds::Form("a number from 0 to 1"),
    "The part of the traces that begin here which is recorded. A client that sends `traceparent` decides for its own.",
);
const RUST_LOG: Variable = plain(
    "RUST_LOG",
    Unset::Default("info"),
    Bounds::Form("levels such as info or warn,api=debug"),
    "Which lines are logged.",
);
const LOG_FORMAT: Variable = plain(
    "LOG_FORMAT",
    Unset::Nothing,
    Bounds::OneOf(&["text", "json"]),
    "The form of the log's lines; unless set, `text` at a terminal and `json` everywhere else.",
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

/// Variables, and what is wrong with them.
pub struct Variables<F> {
    find: F,
    faults: Vec<String>,
}

/// The process's own variables.
pub fn process_variables() -> Variables<impl Fn(&str) -> Option<OsString>> {
    Variables::new(|name: &str| std::env::var_os(name))
}

impl<F: Fn(&str) -> Option<V>, V: Into<OsString>> Variables<F> {
    /// Variables that `find` finds by their names.
    pub const fn new(find: F) -> Self {
        Self { find, faults: Vec::new() }
    }

    /// What the server needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn server(mut self) -> Result<ServerConfig, ConfigError> {
        let profile = self.profile();
        let listen = self.parsed(&LISTEN, |text| text.parse().ok());
        let database = self.database();
        let secrets = self.secrets(profile);
        let peppers = self.peppers(profile);
        let pool_size = self.parsed(&DATABASE_POOL_SIZE, |text| text.parse().ok());
        let retention = self.retention_days();
        let audit_interval = self.parsed(&AUDIT_INTERVAL_SECONDS, |text| text.parse().ok().map(Duration::from_secs));
        let conflict_status = self.parsed(&IDEMPOTENCY_CONFLICT_STATUS, |text| match text {
            "422" => Some(ConflictStatus::UnprocessableContent),
            "409" => Some(ConflictStatus::Conflict),
            _ => None,
        });
        let cors_origins = self.parsed(&CORS_ORIGINS, read_origins).unwrap_or_default();
        let max_connections = self.parsed(&MAX_CONNECTIONS, |text| text.parse().ok());
        let rate_limit = self.parsed(&RATE_LIMIT_PER_SECOND, |text| text.parse().ok());
        let endpoint =
            self.parsed(&OTEL_EXPORTER_OTLP_ENDPOINT, |text| text.starts_with("http://").then(|| text.to_owned()));
        let ratio =
            self.parsed(&OTEL_TRACES_SAMPLER_ARG, |text| text.parse().ok().filter(|part| (0.0..=1.0).contains(part)));
        let traces = endpoint.zip(ratio).map(|(endpoint, ratio)| traces::Settings { endpoint, ratio });
        // The log began before this, with what could be used of these two. Here they are only judged.
        self.parsed(&RUST_LOG, |text| EnvFilter::try_new(text).ok());
        self.parsed(&LOG_FORMAT, |_| Some(()));
        match (
            listen,
            database,
            secrets,
            peppers,
            pool_size,
            retention,
            audit_interval,
            conflict_status,
            max_connections,
        ) {
            (
                Some(listen),
                Some(database),
                Some(secrets),
                Some(peppers),
                Some(pool_size),
                Some(retention),
                Some(audit_interval),
                Some(conflict_status),
                Some(max_connections),
            ) if self.faults.is_empty() => Ok(ServerConfig {
                listen,
                ledger: ledger::Settings { database, secrets, pool_size, retention, audit_interval },
                traces,
                key_pool_size: KEY_POOL_SIZE,
                peppers,
                settings: Settings { conflict_status, cors_origins, max_connections, rate_limit },
            }),
            _ => Err(ConfigError { faults: self.faults }),
        }
    }

    /// What commands on API keys need.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn keys(mut self) -> Result<KeyConfig, ConfigError> {
        let profile = self.profile();
        match (self.database(), self.peppers(profile)) {
            (Some(database), Some(peppers)) if self.faults.is_empty() => Ok(KeyConfig { database, peppers }),
            _ => Err(ConfigError { faults: self.faults }),
        }
    }

    /// What questions about records need.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn records(mut self) -> Result<(Database, Secrets), ConfigError> {
        let profile = self.profile();
        match (self.database(), self.secrets(profile)) {
            (Some(database), Some(secrets)) if self.faults.is_empty() => Ok((database, secrets)),
            _ => Err(ConfigError { faults: self.faults }),
        }
    }

    /// What looking after retention needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn retention(mut self) -> Result<(Database, Retention), ConfigError> {
        let retention = self.retention_days();
        match (self.database(), retention) {
            (Some(database), Some(retention)) if self.faults.is_empty() => Ok((database, retention)),
            _ => Err(ConfigError { faults: self.faults }),
        }
    }

    fn retention_days(&mut self) -> Option<Retention> {
        self.parsed(&IDEMPOTENCY_RETENTION_DAYS, |text| text.parse().ok().and_then(Retention::of_days))
    }

    /// What every other command needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn database_only(mut self) -> Result<Database, ConfigError> {
        self.database().ok_or(ConfigError { faults: self.faults })
    }

    /// A variable's text; one that is empty counts as not set, as compose files have it.
    fn text(&mut self, name: &str) -> Option<String> {
        match (self.find)(name)?.into().into_string() {
            Ok(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            Err(_) => {
                self.faults.push(format!("{name} is not UTF-8"));
                None
            }
        }
    }

    fn refuse(&mut self, variable: &Variable) {
        self.faults.push(format!("{} must be {}", variable.name, variable.bounds));
    }

    /// What is set, or the default; `None` where there is neither, or it is refused.
    fn parsed<T>(&mut self, variable: &Variable, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = match (self.text(variable.name), variable.unset) {
            (Some(text), _) => text,
            (None, Unset::Default(value)) => value.to_owned(),
            (None, Unset::Refused | Unset::Nothing) => return None,
        };
        let parsed = Some(text).filter(|text| variable.bounds.allow(text)).and_then(|text| parse(&text));
        if parsed.is_none() {
            self.refuse(variable);
        }
        parsed
    }

    /// A secret from its variable or from the file that is named; `None` where there is neither, or it is refused.
    fn secret(&mut self, variable: &Variable) -> Option<SecretString> {
        let name = variable.name;
        let file_name = format!("{name}_FILE");
        match (self.text(name), self.text(&file_name)) {
            (Some(_), Some(_)) => {
                self.faults.push(format!("{name} and {file_name} are both set"));
                None
            }
            (Some(text), None) => Some(text.into()),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => Some(text.trim().to_owned().into()),
                Err(error) => {
                    self.faults.push(format!("{file_name} names a file that can't be read: {error}"));
                    None
                }
            },
            (None, None) => None,
        }
    }

    /// A secret that has to be given.
    fn required(&mut self, variable: &Variable) -> Option<SecretString> {
        let faults = self.faults.len();
        let given = self.secret(variable);
        if given.is_none() && self.faults.len() == faults {
            let Variable { name, bounds, .. } = variable;
            self.faults.push(format!("{name} or {name}_FILE must be set to {bounds}"));
        }
        given
    }

    fn profile(&mut self) -> Profile {
        let profile = self.parsed(&PROFILE, |text| match text {
            "demo" => Some(Profile::Demo),
            "production" => Some(Profile::Production),
            _ => None,
        });
        profile.unwrap_or(Profile::Production)
    }

    fn database(&mut self) -> Option<Database> {
        let url = self.required(&DATABASE_URL)?;
        let database = Database::from_url(url.expose_secret()).ok();
        if database.is_none() {
            self.refuse(&DATABASE_URL);
        }
        database
    }

    /// A list of secrets under the rules of the profile: in `demo`, the demo's where none is given; in `production`, never
    /// the demo's.
    fn guarded(&mut self, variable: &Variable, profile: Profile, demo: &str) -> Option<SecretString> {
        match profile {
            Profile::Demo => {
                let faults = self.faults.len();
                let given = self.secret(variable);
                given.or_else(|| (self.faults.len() == faults).then(|| demo.into()))
            }
            Profile::Production => {
                let given = match variable.unset {
                    Unset::Refused => self.required(variable),
                    Unset::Nothing | Unset::Default(_) => self.secret(variable),
                }?;
                if holds_demo_secret(&given) {
                    self.faults.push(format!("{} holds a secret of the demo, which everybody can read", variable.name));
                    return None;
                }
                Some(given)
            }
        }
    }

    fn secrets(&mut self, profile: Profile) -> Option<Secrets> {
        let write = self.guarded(&IDEMPOTENCY_SECRETS, profile, demo_secrets::IDEMPOTENCY_SECRETS);
        let look_up = self.guarded(&IDEMPOTENCY_LOOKUP_SECRETS, profile, "").unwrap_or_else(|| "".into());
        let mut list = |variable: &Variable, text: &SecretString| match Secret::parse_list(text) {
            Ok(list) => Some(list),
            Err(error) => {
                self.faults.push(format!("{}: {error}", variable.name));
                None
            }
        };
        let look_up = list(&IDEMPOTENCY_LOOKUP_SECRETS, &look_up);
        let write = list(&IDEMPOTENCY_SECRETS, &write?);
        match Secrets::new(write?, look_up?) {
            Ok(secrets) => Some(secrets),
            Err(error) => {
                let (write, look_up) = (IDEMPOTENCY_SECRETS.name, IDEMPOTENCY_LOOKUP_SECRETS.name);
                self.faults.push(format!("{write}, {look_up}: {error}"));
                None
            }
        }
    }

    fn peppers(&mut self, profile: Profile) -> Option<Peppers> {
        let text = self.guarded(&API_KEY_PEPPERS, profile, demo_secrets::API_KEY_PEPPERS)?;
        match Peppers::parse(&text) {
            Ok(peppers) => Some(peppers),
            Err(error) => {
                self.faults.push(format!("{}: {error}", API_KEY_PEPPERS.name));
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
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn variables(set: &[(&'static str, &'static str)]) -> Variables<impl Fn(&str) -> Option<String>> {
        let set: std::collections::HashMap<_, _> = set.iter().copied().collect();
        Variables::new(move |name: &str| set.get(name).map(|text| (*text).to_owned()))
    }

    const URL: (&str, &str) = ("DATABASE_URL", "postgres://oncepost:hidden-password@localhost/oncepost");
    const SECRETS: (&str, &str) = ("IDEMPOTENCY_SECRETS", "one:0123456789abcdef0123456789abcdef");
    const PEPPERS: (&str, &str) = ("API_KEY_PEPPERS", "one:fedcba9876543210fedcba9876543210");

    fn faults(set: &[(&'static str, &'static str)]) -> Vec<String> {
        variables(set).server().err().map(|error| error.faults).unwrap_or_default()
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
    fn text_that_is_not_utf_8_is_a_fault() {
        let odd = OsString::from_vec(vec![b'8', 0xff]);
        let set = Variables::new(move |name: &str| match name {
            "DATABASE_POOL_SIZE" => Some(odd.clone()),
            _ => [URL, SECRETS, PEPPERS].into_iter().find(|(set, _)| *set == name).map(|(_, text)| text.into()),
        });
        let faults = set.server().err().map(|error| error.faults).unwrap_or_default();
        assert_eq!(faults, ["DATABASE_POOL_SIZE is not UTF-8"]);
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
    fn a_secret_is_set_once_and_may_stand_in_a_file() {
        assert_eq!(faults(&[URL, SECRETS, PEPPERS, ("DATABASE_URL_FILE", "/nowhere")]).len(), 1);
        assert_eq!(faults(&[SECRETS, PEPPERS, ("DATABASE_URL_FILE", "/nowhere")]).len(), 1);
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
