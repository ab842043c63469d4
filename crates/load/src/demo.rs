//! The demo as a process: PostgreSQL, Kafka, the API and the relay, in a folder of their own.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use stack::TemporaryFolder;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::error::{Error, Result};

/// How long a start may take: the first one on a machine fetches PostgreSQL and Kafka.
const READY_WITHIN: Duration = Duration::from_secs(600);
/// How long a stop may take.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

/// A running demo.
pub(crate) struct Demo {
    child: Child,
    /// Where it is, and what opens it.
    pub(crate) ready: Ready,
    // Deleted when the process is gone.
    _folder: TemporaryFolder,
}

/// The line that the demo prints for programs. It holds secrets, so it has no `Debug`.
#[derive(Deserialize)]
pub(crate) struct Ready {
    /// The API's URL.
    pub(crate) api: String,
    /// The superuser's URL of PostgreSQL.
    pub(crate) postgres: String,
    /// Whether there is a Kafka, and so a relay.
    pub(crate) kafka: Option<String>,
    /// API keys.
    pub(crate) keys: Keys,
}

/// The demo's API keys.
#[derive(Deserialize)]
pub(crate) struct Keys {
    /// The one of the test environment.
    pub(crate) test: String,
}

impl Demo {
    /// Starts the program, by default the one beside this one, and returns once everything serves.
    pub(crate) async fn start(program: Option<PathBuf>) -> Result<Self> {
        let demo = match program {
            Some(program) => program,
            None => std::env::current_exe().map_err(Error::io("find this program"))?.with_file_name("demo"),
        };
        let failed = |why: String| Error::Demo { demo: demo.clone(), why };
        let folder = TemporaryFolder::create()?;
        let mut child = Command::new(&demo)
            .args(["--port", "0", "--shop-port", "0", "--kafka-port", "0", "--data"])
            .arg(folder.path().join("demo"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let stdout = child.stdout.take().ok_or_else(|| failed("it has no output".to_owned()))?;
        let mut lines = BufReader::new(stdout).lines();
        let line = match timeout(READY_WITHIN, lines.next_line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return Err(failed("it ended; its last words stand above".to_owned())),
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("it was not ready within {} s", READY_WITHIN.as_secs()))),
        };
        let ready = serde_json::from_str(&line).map_err(|error| failed(error.to_string()))?;
        Ok(Self { child, ready, _folder: folder })
    }

    /// Stops it in good order.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|error| Error::io("stop the demo")(error.into()))?;
        }
        match timeout(STOPPED_WITHIN, self.child.wait()).await {
            Ok(ended) => ended.map(drop).map_err(Error::io("wait for the demo")),
            // Dropped, it is killed.
            Err(_) => Ok(()),
        }
    }
}
