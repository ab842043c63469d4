//! Drills of our own processes: a bad release, errors of our own, a process that is gone.

use crate::page::Reader;
use crate::stand::{Request, Stand};

/// A system with the release that a drill is about, and a request that it does not take.
async fn bad_release(fault: &'static str, status: u16) -> (Stand, Request) {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    stand.lock().await.releases.insert("oncepost:2", ("ONCEPOST_FAILPOINT", fault));
    stand.configured("ONCEPOST_IMAGE", "oncepost:2").await;
    let request = stand.request(&client, &world, &account).await;
    for _ in 0..3 {
        let reply = request.send(&client).await;
        assert_eq!(reply.status, status, "{reply:?}");
    }
    (stand, request)
}

/// A release that fails at each of the next operations: each entry strikes once.
const PANICS: &str =
    "decide:panic,decide:panic,decide:panic,decide:panic,decide:panic,decide:panic,decide:panic,decide:panic";

pub(crate) async fn bad_deploy() {
    // A release that refuses what the one before it took.
    let (stand, request) = bad_release("stricter-rules:refuse", 400).await;
    Reader::open("bad-deploy", &stand, &request.known(&[])).await.finish().await;
}

pub(crate) async fn server_errors() {
    let (stand, request) = bad_release(PANICS, 500).await;
    Reader::open("server-errors", &stand, &request.known(&[])).await.finish().await;
}

pub(crate) async fn slo_burn() {
    let (stand, request) = bad_release(PANICS, 500).await;
    Reader::open("slo-burn", &stand, &request.known(&[])).await.finish().await;
}

pub(crate) async fn process_down() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    stand.lock().await.api.kill();
    Reader::open("process-down", &stand, &[("service", "api".to_owned())]).await.finish().await;
    assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
}
