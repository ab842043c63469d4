//! What can go wrong, one sentence each, for the person at the terminal.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The result of everything here.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a command can't do its work.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The URL is not one of plain HTTP.
    #[error(
        "{url} is not a URL such as http://127.0.0.1:8080; load speaks plain HTTP only, so point it behind whatever ends TLS"
    )]
    Url {
        /// As it was given.
        url: String,
    },
    /// The API key can't stand in a header.
    #[error("the API key holds a byte that no header can carry")]
    Key,
    /// The operating system said no.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// Why not.
        source: io::Error,
    },
    /// A result can't be read or written.
    #[error("{} is not a result of `load run --json`: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
    /// The API did not do what a load needs before it begins.
    #[error("cannot {doing}: the API answered {answer}")]
    Refused {
        /// What was asked for.
        doing: &'static str,
        /// Status and body.
        answer: String,
    },
    /// Too few accounts for the mix.
    #[error("{mix} needs {needed} accounts, and there are {found}")]
    TooFewAccounts {
        /// The mix.
        mix: &'static str,
        /// How many it needs.
        needed: usize,
        /// How many there are.
        found: usize,
    },
    /// A line of the accounts' file is no account's id.
    #[error("line {line} of {} is not an account's id", path.display())]
    BadAccount {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The two results are of different loads.
    #[error("the results can't be compared: one is of {one}, the other of {other}")]
    DifferentLoads {
        /// What the first is of.
        one: String,
        /// What the second is of.
        other: String,
    },
    /// The database's URL can't be read, or PostgreSQL said no.
    #[error(transparent)]
    Database(#[from] ledger::DatabaseError),
    /// The volume can't be filled in.
    #[error("{0}")]
    Volume(#[from] ledger::volume::VolumeError),
    /// The tenant or the principal can't be made.
    #[error("the tenant or the principal can't be made: {0}")]
    Principal(#[from] ledger::principal::PrincipalError),
    /// A name that the ledger doesn't take.
    #[error("{name} can't be the name of a tenant or a principal")]
    Name {
        /// As it was given.
        name: String,
    },
    /// There is no pgbench.
    #[error(
        "pgbench was not found on PATH or in ONCEPOST_POSTGRES_BIN: install it (Debian and Ubuntu: postgresql-contrib or \
         postgresql; Fedora: postgresql-contrib; macOS: brew install postgresql)"
    )]
    PgbenchMissing,
    /// pgbench did not do its work.
    #[error("pgbench failed: {output}")]
    Pgbench {
        /// The end of what it said.
        output: String,
    },
    /// The demo can't be started.
    #[error("{} did not start: {why}", demo.display())]
    Demo {
        /// The program.
        demo: PathBuf,
        /// What was seen.
        why: String,
    },
    /// The relay did not follow.
    #[error("{seconds} s after a load the relay is still {rows} events behind")]
    RelayBehind {
        /// How long was waited.
        seconds: u64,
        /// How far it is.
        rows: u64,
    },
    /// A load of the comparison broke a promise or got no answers.
    #[error("{0}")]
    Reference(String),
    /// What is private to a temporary folder can't be made.
    #[error(transparent)]
    Stack(#[from] stack::Error),
}

impl Error {
    /// What was tried when the operating system said no.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// A file that can't be used.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::io(format!("{doing} {}", path.display()))
    }
}
