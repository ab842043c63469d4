//! What can go wrong, one sentence each, for the person who typed `cargo run`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use relay::HaltReason;

/// The result of everything here.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why the demo, or one of its commands, failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The demo's keys have no place in a production ledger.
    #[error(
        "ONCEPOST_PROFILE is production, and the demo's secrets and keys are not for that: unset it, or run the programs `api` \
         and `relay`"
    )]
    ProductionProfile,
    /// Seeding asks for the profile by name, as the database may be anybody's.
    #[error(
        "the demo's keys follow from its pepper, which anybody may know: set ONCEPOST_PROFILE=demo if that is what you want"
    )]
    DemoProfileMissing,
    /// The profile is neither of the two.
    #[error("ONCEPOST_PROFILE must be demo or production")]
    UnknownProfile,
    /// There is no private server, and no other was named.
    #[error("--external needs DATABASE_URL, such as postgres://user:password@host:5432/name")]
    DatabaseMissing,
    /// The folder holds something else.
    #[error("{} holds files that are not the demo's: name a new or empty folder with --data", folder.display())]
    FolderNotOurs {
        /// The folder.
        folder: PathBuf,
    },
    /// Another demo runs in the folder.
    #[error("another demo runs in {}: stop it, or name another folder with --data", folder.display())]
    FolderInUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The file with the secret that keys follow from was changed.
    #[error("{} is damaged: restore it, or start anew with --fresh", file.display())]
    SecretDamaged {
        /// The file.
        file: PathBuf,
    },
    /// The API's port is taken.
    #[error("the API cannot listen on port {port} of 127.0.0.1 ({source}): choose another with --port")]
    ApiPort {
        /// The port.
        port: u16,
        /// What the operating system said.
        source: io::Error,
    },
    /// The shop's port is taken.
    #[error("the shop cannot listen on port {port} ({source}): choose another with {option}")]
    ShopPort {
        /// What chooses it.
        option: &'static str,
        /// The port.
        port: u16,
        /// What the operating system said.
        source: io::Error,
    },
    /// Kafka's port is taken.
    #[error("Kafka's port {port} on 127.0.0.1 is taken by another process: choose another with --kafka-port")]
    KafkaPort {
        /// The port.
        port: u16,
    },
    /// As root, PostgreSQL's user cannot get into the data folder.
    #[error("{0}; --data names another folder, such as /var/lib/oncepost")]
    FolderClosed(stack::Error),
    /// A server.
    #[error(transparent)]
    Stack(stack::Error),
    /// The environment.
    #[error(transparent)]
    Config(#[from] process::environment::ConfigError),
    /// The database.
    #[error(transparent)]
    Database(#[from] ledger::DatabaseError),
    /// The books.
    #[error(transparent)]
    Ledger(#[from] ledger::OpenError),
    /// The tenant, the principal or its keys.
    #[error("the demo's tenant and keys cannot be made: {0}")]
    Principals(#[from] ledger::principal::PrincipalError),
    /// The keys.
    #[error("the demo's keys cannot be read: {0}")]
    Keys(#[from] ledger::ReadError),
    /// Every key that was tried is revoked or someone else's.
    #[error("the first {tried} keys that follow from the demo's secret are revoked or taken: start anew with --fresh")]
    KeysUsedUp {
        /// How many were tried.
        tried: u32,
    },
    /// The API refused what the demo starts with.
    #[error("the demo cannot {doing}: the API answered {status} {body}")]
    Refused {
        /// What was asked for.
        doing: String,
        /// The answer's status; 0 if there was none.
        status: u16,
        /// The answer's body.
        body: String,
    },
    /// An account that was opened long ago is not among those that can be listed.
    #[error("the account named {name} was opened before and cannot be found: start anew with --fresh")]
    AccountLost {
        /// Its name.
        name: &'static str,
    },
    /// The recorder of metrics.
    #[error("metrics cannot be recorded: {0}")]
    Metrics(#[from] process::recorder::BuildError),
    /// The relay stands still.
    #[error("the relay has halted, as {reason}; {} says what to do, and --fresh starts anew", reason.page())]
    RelayHalted {
        /// Why.
        reason: HaltReason,
    },
    /// The relay does not get to its position.
    #[error("the relay has not read its position from Kafka within {} s: it is {state}", within.as_secs())]
    RelayLate {
        /// How long it had.
        within: Duration,
        /// What it is doing.
        state: &'static str,
    },
    /// The relay ended.
    #[error(transparent)]
    RelayEnded(#[from] relay::RunError),
    /// The API ended.
    #[error("the API ended by itself")]
    ApiEnded,
    /// Events.
    #[error(transparent)]
    Events(#[from] relay::ReadEventsError),
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with the file it was done to.
        doing: String,
        /// What the operating system said.
        source: io::Error,
    },
}

impl From<stack::Error> for Error {
    fn from(error: stack::Error) -> Self {
        if matches!(error, stack::Error::FolderClosed { .. }) { Self::FolderClosed(error) } else { Self::Stack(error) }
    }
}

/// Adds to an I/O error what was being done to which path.
pub(crate) trait During<T> {
    fn during(self, doing: &str, path: &Path) -> Result<T>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, doing: &str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { doing: format!("cannot {doing} {}", path.display()), source })
    }
}
