//! What happens when the same thing, or too much, is asked for at the same instant.

use std::collections::{BTreeMap, HashSet};

use harness::{Books, Client, Reply};

/// Sends requests together, each to the client at its turn.
async fn together<T: Send + 'static>(
    count: usize,
    clients: &[Client],
    send: impl Fn(Client, usize) -> std::pin::Pin<Box<dyn Future<Output = T> + Send>>,
) -> Vec<T> {
    let tasks: Vec<_> =
        (0..count).map(|index| tokio::spawn(send(clients[index % clients.len()].clone(), index))).collect();
    let mut results = Vec::with_capacity(count);
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// Of the answers, the 201s are one and the same, at most one of them first-hand; the others mean "same key again".
fn one_answer(replies: &[Reply]) -> &Reply {
    let (done, rest): (Vec<&Reply>, Vec<&Reply>) = replies.iter().partition(|reply| reply.status == 201);
    assert!(rest.iter().all(|reply| reply.try_again()), "{rest:#?}");
    let first = *done.first().expect("nobody was answered");
    for reply in &done {
        assert_eq!(reply.body, first.body);
        assert_eq!(reply.header("location"), first.header("location"));
        assert_eq!(reply.header("content-type"), first.header("content-type"));
    }
    assert!(done.iter().filter(|reply| !reply.replayed()).count() <= 1, "two ran first-hand");
    first
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_identical_posts_to_two_processes_move_money_once() {
    const ROUNDS: usize = 20;
    let books = Books::open().await;
    let (one, two) = (books.api().await, books.api().await);
    let client = Client::new(&one, &books.owner.test);
    let clients = [client.clone(), client.at(&two)];
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    for round in 0..ROUNDS {
        let key = client.fresh_key();
        let replies = together(50, &clients, |client, _| {
            let (key, world, account) = (key.clone(), world.clone(), account.clone());
            Box::pin(async move { client.transfer(&key, &world, &account, 7).await })
        })
        .await;
        one_answer(&replies);
        let expected = i64::try_from(round + 1).unwrap();
        assert_eq!(books.count("SELECT count(*) FROM transfers").await, expected);
        assert_eq!(books.posted(&account).await, expected * 7);
    }
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_identical_posts_that_drain_an_account_are_all_the_one_201() {
    let books = Books::open().await;
    let (one, two) = (books.api().await, books.api().await);
    let client = Client::new(&one, &books.owner.test);
    let clients = [client.clone(), client.at(&two)];
    let world = books.account(&client, None).await;
    for _ in 0..10 {
        let account = books.funded(&client, &world, 500).await;
        let key = client.fresh_key();
        let replies = together(50, &clients, |client, _| {
            let (key, world, account) = (key.clone(), world.clone(), account.clone());
            Box::pin(async move { client.transfer_until_final(&key, &account, &world, 500).await })
        })
        .await;
        assert!(replies.iter().all(|reply| reply.status == 201), "declined by its own original: {replies:#?}");
        one_answer(&replies);
        assert_eq!(books.posted(&account).await, 0);
    }
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_different_requests_with_one_key_one_moves_its_amount_and_the_other_is_told() {
    let books = Books::open().await;
    let (one, two) = (books.api().await, books.api().await);
    let client = Client::new(&one, &books.owner.test);
    let clients = [client.clone(), client.at(&two)];
    let world = books.account(&client, None).await;
    for _ in 0..100 {
        let account = books.account(&client, Some(0)).await;
        let key = client.fresh_key();
        let replies = together(2, &clients, |client, index| {
            let (key, world, account) = (key.clone(), world.clone(), account.clone());
            Box::pin(async move { client.transfer_until_final(&key, &world, &account, [100, 900][index]).await })
        })
        .await;
        let won: Vec<usize> = (0..2).filter(|index| replies[*index].status == 201).collect();
        assert_eq!(won.len(), 1, "{replies:#?}");
        let lost = &replies[1 - won[0]];
        assert_eq!((lost.status, lost.problem().as_str()), (422, "idempotency-key-reused"));
        assert_eq!(lost.json()["members"], serde_json::json!(["amount"]));
        assert_eq!(lost.json()["original"]["status"], 201);
        assert_eq!(books.posted(&account).await, [100, 900][won[0]]);
    }
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_crosses_in_both_directions_is_never_declined_or_stuck() {
    let books = Books::open().await;
    let (one, two) = (books.api().await, books.api().await);
    let client = Client::new(&one, &books.owner.test);
    let clients = [client.clone(), client.at(&two)];
    let world = books.account(&client, None).await;
    let mut ring = Vec::new();
    for _ in 0..5 {
        ring.push(books.funded(&client, &world, 1_000).await);
    }
    let fees = books.account(&client, Some(0)).await;
    for round in 0..20 {
        // A→B and B→A, then a ring, then everything through one account.
        let replies = together(100, &clients, |client, index| {
            let (ring, fees) = (ring.clone(), fees.clone());
            Box::pin(async move {
                let (source, destination) = match round % 3 {
                    0 => (ring[index % 2].clone(), ring[1 - index % 2].clone()),
                    1 => (ring[index % 5].clone(), ring[(index + 1) % 5].clone()),
                    _ => (ring[index % 5].clone(), fees),
                };
                client.transfer(&client.fresh_key(), &source, &destination, 1).await
            })
        })
        .await;
        let statuses: BTreeMap<u16, usize> = replies.iter().fold(BTreeMap::new(), |mut counts, reply| {
            *counts.entry(reply.status).or_default() += 1;
            counts
        });
        assert_eq!(statuses, BTreeMap::from([(201, 100)]), "{replies:#?}");
    }
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_payments_of_ten_from_a_hundred_exactly_ten_succeed() {
    let books = Books::open().await;
    let (one, two) = (books.api().await, books.api().await);
    let client = Client::new(&one, &books.owner.test);
    let clients = [client.clone(), client.at(&two)];
    let world = books.account(&client, None).await;
    for _ in 0..10 {
        let account = books.funded(&client, &world, 100).await;
        let replies = together(50, &clients, |client, _| {
            let (world, account) = (world.clone(), account.clone());
            Box::pin(async move { client.transfer(&client.fresh_key(), &account, &world, 10).await })
        })
        .await;
        let paid: HashSet<String> =
            replies.iter().filter(|reply| reply.status == 201).map(|reply| reply.json()["id"].to_string()).collect();
        let declined =
            replies.iter().filter(|reply| reply.status == 422 && reply.problem() == "insufficient-funds").count();
        assert_eq!((paid.len(), declined), (10, 40), "{replies:#?}");
        assert_eq!(books.posted(&account).await, 0);
    }
    books.finish().await;
}
