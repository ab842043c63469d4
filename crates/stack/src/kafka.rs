//! A private Apache Kafka: one process, broker and controller at once, with a replica of everything.

use crate::cache::{self, Entry, FETCH_WAIT};
use crate::error::During;
use crate::folder::{DataFolder, TemporaryFolder};
use crate::java::{self, Java};
use crate::process::{POLL, Process, random_text};
use crate::{Error, Result, port};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The Kafka that is fetched; `kafka.pom.xml` names it too.
const VERSION: &str = "4.1.1";

/// What Maven fetches, carried in the program so that it does not depend on the source tree.
const POM: &str = include_str!("../kafka.pom.xml");

/// The jars that Maven has to bring, each with its SHA-256: lines as `sha256sum` writes them.
const JARS: &str = include_str!("../kafka.sha256");

/// What the broker is told besides its ports and its folder.
const SETTINGS: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
auto.create.topics.enable=false
# One broker holds the only replica of everything, in few partitions: each costs files and time at every start.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=5
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=5
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=5
# A consumer group starts at once instead of waiting for more members.
group.initial.rebalance.delay.ms=0
# After a kill, a broker is let in again when the session of its former life has ended: 3 s instead of 9 s.
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
# Sized for a laptop that runs everything else as well. The cleaner's buffer of 128 MB would be a quarter of the heap.
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=8388608
";

/// The JVM's flags for everything that runs here: the serial collector starts fastest and is enough for this heap.
const JVM: [&str; 4] =
    ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xlog:cds=error", "-Dorg.slf4j.simpleLogger.showDateTime=true"];

/// The broker's own flags. The optimising compiler stays on: the demo also measures throughput.
const BROKER: [&str; 5] = [
    "-Xms256m",
    "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    // The broker's word that it has started comes from here.
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
];

/// Formatting lasts less than a second and is over before an optimising compiler pays.
const FORMATTER: [&str; 2] = ["-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"];

/// What the broker logs once it is let into its cluster and takes requests.
const STARTED: &str = "Kafka Server started";

/// A start takes 2 to 3 s, and 3 s more after a kill; this is for a machine with far more work than processors.
const READY_WAIT: Duration = Duration::from_secs(120);

/// How long the broker may take to answer one request once it says that it has started.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Formatting takes 1 s.
const FORMAT_WAIT: Duration = Duration::from_secs(60);

/// A stop takes 0.3 s, and 2 s more where the classes are archived.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// A port found free can be taken by another process before the broker has it, about once in ten thousand starts.
const START_TRIES: u32 = 3;

/// The longest answer to ApiVersions that is read, in bytes: a broker of today knows about 70 requests at 6 bytes each.
const ANSWER_BYTES: usize = 16_384;

const WHAT: &str = "Apache Kafka";

/// Where a private Kafka lives.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// The folder for the topics and the log; made if absent, and used again if not.
    pub data_dir: PathBuf,
    /// The port on 127.0.0.1; a free one is found if absent.
    pub port: Option<u16>,
}

/// A private Kafka that answers on 127.0.0.1. Dropping it kills it.
#[derive(Debug)]
pub struct Kafka {
    // Dropped in this order: the broker ends before its folder is given up, and that before it is deleted.
    process: Option<Process>,
    folder: DataFolder,
    java: Java,
    jars: PathBuf,
    port: u16,
    controller_port: u16,
    _temporary: Option<TemporaryFolder>,
}

impl Kafka {
    /// Starts the broker and returns once it answers. The first start on a machine fetches it; the first start in a folder
    /// formats it. A broker left running in the folder by a dead owner is stopped first.
    ///
    /// A machine without Java, or without Maven while Kafka is yet to be fetched, is told by [`Error::tool_missing`].
    pub async fn start(options: KafkaOptions) -> Result<Kafka> {
        Kafka::start_in(options, None).await
    }

    /// Starts an empty broker in a folder that is deleted with the handle, for tests.
    pub async fn temporary() -> Result<Kafka> {
        let temporary = TemporaryFolder::create()?;
        let options = KafkaOptions { data_dir: temporary.path().join("kafka"), port: None };
        Kafka::start_in(options, Some(temporary)).await
    }

    async fn start_in(options: KafkaOptions, temporary: Option<TemporaryFolder>) -> Result<Kafka> {
        let java = java::find_java()?;
        let jars = find_jars().await?;
        let folder = DataFolder::open(&options.data_dir, Signal::TERM)?;
        let port = options.port.unwrap_or_default();
        let mut kafka = Kafka { process: None, folder, java, jars, port, controller_port: 0, _temporary: temporary };
        let mut tries = 1;
        loop {
            kafka.port = options.port.map_or_else(port::find_free, Ok)?;
            kafka.controller_port = port::find_free()?;
            match kafka.launch().await {
                Ok(()) => return Ok(kafka),
                Err(error) if tries == START_TRIES || kafka.ports_free() || options.port.is_some() => {
                    return Err(error);
                }
                Err(_) => tries += 1,
            }
        }
    }

