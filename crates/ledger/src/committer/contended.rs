//! The second committer: operations whose accounts were locked by others. It waits for locks so that no one else has to.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::Shared;
use super::batch::Locking;
use super::lane::{Lane, expire};
use super::lock::still_locked;
use super::queue::Job;
use crate::account::AccountId;

/// How long an account that did not come free within a lock time-out counts as stuck: operations on it no longer wait
/// in line with others, but try in passing.
const STUCK_FOR: Duration = Duration::from_secs(1);
/// How long the question may take which accounts are locked; it waits for none of them.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often operations on stuck accounts are tried.
const STUCK_TURN: Duration = Duration::from_millis(20);

/// The second committer's task.
pub(super) async fn run(shared: Shared) {
    let mut lane = Lane::new(shared);
    let mut parked: Vec<Job> = Vec::new();
    let mut stuck: HashMap<AccountId, Instant> = HashMap::new();
    loop {
        let queue = std::sync::Arc::clone(&lane.shared().contended);
        let arrived = if parked.is_empty() { queue.take().await } else { queue.take_within(STUCK_TURN).await };
        let mut arrived = match arrived {
            Some(arrived) => arrived,
            None if parked.is_empty() => return,
            // Closed, and some still wait for their accounts.
            None => {
                tokio::time::sleep(STUCK_TURN).await;
                Vec::new()
            }
        };
        let now = Instant::now();
        stuck.retain(|_, until| *until > now);
        let is_stuck = |job: &mut Job| job.asked.operation.accounts().any(|id| stuck.contains_key(&id));
        parked.extend(arrived.extract_if(.., is_stuck));

        if !arrived.is_empty() {
            // Those that ran into the lock time-out come back; the accounts that are locked even now are stuck.
            let left = lane.commit(arrived, Locking::Wait).await;
            let accounts: HashSet<AccountId> = left.iter().flat_map(|job| job.asked.operation.accounts()).collect();
            for id in locked_now(&mut lane, &accounts).await {
                stuck.insert(id, Instant::now() + STUCK_FOR);
            }
            parked.extend(left);
        }
        expire(&mut parked);
        if !parked.is_empty() {
            parked = lane.commit(std::mem::take(&mut parked), Locking::Skip).await;
        }
    }
}

/// Which of the accounts others hold at this moment; none where the database can't tell, which only costs a wait.
async fn locked_now(lane: &mut Lane, accounts: &HashSet<AccountId>) -> Vec<AccountId> {
    if accounts.is_empty() {
        return Vec::new();
    }
    let shard = lane.shared().shard;
    let Ok(session) = lane.session().await else { return Vec::new() };
    match tokio::time::timeout(PROBE_TIMEOUT, still_locked(session, shard, accounts)).await {
        Ok(Ok(locked)) => locked,
        Ok(Err(_)) | Err(_) => {
            lane.drop_session();
            Vec::new()
        }
    }
}
