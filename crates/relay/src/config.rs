//! What the relay is told by its environment.

use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use ledger::{Database, Shard};
pub use process::environment::Profile;
use process::environment::{
    self, Bounds, ConfigError, DATABASE_URL, LOG_FORMAT, OTEL_EXPORTER_OTLP_ENDPOINT, RUST_LOG, Reader, Unset, Variable,
};
use process::traces;
use rdkafka::ClientConfig;
use secrecy::{ExposeSecret, SecretString};

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
    /// Where traces go, if anywhere.
    pub traces: Option<traces::Settings>,
}

const PROFILE: Variable = Variable::plain(
    "ONCEPOST_PROFILE",
    Unset::Default("production"),
    Bounds::OneOf(&["production", "demo"]),
    "In `production` new topics have three replicas; in `demo` one broker is enough.",
);
const KAFKA_BROKERS: Variable = Variable::plain(
    "KAFKA_BROKERS",
    Unset::Refused,
    Bounds::Form("host:port, several separated by commas"),
    "Where Kafka is.",
);
const KAFKA_SECURITY_PROTOCOL: Variable = Variable::plain(
    "KAFKA_SECURITY_PROTOCOL",
    Unset::Default("plaintext"),
    Bounds::OneOf(&["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]),
    "How the brokers are spoken to.",
);
const KAFKA_SASL_MECHANISM: Variable = Variable::plain(
    "KAFKA_SASL_MECHANISM",
    Unset::Nothing,
    Bounds::OneOf(&["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
    "How the relay proves who it is; needed where the protocol begins with `sasl_`, as are the name and the password.",
);
const KAFKA_SASL_USERNAME: Variable = Variable::plain(
    "KAFKA_SASL_USERNAME",
    Unset::Nothing,
    Bounds::Form("a name that Kafka knows"),
    "Whom the relay logs in as.",
);
const KAFKA_SASL_PASSWORD: Variable = Variable::secret(
    "KAFKA_SASL_PASSWORD",
    Unset::Nothing,
    Bounds::Form("that user's password"),
    "What it logs in with.",
);
const KAFKA_SSL_CA_FILE: Variable = Variable::plain(
    "KAFKA_SSL_CA_FILE",
    Unset::Nothing,
    Bounds::Form("a file of certificates in PEM"),
    "The authorities that the brokers' certificates are checked against; the system's unless set.",
);
const KAFKA_SSL_CERTIFICATE_FILE: Variable = Variable::plain(
    "KAFKA_SSL_CERTIFICATE_FILE",
    Unset::Nothing,
    Bounds::Form("a file with a certificate in PEM"),
    "The relay's own certificate, for mutual TLS; it goes together with its key.",
);
const KAFKA_SSL_KEY_FILE: Variable = Variable::plain(
    "KAFKA_SSL_KEY_FILE",
    Unset::Nothing,
    Bounds::Form("a file with a private key in PEM"),
    "The key of that certificate.",
);
const KAFKA_SSL_KEY_PASSWORD: Variable = Variable::secret(
    "KAFKA_SSL_KEY_PASSWORD",
    Unset::Nothing,
    Bounds::Form("that key's password"),
    "What the key's file is locked with, if it is.",
);
const KAFKA_TOPIC: Variable = Variable::plain(
    "KAFKA_TOPIC",
    Unset::Default("transfers"),
    Bounds::Form(NAME_FORM),
    "The topic of the events. The relay makes it where it is missing.",
);
const KAFKA_POSITION_TOPIC: Variable = Variable::plain(
    "KAFKA_POSITION_TOPIC",
    Unset::Default("relay-position"),
    Bounds::Form(NAME_FORM),
    "The topic that the position's offsets are named by. Nothing is ever written into it.",
);
const KAFKA_POSITION_GROUP: Variable = Variable::plain(
    "KAFKA_POSITION_GROUP",
    Unset::Default("oncepost-relay"),
    Bounds::Form(NAME_FORM),
    "The group that the position is committed under. Nobody may ever subscribe with it.",
);
const KAFKA_PARTITIONS: Variable = Variable::plain(
    "KAFKA_PARTITIONS",
    Unset::Default("6"),
    Bounds::Number(1, 1_000),
    "How many partitions the topic of the events is made with.",
);
const KAFKA_REPLICATION_FACTOR: Variable = Variable::plain(
    "KAFKA_REPLICATION_FACTOR",
    Unset::ByProfile { production: "3", demo: "1" },
    Bounds::Number(1, 15),
    "How many brokers hold each partition of a topic that the relay makes.",
);
const KAFKA_MIN_INSYNC_REPLICAS: Variable = Variable::plain(
    "KAFKA_MIN_INSYNC_REPLICAS",
    Unset::ByProfile { production: "2", demo: "1" },
    Bounds::Number(1, 15),
    "How many of them must have a record before it counts as written: never more than there are, and the default shrinks with them.",
);
/// One relay publishes one shard.
const SHARD: Variable =
    Variable::plain("SHARD", Unset::Default("0"), Bounds::Number(0, 999), "Which shard's events are published.");
/// 2,000 events of about 1 KB are 2 MB, some 30 ms of work on one core, well below the 15 s of a Kafka transaction.
const RELAY_BATCH_ROWS: Variable = Variable::plain(
    "RELAY_BATCH_ROWS",
    Unset::Default("2000"),
    Bounds::Number(1, 20_000),
    "The most events in one Kafka transaction.",
);
/// 4 MiB: it bounds the relay's memory where events are long.
const RELAY_BATCH_BYTES: Variable = Variable::plain(
    "RELAY_BATCH_BYTES",
    Unset::Default("4194304"),
    Bounds::Number(1_024, 64 * 1024 * 1024),
    "How many bytes of payload end a Kafka transaction.",
);
/// An hour: 168 chances before Kafka's default of seven days is over.
const RELAY_POSITION_RENEWAL_SECONDS: Variable = Variable::plain(
    "RELAY_POSITION_RENEWAL_SECONDS",
    Unset::Default("3600"),
    Bounds::Number(1, 86_400),
    "How often the position is written again while nothing happens, in seconds: Kafka forgets the offsets of an unused group.",
);
const RELAY_LISTEN: Variable = Variable::plain(
    "RELAY_LISTEN",
    Unset::Default("127.0.0.1:9464"),
    Bounds::Form("an address and port such as 127.0.0.1:9464"),
    "Where `/livez`, `/readyz` and `/metrics` are served.",
);
/// What Kafka takes for a topic; a group's name may be anything, but need not.
const NAME_FORM: &str = "a name that Kafka takes: 1 to 249 letters, digits, `.`, `_` and `-`";
/// The most characters of such a name.
const NAME_MAX: usize = 249;

/// Every variable that the relay reads.
pub const VARIABLES: [&Variable; 25] = [
    &DATABASE_URL,
    &PROFILE,
    &KAFKA_BROKERS,
    &KAFKA_SECURITY_PROTOCOL,
    &KAFKA_SASL_MECHANISM,
    &KAFKA_SASL_USERNAME,
    &KAFKA_SASL_PASSWORD,
    &KAFKA_SSL_CA_FILE,
    &KAFKA_SSL_CERTIFICATE_FILE,
    &KAFKA_SSL_KEY_FILE,
    &KAFKA_SSL_KEY_PASSWORD,
    &KAFKA_TOPIC,
    &KAFKA_POSITION_TOPIC,
    &KAFKA_POSITION_GROUP,
    &KAFKA_PARTITIONS,
    &KAFKA_REPLICATION_FACTOR,
    &KAFKA_MIN_INSYNC_REPLICAS,
    &SHARD,
    &RELAY_BATCH_ROWS,
    &RELAY_BATCH_BYTES,
    &RELAY_POSITION_RENEWAL_SECONDS,
    &RELAY_LISTEN,
    &OTEL_EXPORTER_OTLP_ENDPOINT,
    &RUST_LOG,
    &LOG_FORMAT,
];

impl Settings {
    /// The settings for a Kafka at `brokers` that needs no credentials, everything else by default.
    #[must_use]
    pub fn new(database: Database, brokers: impl Into<String>, profile: Profile) -> Self {
        let nothing_set = |_: &str| None::<OsString>;
        Variables(Reader::new(nothing_set).in_profile(profile)).settings(brokers.into())(database)
    }
}

impl Config {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn from_environment() -> Result<Self, ConfigError> {
        Self::read(environment::process_variables())
    }

    fn read<F: Fn(&str) -> Option<V>, V: Into<OsString>>(mut reader: Reader<F>) -> Result<Self, ConfigError> {
        reader.read_profile(&PROFILE);
        let database = reader.database();
        let brokers = reader.parsed(&KAFKA_BROKERS, |text| text.split(',').all(broker).then(|| text.to_owned()));
        let mut variables = Variables(reader);
        let settings = variables.settings(brokers.unwrap_or_default());
        let Variables(mut reader) = variables;
        let listen = reader.parsed(&RELAY_LISTEN, |text| text.parse().ok());
        // Every span here continues a request's, which has been chosen already.
        let traces = reader.traces(1.0);
        reader.judge_log();
        let read = database.zip(listen);
        reader.finish(read.map(|(database, listen)| Self { settings: settings(database), listen, traces }))
    }
}

/// Whether a text names a host and its port.
fn broker(text: &str) -> bool {
    text.trim().rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Reads what Kafka and the relay's own work need.
struct Variables<F>(Reader<F>);

impl<F: Fn(&str) -> Option<V>, V: Into<OsString>> Variables<F> {
    /// A number; 0 where it is refused, which nobody gets to see.
    fn number<N: FromStr + Default>(&mut self, variable: &Variable) -> N {
        self.0.parsed(variable, |text| text.parse().ok()).unwrap_or_default()
    }

    /// The path of a file that can be read: librdkafka would only complain of it again and again.
    fn path(&mut self, variable: &Variable) -> Option<String> {
        let path = self.0.text(variable)?;
        if let Err(error) = File::open(&path) {
            self.0.fault(variable.name, format!("names a file that can't be read: {}", error.kind()));
        }
        Some(path)
    }

    /// A name as Kafka takes it for topics and groups.
    fn name(&mut self, variable: &Variable) -> String {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let legal = |name: &str| name.len() <= NAME_MAX && name != "." && name != ".." && name.chars().all(legal);
        self.0.parsed(variable, |name| legal(name).then(|| name.to_owned())).unwrap_or_default()
    }

    /// Everything but the database.
    fn settings(&mut self, brokers: String) -> impl FnOnce(Database) -> Settings + use<V, F> {
        let replication_factor = self.number(&KAFKA_REPLICATION_FACTOR);
        let kafka = Kafka {
            brokers,
            security: self.security(),
            topic: self.name(&KAFKA_TOPIC),
            position_topic: self.name(&KAFKA_POSITION_TOPIC),
            group: self.name(&KAFKA_POSITION_GROUP),
            partitions: self.number(&KAFKA_PARTITIONS),
            replication_factor,
            min_insync_replicas: self.min_insync_replicas(replication_factor),
        };
        let shard = Shard(self.number(&SHARD));
        let batch_rows = self.number(&RELAY_BATCH_ROWS);
        let batch_bytes = self.number(&RELAY_BATCH_BYTES);
        let renewal = Duration::from_secs(self.number(&RELAY_POSITION_RENEWAL_SECONDS));
        move |database| Settings { database, shard, kafka, batch_rows, batch_bytes, renewal }
    }

    /// A factor below the profile's pulls the profile's minimum down with it; otherwise nothing could be written. A minimum
    /// that someone has chosen is never changed.
    fn min_insync_replicas(&mut self, replication_factor: i32) -> i32 {
        let minimum: i32 = self.number(&KAFKA_MIN_INSYNC_REPLICAS);
        if (1..minimum).contains(&replication_factor) && self.0.given(KAFKA_MIN_INSYNC_REPLICAS.name).is_some() {
            self.0.fault(KAFKA_MIN_INSYNC_REPLICAS.name, "must not be more than KAFKA_REPLICATION_FACTOR");
        }
        minimum.min(replication_factor)
    }

    fn security(&mut self) -> Security {
        let security = Security {
            protocol: self.0.text(&KAFKA_SECURITY_PROTOCOL),
            mechanism: self.0.text(&KAFKA_SASL_MECHANISM),
            username: self.0.text(&KAFKA_SASL_USERNAME),
            password: self.0.secret(&KAFKA_SASL_PASSWORD),
            ca_file: self.path(&KAFKA_SSL_CA_FILE),
            certificate_file: self.path(&KAFKA_SSL_CERTIFICATE_FILE),
            key_file: self.path(&KAFKA_SSL_KEY_FILE),
            key_password: self.0.secret(&KAFKA_SSL_KEY_PASSWORD),
        };
        if security.protocol.as_deref().is_some_and(|name| name.starts_with("sasl_")) {
            let given = [
                (&KAFKA_SASL_MECHANISM, security.mechanism.is_some()),
                (&KAFKA_SASL_USERNAME, security.username.is_some()),
                (&KAFKA_SASL_PASSWORD, security.password.is_some()),
            ];
            for (variable, _) in given.iter().filter(|(_, given)| !given) {
                let name = variable.name;
                if !self.0.faulty(name) {
                    self.0.fault(name, "must be set where KAFKA_SECURITY_PROTOCOL asks for SASL");
                }
            }
        }
        if security.certificate_file.is_some() != security.key_file.is_some() {
            self.0.fault("KAFKA_SSL_CERTIFICATE_FILE", "and KAFKA_SSL_KEY_FILE go together; set both or none");
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
    use std::cell::RefCell;
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        Config::read(Reader::new(|name: &str| variables.get(name).map(|value| (*value).to_owned())))
    }

    fn faulty(variables: &[(&str, &str)]) -> Vec<String> {
        let faults = read(variables).err().expect("the environment is faulty");
        faults.0.into_iter().map(|fault| fault.variable).collect()
    }

    #[test]
    fn two_variables_are_enough() {
        let config = read(&[("DATABASE_URL", "postgres://db/books"), ("KAFKA_BROKERS", "kafka:9092")]).ok().unwrap();
        assert_eq!(config.settings.kafka.topic, "transfers");
        assert_eq!((config.settings.kafka.replication_factor, config.settings.kafka.min_insync_replicas), (3, 2));
        assert_eq!(config.settings.kafka.partitions, 6);
        assert_eq!(config.listen.to_string(), "127.0.0.1:9464");
    }

    #[test]
    fn the_demo_profile_makes_topics_on_one_broker() {
        let config = read(&[
            ("DATABASE_URL", "postgres://db/books"),
            ("KAFKA_BROKERS", "kafka:9092"),
            ("ONCEPOST_PROFILE", "demo"),
        ])
        .ok()
        .unwrap();
        assert_eq!((config.settings.kafka.replication_factor, config.settings.kafka.min_insync_replicas), (1, 1));
    }

    #[test]
    fn a_smaller_replication_factor_brings_a_smaller_minimum() {
        let config = read(&[
            ("DATABASE_URL", "postgres://db/books"),
            ("KAFKA_BROKERS", "kafka:9092"),
            ("KAFKA_REPLICATION_FACTOR", "1"),
        ])
        .ok()
        .unwrap();
        assert_eq!(config.settings.kafka.min_insync_replicas, 1);
    }

    #[test]
    fn a_minimum_that_is_chosen_is_not_more_than_there_are() {
        let more = [
            ("DATABASE_URL", "postgres://db/books"),
            ("KAFKA_BROKERS", "kafka:9092"),
            ("KAFKA_REPLICATION_FACTOR", "2"),
            ("KAFKA_MIN_INSYNC_REPLICAS", "3"),
        ];
        assert_eq!(faulty(&more), ["KAFKA_MIN_INSYNC_REPLICAS"]);
        let config = read(&more[..3]).ok().unwrap();
        assert_eq!((config.settings.kafka.replication_factor, config.settings.kafka.min_insync_replicas), (2, 2));
    }

    #[test]
    fn the_table_holds_every_variable_that_is_read() {
        let asked = RefCell::new(BTreeSet::new());
        let nothing = |name: &str| {
            asked.borrow_mut().insert(name.to_owned());
            None::<OsString>
        };
        assert!(Config::read(Reader::new(nothing)).is_err());
        let known = VARIABLES.iter().flat_map(|variable| {
            let file = variable.secret.then(|| format!("{}_FILE", variable.name));
            [Some(variable.name.to_owned()), file].into_iter().flatten()
        });
        assert_eq!(asked.into_inner(), known.collect());
    }

    #[test]
    fn numbers_are_taken_up_to_their_bounds() {
        for variable in VARIABLES {
            let Bounds::Number(min, max) = variable.bounds else { continue };
            let (min, max) = (i128::from(min), i128::from(max));
            for (number, taken) in [(min - 1, false), (min, true), (max, true), (max + 1, false)] {
                let number = number.to_string();
                let set = [
                    ("DATABASE_URL", "postgres://db/books"),
                    ("KAFKA_BROKERS", "kafka:9092"),
                    // The most there may be, so that any minimum goes with it.
                    ("KAFKA_REPLICATION_FACTOR", "15"),
                    (variable.name, &number),
                ];
                assert_eq!(read(&set).is_ok(), taken, "{} = {number}", variable.name);
            }
        }
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
                ("KAFKA_SSL_KEY_FILE", "/nowhere"),
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
                ("RUST_LOG", "relay=loud"),
                ("LOG_FORMAT", "xml"),
            ]),
            [
                "ONCEPOST_PROFILE",
                "DATABASE_URL",
                "KAFKA_BROKERS",
                "KAFKA_SSL_KEY_FILE",
                "KAFKA_SASL_MECHANISM",
                "KAFKA_SASL_PASSWORD",
                "KAFKA_SSL_CERTIFICATE_FILE",
                "KAFKA_TOPIC",
                "SHARD",
                "RELAY_LISTEN",
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "RUST_LOG",
                "LOG_FORMAT",
            ]
        );
    }
}
