//! What the relay is told by its environment, every fault of it at once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ledger::{Database, Shard};
use rdkafka::ClientConfig;
use secrecy::{ExposeSecret, SecretString};

/// How strict a deployment is. It sets the defaults for new topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One machine, one broker: replication 1. That survives a kill, not a lost disk.
    Demo,
    /// Replication 3, of which 2 must have a record before it counts as written.
    Production,
}

/// How the brokers are spoken to.
#[derive(Clone, Default)]
pub struct Security {
    /// `security.protocol`: `plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`.
    pub protocol: Option<String>,
    /// `sasl.mechanism`, such as `SCRAM-SHA-512`.
    pub mechanism: Option<String>,
    /// `sasl.username`.
    pub username: Option<String>,
    /// `sasl.password`.
    pub password: Option<SecretString>,
    /// `ssl.ca.location`, a file; the system's authorities unless given.
    pub ca_file: Option<String>,
    /// `ssl.certificate.location`, a file, for mutual TLS.
    pub certificate_file: Option<String>,
    /// `ssl.key.location`, a file.
    pub key_file: Option<String>,
    /// `ssl.key.password`.
    pub key_password: Option<SecretString>,
}

/// The Kafka cluster and the names used in it.
#[derive(Clone)]
pub struct Kafka {
    /// `host:port`, several separated by commas.
    pub brokers: String,
    /// How they are spoken to.
    pub security: Security,
    /// The topic of the events.
    pub topic: String,
    /// The topic that the position's offsets are named by. Nothing is ever written into it.
    pub position_topic: String,
    /// The group that the position is committed under. Nobody ever subscribes with it: the broker takes offsets from
    /// outside only while the group is empty.
    pub group: String,
    /// How many partitions the topic of the events is made with.
    pub partitions: i32,
    /// How many brokers hold each partition of a topic that the relay makes.
    pub replication_factor: i32,
    /// How many of them must have a record before it counts as written.
    pub min_insync_replicas: i32,
}

/// What a relay needs to run, in this process or another.
#[derive(Clone)]
pub struct Settings {
    /// Where the outbox is.
    pub database: Database,
    /// Which shard's.
    pub shard: Shard,
    /// Where the events go.
    pub kafka: Kafka,
    /// The most events in one Kafka transaction.
    pub batch_rows: i64,
    /// How many bytes of payload end a Kafka transaction.
    pub batch_bytes: i64,
    /// How often the position is written again while nothing happens: Kafka forgets the offsets of an empty group, by
    /// default after seven days.
    pub renewal: Duration,
}

/// The binary's configuration: the settings, and what concerns the process.
pub struct Config {
    /// What the relay needs.
    pub settings: Settings,
    /// Where `/metrics`, `/livez` and `/readyz` are served.
    pub listen: SocketAddr,
    /// How strict the deployment is.
    pub profile: Profile,
}

/// One thing that is wrong with the environment. It never repeats a value: that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The variable.
    pub variable: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.variable, self.problem)
    }
}

/// The default of `RELAY_BATCH_ROWS`. 2,000 events of about 1 KB are 2 MB, some 30 ms of work on one core, well below
/// the 15 s of a Kafka transaction.
const BATCH_ROWS: i64 = 2_000;
/// The default of `RELAY_BATCH_BYTES`, 4 MiB: it bounds the relay's memory where events are long.
const BATCH_BYTES: i64 = 4 * 1024 * 1024;
/// The default of `RELAY_POSITION_RENEWAL_SECONDS`: 168 chances before Kafka's default of seven days is over.
const RENEWAL_SECONDS: i64 = 3_600;
/// The port of the default of `RELAY_LISTEN`.
const LISTEN_PORT: u16 = 9_464;

