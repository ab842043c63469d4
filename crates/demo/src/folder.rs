//! The data folder: the servers' data, the secret that keys follow from, and the keys and ids for programs to read.
//!
//! Nobody else may read it. Where root runs the demo, PostgreSQL runs as an unprivileged user, who has to pass through to
//! the one folder of its own.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ledger::Secret;
use rand::RngExt as _;
use rustix::process::geteuid;

use crate::error::{During as _, Error, Result};

/// The file that marks a folder as a demo's, and whose lock marks it as in use.
const MARK: &str = "oncepost-demo";
const SECRET: &str = "secret";
const KEYS: &str = "keys.json";
const POSTGRES: &str = "postgres";
const KAFKA: &str = "kafka";

/// Half of the digits of the secret, which is as long as SHA-256's output.
const SECRET_BYTES: usize = 32;

/// A data folder that this process owns until it drops it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// The lock goes with this file, and so with the process, however that ends.
    _lock: File,
}

impl Folder {
    /// Takes the folder, and makes it first where it is missing. One that holds anything but a demo is left alone.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !path.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(path).during("create", path)?;
        }
        let path = path.canonicalize().during("find", path)?;
        let mark = path.join(MARK);
        if !mark.exists() && fs::read_dir(&path).during("read", &path)?.next().is_some() {
            return Err(Error::FolderNotOurs { folder: path });
        }
        let lock = File::options().create(true).append(true).mode(0o600).open(&mark).during("open", &mark)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::FolderInUse { folder: path }),
            Err(TryLockError::Error(source)) => return Err(source).during("lock", &mark),
        }
        // Whoever else runs the demo runs PostgreSQL as well.
        let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).during("close to others", &path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Deletes what the demo has put here, after stopping servers that a killed demo left behind.
    pub(crate) fn clear(&self) -> Result<()> {
        stack::delete_data(&self.path.join(KAFKA))?;
        stack::delete_data(&self.path.join(POSTGRES))?;
        for file in [SECRET, KEYS].map(|name| self.path.join(name)) {
            if file.exists() {
                fs::remove_file(&file).during("delete", &file)?;
            }
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where PostgreSQL's data is. PostgreSQL's starter makes it, with the rights that its user needs.
    pub(crate) fn postgres(&self) -> PathBuf {
        self.path.join(POSTGRES)
    }

    /// Where Kafka's data is.
    pub(crate) fn kafka(&self) -> Result<PathBuf> {
        let path = self.path.join(KAFKA);
        DirBuilder::new().recursive(true).mode(0o700).create(&path).during("create", &path)?;
        Ok(path)
    }

    /// The secret that this folder's keys follow from, drawn at random the first time.
    pub(crate) fn secret(&self) -> Result<Secret> {
        let file = self.path.join(SECRET);
        if !file.exists() {
            let drawn: [u8; SECRET_BYTES] = rand::rng().random();
            let digits: String = drawn.iter().map(|byte| format!("{byte:02x}")).collect();
            self.write(SECRET, &digits)?;
        }
        let digits = fs::read_to_string(&file).during("read", &file)?;
        let secrets = Secret::parse_list(&format!("{SECRET}:{}", digits.trim()).into());
        match secrets.map(|secrets| secrets.into_iter().next()) {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) | Err(_) => Err(Error::SecretDamaged { file }),
        }
    }

    /// Keeps keys and ids for programs that come later.
    pub(crate) fn keep_keys(&self, json: &str) -> Result<()> {
        self.write(KEYS, json)
    }

    /// Keeps a file that its owner's eyes are for, closed to all others.
    pub(crate) fn close_to_others(&self, file: &Path) -> Result<()> {
        fs::set_permissions(file, Permissions::from_mode(0o600)).during("close to others", file)
    }

    /// Writes a private file; a kill leaves the old one or the new one.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let partial = self.path.join(format!("{name}.partial"));
        let mut options = File::options();
        let mut file =
            options.create(true).truncate(true).write(true).mode(0o600).open(&partial).during("create", &partial)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).during("write", &partial)?;
        fs::rename(&partial, self.path.join(name)).during("rename", &partial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_folder_with_other_files_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("thesis.txt"), "the only copy").unwrap();
        let refused = Folder::open(parent.path()).unwrap_err();
        assert!(matches!(refused, Error::FolderNotOurs { .. }), "{refused}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_has_one_owner_and_its_secret_survives_until_it_is_cleared() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("deep/data");
        let folder = Folder::open(&path).unwrap();
        assert!(matches!(Folder::open(&path), Err(Error::FolderInUse { .. })));
        assert!(matches!(mode(folder.path()), 0o700 | 0o711));
        let mac = folder.secret().unwrap().mac(&[b"key"]);
        assert_eq!(mode(&folder.path().join(SECRET)), 0o600);
        drop(folder);

        let folder = Folder::open(&path).unwrap();
        assert_eq!(folder.secret().unwrap().mac(&[b"key"]), mac);
        folder.keep_keys("{}").unwrap();
        fs::create_dir(folder.path().join(KAFKA)).unwrap();
        fs::write(folder.path().join("note"), "a person's own").unwrap();
        folder.clear().unwrap();
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["note", MARK]);
        assert_ne!(folder.secret().unwrap().mac(&[b"key"]), mac);
    }

    #[test]
    fn a_damaged_secret_is_not_replaced_in_silence() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::open(&parent.path().join("data")).unwrap();
        folder.write(SECRET, "cut sh").unwrap();
        assert!(matches!(folder.secret(), Err(Error::SecretDamaged { .. })));
    }
}
