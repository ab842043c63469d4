//! A server's process: started apart from the terminal, signalled with its children, and found again by a later owner.

use crate::error::During;
use crate::{Error, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a wait looks again: a hundredth of the second that a start takes.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// A killed process is gone as soon as the kernel has freed its memory, far below a second; more than this means that it
/// is stuck in the kernel, where nobody can help.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// How long a leftover may take to end by itself before it is killed.
const LEFTOVER_STOP_WAIT: Duration = Duration::from_secs(10);

/// How often the children of a stopped process are listed. It stops forking within microseconds of the signal, so the
/// second list is already final; the third is for a machine that is very busy.
const CHILDREN_PASSES: u32 = 3;

/// How much of a log an error shows, in bytes: about 20 lines.
const TAIL_BYTES: u64 = 2_000;

/// A running process that this process started and has to stop. Dropping it kills it and waits, for at most
/// [`KILL_WAIT`].
#[derive(Debug)]
pub(crate) struct Process {
    what: &'static str,
    child: Child,
    log: PathBuf,
    /// The identity of the process, for a later owner; absent for programs that end by themselves.
    record: Option<PathBuf>,
}

impl Process {
    /// Starts the command in a process group of its own, so that the terminal's Ctrl-C does not reach it, with its
    /// output appended to the log.
    pub(crate) fn spawn(what: &'static str, command: &mut Command, log: &Path) -> Result<Process> {
        let output = File::options().create(true).append(true).open(log).during("open", log)?;
        let errors = output.try_clone().during("open", log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .during("run", Path::new(command.get_program()))?;
        Ok(Process { what, child, log: log.to_owned(), record: None })
    }

    /// Records the process in the file, from which [`stop_leftover`] knows it again after the death of its owner.
    pub(crate) fn record_in(&mut self, file: PathBuf) -> Result<()> {
        if let Some(identity) = Identity::of(self.pid()) {
            identity.write(&file)?;
            self.record = Some(file);
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells how the process ended, or nothing while it runs.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().during("wait for", Path::new(self.what))
    }

    /// Fails when the process, which should run, has ended; its log then tells why.
    pub(crate) fn ensure_running(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(self.failed(status)),
        }
    }

    /// Waits for a program to do its work and end well.
    pub(crate) async fn finish(mut self, bound: Duration) -> Result<()> {
        if !self.wait(bound).await? {
            return Err(self.slow(bound));
        }
        match self.ended()? {
            Some(status) if !status.success() => Err(self.failed(status)),
            Some(_) | None => Ok(()),
        }
    }

    /// Waits for the end of the process, and says whether it came within the bound.
    async fn wait(&mut self, bound: Duration) -> Result<bool> {
        let deadline = Instant::now() + bound;
        while self.ended()?.is_none() {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(true)
    }

    /// Asks the process to stop and waits until it is gone. One that takes longer than the bound is killed.
    pub(crate) async fn stop(mut self, signal: Signal, bound: Duration) -> Result<()> {
        self.resume()?;
        self.signal(signal)?;
        if !self.wait(bound).await? {
            tracing::warn!(what = self.what, seconds = bound.as_secs(), "did not stop in time and is killed");
        }
        // The drop is what kills; of a process that is gone it only removes the record.
        drop(self);
        Ok(())
    }

    /// Stops the process and its children in their tracks: nothing answers, and nothing is closed.
    pub(crate) fn pause(&self) -> Result<()> {
        freeze(self.pid()).map(drop)
    }

    /// Undoes a pause.
    pub(crate) fn resume(&self) -> Result<()> {
        for child in children(self.pid()) {
            signal(child, Signal::CONT)?;
        }
        self.signal(Signal::CONT)
    }

    /// Signals the process. As its end is collected only by this handle, its pid cannot be a stranger's.
    fn signal(&self, number: Signal) -> Result<()> {
        signal(self.pid(), number)
    }

    /// Kills the process with its children, and says whether they are gone.
    fn kill(&mut self) -> Result<bool> {
        if self.ended()?.is_some() {
            return Ok(true);
        }
        let children = kill_tree(self.pid())?;
        let deadline = Instant::now() + KILL_WAIT;
        while self.ended()?.is_none() || children.iter().any(Identity::alive) {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
        Ok(true)
    }

    pub(crate) fn slow(&self, bound: Duration) -> Error {
        Error::Slow { what: self.what, bound, log: self.log.clone(), tail: tail(&self.log) }
    }

    fn failed(&self, status: ExitStatus) -> Error {
        Error::Failed { what: self.what, status: status.to_string(), log: self.log.clone(), tail: tail(&self.log) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        match self.kill() {
            Ok(true) => {
                if let Some(record) = self.record.take() {
                    drop(fs::remove_file(record));
                }
            }
            Ok(false) => tracing::warn!(what = self.what, "was killed and is not gone yet"),
            Err(error) => tracing::warn!(what = self.what, %error, "could not be killed"),
        }
    }
}

/// A process for as long as it lives. A pid alone is given again to others; together with the time of its birth it never
/// is, so that a record left on disk cannot make this crate signal a stranger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pid: u32,
    birth: String,
}

impl Identity {
    /// Identifies a living process. A zombie, which only waits for its end to be collected, is dead.
    pub(crate) fn of(pid: u32) -> Option<Identity> {
        Some(Identity { pid, birth: birth(pid)? })
    }

    pub(crate) fn own() -> Option<Identity> {
        Identity::of(std::process::id())
    }

    pub(crate) fn alive(&self) -> bool {
        Identity::of(self.pid).as_ref() == Some(self)
    }

    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, format!("{}\n{}\n", self.pid, self.birth)).during("write", file)
    }

    /// Reads what [`Identity::write`] wrote; a file that is absent or cut short identifies nobody.
    pub(crate) fn read(file: &Path) -> Option<Identity> {
        let text = fs::read_to_string(file).ok()?;
        let (pid, birth) = text.strip_suffix('\n')?.split_once('\n')?;
        Some(Identity { pid: pid.parse().ok()?, birth: birth.to_owned() })
    }
}

/// Stops the process that a dead owner left behind, if it still runs, and waits until it is gone. If a signal is given,
/// the process is first asked with it.
pub(crate) fn stop_leftover(record: &Path, ask: Option<Signal>) -> Result<()> {
    let Some(leftover) = Identity::read(record) else { return Ok(()) };
    if let Some(number) = ask
        && leftover.alive()
    {
        tracing::info!(pid = leftover.pid, "stops a server whose owner is dead");
        signal(leftover.pid, number)?;
        // The owner may have died while it had them paused.
        for child in children(leftover.pid) {
            signal(child, Signal::CONT)?;
        }
        signal(leftover.pid, Signal::CONT)?;
        await_death(std::slice::from_ref(&leftover), LEFTOVER_STOP_WAIT);
    }
    if leftover.alive() {
        let mut killed = kill_tree(leftover.pid)?;
        killed.push(leftover);
        await_death(&killed, KILL_WAIT);
    }
    fs::remove_file(record).during("remove", record)
}

fn await_death(identities: &[Identity], bound: Duration) {
    let deadline = Instant::now() + bound;
    while identities.iter().any(Identity::alive) && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}

/// Stops a process and its children in their tracks, and returns the children. PostgreSQL's children live in sessions of
/// their own, so that no process group holds them all. While the parent is stopped it collects no child's end, so that
/// no pid in the list can become a stranger's.
fn freeze(pid: u32) -> Result<Vec<u32>> {
    signal(pid, Signal::STOP)?;
    let mut frozen = BTreeSet::new();
    for _ in 0..CHILDREN_PASSES {
        for child in children(pid) {
            if frozen.insert(child) {
                signal(child, Signal::STOP)?;
            }
        }
    }
    Ok(frozen.into_iter().collect())
}

/// Kills a process and its children at one stroke, as a machine that loses its power would, and returns the children,
/// whose end the kernel may still be working on.
fn kill_tree(pid: u32) -> Result<Vec<Identity>> {
    let children = freeze(pid)?;
    let identities = children.iter().filter_map(|&child| Identity::of(child)).collect();
    for child in children {
        signal(child, Signal::KILL)?;
    }
    signal(pid, Signal::KILL)?;
    Ok(identities)
}

/// Signals a process; one that is gone already is no error.
fn signal(pid: u32, number: Signal) -> Result<()> {
    let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    match kill_process(target, number) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(Error::Io { doing: format!("cannot signal process {pid}"), source: errno.into() }),
    }
}

/// Tells when a living process was born: the boot, and the clock ticks since then.
#[cfg(target_os = "linux")]
fn birth(pid: u32) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let fields = stat_fields(pid)?;
    let state = fields.first()?;
    if state == "Z" || state == "X" {
        return None;
    }
    // Field 22 of proc_pid_stat(5); the list starts with field 3.
    Some(format!("{} {}", boot.trim(), fields.get(19)?))
}

