//! What the relay is told by its environment, every fault of it at once.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use ledger::{Database, Shard};
use process::traces;
use rdkafka::ClientConfig;
use secrecy::{ExposeSecret, SecretString};
use tracing_subscriber::EnvFilter;

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
    /// Where traces go, if anywhere.
    pub traces: Option<traces::Settings>,
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
    /// The relay goes without.
    Nothing,
    /// This value, which is read as if it were set.
    Default(&'static str),
    /// One of these values, by the profile.
    ByProfile {
        /// The value in [`Profile::Production`].
        production: &'static str,
        /// The value in [`Profile::Demo`].
        demo: &'static str,
    },
}

/// What a value must be. It is shown as the rest of a sentence that begins with the variable and "must be".
#[derive(Clone, Copy, Debug)]
pub enum Bounds {
    /// A whole number within a range, both ends included.
    Number(i64, i64),
    /// One of these words; upper and lower case are the same.
    OneOf(&'static [&'static str]),
    /// Told in words; whoever reads the value judges it.
    Form(&'static str),
}

impl Bounds {
    fn allow(&self, text: &str) -> bool {
        match self {
            Self::Number(min, max) => text.parse().is_ok_and(|number: i64| (*min..=*max).contains(&number)),
            Self::OneOf(words) => words.iter().any(|word| word.eq_ignore_ascii_case(text)),
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

const DATABASE_URL: Variable = secret(
    "DATABASE_URL",
    Unset::Refused,
    Bounds::Form("a URL such as postgres://user:password@host:5432/name"),
    "Where the API's PostgreSQL is.",
);
const PROFILE: Variable = plain(
    "ONCEPOST_PROFILE",
    Unset::Default("production"),
    Bounds::OneOf(&["production", "demo"]),
    "In `production` new topics have three replicas; in `demo` one broker is enough.",
);
const KAFKA_BROKERS: Variable =
    plain("KAFKA_BROKERS", Unset::Refused, Bounds::Form("host:port, several separated by commas"), "Where Kafka is.");
const KAFKA_SECURITY_PROTOCOL: Variable = plain(
    "KAFKA_SECURITY_PROTOCOL",
    Unset::Default("plaintext"),
    Bounds::OneOf(&["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]),
    "How the brokers are spoken to.",
);
const KAFKA_SASL_MECHANISM: Variable = plain(
    "KAFKA_SASL_MECHANISM",
    Unset::Nothing,
    Bounds::OneOf(&["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
    "How the relay proves who it is; needed where the protocol begins with `sasl_`, as are the name and the password.",
);
const KAFKA_SASL_USERNAME: Variable =
    plain("KAFKA_SASL_USERNAME", Unset::Nothing, Bounds::Form("a name that Kafka knows"), "Whom the relay logs in as.");
const KAFKA_SASL_PASSWORD: Variable =
    secret("KAFKA_SASL_PASSWORD", Unset::Nothing, Bounds::Form("that user's password"), "What it logs in with.");
const KAFKA_SSL_CA_FILE: Variable = plain(
    "KAFKA_SSL_CA_FILE",
    Unset::Nothing,
    Bounds::Form("a file of certificates in PEM"),
    "The authorities that the brokers' certificates are checked against; the system's unless set.",
);
const KAFKA_SSL_CERTIFICATE_FILE: Variable = plain(
    "KAFKA_SSL_CERTIFICATE_FILE",
    Unset::Nothing,
    Bounds::Form("a file with a certificate in PEM"),
    "The relay's own certificate, for mutual TLS; it goes together with its key.",
);
const KAFKA_SSL_KEY_FILE: Variable = plain(
    "KAFKA_SSL_KEY_FILE",
    Unset::Nothing,
    Bounds::Form("a file with a private key in PEM"),
    "The key of that certificate.",
);
const KAFKA_SSL_KEY_PASSWORD: Variable = secret(
    "KAFKA_SSL_KEY_PASSWORD",
    Unset::Nothing,
    Bounds::Form("that key's password"),
    "What the key's file is locked with, if it is.",
);
const KAFKA_TOPIC: Variable = plain(
    "KAFKA_TOPIC",
    Unset::Default("transfers"),
    Bounds::Form(NAME_FORM),
    "The topic of the events. The relay makes it where it is missing.",
);
const KAFKA_POSITION_TOPIC: Variable = plain(
    "KAFKA_POSITION_TOPIC",
    Unset::Default("relay-position"),
    Bounds::Form(NAME_FORM),
    "The topic that the position's offsets are named by. Nothing is ever written into it.",
);
const KAFKA_POSITION_GROUP: Variable = plain(
    "KAFKA_POSITION_GROUP",
    Unset::Default("oncepost-relay"),
    Bounds::Form(NAME_FORM),
    "The group that the position is committed under. Nobody may ever subscribe with it.",
);
const KAFKA_PARTITIONS: Variable = plain(
    "KAFKA_PARTITIONS",
    Unset::Default("6"),
    Bounds::Number(1, 1_000),
    "How many partitions the topic of the events is made with.",
);
const KAFKA_REPLICATION_FACTOR: Variable = plain(
    "KAFKA_REPLICATION_FACTOR",
    Unset::ByProfile { production: "3", demo: "1" },
    Bounds::Number(1, 15),
    "How many brokers hold each partition of a topic that the relay makes.",
);
const KAFKA_MIN_INSYNC_REPLICAS: Variable = plain(
    "KAFKA_MIN_INSYNC_REPLICAS",
    Unset::ByProfile { production: "2", demo: "1" },
    Bounds::Number(1, 15),
    "How many of them must have a record before it counts as written: never more than there are, and the default shrinks with them.",
);
/// One relay publishes one shard.
const SHARD: Variable =
    plain("SHARD", Unset::Default("0"), Bounds::Number(0, 999), "Which shard's events are published.");
/// 2,000 events of about 1 KB are 2 MB, some 30 ms of work on one core, well below the 15 s of a Kafka transaction.
const RELAY_BATCH_ROWS: Variable = plain(
    "RELAY_BATCH_ROWS",
    Unset::Default("2000"),
    Bounds::Number(1, 20_000),
    "The most events in one Kafka transaction.",
);
/// 4 MiB: it bounds the relay's memory where events are long.
const RELAY_BATCH_BYTES: Variable = plain(
    "RELAY_BATCH_BYTES",
    Unset::Default("4194304"),
    Bounds::Number(1_024, 64 * 1024 * 1024),
    "How many bytes of payload end a Kafka transaction.",
);
/// An hour: 168 chances before Kafka's default of seven days is over.
const RELAY_POSITION_RENEWAL_SECONDS: Variable = plain(
    "RELAY_POSITION_RENEWAL_SECONDS",
    Unset::Default("3600"),
    Bounds::Number(1, 86_400),
    "How often the position is written again while nothing happens, in seconds: Kafka forgets the offsets of an unused group.",
);
const RELAY_LISTEN: Variable = plain(
    "RELAY_LISTEN",
    Unset::Default("127.0.0.1:9464"),
    Bounds::Form("an address and port such as 127.0.0.1:9464"),
    "Where `/livez`, `/readyz` and `/metrics` are served.",
);
const OTEL_EXPORTER_OTLP_ENDPOINT: Variable = plain(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    Unset::Nothing,
    Bounds::Form("a URL that begins with http://, such as http://collector:4318"),
    "The OpenTelemetry collector that traces are sent to, by OTLP over HTTP; none are recorded unless set. Which events are traced was decided with their requests.",
);
const RUST_LOG: Variable = plain(
    "RUST_LOG",
    Unset::Default("info"),
    Bounds::Form("levels such as info or warn,relay=debug"),
    "Which lines are logged.",
);
const LOG_FORMAT: Variable = plain(
    "LOG_FORMAT",
    Unset::Nothing,
    Bounds::OneOf(&["text", "json"]),
    "The form of the log's lines; unless set, `text` at a terminal and `json` everywhere else.",
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
        let no_files = |_: &str| Err(std::io::ErrorKind::NotFound);
        let mut reader = Reader { variable: nothing_set, file: no_files, profile, faults: Vec::new() };
        reader.settings(brokers.into())(database)
    }
}

impl Config {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn from_environment() -> Result<Self, Vec<Fault>> {
        Self::read(|name| std::env::var_os(name), |path| std::fs::read_to_string(path).map_err(|error| error.kind()))
    }

    /// Reads variables and the files that they name.
    fn read<T: Into<OsString>>(
        variable: impl Fn(&str) -> Option<T>,
        file: impl Fn(&str) -> Result<String, std::io::ErrorKind>,
    ) -> Result<Self, Vec<Fault>> {
        let mut reader = Reader { variable, file, profile: Profile::Production, faults: Vec::new() };
        if reader.text(&PROFILE).is_some_and(|name| name.eq_ignore_ascii_case("demo")) {
            reader.profile = Profile::Demo;
        }
        let database = reader.database();
        let brokers = reader.parsed(&KAFKA_BROKERS, |text| text.split(',').all(broker).then(|| text.to_owned()));
        let settings = reader.settings(brokers.unwrap_or_default());
        let listen = reader.parsed(&RELAY_LISTEN, |text| text.parse().ok());
        let endpoint =
            reader.parsed(&OTEL_EXPORTER_OTLP_ENDPOINT, |text| text.starts_with("http://").then(|| text.to_owned()));
        // Every span here continues a request's, which has been chosen already.
        let traces = endpoint.map(|endpoint| traces::Settings { endpoint, ratio: 1.0 });
        // The log begins after this and reads these two itself. Here they are only judged.
        reader.parsed(&RUST_LOG, |text| EnvFilter::try_new(text).ok());
        reader.parsed(&LOG_FORMAT, |_| Some(()));
        match (database, listen) {
            (Some(database), Some(listen)) if reader.faults.is_empty() => {
                Ok(Self { settings: settings(database), listen, traces, profile: reader.profile })
            }
            _ => Err(reader.faults),
        }
    }
}

/// Whether a text names a host and its port.
fn broker(text: &str) -> bool {
    text.trim().rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Reads one variable after the other and gathers what is wrong with them.
struct Reader<V, F> {
    variable: V,
    file: F,
    profile: Profile,
    faults: Vec<Fault>,
}

impl<T, V, F> Reader<V, F>
where
    T: Into<OsString>,
    V: Fn(&str) -> Option<T>,
    F: Fn(&str) -> Result<String, std::io::ErrorKind>,
{
    fn fault(&mut self, variable: &str, problem: impl Into<String>) {
        self.faults.push(Fault { variable: variable.to_owned(), problem: problem.into() });
    }

    /// What is set. An empty variable counts as none: that is how compose files leave one out.
    fn given(&mut self, name: &str) -> Option<String> {
        match (self.variable)(name)?.into().into_string() {
            Ok(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            Err(_) => {
                self.fault(name, "is not UTF-8");
                None
            }
        }
    }

    /// What is set within its bounds, or the default; `None` where there is neither, or it is refused.
    fn text(&mut self, variable: &Variable) -> Option<String> {
        let before = self.faults.len();
        let default = match (self.given(variable.name), variable.unset, self.profile) {
            (Some(text), ..) if variable.bounds.allow(&text) => return Some(text),
            (Some(_), ..) => {
                self.fault(variable.name, format!("must be {}", variable.bounds));
                return None;
            }
            (None, Unset::Refused, _) => {
                if self.faults.len() == before {
                    self.fault(variable.name, format!("must be set to {}", variable.bounds));
                }
                return None;
            }
            (None, Unset::Nothing, _) => return None,
            (None, Unset::Default(value), _)
            | (None, Unset::ByProfile { production: value, .. }, Profile::Production)
            | (None, Unset::ByProfile { demo: value, .. }, Profile::Demo) => value,
        };
        Some(default.to_owned())
    }

    fn parsed<P>(&mut self, variable: &Variable, parse: impl FnOnce(&str) -> Option<P>) -> Option<P> {
        let text = self.text(variable)?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.fault(variable.name, format!("must be {}", variable.bounds));
        }
        parsed
    }

    /// A number; 0 where it is refused, which nobody gets to see.
    fn number<N: FromStr + Default>(&mut self, variable: &Variable) -> N {
        self.parsed(variable, |text| text.parse().ok()).unwrap_or_default()
    }

    /// A secret from the variable, or from the file that the variable with `_FILE` names.
    fn secret(&mut self, variable: &Variable) -> Option<SecretString> {
        let (name, file_name) = (variable.name, format!("{}_FILE", variable.name));
        let before = self.faults.len();
        match (self.given(name), self.given(&file_name)) {
            (Some(_), Some(_)) => self.fault(name, format!("and {file_name} are both set; set one")),
            (Some(value), None) => return Some(value.into()),
            (None, Some(path)) => match (self.file)(&path) {
                Ok(text) => return Some(text.trim().into()),
                Err(kind) => self.fault(&file_name, format!("names a file that can't be read: {kind}")),
            },
            (None, None) => {
                if matches!(variable.unset, Unset::Refused) && self.faults.len() == before {
                    self.fault(name, format!("or {file_name} must be set to {}", variable.bounds));
                }
            }
        }
        None
    }

    /// The path of a file that can be read: librdkafka would only complain of it again and again.
    fn path(&mut self, variable: &Variable) -> Option<String> {
        let path = self.text(variable)?;
        if let Err(kind) = (self.file)(&path) {
            self.fault(variable.name, format!("names a file that can't be read: {kind}"));
        }
        Some(path)
    }

    fn database(&mut self) -> Option<Database> {
        let url = self.secret(&DATABASE_URL)?;
        let database = Database::from_url(url.expose_secret()).ok();
        if database.is_none() {
            self.fault(DATABASE_URL.name, format!("must be {}", DATABASE_URL.bounds));
        }
        database
    }

    /// A name as Kafka takes it for topics and groups.
    fn name(&mut self, variable: &Variable) -> String {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let legal = |name: &str| name.len() <= NAME_MAX && name != "." && name != ".." && name.chars().all(legal);
        self.parsed(variable, |name| legal(name).then(|| name.to_owned())).unwrap_or_default()
    }

    /// Everything but the database.
    fn settings(&mut self, brokers: String) -> impl FnOnce(Database) -> Settings + use<T, V, F> {
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
        if (1..minimum).contains(&replication_factor) && self.given(KAFKA_MIN_INSYNC_REPLICAS.name).is_some() {
            self.fault(KAFKA_MIN_INSYNC_REPLICAS.name, "must not be more than KAFKA_REPLICATION_FACTOR");
        }
        minimum.min(replication_factor)
    }

    fn security(&mut self) -> Security {
        let security = Security {
            protocol: self.text(&KAFKA_SECURITY_PROTOCOL).map(|name| name.to_ascii_lowercase()),
            mechanism: self.text(&KAFKA_SASL_MECHANISM).map(|name| name.to_ascii_uppercase()),
            username: self.text(&KAFKA_SASL_USERNAME),
            password: self.secret(&KAFKA_SASL_PASSWORD),
            ca_file: self.path(&KAFKA_SSL_CA_FILE),
            certificate_file: self.path(&KAFKA_SSL_CERTIFICATE_FILE),
            key_file: self.path(&KAFKA_SSL_KEY_FILE),
            key_password: self.secret(&KAFKA_SSL_KEY_PASSWORD),
        };
        if security.protocol.as_deref().is_some_and(|name| name.starts_with("sasl_")) {
            let given = [
                (&KAFKA_SASL_MECHANISM, security.mechanism.is_some()),
                (&KAFKA_SASL_USERNAME, security.username.is_some()),
                (&KAFKA_SASL_PASSWORD, security.password.is_some()),
            ];
            for (variable, _) in given.iter().filter(|(_, given)| !given) {
                let name = variable.name;
                if !self.faults.iter().any(|fault| fault.variable == name) {
                    self.fault(name, "must be set where KAFKA_SECURITY_PROTOCOL asks for SASL");
                }
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
    use std::cell::RefCell;
    use std::collections::{BTreeSet, HashMap};

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
    fn a_minimum_that_is_chosen_is_not_more_than_there_are() {
        let more = [
            ("DATABASE_URL_FILE", "/secret"),
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
        assert!(Config::read(nothing, |_| Ok(String::new())).is_err());
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
            for (number, taken) in [(min - 1, false), (min, true), (max, true), (max + 1, false)] {
                let number = number.to_string();
                let set = [
                    ("DATABASE_URL_FILE", "/secret"),
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
