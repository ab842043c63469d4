//! What can go wrong, one sentence each, written for the person who typed `cargo run`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server could not be started, signalled or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no Java to run Kafka with.
    #[error(
        "Apache Kafka needs Java {minimum} or newer and none was found: install one (Debian and Ubuntu: \
         default-jre-headless, Fedora: java-21-openjdk-headless, macOS: brew install openjdk) or set JAVA_HOME"
    )]
    JavaMissing {
        /// The oldest version that would do.
        minimum: u32,
    },

    /// There is a Java, and it is too old to run Kafka.
    #[error("Apache Kafka needs Java {minimum} or newer and {} is version {found}: install a newer one or set JAVA_HOME", java.display())]
    JavaTooOld {
        /// The program that was asked.
        java: PathBuf,
        /// The version it told.
        found: u32,
        /// The oldest version that would do.
        minimum: u32,
    },

    /// Kafka has not been fetched yet and there is no Maven to fetch it with.
    #[error(
        "Apache Kafka is fetched with Maven and no mvn was found: install it (Debian, Ubuntu and Fedora: maven, \
         macOS: brew install maven) or name it in MAVEN"
    )]
    MavenMissing,

    /// No PostgreSQL is published for this operating system and processor.
    #[error(
        "no PostgreSQL is published for {platform}: install PostgreSQL 15 to 18 and name its bin folder in ONCEPOST_POSTGRES_BIN"
    )]
    PlatformUnknown {
        /// The operating system and processor.
        platform: String,
    },

    /// `ONCEPOST_POSTGRES_BIN` names a folder without a server in it.
    #[error("ONCEPOST_POSTGRES_BIN names {}, which has no {program} in it", folder.display())]
    PostgresMissing {
        /// The folder named.
        folder: PathBuf,
        /// The program it lacks.
        program: &'static str,
    },

    /// Neither `ONCEPOST_CACHE` nor `HOME` says where fetched files can be kept.
    #[error("there is no folder to keep fetched files in: set ONCEPOST_CACHE or HOME")]
    CacheUnknown,

    /// Something could not be fetched.
    #[error("{what} could not be fetched: {reason}")]
    Fetch {
        /// What was being fetched.
        what: String,
        /// What the client that fetched it said.
        reason: String,
    },

    /// A fetched file is not the one that this crate was built with. Nothing of it is kept or run.
    #[error("{file} was fetched and is not the file expected: its SHA-256 is {found}, not {expected}")]
    Checksum {
        /// The file's name.
        file: String,
        /// The pinned sum, or `none` for a file that should not be there.
        expected: String,
        /// The sum of what came, or `none` for a file that did not come.
        found: String,
    },

    /// Another process owns the data folder.
    #[error("{} is in use by another process", folder.display())]
    FolderInUse {
        /// The data folder.
        folder: PathBuf,
    },

    /// As root, PostgreSQL runs as an unprivileged user, and that user cannot get to a folder it needs.
    #[error(
        "PostgreSQL does not run as root, and the unprivileged user {user} that it runs as cannot enter {}: use a folder elsewhere, \
         or let others enter this one (chmod o+x)",
        folder.display()
    )]
    FolderClosed {
        /// The folder that cannot be entered.
        folder: PathBuf,
        /// The numeric id of the unprivileged user.
        user: u32,
    },

    /// The port asked for is taken.
    #[error("port {port} on 127.0.0.1 is taken by another process")]
    PortTaken {
        /// The port asked for.
        port: u16,
    },

    /// No free port was found.
    #[error("no free port was found on 127.0.0.1 in {tries} tries")]
    PortsExhausted {
        /// How many ports were tried.
        tries: u32,
    },

    /// A program ended, and should not have, or ended badly.
    #[error("{what} failed ({status}); the end of {}:\n{tail}", log.display())]
    Failed {
        /// The program.
        what: &'static str,
        /// How it ended.
        status: String,
        /// The file with all that it printed.
        log: PathBuf,
        /// The last lines of that file.
        tail: String,
    },

    /// A program took longer than it may.
    #[error("{what} was not done within {} s; the end of {}:\n{tail}", bound.as_secs(), log.display())]
    Slow {
        /// The program.
        what: &'static str,
        /// How long it may take.
        bound: Duration,
        /// The file with all that it printed.
        log: PathBuf,
        /// The last lines of that file.
        tail: String,
    },

    /// The server is not running, so it cannot be paused or resumed.
    #[error("{what} is not running")]
    NotRunning {
        /// The server.
        what: &'static str,
    },

    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with the file or program it was done to.
        doing: String,
        /// What the operating system said.
        source: io::Error,
    },
}

impl Error {
    /// Says whether Kafka cannot be had because the machine lacks Java or Maven: the demo then says so and runs on
    /// without Kafka. Every other error is a fault to show and to stop at.
    #[must_use]
    pub fn tool_missing(&self) -> bool {
        matches!(self, Error::JavaMissing { .. } | Error::JavaTooOld { .. } | Error::MavenMissing)
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
