//! The real binaries as processes: started, listened to, killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::{PATIENCE, until};

/// The folder of the binaries, built once for each test program: `cargo test` builds a package's binaries only for that
/// package's own tests.
static BINARIES: LazyLock<PathBuf> = LazyLock::new(|| {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // The whole workspace: two packages alone would have other features of their dependencies than `cargo test --workspace`,
    // and nearly all of those would be built a second time.
    let mut build = Command::new(cargo);
    build.args(["build", "--workspace", "--bins", "--quiet"]);
    // What cargo tells a test of its package would tell build scripts of dependencies that they have to run anew.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            build.env_remove(name);
        }
    }
    assert!(build.status().is_ok_and(|status| status.success()), "the binaries can't be built");
    let program = std::env::current_exe().unwrap();
    program.parent().and_then(|deps| deps.parent()).unwrap().to_owned()
});

/// The path of a binary of the workspace.
pub fn binary(name: &str) -> PathBuf {
    BINARIES.join(name)
}

/// How a command ended, and what it said.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it logged.
    pub stderr: String,
}

/// Runs a command of a binary to its end.
pub(crate) async fn run(name: &str, arguments: &[&str], stdin: &str, environment: &[(&str, &str)]) -> Ended {
    let mut command = tokio::process::Command::new(binary(name));
    command.args(arguments).envs(environment.iter().copied()).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that does not read may have ended already.
    let _unread = child.stdin.take().unwrap().write_all(stdin.as_bytes()).await;
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("it has to end by itself").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// What a relay and its commands need in their environment.
pub(crate) fn relay_environment<'a>(database: &'a str, brokers: &'a str) -> [(&'a str, &'a str); 5] {
    [
        ("DATABASE_URL", database),
        ("KAFKA_BROKERS", brokers),
        ("KAFKA_REPLICATION_FACTOR", "1"),
        ("KAFKA_MIN_INSYNC_REPLICAS", "1"),
        ("RELAY_LISTEN", "127.0.0.1:0"),
    ]
}

/// A process of ours. Dropping it kills it.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    url: String,
}

impl Process {
    pub(crate) async fn api(database: &str, secrets: &str, peppers: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary("api"));
        command
            .arg("serve")
            .env("DATABASE_URL", database)
            .env("IDEMPOTENCY_SECRETS", secrets)
            .env("API_KEY_PEPPERS", peppers)
            .env("LISTEN", "127.0.0.1:0")
            .env("LOG_FORMAT", "json")
            .envs(environment.iter().copied());
        Self::spawn(command).served("the API").await
    }

    /// Starts the example consumer `receipts` on a database of its own.
    pub async fn receipts(database: &str, brokers: &str, smtp: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary("receipts"));
        command
            .env("DATABASE_URL", database)
            .env("KAFKA_BROKERS", brokers)
            .env("SMTP_URL", smtp)
            .env("RECEIPTS_LISTEN", "127.0.0.1:0")
            .env("LOG_FORMAT", "json")
            .envs(environment.iter().copied());
        Self::spawn(command).served("the consumer").await
    }

    pub(crate) fn relay(database: &str, brokers: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary("relay"));
        command.envs(relay_environment(database, brokers)).envs(environment.iter().copied());
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stderr, kept) = (child.stderr.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        Self { child, lines, url: String::new() }
    }

    /// Waits until a relay serves its probes, which it does whatever else happens.
    pub async fn probed(self) -> Self {
        self.served("the relay").await
    }

    /// Waits until it says where it serves.
    async fn served(mut self, name: &str) -> Self {
        let mut address = None;
        until(&format!("{name} to serve"), async || {
            address = self.said("serving").and_then(|line| Some(line["fields"]["address"].as_str()?.to_owned()));
            assert!(address.is_some() || self.running(), "{name} ended: {:#?}", self.log());
            address.is_some()
        })
        .await;
        self.url = format!("http://{}", address.unwrap());
        self
    }

    /// Where it serves.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The most memory that the process has ever had, in bytes, as Linux counts it.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Everything the process has logged.
    pub fn log(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// The first log line with this message.
    pub fn said(&self, message: &str) -> Option<Value> {
        let lines = self.lines.lock().unwrap();
        lines
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["fields"]["message"].as_str() == Some(message))
    }

    /// Whether it still runs.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// SIGKILL: it gets no chance to say goodbye.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGSTOP: it freezes where it is.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until the process has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("a process to end", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A frozen process dies of SIGKILL, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
