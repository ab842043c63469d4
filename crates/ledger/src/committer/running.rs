//! The keys that this process is working on: a duplicate waits for its original instead of running beside it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::idempotency::{KeyHash, Record};

type Waiters = Vec<oneshot::Sender<Arc<Record>>>;

/// The keys under way in this process, each with the duplicates that wait for it. Their number is bounded by the
/// connections, since each of them holds a request open.
#[derive(Clone, Default)]
pub(crate) struct Running {
    keys: Arc<Mutex<HashMap<KeyHash, Waiters>>>,
}

/// How a request enters.
pub(crate) enum Entered {
    /// It is the first with its key and goes on.
    First(Entry),
    /// Another runs: its record comes here, or an error where it ends without one.
    Wait(oneshot::Receiver<Arc<Record>>),
}

/// The place of the first request with a key. Dropping it lets the duplicates try by themselves.
pub(crate) struct Entry {
    running: Running,
    /// `None` once it has left: the key may be another request's by then.
    key: Option<KeyHash>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<KeyHash, Waiters>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request with the key runs in this process.
    pub(crate) fn contains(&self, key: KeyHash) -> bool {
        self.lock().contains_key(&key)
    }

    pub(crate) fn enter(&self, key: KeyHash) -> Entered {
        let mut keys = self.lock();
        if let Some(waiters) = keys.get_mut(&key) {
            let (sender, receiver) = oneshot::channel();
            waiters.push(sender);
            return Entered::Wait(receiver);
        }
        keys.insert(key, Waiters::new());
        Entered::First(Entry { running: self.clone(), key: Some(key) })
    }
}

impl Entry {
    /// Hands the record to every duplicate that waits.
    pub(crate) fn finish(mut self, record: Record) {
        // Removed only here, after the record is committed and visible: who comes later finds it in the database.
        let waiters = self.leave();
        if waiters.is_empty() {
            return;
        }
        let record = Arc::new(record);
        for waiter in waiters {
            let _client_gone = waiter.send(Arc::clone(&record));
        }
    }

    fn leave(&mut self) -> Waiters {
        self.key.take().and_then(|key| self.running.lock().remove(&key)).unwrap_or_default()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        drop(self.leave());
    }
}