/// Lists the living and the dead children of a process.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Field 4 of proc_pid_stat(5); the list starts with field 3.
    pids.filter(|&pid| stat_fields(pid).is_some_and(|fields| fields.get(1) == Some(&parent))).collect()
}

/// Reads a process's state and what follows it; the name before it is in parentheses and may itself hold any character.
#[cfg(target_os = "linux")]
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Tells when a living process was born, to the second.
#[cfg(not(target_os = "linux"))]
fn birth(pid: u32) -> Option<String> {
    let told = ps(&["-o", "state=", "-o", "lstart=", "-p", &pid.to_string()])?;
    let (state, birth) = told.trim().split_once(' ')?;
    (!state.starts_with('Z')).then(|| birth.trim().to_owned())
}

/// Lists the children of a process.
#[cfg(not(target_os = "linux"))]
fn children(parent: u32) -> Vec<u32> {
    let told = ps(&["-A", "-o", "pid=", "-o", "ppid="]).unwrap_or_default();
    let pairs = told.lines().filter_map(|line| line.trim().split_once(' '));
    let pairs = pairs.filter_map(|(pid, ppid)| Some((pid.parse().ok()?, ppid.trim().parse::<u32>().ok()?)));
    pairs.filter(|&(_, ppid)| ppid == parent).map(|(pid, _)| pid).collect()
}