    /// The address to give to clients: `127.0.0.1:port`.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The broker's log: what it printed in all its runs in this folder.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join("kafka.log")
    }

    /// Stops the broker in good order and returns once it is gone. It can be restarted. A broker that is not running is
    /// left as it is.
    pub async fn stop(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            process.stop(Signal::TERM, STOP_WAIT).await?;
            self.keep_classes();
        }
        Ok(())
    }

    /// Kills the broker and returns once it is gone.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the broker in its tracks: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.running()?.pause()
    }

    /// Undoes a pause.
    pub fn resume(&self) -> Result<()> {
        self.running()?.resume()
    }

    /// Starts the broker again on the same port, stopping it first if it runs, and returns once it answers.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    fn running(&self) -> Result<&Process> {
        self.process.as_ref().ok_or(Error::NotRunning { what: WHAT })
    }

    fn ports_free(&self) -> bool {
        port::ensure_free(self.port).is_ok() && port::ensure_free(self.controller_port).is_ok()
    }

    async fn launch(&mut self) -> Result<()> {
        port::ensure_free(self.port)?;
        let settings = self.write_settings()?;
        self.ensure_formatted(&settings).await?;
        let log = self.log();
        // The log holds earlier runs as well, which also said that they had started.
        let earlier = fs::metadata(&log).map(|found| found.len()).unwrap_or_default();
        let mut command = self.command(&BROKER);
        match cache::kept(&self.classes_name())? {
            Some(classes) => command.arg(flag("-XX:SharedArchiveFile=", &classes)),
            None => command.arg(flag("-XX:ArchiveClassesAtExit=", &self.classes())),
        };
        command.arg("kafka.Kafka").arg(&settings);
        let mut process = Process::spawn(WHAT, &mut command, &log)?;
        process.record_in(self.folder.process_record())?;
        let deadline = Instant::now() + READY_WAIT;
        while !says_started(&log, earlier) {
            process.ensure_running()?;
            if Instant::now() >= deadline {
                return Err(process.slow(READY_WAIT));
            }
            tokio::time::sleep(POLL).await;
        }
        match timeout(ANSWER_WAIT, ask_api_versions(self.port)).await {
            Ok(Ok(())) => {}
            Ok(Err(source)) => {
                return Err(Error::Io { doing: format!("{WHAT} does not answer at {}", self.bootstrap()), source });
            }
            Err(_) => return Err(process.slow(ANSWER_WAIT)),
        }
        self.process = Some(process);
        Ok(())
    }

    fn write_settings(&self) -> Result<PathBuf> {
        let file = self.folder.join("server.properties");
        let (broker, controller) = (self.port, self.controller_port);
        let text = format!(
            "{SETTINGS}\
             listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             log.dirs={}\n",
            self.topics().display()
        );
        fs::write(&file, text).during("write", &file)?;
        Ok(file)
    }

    /// Formats the folder, once: the file looked for is made when the formatter has ended well. One that was interrupted
    /// before is begun anew.
    async fn ensure_formatted(&self, settings: &Path) -> Result<()> {
        let done = self.folder.join("formatted");
        if done.is_file() {
            return Ok(());
        }
        if self.topics().exists() {
            fs::remove_dir_all(self.topics()).during("delete", &self.topics())?;
        }
        let temporary = self.folder.join("tmp");
        fs::create_dir_all(&temporary).during("create", &temporary)?;
        let mut command = self.command(&FORMATTER);
        command.args(["kafka.tools.StorageTool", "format"]);
        command.arg("--cluster-id").arg(random_text()?).arg("--config").arg(settings);
        Process::spawn("kafka.tools.StorageTool", &mut command, &self.log())?.finish(FORMAT_WAIT).await?;
        fs::write(&done, VERSION).during("write", &done)
    }

    /// The first broker that is stopped in good order leaves its classes as the JVM has read and checked them, which takes
    /// it 2 s once and saves every later start a third of its time. They are of use to the same build of Java only.
    fn classes(&self) -> PathBuf {
        self.folder.join("classes.jsa")
    }

    fn classes_name(&self) -> String {
        format!("kafka-{VERSION}-{}.jsa", cache::short_sum(&format!("{JARS}{}", self.java.build)))
    }

    fn keep_classes(&self) {
        let classes = self.classes();
        if classes.is_file()
            && let Err(error) = cache::keep(&classes, &self.classes_name())
        {
            tracing::debug!(%error, "the next start is a slow one too");
        }
    }

    fn topics(&self) -> PathBuf {
        self.folder.join("topics")
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.java.program);
        command.args(JVM).args(flags);
        // Native libraries are unpacked here, so that a killed broker leaves nothing in the system's folder.
        command
            .arg(flag("-Djava.io.tmpdir=", &self.folder.join("tmp")))
            .arg("-cp")
            .arg(self.jars.join("*"))
            .current_dir(self.folder.path());
        command
    }
}

