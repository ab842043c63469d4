//! What this consumer is told by its environment, every fault of it at once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lettre::message::Mailbox;
use lettre::{AsyncSmtpTransport, Tokio1Executor};
use rdkafka::ClientConfig;
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgConnectOptions;

use crate::event::Selection;
use crate::receipt::Letterhead;

/// The configuration.
pub(crate) struct Config {
    /// The consumer's own database.
    pub(crate) database: PgConnectOptions,
    /// The brokers, how they are spoken to, and the group.
    pub(crate) kafka: ClientConfig,
    pub(crate) topic: String,
    pub(crate) selection: Selection,
    pub(crate) smtp: AsyncSmtpTransport<Tokio1Executor>,
    pub(crate) smtp_timeout: Duration,
    pub(crate) from: Mailbox,
    pub(crate) max_attempts: i32,
    /// How long the inbox remembers an event, and so the oldest event that is handled.
    pub(crate) retention: Duration,
    /// Where `/metrics`, `/livez` and `/readyz` are served.
    pub(crate) listen: SocketAddr,
}

/// One thing that is wrong with the environment. It never repeats a value: that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    variable: String,
    problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.variable, self.problem)
    }
}

/// How brokers are spoken to: the variables that the relay has too, and librdkafka's names for them.
const KAFKA_SECURITY: [(&str, &str); 6] = [
    ("KAFKA_SECURITY_PROTOCOL", "security.protocol"),
    ("KAFKA_SASL_MECHANISM", "sasl.mechanism"),
    ("KAFKA_SASL_USERNAME", "sasl.username"),
    ("KAFKA_SSL_CA_FILE", "ssl.ca.location"),
    ("KAFKA_SSL_CERTIFICATE_FILE", "ssl.certificate.location"),
    ("KAFKA_SSL_KEY_FILE", "ssl.key.location"),
];
/// Those that may stand in a file as well.
const KAFKA_SECRETS: [(&str, &str); 2] =
    [("KAFKA_SASL_PASSWORD", "sasl.password"), ("KAFKA_SSL_KEY_PASSWORD", "ssl.key.password")];
/// The port of the default of `RECEIPTS_LISTEN`.
const LISTEN_PORT: u16 = 9_465;
const SECONDS_A_DAY: u64 = 86_400;

impl Config {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// Every fault at once.
    pub(crate) fn from_environment() -> Result<Self, Vec<Fault>> {
        Self::read(|name| std::env::var(name).ok(), |path| std::fs::read_to_string(path).map_err(|error| error.kind()))
    }

    fn read(
        variable: impl Fn(&str) -> Option<String>,
        file: impl Fn(&str) -> Result<String, std::io::ErrorKind>,
    ) -> Result<Self, Vec<Fault>> {
        let mut reader = Reader { variable, file, faults: Vec::new() };
        let database = reader.required_secret("DATABASE_URL");
        let database = reader.parsed(
            "DATABASE_URL",
            database.as_ref().map(ExposeSecret::expose_secret),
            |url| url.parse::<PgConnectOptions>().ok(),
            "is not a PostgreSQL URL such as postgres://user:password@host:5432/name",
        );
        let smtp = reader.required_secret("SMTP_URL");
        let smtp = reader.parsed(
            "SMTP_URL",
            smtp.as_ref().map(ExposeSecret::expose_secret),
            |url| AsyncSmtpTransport::<Tokio1Executor>::from_url(url).ok(),
            "is not an SMTP URL such as smtps://user:password@host:465 or smtp://user:password@host:587?tls=required",
        );
        let from = reader.required("RECEIPT_FROM");
        let from = reader.parsed(
            "RECEIPT_FROM",
            from.as_deref(),
            |text| text.parse::<Mailbox>().ok(),
            "is not a mailbox such as Shop <receipts@shop.example>",
        );
        let kafka = reader.kafka();
        let topic = reader.optional("KAFKA_TOPIC").unwrap_or_else(|| "transfers".to_owned());
        let member = reader.optional("RECEIPT_METADATA_MEMBER").unwrap_or_else(|| "email".to_owned());
        let environment = reader.optional("RECEIPT_ENVIRONMENT").unwrap_or_else(|| "live".to_owned());
        if !matches!(environment.as_str(), "live" | "test") {
            reader.fault("RECEIPT_ENVIRONMENT", "is neither live nor test");
        }
        let max_attempts = reader.number("RECEIPT_ATTEMPTS", 1, 1_000, 40).try_into().unwrap_or(i32::MAX);
        let smtp_timeout = Duration::from_secs(reader.number("SMTP_TIMEOUT_SECONDS", 1, 300, 30));
        let retention_days = reader.number("INBOX_RETENTION_DAYS", 1, 3_650, 30);
        let retention = Duration::from_secs(retention_days.saturating_mul(SECONDS_A_DAY));
        let listen = reader.optional("RECEIPTS_LISTEN");
        let listen = match listen {
            None => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), LISTEN_PORT)),
            Some(text) => reader.parsed(
                "RECEIPTS_LISTEN",
                Some(&text),
                |text| text.parse().ok(),
                "is not an address and port such as 0.0.0.0:9465",
            ),
        };
        match (database, smtp, from, listen) {
            (Some(database), Some(smtp), Some(from), Some(listen)) if reader.faults.is_empty() => Ok(Self {
                database,
                kafka,
                topic,
                selection: Selection {
                    environment,
                    max_age: time::Duration::seconds(retention.as_secs().try_into().unwrap_or(i64::MAX)),
                    letterhead: Letterhead::new(from.clone(), member),
                },
                smtp: smtp.timeout(Some(smtp_timeout)).build(),
                smtp_timeout,
                from,
                max_attempts,
                retention,
                listen,
            }),
            _ => Err(reader.faults),
        }
    }
}

