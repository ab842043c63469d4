//! Rows locked by strangers, processes that freeze, operations that panic: the others go on.

use std::time::{Duration, Instant};

use harness::{Books, Client, until};

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_of_a_request_that_waits_for_a_lock_end_as_one_transfer() {
    let books = Books::open().await;
    let (one, two) = (books.api().await, books.api().await);
    let client = Client::new(&one, &books.owner.test);
    let other = client.at(&two);
    let world = books.account(&client, None).await;
    let account = books.funded(&client, &world, 100).await;
    for round in 0..3 {
        let lock = books.lock(&account).await;
        let key = client.fresh_key();
        let mut waiting = Vec::new();
        for client in [&client, &client, &other, &other] {
            let (client, key, account, world) = (client.clone(), key.clone(), account.clone(), world.clone());
            waiting.push(tokio::spawn(async move { client.transfer(&key, &account, &world, 10).await }));
        }
        if round == 0 {
            // Held for longer than any of them tries: every answer means "same key again", and none has an effect.
            for waiter in waiting.drain(..) {
                let reply = waiter.await.unwrap();
                assert!(reply.try_again(), "{reply:?}");
            }
            drop(lock);
        } else {
            // Released while they wait.
            drop(lock);
            for waiter in waiting.drain(..) {
                let reply = waiter.await.unwrap();
                assert!(reply.status == 201 || reply.try_again(), "{reply:?}");
            }
        }
        assert_eq!(client.transfer_until_final(&key, &account, &world, 10).await.status, 201);
        assert_eq!(other.transfer_until_final(&key, &account, &world, 10).await.status, 201);
        assert_eq!(books.posted(&account).await, 100 - 10 * (round + 1));
    }
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_hot_account_fails_its_own_traffic_only() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let hot = books.account(&client, Some(0)).await;
    let mut cold = Vec::new();
    for _ in 0..20 {
        cold.push(books.funded(&client, &world, 1_000_000).await);
    }
    let lock = books.lock(&hot).await;

    let copied = client.fresh_key();
    let mut to_hot = Vec::new();
    for index in 0..400_usize {
        let (client, hot, source) = (client.clone(), hot.clone(), cold[index % cold.len()].clone());
        // 200 transfers of their own, and 200 copies of one.
        let (key, source) = if index < 200 { (client.fresh_key(), source) } else { (copied.clone(), cold[0].clone()) };
        to_hot.push(tokio::spawn(async move { client.transfer(&key, &source, &hot, 1).await }));
    }
    // 5,000 among cold accounts, 50 at a time, while the hot ones wait.
    let mut slowest = Duration::ZERO;
    for wave in 0..100_usize {
        let mut among_cold = Vec::new();
        for index in 0..50_usize {
            let (source, destination) =
                (cold[(wave + index) % 20].clone(), cold[(wave + index + 1 + index % 7) % 20].clone());
            let client = client.clone();
            among_cold.push(tokio::spawn(async move {
                let started = Instant::now();
                let reply = client.transfer(&client.fresh_key(), &source, &destination, 1).await;
                (reply, started.elapsed())
            }));
        }
        for request in among_cold {
            let (reply, took) = request.await.unwrap();
            assert_eq!(reply.status, 201, "a cold transfer failed: {reply:?}");
            slowest = slowest.max(took);
        }
    }
    for request in to_hot {
        let reply = request.await.unwrap();
        assert!(reply.try_again(), "{reply:?}");
    }
    eprintln!("the slowest of 5,000 cold transfers beside a locked account took {slowest:?}");
    drop(lock);
    assert_eq!(client.transfer_until_final(&copied, &cold[0], &hot, 1).await.status, 201);
    assert_eq!(books.posted(&hot).await, 1);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_freezes_before_its_commit_delays_the_others_and_fails_none() {
    let books = Books::open().await;
    let healthy = books.api().await;
    let client = Client::new(&healthy, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let frozen = books.api_with(&[("ONCEPOST_FAILPOINT", "before-commit:pause")]).await;
    let key = client.fresh_key();
    let asked = {
        let (client, key, world, account) = (client.at(&frozen), key.clone(), world.clone(), account.clone());
        tokio::spawn(async move { client.try_transfer(&key, &world, &account, 1).await })
    };
    // It stands between numbering and COMMIT and holds the accounts and the stream.
    until("the process to freeze", async || frozen.said("failpoint").is_some()).await;
    for _ in 0..20 {
        let reply = client.transfer(&client.fresh_key(), &world, &account, 1).await;
        assert_eq!(reply.status, 201, "{reply:?}");
    }
    // The same key runs here meanwhile; what the frozen process then finds is its answer.
    assert_eq!(client.transfer_until_final(&key, &world, &account, 1).await.status, 201);
    frozen.thaw();
    let reply = asked.await.unwrap().unwrap();
    assert!(reply.status == 201 || reply.try_again(), "{reply:?}");
    assert_eq!(books.posted(&account).await, 21);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_panics_is_refused_alone() {
    let books = Books::open().await;
    let api = books.api_with(&[("ONCEPOST_FAILPOINT", "decide:panic:12")]).await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let mut requests = Vec::new();
    for _ in 0..30 {
        let (client, world, account) = (client.clone(), world.clone(), account.clone());
        requests.push(tokio::spawn(async move {
            let key = client.fresh_key();
            (key.clone(), client.transfer(&key, &world, &account, 1).await)
        }));
    }
    let mut refused = Vec::new();
    for request in requests {
        let (key, reply) = request.await.unwrap();
        match reply.status {
            201 => {}
            500 => refused.push((key, reply)),
            _ => panic!("{reply:?}"),
        }
    }
    let [(key, reply)] = refused.as_slice() else { panic!("{} were refused", refused.len()) };
    assert_eq!(reply.problem(), "internal");
    assert_eq!(books.posted(&account).await, 29);
    assert_eq!(client.transfer(key, &world, &account, 1).await.status, 201, "its key is free");
    books.finish().await;
}
