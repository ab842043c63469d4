//! Clients of librdkafka: how they are made, and what is heard from them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use crate::config::Kafka;
use crate::failure::Failure;
use crate::stop::Stop;

/// How long one call to Kafka may block. It is repeated up to [`PATIENCE`]; a wish to stop is heard between the calls.
pub(crate) const CALL: Duration = Duration::from_millis(500);
/// How long a call is repeated before the session is given up. A cluster that has just started takes some seconds to
/// find its coordinators.
const PATIENCE: Duration = Duration::from_secs(15);
/// The pause before a call is repeated.
const REPEAT_PAUSE: Duration = Duration::from_millis(200);

/// How long the broker lets a transaction of a dead relay hold readers back.
pub(crate) const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a record may take to be delivered.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may go unanswered before librdkafka sends it again.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);
/// librdkafka's pause before it sends a refused request again. The first request of a transaction is refused while the
/// broker still ends the previous one; at librdkafka's 100 ms a transaction takes about 100, at 10 ms about 18.
const RETRY_BACKOFF: Duration = Duration::from_millis(10);
/// The most events that librdkafka serves after a call; more wait for the next.
const MAX_EVENTS_SERVED: u32 = 10_000;

/// Repeats a call until it succeeds, for at most [`PATIENCE`].
pub(crate) fn patiently<T>(
    stop: &Stop,
    step: &'static str,
    mut call: impl FnMut() -> KafkaResult<T>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= deadline => return Err(Failure::Kafka { step, error }),
            Err(error) => tracing::debug!(%error, step, "Kafka is asked again"),
        }
        stop.pause(REPEAT_PAUSE)?;
    }
}

/// The id of the cluster that a client is connected to. `hear` serves the client's events, so that the log tells why
/// nobody answers.
pub(crate) fn cluster_id<C: ClientContext>(
    client: &Client<C>,
    hear: impl Fn(),
    stop: &Stop,
) -> Result<String, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(id) = client.fetch_cluster_id(CALL) {
            return Ok(id);
        }
        hear();
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut { step: "learn the Kafka cluster's id" });
        }
        // An unreachable broker makes the call above take its whole time; the pause covers a broker that answers
        // without an id.
        stop.pause(REPEAT_PAUSE)?;
    }
}

/// Passes on what librdkafka logs. Its errors about connections are warnings here: it tries again by itself.
fn pass_on(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Debug => tracing::trace!(target: "librdkafka", facility, "{message}"),
    }
}

/// What is heard from a client that reads.
pub(crate) struct ReaderContext;

impl ClientContext for ReaderContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        pass_on(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The end of a partition is what `tail` reads on to, and it comes as an error here too.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        tracing::debug!(%error, reason, "a reader of Kafka met an error");
    }
}

impl ConsumerContext for ReaderContext {}

/// A client that reads.
pub(crate) type Reader = BaseConsumer<ReaderContext>;

/// A client for metadata and high-water marks. It has no group, and sees what is not committed too: where another
/// shard's transaction is open, the end of what is committed can lie before this shard's last record.
pub(crate) fn surveyor(kafka: &Kafka) -> Result<Reader, Failure> {
    quiet(kafka.client().set("isolation.level", "read_uncommitted").set("enable.auto.commit", "false"))
        .create_with_context(ReaderContext)
        .map_err(Failure::kafka("make a client"))
}

/// A client that reads the committed position and committed records. It never subscribes.
pub(crate) fn committed_reader(kafka: &Kafka) -> Result<Reader, Failure> {
    quiet(
        kafka
            .client()
            .set("group.id", &kafka.group)
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            // An offset that is gone is an error, not a reason to jump somewhere else in silence.
            .set("auto.offset.reset", "error")
            // The end of a partition is told by an empty answer, which the broker otherwise holds back for 500 ms.
            .set("fetch.wait.max.ms", "20"),
    )
    .create_with_context(ReaderContext)
    .map_err(Failure::kafka("make a reader"))
}

/// Serves what a reader without an assignment has heard, without waiting for more.
pub(crate) fn serve_reader(reader: &Reader) {
    while reader.poll(Duration::ZERO).is_some() {}
}

fn quiet(config: &mut ClientConfig) -> &mut ClientConfig {
    config.set_log_level(RDKafkaLogLevel::Info)
}

/// What is heard from the producer: deliveries, and whether its connections hold.
#[derive(Default)]
pub(crate) struct ProducerEvents {
    delivered: AtomicUsize,
    failed: AtomicUsize,
    first_failure: Mutex<Option<KafkaError>>,
    faults: AtomicU64,
}

impl ClientContext for ProducerEvents {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // FAIL is a connection that broke, REQTMOUT a request without an answer. Both stand in the log only: librdkafka
        // reports a broken connection as an error only in some cases, and not the same one twice within 30 s.
        if matches!(facility, "FAIL" | "REQTMOUT") {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        pass_on(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%error, reason, "the producer met an error");
    }
}

impl ProducerContext for ProducerEvents {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => {
                self.delivered.fetch_add(1, Ordering::Relaxed);
            }
            Err((error, _)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                if let Ok(mut first) = self.first_failure.lock() {
                    first.get_or_insert(error.clone());
                }
            }
        }
    }
}

impl ProducerEvents {
    /// Begins to count a new batch.
    pub(crate) fn begin(&self) {
        self.delivered.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        if let Ok(mut first) = self.first_failure.lock() {
            *first = None;
        }
    }

    pub(crate) fn delivered(&self) -> usize {
        self.delivered.load(Ordering::Relaxed)
    }

    /// The batch's first delivery that failed.
    pub(crate) fn failure(&self) -> Option<KafkaError> {
        if self.failed.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.first_failure.lock().ok().and_then(|first| first.clone())
    }

    /// How many connections broke and requests went unanswered so far.
    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}

/// A transactional producer. Only the publishing thread polls it: a thread that does nothing else costs a core's share
/// for deliveries that this one waits for anyway.
pub(crate) type Producer = BaseProducer<ProducerEvents>;

/// A producer that has not yet fenced its predecessor.
pub(crate) fn producer(kafka: &Kafka, transactional_id: &str) -> Result<Producer, Failure> {
    let milliseconds = |duration: Duration| duration.as_millis().to_string();
    kafka
        .client()
        .set("transactional.id", transactional_id)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("max.in.flight", "5")
        .set("transaction.timeout.ms", milliseconds(TRANSACTION_TIMEOUT))
        .set("message.timeout.ms", milliseconds(MESSAGE_TIMEOUT))
        .set("socket.timeout.ms", milliseconds(SOCKET_TIMEOUT))
        .set("retry.backoff.ms", milliseconds(RETRY_BACKOFF))
        .set("linger.ms", "2")
        // As the Java client chooses, so that records of both meet in one partition.
        .set("partitioner", "murmur2_random")
        .set("compression.type", "lz4")
        // Makes every broken connection heard, see `ProducerEvents::log`. In steady work these contexts say nothing.
        .set("debug", "broker")
        .set_log_level(RDKafkaLogLevel::Debug)
        .create_with_context(ProducerEvents::default())
        .map_err(Failure::kafka("make a producer"))
}

/// Serves the events that librdkafka has queued, without waiting for more.
pub(crate) fn serve_events(producer: &Producer) {
    for _ in 0..MAX_EVENTS_SERVED {
        if producer.in_flight_count() == 0 {
            return;
        }
        producer.poll(Duration::ZERO);
    }
}