impl Settings {
    /// The settings for a Kafka at `brokers` that needs no credentials, everything else by default.
    #[must_use]
    pub fn new(database: Database, brokers: impl Into<String>, profile: Profile) -> Self {
        let (replication_factor, min_insync_replicas) = replication(profile);
        Self {
            database,
            shard: Shard(0),
            kafka: Kafka {
                brokers: brokers.into(),
                security: Security::default(),
                topic: "transfers".to_owned(),
                position_topic: "relay-position".to_owned(),
                group: "oncepost-relay".to_owned(),
                partitions: 6,
                replication_factor,
                min_insync_replicas,
            },
            batch_rows: BATCH_ROWS,
            batch_bytes: BATCH_BYTES,
            renewal: Duration::from_secs(RENEWAL_SECONDS.unsigned_abs()),
        }
    }
}

/// Replication factor and `min.insync.replicas` of new topics.
const fn replication(profile: Profile) -> (i32, i32) {
    match profile {
        Profile::Demo => (1, 1),
        Profile::Production => (3, 2),
    }
}

impl Config {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn from_environment() -> Result<Self, Vec<Fault>> {
        Self::read(|name| std::env::var(name).ok(), |path| std::fs::read_to_string(path).map_err(|error| error.kind()))
    }

    /// Reads variables and the files that they name.
    fn read(
        variable: impl Fn(&str) -> Option<String>,
        file: impl Fn(&str) -> Result<String, std::io::ErrorKind>,
    ) -> Result<Self, Vec<Fault>> {
        let mut reader = Reader { variable, file, faults: Vec::new() };
        let profile = reader.profile();
        let database = reader.database();
        let brokers = reader.required("KAFKA_BROKERS");
        let (replication_factor, min_insync_replicas) = replication(profile);
        let replication_factor =
            reader.number("KAFKA_REPLICATION_FACTOR", 1, 15, i64::from(replication_factor)).try_into().unwrap_or(1);
        // A factor below the profile's pulls the profile's minimum down with it; otherwise nothing could be written.
        let min_insync_replicas = min_insync_replicas.min(replication_factor);
        let kafka = Kafka {
            brokers: brokers.unwrap_or_default(),
            security: reader.security(),
            topic: reader.name("KAFKA_TOPIC", "transfers"),
            position_topic: reader.name("KAFKA_POSITION_TOPIC", "relay-position"),
            group: reader.name("KAFKA_POSITION_GROUP", "oncepost-relay"),
            partitions: reader.number("KAFKA_PARTITIONS", 1, 1_000, 6).try_into().unwrap_or(6),
            replication_factor,
            min_insync_replicas: reader
                .number("KAFKA_MIN_INSYNC_REPLICAS", 1, i64::from(replication_factor), i64::from(min_insync_replicas))
                .try_into()
                .unwrap_or(1),
        };
        let shard = reader.number("SHARD", 0, 999, 0).try_into().unwrap_or(0);
        let batch_rows = reader.number("RELAY_BATCH_ROWS", 1, 20_000, BATCH_ROWS);
        let batch_bytes = reader.number("RELAY_BATCH_BYTES", 1_024, 64 * 1024 * 1024, BATCH_BYTES);
        let renewal = reader.number("RELAY_POSITION_RENEWAL_SECONDS", 1, 86_400, RENEWAL_SECONDS);
        let listen = reader.listen();
        match database {
            Some(database) if reader.faults.is_empty() => Ok(Self {
                settings: Settings {
                    database,
                    shard: Shard(shard),
                    kafka,
                    batch_rows,
                    batch_bytes,
                    renewal: Duration::from_secs(renewal.unsigned_abs()),
                },
                listen,
                profile,
            }),
            Some(_) | None => Err(reader.faults),
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

    fn database(&mut self) -> Option<Database> {
        let before = self.faults.len();
        let Some(url) = self.secret("DATABASE_URL") else {
            if self.faults.len() == before {
                self.fault("DATABASE_URL", "is not set, nor is DATABASE_URL_FILE");
            }
            return None;
        };
        let database = Database::from_url(url.expose_secret());
        if database.is_err() {
            self.fault("DATABASE_URL", "is not a PostgreSQL URL such as postgres://user:password@host:5432/name");
        }
        database.ok()
    }

    fn profile(&mut self) -> Profile {
        match self.optional("ONCEPOST_PROFILE").as_deref() {
            None | Some("production") => Profile::Production,
            Some("demo") => Profile::Demo,
            Some(_) => {
                self.fault("ONCEPOST_PROFILE", "is neither demo nor production");
                Profile::Production
            }
        }
    }

    fn number(&mut self, name: &str, min: i64, max: i64, default: i64) -> i64 {
        let Some(text) = self.optional(name) else { return default };
        match text.parse::<i64>() {
            Ok(number) if (min..=max).contains(&number) => number,
            Ok(_) | Err(_) => {
                self.fault(name, format!("is not a whole number from {min} to {max}"));
                default
            }
        }
    }

    /// A name as Kafka takes it for topics: letters, digits, `.`, `_` and `-`, at most 249 of them.
    fn name(&mut self, variable: &str, default: &str) -> String {
        let Some(name) = self.optional(variable) else { return default.to_owned() };
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.len() > 249 || name == "." || name == ".." || !name.chars().all(legal) {
            self.fault(variable, "is not a name that Kafka takes (letters, digits, `.`, `_`, `-`; at most 249)");
        }
        name
    }

    fn listen(&mut self) -> SocketAddr {
        let default = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), LISTEN_PORT);
        let Some(text) = self.optional("RELAY_LISTEN") else { return default };
        text.parse().unwrap_or_else(|_| {
            self.fault("RELAY_LISTEN", "is not an address and port such as 0.0.0.0:9464");
            default
        })
    }

