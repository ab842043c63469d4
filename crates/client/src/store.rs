//! Where keys and requests stand until the caller has recorded what came of them.

use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::key::IdempotencyKey;

/// What a store may fail with.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// What is sent for an intent, each time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The intent's key.
    pub key: IdempotencyKey,
    /// The path that it is posted to.
    pub path: String,
    /// The exact body.
    pub body: String,
}

/// Keeps an entry for each intent.
///
/// A caller with a database of its own keeps them there: `INSERT … ON CONFLICT DO NOTHING`, commit, `SELECT`. One store serves one
/// principal of one service; names of intents are unique within it.
pub trait Store: Send + Sync {
    /// Keeps the entry under the name, unless one stands there already, and returns the one that stands there. When it returns, that
    /// one survives a crash. Of several calls for one name, also in several processes, all return the same entry.
    fn keep(&self, name: &str, entry: Entry) -> impl Future<Output = Result<Entry, StoreError>> + Send;

    /// Removes the entry, if there is one.
    fn forget(&self, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A store in memory, for tests and for intents that may end with the process.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<HashMap<String, Entry>>);

impl Store for MemoryStore {
    async fn keep(&self, name: &str, entry: Entry) -> Result<Entry, StoreError> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(entries.entry(name.to_owned()).or_insert(entry).clone())
    }

    async fn forget(&self, name: &str) -> Result<(), StoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }
}

/// The longest name of an intent in a [`FileStore`], in bytes: each may become three, and file systems take 255 for a name.
const NAME_BYTES_MAX: usize = 80;

/// The longest entry that is read, in bytes: a body of 64 KiB, each byte an escape of six, and what stands around it.
const ENTRY_BYTES_MAX: u64 = 512 * 1024;

/// A folder with a file for each intent, readable by its owner only. Several processes may share it.
#[derive(Clone, Debug)]
pub struct FileStore {
    folder: Arc<Path>,
}

impl FileStore {
    /// Opens a folder, and makes it where it is missing. Blocks for a moment.
    ///
    /// # Errors
    /// Where the folder can't be made, or its parent doesn't exist.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, StoreError> {
        // Absolute, so that a later change of the working directory doesn't lose the keys.
        let folder = std::path::absolute(folder)?;
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        // A folder that a crash can take away keeps nothing.
        File::open(folder.parent().unwrap_or(&folder))?.sync_all()?;
        Ok(Self { folder: folder.into() })
    }

    /// The file of an intent. Everything but small letters, digits, `-` and `_` is escaped, so that no name leaves the folder, and no
    /// two names meet where the file system takes `A` for `a`.
    fn path(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let bounds = format!("an intent's name has 1 to {NAME_BYTES_MAX} bytes");
            return Err(io::Error::new(ErrorKind::InvalidInput, bounds));
        }
        let escaped: String = name
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
                _ => format!("%{byte:02x}"),
            })
            .collect();
        Ok(self.folder.join(escaped).with_extension("json"))
    }

    /// Does something with the intent's file on a thread that may block.
    async fn on_disk<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Path, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (folder, path) = (Arc::clone(&self.folder), self.path(name)?);
        Ok(tokio::task::spawn_blocking(move || work(&folder, &path)).await??)
    }
}

impl Store for FileStore {
    async fn keep(&self, name: &str, entry: Entry) -> Result<Entry, StoreError> {
        let text = serde_json::to_vec(&entry)?;
        self.on_disk(name, move |folder, path| {
            // Written aside with mode 0600, and moved to its place whole and durable, so that there is never half an entry.
            let mut file = NamedTempFile::new_in(folder)?;
            file.write_all(&text)?;
            file.as_file().sync_all()?;
            match file.persist_noclobber(path) {
                Err(refused) if refused.error.kind() != ErrorKind::AlreadyExists => return Err(refused.error),
                Ok(_) | Err(_) => {}
            }
            // The folder too, and also where another process was faster: it may not have come this far yet.
            File::open(folder)?.sync_all()?;
            read(path)
        })
        .await
    }

    async fn forget(&self, name: &str) -> Result<(), StoreError> {
        // It need not be durable: an entry that comes back after a crash is answered with a replay.
        self.on_disk(name, |_, path| match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        })
        .await
    }
}

fn read(path: &Path) -> io::Result<Entry> {
    let mut text = Vec::new();
    File::open(path)?.take(ENTRY_BYTES_MAX).read_to_end(&mut text)?;
    // A new key in the place of one that can't be read could do the same again, so a person has to look. The parser's own words could
    // repeat a key.
    let unreadable = |_| io::Error::new(ErrorKind::InvalidData, format!("{} is no entry", path.display()));
    serde_json::from_slice(&text).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn entry() -> Entry {
        Entry { key: IdempotencyKey::fresh(), path: "/v1/transfers".into(), body: "{\"amount\":1,\u{a0}}".into() }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_many_at_once_one_entry_stands_and_all_get_it() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let name = IdempotencyKey::fresh().expose().to_owned();
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    let (store, name) = (FileStore::open(folder.path()).unwrap(), name.clone());
                    tokio::spawn(async move { store.keep(&name, entry()).await.unwrap() })
                })
                .collect();
            let mut kept = HashSet::new();
            for task in tasks {
                kept.insert(task.await.unwrap().key.expose().to_owned());
            }
            assert_eq!(kept.len(), 1);
        }
    }

    #[tokio::test]
    async fn files_are_the_owners_alone_and_stay_in_their_folder() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("intents");
        let store = FileStore::open(&folder).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        let names = ["order-42", "Order-42", "../../order", "/etc/passwd", ".", "a.json", "ü", &"X".repeat(80)];
        for name in names {
            let first = entry();
            assert_eq!(store.keep(name, first.clone()).await.unwrap(), first, "{name}");
            assert_eq!(store.keep(name, entry()).await.unwrap(), first, "{name}");
        }
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        let caseless: HashSet<_> = files.iter().map(|file| file.to_string_lossy().to_lowercase()).collect();
        assert_eq!((files.len(), caseless.len()), (names.len(), names.len()));
        assert!(files.iter().all(|file| mode(file) == 0o600));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
        for name in names {
            store.forget(name).await.unwrap();
            store.forget(name).await.unwrap();
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        for name in ["", &"x".repeat(81)] {
            store.keep(name, entry()).await.unwrap_err();
        }
    }

    #[tokio::test]
    async fn an_entry_that_cannot_be_read_is_an_error_and_no_new_key() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path()).unwrap();
        let secret = r#"{"key":"secret","path":17}"#;
        std::fs::write(folder.path().join("order-42.json"), secret).unwrap();
        let error = store.keep("order-42", entry()).await.unwrap_err().to_string();
        assert!(error.contains("order-42.json") && !error.contains("secret"), "{error}");
        assert_eq!(std::fs::read_to_string(folder.path().join("order-42.json")).unwrap(), secret);
    }

    #[test]
    fn keys_are_not_printed() {
        let entry = entry();
        let printed = format!("{entry:?} {:?}", crate::ApiKey::new("sk_test_secret"));
        assert!(!printed.contains(entry.key.expose()) && !printed.contains("secret"), "{printed}");
    }
}
