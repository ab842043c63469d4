//! Drills of clients that use keys wrongly, or too often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::page::Reader;
use crate::stand::{Stand, id_of};

pub(crate) async fn conflict_spike() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let request = stand.request(&client, &world, &account).await;
    let first = request.send(&client).await;
    assert_eq!(first.status, 201);
    // The client builds its request anew for each attempt, with the time of that attempt.
    for attempt in 1..=5 {
        let mut body = request.body.clone();
        body["metadata"] = json!({"sent_at": attempt.to_string()});
        let reply = client.post("/v1/transfers", &request.key, &body).await;
        assert_eq!(reply.problem(), "idempotency-key-reused");
    }
    let hash = "SELECT left(encode(key_hash, 'hex'), 8) FROM idempotency_records WHERE response_id = $1::uuid";
    let pool = stand.lock().await.books.pool.clone();
    let id = first.json()["id"].as_str().unwrap().to_owned();
    let hash: String = sqlx::query_scalar(hash).bind(id).fetch_one(&pool).await.unwrap();
    Reader::open("conflict-spike", &stand, &request.known(&[("hash", hash)])).await.finish().await;
}

pub(crate) async fn replay_spike() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let request = stand.request(&client, &world, &account).await;
    assert_eq!(request.send(&client).await.status, 201);
    for _ in 0..30 {
        assert!(request.send(&client).await.replayed());
    }
    Reader::open("replay-spike", &stand, &[]).await.finish().await;
}

pub(crate) async fn environment_mismatch_spike() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let mut request = stand.request(&client, &world, &account).await;
    assert_eq!(request.send(&client).await.status, 201);
    let live = client.with_key(&request.owner.live);
    for _ in 0..5 {
        assert_eq!(request.send(&live).await.problem(), "idempotency-key-environment-mismatch");
    }
    // The key that is in the wrong place is the live one.
    request.owner.test.clone_from(&request.owner.live);
    let known = request.known(&[("environment", "live".to_owned())]);
    Reader::open("environment-mismatch-spike", &stand, &known).await.finish().await;
}

pub(crate) async fn runaway_client() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let request = stand.request(&client, &world, &account).await;
    let refused = Arc::new(AtomicBool::new(false));
    // A new key for each attempt, until the door is shut.
    let running = {
        let (client, world, account, refused) = (client.clone(), world.clone(), account.clone(), Arc::clone(&refused));
        tokio::spawn(async move {
            let mut paid = 0;
            while !refused.load(Ordering::Relaxed) {
                match client.try_transfer(&client.fresh_key(), &world, &account, 1).await {
                    Ok(reply) if reply.status == 201 => paid += 1,
                    Ok(reply) if reply.status == 401 => refused.store(true, Ordering::Relaxed),
                    // Bounded, or while the API is started anew.
                    Ok(_) | Err(_) => {}
                }
                tokio::task::yield_now().await;
            }
            paid
        })
    };
    assert_eq!(id_of(&request.owner.test).len(), 8);
    Reader::open("runaway-client", &stand, &request.known(&[])).await.finish().await;
    assert!(refused.load(Ordering::Relaxed), "the client is shut out");
    assert!(running.await.unwrap() > 0);
}