#[cfg(not(target_os = "linux"))]
fn ps(arguments: &[&str]) -> Option<String> {
    let output = Command::new("ps").env("LC_ALL", "C").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok().filter(|told| !told.trim().is_empty())
}

/// Reads the end of a log, for an error to show.
fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_default()
}

/// Random bytes from the kernel.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; N];
    File::open(source).and_then(|mut file| file.read_exact(&mut bytes)).during("read", source)?;
    Ok(bytes)
}

/// Random text for passwords and names: 128 bits as hexadecimal digits.
pub(crate) fn random_text() -> Result<String> {
    Ok(hexadecimal(&random_bytes::<16>()?))
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Identity, stop_leftover};
    use rustix::process::Signal;

    #[test]
    fn a_record_whose_pid_is_now_a_strangers_stops_nobody() {
        let record = std::env::temp_dir().join(format!("stack-record-{}", std::process::id()));
        let own = Identity::own().unwrap();
        assert!(own.alive());
        let former = Identity { birth: format!("{} before", own.birth), ..own };
        assert!(!former.alive());
        former.write(&record).unwrap();
        assert_eq!(Identity::read(&record), Some(former));
        // Were the stranger, this very process, signalled, the test would not come to its end.
        stop_leftover(&record, Some(Signal::KILL)).unwrap();
        assert!(!record.exists());
    }
}
