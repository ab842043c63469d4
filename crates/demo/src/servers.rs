//! The private servers of a demo.

use std::time::Instant;

use stack::{Kafka, KafkaOptions, Postgres, PostgresOptions};

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::progress::{say, step};

/// The servers that run. Dropping them kills them.
#[derive(Default)]
pub(crate) struct Servers {
    postgres: Option<Postgres>,
    kafka: Option<Kafka>,
}

/// Starts PostgreSQL and returns its superuser's URLs: the one to show, and the one for this process.
pub(crate) async fn start_postgres(servers: &mut Servers, folder: &Folder) -> Result<(String, String)> {
    let begun = Instant::now();
    let postgres = Postgres::start(PostgresOptions { data_dir: folder.postgres(), port: None }).await?;
    folder.close_to_others(&postgres.log())?;
    step("PostgreSQL", &format!("127.0.0.1:{}", postgres.port()), begun);
    let urls = (postgres.url(), postgres.local_url());
    servers.postgres = Some(postgres);
    Ok(urls)
}

/// Starts Kafka and returns its address, or nothing where the machine cannot run it.
pub(crate) async fn start_kafka(servers: &mut Option<Kafka>, folder: &Folder, port: u16) -> Result<Option<String>> {
    let begun = Instant::now();
    let options = KafkaOptions { data_dir: folder.kafka()?, port: Some(port).filter(|port| *port != 0) };
    match Kafka::start(options).await {
        Ok(kafka) => {
            let bootstrap = kafka.bootstrap();
            step("Kafka", &bootstrap, begun);
            *servers = Some(kafka);
            Ok(Some(bootstrap))
        }
        Err(error) if error.tool_missing() => {
            say(&format!("  Kafka       not started, so events wait in the outbox: {error}"));
            Ok(None)
        }
        Err(stack::Error::PortTaken { port: taken }) if taken == port => Err(Error::KafkaPort { port }),
        Err(error) => Err(error.into()),
    }
}

impl Servers {
    /// Where Kafka is put once it runs.
    pub(crate) fn kafka_mut(&mut self) -> &mut Option<Kafka> {
        &mut self.kafka
    }

    /// Stops what runs: first Kafka, then PostgreSQL. What does not stop in good order is killed all the same.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let begun = Instant::now();
        let mut stopped = Ok(());
        if let Some(mut kafka) = self.kafka.take() {
            stopped = kafka.stop().await;
            step("Kafka", "stopped", begun);
        }
        if let Some(mut postgres) = self.postgres.take() {
            let begun = Instant::now();
            stopped = stopped.and(postgres.stop().await);
            step("PostgreSQL", "stopped", begun);
        }
        Ok(stopped?)
    }
}
