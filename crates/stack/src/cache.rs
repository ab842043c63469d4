//! The cache: what is fetched, once per machine, and never kept unless its SHA-256 is the one expected.

use crate::error::During;
use crate::folder::make_enterable;
use crate::process::{POLL, hexadecimal, random_text};
use crate::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one fetch may take: 70 MB, the largest archive, over a line of 1 Mbit/s.
pub(crate) const FETCH_WAIT: Duration = Duration::from_secs(600);

/// How often the progress is drawn.
const DRAW: Duration = Duration::from_millis(100);

/// What the cache holds under a name.
pub(crate) enum Entry {
    /// The finished folder.
    Present(PathBuf),
    /// Nothing yet: the caller fills the staging folder and publishes it.
    Absent(Staging),
}

/// Looks a name up. If it is absent, the caller alone may make it: others that ask for it wait until it is published.
/// A name holds what it was made from (a version and a checksum), so that a finished folder never changes.
pub(crate) async fn entry(name: &str) -> Result<Entry> {
    let cache = cache_folder()?;
    let target = cache.join(name);
    if target.is_dir() {
        return Ok(Entry::Present(target));
    }
    fs::create_dir_all(&cache).during("create", &cache)?;
    make_enterable(&cache)?;
    let lock = lock(&cache.join(format!("{name}.lock"))).await?;
    if target.is_dir() {
        return Ok(Entry::Present(target));
    }
    // The lock is held, so a staging folder that exists was left by a process that died.
    let folder = cache.join(format!("{name}.partial"));
    if folder.exists() {
        fs::remove_dir_all(&folder).during("delete", &folder)?;
    }
    fs::create_dir(&folder).during("create", &folder)?;
    Ok(Entry::Absent(Staging { folder, target, _lock: lock }))
}

/// A folder being filled. Dropping it unpublished deletes it.
pub(crate) struct Staging {
    folder: PathBuf,
    target: PathBuf,
    _lock: File,
}

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder, complete now, visible under its name.
    pub(crate) fn publish(self) -> Result<PathBuf> {
        make_enterable(&self.folder)?;
        fs::rename(&self.folder, &self.target).during("rename", &self.folder)?;
        Ok(self.target.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.folder.exists()
            && let Err(error) = fs::remove_dir_all(&self.folder)
        {
            tracing::warn!(folder = %self.folder.display(), %error, "could not be deleted");
        }
    }
}

/// Keeps a file that was made on this machine under a name, for the next who looks for it with [`kept`]. It is copied
/// under a name of its own first, as it may come from another file system, so that no one ever sees half of it.
pub(crate) fn keep(file: &Path, name: &str) -> Result<()> {
    let target = cache_folder()?.join(name);
    let partial = target.with_extension(format!("{}.partial", random_text()?));
    fs::copy(file, &partial).during("copy", file)?;
    fs::rename(&partial, &target).during("rename", &partial)?;
    fs::remove_file(file).during("remove", file)
}

/// The file kept under a name, if there is one.
pub(crate) fn kept(name: &str) -> Result<Option<PathBuf>> {
    Ok(Some(cache_folder()?.join(name)).filter(|file| file.is_file()))
}

/// Fails unless the bytes are those pinned.
pub(crate) fn verify(file: &str, bytes: &[u8], expected: &str) -> Result<()> {
    let found = hexadecimal(&Sha256::digest(bytes));
    if found == expected {
        return Ok(());
    }
    Err(Error::Checksum { file: file.to_owned(), expected: expected.to_owned(), found })
}

/// The first digits of a checksum, for an entry's name.
pub(crate) fn short_sum(text: &str) -> String {
    let mut sum = hexadecimal(&Sha256::digest(text));
    sum.truncate(12);
    sum
}

/// Draws a bar on a terminal's stderr, and nothing elsewhere. Without a length it shows the time that passes.
pub(crate) fn progress(what: &str, length: Option<u64>) -> ProgressBar {
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{msg} [{bar:32}] {pos}/{len} files, {elapsed}"),
        None => (ProgressBar::new_spinner(), "{msg} {spinner} {elapsed}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(format!("Fetching {what}, once"));
    bar.enable_steady_tick(DRAW);
    bar
}

async fn lock(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path).during("open", path)?;
    let deadline = Instant::now() + FETCH_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(source).during("lock", path),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => tokio::time::sleep(POLL).await,
            Err(TryLockError::WouldBlock) => {
                let reason = format!("another process held {} for {} s", path.display(), FETCH_WAIT.as_secs());
                return Err(Error::Fetch { what: "a file".to_owned(), reason });
            }
        }
    }
}

/// Root's cache is outside root's home: the unprivileged user that runs PostgreSQL for root cannot enter that.
fn cache_folder() -> Result<PathBuf> {
    if let Some(named) = folder_named("ONCEPOST_CACHE") {
        return Ok(named);
    }
    if geteuid().is_root() {
        return Ok(PathBuf::from("/var/cache/oncepost"));
    }
    if let Some(caches) = folder_named("XDG_CACHE_HOME") {
        return Ok(caches.join("oncepost"));
    }
    let caches = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    Ok(folder_named("HOME").ok_or(Error::CacheUnknown)?.join(caches).join("oncepost"))
}

/// The absolute folder that a variable names. A relative one would be another folder for every working directory.
fn folder_named(variable: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).filter(|value| !value.is_empty())?;
    std::path::absolute(named).ok()
}

#[cfg(test)]
mod tests {
    use super::verify;
    use crate::Error;

    #[test]
    fn a_file_with_another_sum_is_refused() {
        let sum_of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(verify("abc", b"abc", sum_of_abc).is_ok());
        assert!(matches!(verify("abc", b"abd", sum_of_abc), Err(Error::Checksum { .. })));
    }
}
