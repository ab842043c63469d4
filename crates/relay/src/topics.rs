//! The two topics. Both stand before the first transaction: a missing one looks like a hang.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::Consumer;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};

use crate::client::{CALL, Reader, ReaderContext, patiently};
use crate::config::Kafka;
use crate::failure::Failure;
use crate::stop::Stop;

/// How many shards a new position topic has room for, unless the shard's own number asks for more.
const POSITION_PARTITIONS: i32 = 16;
/// How long new topics may take until every partition has a leader.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// The pause before the metadata is asked again.
const METADATA_PAUSE: Duration = Duration::from_millis(200);
/// How long the broker may take to make a topic.
const CREATE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the metadata says of a topic.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Missing,
    Unready,
    Ready { partitions: i32 },
}

/// Makes the topics that are missing and waits until both are ready. Returns how many partitions the events' topic has.
pub(crate) fn ensure(surveyor: &Reader, kafka: &Kafka, shard: i32, stop: &Stop) -> Result<i32, Failure> {
    let deadline = Instant::now() + READY_WITHIN;
    let position_partitions = POSITION_PARTITIONS.max(shard.saturating_add(1));
    loop {
        let topic = standing(surveyor, &kafka.topic, stop)?;
        let position_topic = standing(surveyor, &kafka.position_topic, stop)?;
        if let (Standing::Ready { partitions }, Standing::Ready { partitions: shards }) = (&topic, &position_topic) {
            if shard >= *shards {
                return Err(Failure::Topic(format!(
                    "the topic {} has {shards} partitions, too few for shard {shard}",
                    kafka.position_topic
                )));
            }
            return Ok(*partitions);
        }
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut { step: "wait until every partition of the topics has a leader" });
        }
        let wanted =
            [(&kafka.topic, topic, kafka.partitions), (&kafka.position_topic, position_topic, position_partitions)];
        for (name, _, partitions) in wanted.into_iter().filter(|(_, standing, _)| *standing == Standing::Missing) {
            create(kafka, name, partitions, stop)?;
        }
        stop.pause(METADATA_PAUSE)?;
    }
}

/// How many partitions a topic has that must be there.
pub(crate) fn partitions(surveyor: &Reader, topic: &str, stop: &Stop) -> Result<i32, Failure> {
    match standing(surveyor, topic, stop)? {
        Standing::Ready { partitions } => Ok(partitions),
        Standing::Unready => Err(Failure::Topic(format!("a partition of the topic {topic} has no leader"))),
        Standing::Missing => Err(Failure::Topic(format!("there is no topic {topic}"))),
    }
}

fn standing(surveyor: &Reader, topic: &str, stop: &Stop) -> Result<Standing, Failure> {
    let metadata = patiently(stop, "describe its topics", || surveyor.fetch_metadata(Some(topic), CALL))?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(Standing::Missing);
    };
    if found.error() == Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART) {
        return Ok(Standing::Missing);
    }
    let led = |partition: &rdkafka::metadata::MetadataPartition| partition.error().is_none() && partition.leader() >= 0;
    if found.error().is_some() || found.partitions().is_empty() || !found.partitions().iter().all(led) {
        return Ok(Standing::Unready);
    }
    Ok(Standing::Ready { partitions: i32::try_from(found.partitions().len()).unwrap_or(i32::MAX) })
}

/// Asks the broker to make a topic. Where that is not allowed, or not possible, the error says what is missing.
fn create(kafka: &Kafka, name: &str, partitions: i32, stop: &Stop) -> Result<(), Failure> {
    let admin: AdminClient<ReaderContext> =
        rdkafka::config::FromClientConfigAndContext::from_config_and_context(&kafka.client(), ReaderContext)
            .map_err(Failure::kafka("make a client"))?;
    let min_insync_replicas = kafka.min_insync_replicas.to_string();
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(kafka.replication_factor))
        .set("min.insync.replicas", &min_insync_replicas);
    let options = AdminOptions::new().request_timeout(Some(CREATE_TIMEOUT)).operation_timeout(Some(CREATE_TIMEOUT));
    let topics = [topic];
    let results = stop.wait(admin.create_topics(&topics, &options))?.map_err(Failure::kafka("make a topic"))?;
    match results.into_iter().next() {
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
        Some(Err((name, code))) => Err(Failure::Topic(format!(
            "the topic {name} is missing and can't be made with {partitions} partitions and replication factor {} \
             (KAFKA_REPLICATION_FACTOR): {code}",
            kafka.replication_factor
        ))),
        Some(Ok(_)) | None => {
            tracing::info!(topic = name, partitions, "made a topic");
            Ok(())
        }
    }
}