    fn security(&mut self) -> Security {
        let protocol = self.optional("KAFKA_SECURITY_PROTOCOL").map(|name| name.to_ascii_lowercase());
        if let Some(name) = &protocol
            && !matches!(name.as_str(), "plaintext" | "ssl" | "sasl_plaintext" | "sasl_ssl")
        {
            self.fault("KAFKA_SECURITY_PROTOCOL", "is none of plaintext, ssl, sasl_plaintext, sasl_ssl");
        }
        let security = Security {
            mechanism: self.optional("KAFKA_SASL_MECHANISM").map(|name| name.to_ascii_uppercase()),
            username: self.optional("KAFKA_SASL_USERNAME"),
            password: self.secret("KAFKA_SASL_PASSWORD"),
            ca_file: self.optional("KAFKA_SSL_CA_FILE"),
            certificate_file: self.optional("KAFKA_SSL_CERTIFICATE_FILE"),
            key_file: self.optional("KAFKA_SSL_KEY_FILE"),
            key_password: self.secret("KAFKA_SSL_KEY_PASSWORD"),
            protocol,
        };
        if let Some(name) = &security.mechanism
            && !matches!(name.as_str(), "PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512")
        {
            self.fault("KAFKA_SASL_MECHANISM", "is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512");
        }
        if security.protocol.as_deref().is_some_and(|name| name.starts_with("sasl_")) {
            let given = [
                ("KAFKA_SASL_MECHANISM", security.mechanism.is_some()),
                ("KAFKA_SASL_USERNAME", security.username.is_some()),
                ("KAFKA_SASL_PASSWORD", security.password.is_some()),
            ];
            for (name, _) in given.iter().filter(|(_, given)| !given) {
                self.fault(name, "is not set, but KAFKA_SECURITY_PROTOCOL asks for SASL");
            }
        }
        if security.certificate_file.is_some() != security.key_file.is_some() {
            self.fault("KAFKA_SSL_CERTIFICATE_FILE", "and KAFKA_SSL_KEY_FILE go together; set both or none");
        }
        security
    }
}

