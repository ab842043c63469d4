//! How often a key was tried after its first request. Counted in memory and written later, in the order of keys, so that a
//! replay writes nothing; a crash loses what was not written yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use time::OffsetDateTime;

use crate::clock;
use crate::idempotency::KeyHash;
use crate::scope::Shard;

/// How often counts are written.
const TURN: Duration = Duration::from_secs(2);
/// The most keys counted between two writes, 60 bytes each; further ones are not counted.
const MAX_KEYS: usize = 50_000;
/// The most keys in one statement.
const MAX_WRITTEN: usize = 2_000;

#[derive(Clone, Copy)]
struct Count {
    attempts: i64,
    last_at: OffsetDateTime,
}

/// The counts that are not written yet.
#[derive(Clone, Default)]
pub(crate) struct Attempts {
    counts: Arc<Mutex<HashMap<(Shard, KeyHash), Count>>>,
}

impl Attempts {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Shard, KeyHash), Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an attempt.
    pub(crate) fn note(&self, shard: Shard, key: KeyHash) {
        let last_at = clock::now();
        let mut counts = self.lock();
        if counts.len() >= MAX_KEYS && !counts.contains_key(&(shard, key)) {
            return;
        }
        let count = counts.entry((shard, key)).or_insert(Count { attempts: 0, last_at });
        *count = Count { attempts: count.attempts.saturating_add(1), last_at };
    }

    /// What is counted for a key and not written yet: how often, and when last.
    pub(crate) fn unwritten(&self, shard: Shard, key: KeyHash) -> Option<(i64, OffsetDateTime)> {
        self.lock().get(&(shard, key)).map(|count| (count.attempts, count.last_at))
    }

    /// Writes the counts again and again until the task is ended.
    pub(crate) async fn run(self, pool: PgPool) {
        loop {
            tokio::time::sleep(TURN).await;
            self.write(&pool).await;
        }
    }

    /// Writes what is counted. What can't be written is forgotten: a count is worth no more than that.
    pub(crate) async fn write(&self, pool: &PgPool) {
        let mut counts: Vec<_> = std::mem::take(&mut *self.lock()).into_iter().collect();
        // In the order of keys, so that two processes that write the same ones wait for each other in one direction.
        counts.sort_unstable_by_key(|(key, _)| *key);
        for chunk in counts.chunks(MAX_WRITTEN) {
            let shards: Vec<i32> = chunk.iter().map(|((shard, _), _)| shard.0).collect();
            let hashes: Vec<[u8; 32]> = chunk.iter().map(|((_, key), _)| key.0).collect();
            let attempts: Vec<i64> = chunk.iter().map(|(_, count)| count.attempts).collect();
            let last_at: Vec<OffsetDateTime> = chunk.iter().map(|(_, count)| count.last_at).collect();
            // ON CONFLICT: the key was tried before, here or at another process.
            let written = sqlx::query!(
                "INSERT INTO idempotency_attempts AS a (key_hash, shard, attempts, last_at)
                 SELECT * FROM unnest($1::bytea[], $2::integer[], $3::bigint[], $4::timestamptz[])
                 ON CONFLICT ON CONSTRAINT idempotency_attempts_key
                 DO UPDATE SET attempts = a.attempts + excluded.attempts, last_at = greatest(a.last_at, excluded.last_at)",
                &hashes as &[[u8; 32]],
                &shards,
                &attempts,
                &last_at,
            )
            .execute(pool)
            .await;
            if let Err(error) = written {
                tracing::warn!(%error, "attempts can't be counted");
                return;
            }
        }
    }
}
