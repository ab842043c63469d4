//! A private PostgreSQL and a private Apache Kafka, both real, for the demo and for the tests.
//!
//! ```no_run
//! # async fn demo() -> Result<(), stack::Error> {
//! let mut postgres = stack::Postgres::temporary().await?;
//! let mut kafka = stack::Kafka::temporary().await?;
//! println!("{} {}", postgres.url(), kafka.bootstrap());
//! kafka.stop().await?;
//! postgres.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! What holds for both:
//! - They listen on 127.0.0.1 only, and keep their port over a restart.
//! - What they need is fetched once into a cache and checked against SHA-256 sums that this crate pins (`cache.rs`).
//! - A data folder has one owner at a time; a second one is refused (`folder.rs`).
//! - They run in process groups of their own, so that the terminal's Ctrl-C reaches only the owner, which then decides
//!   the order in which things stop. A handle that is dropped, as in a panic, kills what it started.
//! - An owner that is killed cannot stop anything: the next start on the folder does, and the next temporary start does
//!   it for every temporary folder whose owner is dead (`process.rs` says how strangers are told from leftovers).
//!
//! | variable | what it names |
//! |---|---|
//! | `ONCEPOST_CACHE` | the folder for what is fetched; default: the platform's cache folder, `/var/cache/oncepost` for root |
//! | `ONCEPOST_POSTGRES_BIN` | the `bin` folder of an installed PostgreSQL (15 to 18), used instead of a fetched one |
//! | `JAVA_HOME` | a Java (17 or newer) used before the one on `PATH` |
//! | `MAVEN` | the `mvn` used instead of the one on `PATH` |

mod cache;
mod error;
mod folder;
mod java;
mod kafka;
mod port;
mod postgres;
mod process;

pub use error::{Error, Result};
pub use folder::{TemporaryFolder, delete_data};
pub use kafka::{Kafka, KafkaOptions};
pub use postgres::{Postgres, PostgresOptions};