fn flag(name: &str, path: &Path) -> OsString {
    let mut flag = OsString::from(name);
    flag.push(path);
    flag
}

/// Looks for the broker's word in what was logged after the earlier runs.
fn says_started(log: &Path, earlier: u64) -> bool {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(earlier))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().is_ok_and(|text| text.contains(STARTED))
}

/// Asks the broker which requests it takes, the first question of every client. The request (key 18, version 0, as at
/// <https://kafka.apache.org/protocol>) is a header without body; the answer repeats its correlation id and says 0 for no
/// error.
async fn ask_api_versions(port: u16) -> std::io::Result<()> {
    const CORRELATION: i32 = 1;
    let mut request = Vec::new();
    request.extend_from_slice(&10_i32.to_be_bytes()); // the bytes that follow
    request.extend_from_slice(&18_i16.to_be_bytes());
    request.extend_from_slice(&0_i16.to_be_bytes());
    request.extend_from_slice(&CORRELATION.to_be_bytes());
    request.extend_from_slice(&(-1_i16).to_be_bytes()); // no client id
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(&request).await?;
    let length = stream.read_i32().await?;
    let correlation = stream.read_i32().await?;
    let error = stream.read_i16().await?;
    if !(6..=ANSWER_BYTES).contains(&usize::try_from(length).unwrap_or_default())
        || correlation != CORRELATION
        || error != 0
    {
        return Err(std::io::Error::other(format!("answer of {length} bytes to request {correlation}, error {error}")));
    }
    Ok(())
}

/// Finds the folder of Kafka's jars, fetching them with Maven if this machine does not have them yet.
async fn find_jars() -> Result<PathBuf> {
    let home = match cache::entry(&format!("kafka-{VERSION}-{}", cache::short_sum(JARS))).await? {
        Entry::Present(home) => home,
        Entry::Absent(staging) => {
            fetch(staging.path()).await?;
            staging.publish()?
        }
    };
    Ok(home.join("jars"))
}

async fn fetch(home: &Path) -> Result<()> {
    let maven = java::find_maven()?;
    let pom = home.join("pom.xml");
    fs::write(&pom, POM).during("write", &pom)?;
    let jars = home.join("jars");
    let mut command = Command::new(maven);
    command.args(["--batch-mode", "--quiet", "--file"]).arg(&pom);
    command.arg("dependency:copy-dependencies").arg(format!("-DoutputDirectory={}", jars.display()));
    command.current_dir(home);
    let expected = JARS.lines().count();
    let what = format!("Apache Kafka {VERSION}");
    let bar = cache::progress(&what, u64::try_from(expected).ok());
    let mut process = Process::spawn("Maven", &mut command, &home.join("maven.log"))?;
    // The log goes with the staging folder; its end goes into the error.
    let failed = |error: Error| Error::Fetch { what: what.clone(), reason: error.to_string() };
    let deadline = Instant::now() + FETCH_WAIT;
    while process.ended()?.is_none() {
        if Instant::now() >= deadline {
            return Err(failed(process.slow(FETCH_WAIT)));
        }
        bar.set_position(fs::read_dir(&jars).map(|entries| entries.count() as u64).unwrap_or_default());
        tokio::time::sleep(POLL).await;
    }
    process.finish(FETCH_WAIT).await.map_err(failed)?;
    bar.finish_and_clear();
    verify(&jars)
}

/// Checks that the jars are those listed: all of them, and no other.
fn verify(jars: &Path) -> Result<()> {
    let none = || "none".to_owned();
    let mut unlisted = BTreeSet::new();
    for entry in fs::read_dir(jars).during("read", jars)? {
        unlisted.insert(entry.during("read", jars)?.file_name().to_string_lossy().into_owned());
    }
    for (expected, file) in JARS.lines().filter_map(|line| line.split_once("  ")) {
        if !unlisted.remove(file) {
            return Err(Error::Checksum { file: file.to_owned(), expected: expected.to_owned(), found: none() });
        }
        let path = jars.join(file);
        cache::verify(file, &fs::read(&path).during("read", &path)?, expected)?;
    }
    match unlisted.pop_first() {
        None => Ok(()),
        Some(file) => Err(Error::Checksum { file, expected: none(), found: "not looked at".to_owned() }),
    }
}