impl Kafka {
    /// What every client of the cluster is made with, whatever it is for.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "oncepost-relay")
            // A broker that died without a word is noticed, and one that is back is found again within a second.
            .set("socket.keepalive.enable", "true")
            .set("socket.connection.setup.timeout.ms", "5000")
            .set("reconnect.backoff.max.ms", "1000");
        let Security { protocol, mechanism, username, password, ca_file, certificate_file, key_file, key_password } =
            &self.security;
        let settings = [
            ("security.protocol", protocol.as_deref()),
            ("sasl.mechanism", mechanism.as_deref()),
            ("sasl.username", username.as_deref()),
            ("sasl.password", password.as_ref().map(ExposeSecret::expose_secret)),
            ("ssl.ca.location", ca_file.as_deref()),
            ("ssl.certificate.location", certificate_file.as_deref()),
            ("ssl.key.location", key_file.as_deref()),
            ("ssl.key.password", key_password.as_ref().map(ExposeSecret::expose_secret)),
        ];
        for (name, value) in settings {
            if let Some(value) = value {
                config.set(name, value);
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Vec<Fault>> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        Config::read(
            |name| variables.get(name).map(|value| (*value).to_owned()),
            |path| match path {
                "/secret" => Ok("postgres://relay@db/books\n".to_owned()),
                _ => Err(std::io::ErrorKind::NotFound),
            },
        )
    }

    fn faulty(variables: &[(&str, &str)]) -> Vec<String> {
        let faults = read(variables).err().expect("the environment is faulty");
        faults.into_iter().map(|fault| fault.variable).collect()
    }

    #[test]
    fn two_variables_are_enough() {
        let config = read(&[("DATABASE_URL", "postgres://db/books"), ("KAFKA_BROKERS", "kafka:9092")]).ok().unwrap();
        assert_eq!(config.profile, Profile::Production);
        assert_eq!(config.settings.kafka.topic, "transfers");
        assert_eq!((config.settings.kafka.replication_factor, config.settings.kafka.min_insync_replicas), (3, 2));
        assert_eq!(config.settings.kafka.partitions, 6);
        assert_eq!(config.listen.to_string(), "127.0.0.1:9464");
    }

    #[test]
    fn the_demo_profile_makes_topics_on_one_broker() {
        let config =
            read(&[("DATABASE_URL_FILE", "/secret"), ("KAFKA_BROKERS", "kafka:9092"), ("ONCEPOST_PROFILE", "demo")])
                .ok()
                .unwrap();
        assert_eq!((config.settings.kafka.replication_factor, config.settings.kafka.min_insync_replicas), (1, 1));
    }

    #[test]
    fn a_smaller_replication_factor_brings_a_smaller_minimum() {
        let config = read(&[
            ("DATABASE_URL_FILE", "/secret"),
            ("KAFKA_BROKERS", "kafka:9092"),
            ("KAFKA_REPLICATION_FACTOR", "1"),
        ])
        .ok()
        .unwrap();
        assert_eq!(config.settings.kafka.min_insync_replicas, 1);
    }

    #[test]
    fn every_fault_is_told_at_once() {
        assert_eq!(
            faulty(&[
                ("ONCEPOST_PROFILE", "staging"),
                ("KAFKA_TOPIC", "no spaces"),
                ("SHARD", "-1"),
                ("RELAY_LISTEN", "here"),
                ("KAFKA_SECURITY_PROTOCOL", "SASL_SSL"),
                ("KAFKA_SASL_USERNAME", "relay"),
                ("KAFKA_SSL_KEY_FILE", "/key"),
            ]),
            [
                "ONCEPOST_PROFILE",
                "DATABASE_URL",
                "KAFKA_BROKERS",
                "KAFKA_SASL_MECHANISM",
                "KAFKA_SASL_PASSWORD",
                "KAFKA_SSL_CERTIFICATE_FILE",
                "KAFKA_TOPIC",
                "SHARD",
                "RELAY_LISTEN",
            ]
        );
    }

    #[test]
    fn a_secret_comes_from_one_place_and_is_never_repeated() {
        let both = [
            ("DATABASE_URL", "postgres://u:hunter2@db/books"),
            ("DATABASE_URL_FILE", "/secret"),
            ("KAFKA_BROKERS", "kafka:9092"),
        ];
        let faults = read(&both).err().expect("two places are refused");
        assert_eq!(faults.len(), 1);
        assert!(!faults[0].to_string().contains("hunter2"));
        assert_eq!(faulty(&[("DATABASE_URL_FILE", "/nowhere"), ("KAFKA_BROKERS", "k:1")]), ["DATABASE_URL_FILE"]);
    }
}
