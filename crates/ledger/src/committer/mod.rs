//! One task per shard takes operations from a queue and commits them in batches: whatever gathered while the previous
//! batch committed. No timer, no added wait; one operation is a batch of one, and there is no second path. Everything that
//! changes accounts or the stream goes through it; no other code locks or changes those rows.
//!
//! | step | what | why so |
//! |---|---|---|
//! | 1 look up | the records of the batch's keys, under every secret | found → answered from the record; nothing locked |
//! | 2 lock | the accounts of the rest, in ascending order, `FOR NO KEY UPDATE SKIP LOCKED` | locked by others → the second committer. Never waits, so no deadlock, and no one waits for a stranger's lock |
//! | 3 decide | pure, in arrival order, on the book of locked rows | operations of one batch see each other |
//! | 4 write | records, answers, balances, transfers, postings: one statement of arrays | every outcome inserts its record; one that is not inserted belongs to another process: roll back, run again, and step 1 finds it |
//! | 5 number | the stream row is locked, and the outbox rows continue its positions | dense and in commit order (I7), since the stream's lock is held. Last and shortest lock |
//! | 6 commit | then everyone is answered | I6 |
//!
//! The usual batch takes three round trips and one that its clients don't wait for: BEGIN is sent ahead, while they think;
//! the accounts are locked by a statement that looks for the records first and locks nothing where one stands, so the
//! records are read only then; the statement that writes also numbers, where the session knows the last position, and is
//! refused by the outbox's key where it is mistaken; COMMIT. Locks are taken in one order: accounts, records, stream.
//! Sessions are the committer's own, outside any pool; it never takes a second connection inside a batch.
//!
//! `batch` holds those steps, `lock` and `write` their statements, `fault` sorts what may go wrong in them, `lane` runs batches again until each operation has
//! an outcome, `contended` is the second committer, `queue` and `running` bound and join what waits.

mod batch;
mod contended;
mod fault;
mod lane;
mod lock;
mod queue;
mod running;
mod session;
mod write;

use std::sync::Arc;

use tokio::sync::watch;

use crate::database::Database;
use crate::idempotency::Secrets;
use crate::scope::Shard;

pub(crate) use lock::{look_up, read_book};
pub(crate) use queue::{Job, Queue, Run, shed_early};
pub(crate) use running::{Entered, Entry, Running};

/// What both tasks of a shard's committer work with.
#[derive(Clone)]
struct Shared {
    database: Database,
    secrets: Arc<Secrets>,
    shard: Shard,
    /// What arrives.
    queue: Arc<Queue>,
    /// What found an account locked by others.
    contended: Arc<Queue>,
}

/// The committer of one shard: a queue and the two tasks that empty it.
pub(crate) struct Committer {
    shared: Shared,
    ended: watch::Receiver<bool>,
}

impl Committer {
    /// Starts both tasks. They connect when there is work.
    pub(crate) fn start(database: &Database, secrets: Arc<Secrets>, shard: Shard) -> Self {
        let (queue, contended) = (Arc::new(Queue::new()), Arc::new(Queue::new()));
        let shared = Shared { database: database.clone(), secrets, shard, queue, contended };
        let (report_end, ended) = watch::channel(false);
        let working = shared.clone();
        tokio::spawn(async move {
            let (first, second) = (supervise(&working, lane::run), supervise(&working, contended::run));
            first.await;
            // Only now, since the first committer hands over to the second as long as it works.
            working.contended.close();
            second.await;
            report_end.send_replace(true);
        });
        Self { shared, ended }
    }

    /// Where operations are put.
    pub(crate) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    /// Where operations wait whose accounts others hold.
    pub(crate) fn contended(&self) -> &Queue {
        &self.shared.contended
    }

    /// Takes no more work and returns when everything queued has its outcome.
    pub(crate) async fn close(&self) {
        self.shared.queue.close();
        let mut ended = self.ended.clone();
        let _ended = ended.wait_for(|ended| *ended).await;
    }
}

/// Runs a task to its end, and again if it panics: one fault of ours must not stop everyone's money. What it held is
/// dropped, and whoever waited for it hears that the truth isn't known.
fn supervise<F>(shared: &Shared, run: fn(Shared) -> F) -> impl Future<Output = ()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let supervised = tokio::spawn({
        let shared = shared.clone();
        async move {
            while let Err(panicked) = tokio::spawn(run(shared.clone())).await {
                tracing::error!(error = %panicked, "the committer panicked and is started again");
            }
        }
    });
    async move {
        let _ended = supervised.await;
    }
}
