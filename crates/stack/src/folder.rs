//! Data folders: one owner at a time, and for tests temporary ones that do not pile up.

use crate::error::During;
use crate::process::{self, Identity, stop_leftover};
use crate::{Error, Result};
use rustix::process::{Signal, geteuid};
use std::fs::{self, File, Permissions, TryLockError};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A server's data folder, owned until dropped.
#[derive(Debug)]
pub(crate) struct DataFolder {
    path: PathBuf,
    /// The lock goes with this file, and so with the process, however that ends.
    _lock: File,
}

impl DataFolder {
    /// Makes the folder if need be, takes it for this process, and stops the server that a dead owner left running in it.
    pub(crate) fn open(path: &Path, stop_signal: Signal) -> Result<DataFolder> {
        fs::create_dir_all(path).during("create", path)?;
        let path = path.canonicalize().during("find", path)?;
        let lock_file = path.join("lock");
        let lock = File::options().create(true).append(true).open(&lock_file).during("open", &lock_file)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::FolderInUse { folder: path }),
            Err(TryLockError::Error(source)) => return Err(source).during("lock", &lock_file),
        }
        let folder = DataFolder { path, _lock: lock };
        stop_leftover(&folder.process_record(), Some(stop_signal))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn process_record(&self) -> PathBuf {
        self.path.join(PROCESS_RECORD)
    }
}

/// Deletes the data folder of a [`Postgres`](crate::Postgres) or a [`Kafka`](crate::Kafka), after stopping what a dead
/// owner left running in it. A folder that is not there is no error.
///
/// # Errors
/// [`Error::FolderInUse`] if its owner lives, and [`Error::Io`].
pub fn delete_data(data_dir: &Path) -> Result<()> {
    if !data_dir.exists() {
        return Ok(());
    }
    // Both servers end at once and in good order when they are interrupted.
    let folder = DataFolder::open(data_dir, Signal::INT)?;
    fs::remove_dir_all(folder.path()).during("delete", folder.path())
}

/// The file in a data folder that identifies the server running in it.
const PROCESS_RECORD: &str = "process";

/// The file in a temporary folder that identifies its owner.
const OWNER_RECORD: &str = "owner";

const TEMPORARY_PREFIX: &str = "oncepost-stack-";

/// A folder under the system's temporary folder that is deleted when dropped. If its owner dies before, the next
/// [`TemporaryFolder::create`] of the same user stops what still runs in it and deletes it.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    /// Sweeps what dead owners left, and makes a new, empty folder that this process owns.
    pub fn create() -> Result<TemporaryFolder> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let name = format!("{TEMPORARY_PREFIX}{}-{}", std::process::id(), process::random_text()?);
        let path = parent.join(name);
        fs::create_dir(&path).during("create", &path)?;
        let folder = TemporaryFolder { path };
        if let Some(owner) = Identity::own() {
            owner.write(&folder.path.join(OWNER_RECORD))?;
        }
        make_enterable(&folder.path)?;
        Ok(folder)
    }

    /// The folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "could not be deleted");
        }
    }
}

/// Deletes every temporary folder of this user whose owner is dead, after stopping what runs in it. Others may sweep at the
/// same time, so that what is gone already, or cannot be read, is left to them.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        // Anyone may write to the system's temporary folder: a folder of another user, or a link to somewhere else, says
        // nothing that this process may act on.
        let own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if own && entry.file_name().to_str().is_some_and(abandoned_name) && !owner_alive(&path) {
            match delete_abandoned(&path) {
                Ok(()) => tracing::info!(folder = %path.display(), "deleted the folder of a dead owner"),
                Err(error) => tracing::debug!(folder = %path.display(), %error, "could not be swept"),
            }
        }
    }
}

fn abandoned_name(name: &str) -> bool {
    name.starts_with(TEMPORARY_PREFIX)
}

/// Says whether the owner of a temporary folder lives. A folder without its record is either just being made or was just
/// being deleted: then the pid in its name decides.
fn owner_alive(folder: &Path) -> bool {
    if let Some(owner) = Identity::read(&folder.join(OWNER_RECORD)) {
        return owner.alive();
    }
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid =
        name.strip_prefix(TEMPORARY_PREFIX).and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse().ok());
    pid.and_then(Identity::of).is_some()
}

fn delete_abandoned(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).during("read", folder)?.flatten() {
        // Nothing in a temporary folder is worth a graceful end.
        stop_leftover(&entry.path().join(PROCESS_RECORD), None)?;
    }
    fs::remove_dir_all(folder).during("delete", folder)
}

/// Lets every user enter and read a folder that this process made: the unprivileged user that runs PostgreSQL for root
/// has to, whatever root's umask is. For other users nothing changes.
pub(crate) fn make_enterable(folder: &Path) -> Result<()> {
    if geteuid().is_root() {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).during("open to others", folder)?;
    }
    Ok(())
}

/// The same for a folder and all the folders in it.
pub(crate) fn make_all_enterable(folder: &Path) -> Result<()> {
    make_enterable(folder)?;
    for entry in fs::read_dir(folder).during("read", folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_all_enterable(&entry.path())?;
        }
    }
    Ok(())
}
