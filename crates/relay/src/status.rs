//! `relay status`: how far a shard is published, asked without disturbing who publishes.

use std::fmt;

use ledger::outbox::{Lag, Outbox, OutboxError, RelayRecord, Stream};
use rdkafka::consumer::Consumer as _;
use thiserror::Error;

use crate::client;
use crate::config::Settings;
use crate::failure::Failure;
use crate::position::{self, Position};
use crate::stop::unstopped;

/// Why the status can't be told.
#[derive(Debug, Error)]
pub enum StatusError {
    /// PostgreSQL.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// Kafka; the text says what was asked.
    #[error("{0}")]
    Kafka(String),
}

/// How far a shard is published.
#[derive(Clone, Debug)]
pub struct Status {
    /// The shard.
    pub shard: i32,
    /// The epoch of the events that are made now, and where each epoch began.
    pub stream: Stream,
    /// The outbox's last position; `None` if it is empty.
    pub last_position: Option<i64>,
    /// The Kafka cluster's id.
    pub kafka_cluster_id: String,
    /// What Kafka has committed.
    pub committed: Option<Position>,
    /// What the relay has recorded in the ledger.
    pub record: Option<RelayRecord>,
    /// What waits.
    pub lag: Lag,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "none".to_owned();
        writeln!(f, "shard:              {}", self.shard)?;
        write!(f, "epoch:              {}", self.stream.epoch)?;
        match self.stream.starts.last().filter(|start| start.epoch == self.stream.epoch) {
            Some(start) => writeln!(f, ", begun after position {}", start.position)?,
            None => writeln!(f)?,
        }
        writeln!(f, "outbox's last:      {}", self.last_position.map_or_else(none, |position| position.to_string()))?;
        writeln!(f, "committed in Kafka: {}", self.committed.map_or_else(none, |position| position.to_string()))?;
        let floor = self.record.as_ref().and_then(|record| record.floor);
        let floor = floor.map_or_else(none, |floor| format!("epoch {} position {}", floor.epoch, floor.position));
        writeln!(f, "floor:              {floor}")?;
        writeln!(f, "Kafka cluster:      {}", self.kafka_cluster_id)?;
        let recorded = self.record.as_ref().map_or("none", |record| record.kafka_cluster_id.as_str());
        writeln!(f, "recorded cluster:   {recorded}")?;
        write!(f, "waiting:            {} events", self.lag.rows)
    }
}

/// Asks PostgreSQL and Kafka. It reads only, and a running relay does not notice.
///
/// # Errors
/// [`StatusError`].
pub async fn read_status(settings: &Settings) -> Result<Status, StatusError> {
    let (kafka_cluster_id, committed) = ask_kafka(settings.clone()).await?;
    let mut outbox = Outbox::open(&settings.database, settings.shard).await?;
    Ok(Status {
        shard: settings.shard.0,
        stream: outbox.stream().await?,
        last_position: outbox.last_position().await?,
        kafka_cluster_id,
        committed,
        record: outbox.relay_record().await?,
        lag: outbox.lag_behind(committed.map_or(0, |position| position.position)).await?,
    })
}

async fn ask_kafka(settings: Settings) -> Result<(String, Option<Position>), StatusError> {
    let asked = unstopped(move |stop| {
        let reader = client::committed_reader(&settings.kafka)?;
        let cluster = client::cluster_id(reader.client(), || client::serve_reader(&reader), &stop)?;
        Ok((cluster, position::read(&reader, &settings.kafka, settings.shard.0, &stop)?))
    });
    asked.await.map_err(|failure: Failure| StatusError::Kafka(failure.to_string()))
}