/// Reads one variable after the other and gathers what is wrong with them.
struct Reader<V, F> {
    variable: V,
    file: F,
    faults: Vec<Fault>,
}

impl<V, F> Reader<V, F>
where
    V: Fn(&str) -> Option<String>,
    F: Fn(&str) -> Result<String, std::io::ErrorKind>,
{
    fn fault(&mut self, variable: &str, problem: impl Into<String>) {
        self.faults.push(Fault { variable: variable.to_owned(), problem: problem.into() });
    }

    /// An empty variable counts as none: that is how compose files leave one out.
    fn optional(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn required(&mut self, name: &str) -> Option<String> {
        let value = self.optional(name);
        if value.is_none() {
            self.fault(name, "is not set");
        }
        value
    }

    /// A secret from the variable, or from the file that the variable with `_FILE` names.
    fn secret(&mut self, name: &str) -> Option<SecretString> {
        let file_variable = format!("{name}_FILE");
        match (self.optional(name), self.optional(&file_variable)) {
            (Some(_), Some(_)) => {
                self.fault(name, format!("and {file_variable} are both set; set one"));
                None
            }
            (Some(value), None) => Some(value.into()),
            (None, Some(path)) => match (self.file)(&path) {
                Ok(text) => Some(text.trim_end_matches(['\r', '\n']).into()),
                Err(kind) => {
                    self.fault(&file_variable, format!("names a file that can't be read: {kind}"));
                    None
                }
            },
            (None, None) => None,
        }
    }

    fn required_secret(&mut self, name: &str) -> Option<SecretString> {
        let before = self.faults.len();
        let secret = self.secret(name);
        if secret.is_none() && self.faults.len() == before {
            self.fault(name, format!("is not set, nor is {name}_FILE"));
        }
        secret
    }

    fn parsed<T>(
        &mut self,
        name: &str,
        text: Option<&str>,
        parse: impl Fn(&str) -> Option<T>,
        problem: &str,
    ) -> Option<T> {
        let value = parse(text?);
        if value.is_none() {
            self.fault(name, problem);
        }
        value
    }

    fn number(&mut self, name: &str, min: u64, max: u64, default: u64) -> u64 {
        let Some(text) = self.optional(name) else { return default };
        match text.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => number,
            Ok(_) | Err(_) => {
                self.fault(name, format!("is not a whole number from {min} to {max}"));
                default
            }
        }
    }

    fn kafka(&mut self) -> ClientConfig {
        let brokers = self.required("KAFKA_BROKERS");
        let group = self.optional("KAFKA_GROUP").or_else(|| Some("oncepost-receipts".to_owned()));
        let instance = self.optional("KAFKA_GROUP_INSTANCE_ID");
        let mut settings = vec![
            ("KAFKA_BROKERS", "bootstrap.servers", brokers),
            ("KAFKA_GROUP", "group.id", group),
            ("KAFKA_GROUP_INSTANCE_ID", "group.instance.id", instance),
        ];
        for (name, setting) in KAFKA_SECURITY {
            settings.push((name, setting, self.optional(name)));
        }
        for (name, setting) in KAFKA_SECRETS {
            settings.push((name, setting, self.secret(name).map(|secret| secret.expose_secret().to_owned())));
        }
        let mut kafka = ClientConfig::new();
        for (name, setting, value) in settings {
            let Some(value) = value else { continue };
            // librdkafka knows what each may be, without a connection.
            if ClientConfig::new().set(setting, &value).create_native_config().is_err() {
                self.fault(name, format!("is not a value of librdkafka's {setting}"));
            }
            kafka.set(setting, value);
        }
        kafka
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const ENOUGH: [(&str, &str); 4] = [
        ("DATABASE_URL_FILE", "/secret"),
        ("KAFKA_BROKERS", "kafka:9092"),
        ("SMTP_URL", "smtp://mail:1025"),
        ("RECEIPT_FROM", "Shop <receipts@shop.example>"),
    ];

    fn read(variables: &[(&str, &str)]) -> Result<Config, Vec<Fault>> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        Config::read(
            |name| variables.get(name).map(|value| (*value).to_owned()),
            |path| match path {
                "/secret" => Ok("postgres://receipts@db/receipts\n".to_owned()),
                _ => Err(std::io::ErrorKind::NotFound),
            },
        )
    }

    #[test]
    fn four_variables_are_enough() {
        let config = read(&ENOUGH).ok().unwrap();
        assert_eq!(config.database.get_database(), Some("receipts"));
        assert_eq!((config.topic.as_str(), config.selection.environment.as_str()), ("transfers", "live"));
        assert_eq!(config.kafka.get("group.id"), Some("oncepost-receipts"));
        assert_eq!(config.listen.to_string(), "127.0.0.1:9465");
    }

    #[test]
    fn every_fault_is_told_at_once_and_no_value_with_it() {
        let faults = read(&[
            ("DATABASE_URL", "secret"),
            ("DATABASE_URL_FILE", ""),
            ("SMTP_URL_FILE", "/missing"),
            ("RECEIPT_FROM", "secret"),
            ("RECEIPT_ENVIRONMENT", "secret"),
            ("RECEIPT_ATTEMPTS", "0"),
            ("SMTP_TIMEOUT_SECONDS", "secret"),
            ("INBOX_RETENTION_DAYS", "-1"),
            ("RECEIPTS_LISTEN", "secret"),
            ("KAFKA_SECURITY_PROTOCOL", "secret"),
            ("KAFKA_SASL_PASSWORD", "secret"),
            ("KAFKA_SASL_PASSWORD_FILE", "/secret"),
        ]);
        let faults = faults.err().unwrap();
        let named: Vec<&str> = faults.iter().map(|fault| fault.variable.as_str()).collect();
        assert_eq!(
            named,
            [
                "DATABASE_URL",
                "SMTP_URL_FILE",
                "RECEIPT_FROM",
                "KAFKA_BROKERS",
                "KAFKA_SASL_PASSWORD",
                "KAFKA_SECURITY_PROTOCOL",
                "RECEIPT_ENVIRONMENT",
                "RECEIPT_ATTEMPTS",
                "SMTP_TIMEOUT_SECONDS",
                "INBOX_RETENTION_DAYS",
                "RECEIPTS_LISTEN",
            ]
        );
        assert!(faults.iter().all(|fault| !fault.to_string().contains("secret")), "{faults:?}");
        let unset = read(&[]).err().unwrap();
        let unset: Vec<&str> = unset.iter().map(|fault| fault.variable.as_str()).collect();
        assert_eq!(unset, ["DATABASE_URL", "SMTP_URL", "RECEIPT_FROM", "KAFKA_BROKERS"]);
    }

    #[test]
    fn the_readme_names_every_variable() {
        let asked = std::cell::RefCell::new(std::collections::BTreeSet::new());
        let nothing = |name: &str| {
            asked.borrow_mut().insert(name.to_owned());
            None
        };
        assert!(Config::read(nothing, |_| Err(std::io::ErrorKind::NotFound)).is_err());
        let readme = include_str!("../README.md");
        let rows = readme.split("| variable |").nth(1).unwrap().split("\n\n").next().unwrap();
        let first_cells = rows.lines().filter_map(|row| row.strip_prefix("| `")?.split(" | ").next());
        let named =
            first_cells.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`').to_owned()).collect();
        assert_eq!(*asked.borrow(), named);
    }
}
