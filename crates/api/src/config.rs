//! Configuration from the environment. Every fault is reported at once, by the variable's name and never with its value.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use axum::http::HeaderValue;
use ledger::{Database, Retention, Secret, Secrets};
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

/// Sessions for reading; each costs PostgreSQL some megabytes.
const POOL_SIZES: RangeInclusive<u32> = 1..=100;
const DEFAULT_POOL_SIZE: u32 = 8;
/// Sessions for reading API keys: their own, so that slow lists don't keep anyone out.
const KEY_POOL_SIZE: u32 = 2;
/// Each connection takes a file descriptor.
const CONNECTIONS: RangeInclusive<usize> = 1..=100_000;

/// Variables, and what is wrong with them.
pub struct Variables<F> {
    find: F,
    faults: Vec<String>,
}

/// The process's own variables. One that is not text counts as not set.
pub fn process_variables() -> Variables<impl Fn(&str) -> Option<String>> {
    Variables::new(|name: &str| std::env::var(name).ok())
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
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
        let listen = self.parsed("LISTEN", "an address such as 127.0.0.1:8080", |text| text.parse().ok());
        let database = self.database();
        let secrets = self.secrets(profile);
        let peppers = self.peppers(profile);
        let pool_size = self.within("DATABASE_POOL_SIZE", POOL_SIZES).unwrap_or(DEFAULT_POOL_SIZE);
        let retention = self.retention_days();
        let conflict_status = self.parsed("IDEMPOTENCY_CONFLICT_STATUS", "422 or 409", |text| match text {
            "422" => Some(ConflictStatus::UnprocessableContent),
            "409" => Some(ConflictStatus::Conflict),
            _ => None,
        });
        let cors_origins = self.parsed(
            "CORS_ORIGINS",
            "`*`, or origins such as https://shop.example separated by commas",
            read_origins,
        );
        let max_connections = self.within("MAX_CONNECTIONS", CONNECTIONS);
        match (database, secrets, peppers) {
            (Some(database), Some(secrets), Some(peppers)) if self.faults.is_empty() => Ok(ServerConfig {
                listen: listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))),
                ledger: ledger::Settings { database, secrets, pool_size, retention },
                key_pool_size: KEY_POOL_SIZE,
                peppers,
                settings: Settings {
                    conflict_status: conflict_status.unwrap_or_default(),
                    cors_origins: cors_origins.unwrap_or_default(),
                    max_connections: max_connections.unwrap_or(Settings::DEFAULT_MAX_CONNECTIONS),
                },
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

    /// What looking after retention needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn retention(mut self) -> Result<(Database, Retention), ConfigError> {
        let retention = self.retention_days();
        match self.database() {
            Some(database) if self.faults.is_empty() => Ok((database, retention)),
            _ => Err(ConfigError { faults: self.faults }),
        }
    }

    fn retention_days(&mut self) -> Retention {
        let days = self.within("IDEMPOTENCY_RETENTION_DAYS", Retention::DAYS);
        days.and_then(Retention::of_days).unwrap_or(Retention::DEFAULT)
    }

    /// What every other command needs.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn database_only(mut self) -> Result<Database, ConfigError> {
        self.database().ok_or(ConfigError { faults: self.faults })
    }

    /// A variable's text; one that is empty counts as not set, as compose files have it.
    fn text(&self, name: &str) -> Option<String> {
        (self.find)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn parsed<T>(&mut self, name: &str, must_be: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.faults.push(format!("{name} must be {must_be}"));
        }
        parsed
    }

    fn within<T: std::str::FromStr + PartialOrd + fmt::Display>(
        &mut self,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        let must_be = format!("a number from {} to {}", range.start(), range.end());
        self.parsed(name, &must_be, |text| text.parse().ok().filter(|number| range.contains(number)))
    }

    /// A secret from `NAME`, or from the file that `NAME_FILE` names.
    fn secret(&mut self, name: &str) -> Option<SecretString> {
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

    fn profile(&mut self) -> Profile {
        let profile = self.parsed("ONCEPOST_PROFILE", "demo or production", |text| match text {
            "demo" => Some(Profile::Demo),
            "production" => Some(Profile::Production),
            _ => None,
        });
        profile.unwrap_or(Profile::Production)
    }

    fn database(&mut self) -> Option<Database> {
        let faults = self.faults.len();
        let Some(url) = self.secret("DATABASE_URL") else {
            if self.faults.len() == faults {
                self.faults.push("DATABASE_URL or DATABASE_URL_FILE must be set".to_owned());
            }
            return None;
        };
        match Database::from_url(url.expose_secret()) {
            Ok(database) => Some(database),
            Err(_) => {
                self.faults
                    .push("DATABASE_URL must be a URL such as postgres://user:password@host:5432/name".to_owned());
                None
            }
        }
    }

    /// A list of secrets under the rules of the profile: the demo's where none is given, and never in production.
    fn guarded(&mut self, name: &str, profile: Profile, demo: &str, required: bool) -> Option<SecretString> {
        let faults = self.faults.len();
        let given = self.secret(name);
        if self.faults.len() > faults {
            return None;
        }
        match (given, profile) {
            (Some(given), Profile::Production) if holds_demo_secret(&given) => {
                self.faults.push(format!("{name} holds a secret of the demo, which everybody can read"));
                None
            }
            (Some(given), Profile::Production | Profile::Demo) => Some(given),
            (None, Profile::Demo) if required => Some(demo.into()),
            (None, Profile::Production) if required => {
                self.faults.push(format!(
                    "{name} or {name}_FILE must be set: id:secret, at least {} bytes",
                    Secret::MIN_BYTES
                ));
                None
            }
            (None, Profile::Demo | Profile::Production) => None,
        }
    }

    fn secrets(&mut self, profile: Profile) -> Option<Secrets> {
        const WRITE: &str = "IDEMPOTENCY_SECRETS";
        const LOOK_UP: &str = "IDEMPOTENCY_LOOKUP_SECRETS";
        let write = self.guarded(WRITE, profile, demo_secrets::IDEMPOTENCY_SECRETS, true);
        let look_up = self.guarded(LOOK_UP, profile, "", false).unwrap_or_else(|| "".into());
        let mut list = |name: &str, text: &SecretString| match Secret::parse_list(text) {
            Ok(list) => Some(list),
            Err(error) => {
                self.faults.push(format!("{name}: {error}"));
                None
            }
        };
        let look_up = list(LOOK_UP, &look_up);
        let write = list(WRITE, &write?);
        match Secrets::new(write?, look_up?) {
            Ok(secrets) => Some(secrets),
            Err(error) => {
                self.faults.push(format!("{WRITE}, {LOOK_UP}: {error}"));
                None
            }
        }
    }

    fn peppers(&mut self, profile: Profile) -> Option<Peppers> {
        const NAME: &str = "API_KEY_PEPPERS";
        let text = self.guarded(NAME, profile, demo_secrets::API_KEY_PEPPERS, true)?;
        match Peppers::parse(&text) {
            Ok(peppers) => Some(peppers),
            Err(error) => {
                self.faults.push(format!("{NAME}: {error}"));
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
        ]);
        assert_eq!(found.len(), 9, "{found:#?}");
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
