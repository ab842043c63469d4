//! The client crate against the real API, over a network and before a database that lose answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use client::header::{HeaderName, HeaderValue};
use client::{ApiKey, Client, Error, FileStore, OpenAccount, OperationStatus, Outcome, Policy, PostTransfer, Transfer};
use harness::{Books, Process, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

/// Many attempts in little time. None of them needs the patience that a real network asks for.
const POLICY: Policy = Policy {
    attempts: 20,
    deadline: Duration::from_secs(45),
    attempt_timeout: Duration::from_secs(20),
    backoff: Duration::from_millis(5),
    backoff_max: Duration::from_millis(100),
};

/// A network before the API that cuts connections when an answer comes back.
struct Network {
    url: String,
    to_lose: Arc<AtomicU32>,
}

impl Network {
    async fn before(api: &Process) -> Self {
        let target = api.url().trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let to_lose = Arc::new(AtomicU32::new(0));
        let lose = Arc::clone(&to_lose);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, target.clone(), Arc::clone(&lose)));
            }
        });
        Self { url, to_lose }
    }

    fn lose_answers(&self, count: u32) {
        self.to_lose.store(count, Ordering::SeqCst);
    }

    fn client(&self, key: &str, store: FileStore, policy: Policy) -> Client<FileStore> {
        Client::builder(&self.url, ApiKey::new(key), store).policy(policy).no_proxy().build().unwrap()
    }
}

async fn forward(mut client: TcpStream, target: String, to_lose: Arc<AtomicU32>) {
    let mut server = TcpStream::connect(target).await.unwrap();
    let (mut from_client, mut from_server) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(size @ 1..) = read else { return };
                if server.write_all(&from_client[..size]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(size @ 1..) = read else { return };
                let lose = |left: u32| left.checked_sub(1);
                if to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lose).is_ok()
                    || client.write_all(&from_server[..size]).await.is_err()
                {
                    return;
                }
            }
        }
    }
}

fn done<T: std::fmt::Debug>(result: Result<Outcome<T>, Error>) -> client::Answer<T> {
    let Ok(Outcome::Done(answer)) = result else { panic!("{result:?}") };
    answer
}

/// Opens an account with the floor.
async fn open(client: &Client<FileStore>, name: &str, floor: Option<i64>) -> Uuid {
    let mut intent = client.intent(name);
    let mut account = OpenAccount::new("EUR");
    account.min_balance = floor;
    let opened = done(intent.open_account(&account).await).value;
    intent.forget().await.unwrap();
    opened.id
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_moves_money_once_though_answers_get_lost_and_callers_die() {
    let books = Books::open().await;
    let database = Proxy::before(&books.url).await;
    let api = books.api_with(&[("DATABASE_URL", &database.url(&books.url))]).await;
    let network = Network::before(&api).await;
    let folder = tempfile::tempdir().unwrap();
    let store = || FileStore::open(folder.path()).unwrap();
    let client = network.client(&books.owner.test, store(), POLICY);
    network.lose_answers(2);
    let (world, account) = (open(&client, "World", None).await, open(&client, "Account", Some(0)).await);
    assert_eq!(books.count("SELECT count(*) FROM accounts").await, 2);

    let transfer = PostTransfer::new(world, account, 5, "EUR");
    for round in 1..=10 {
        // The first answers don't reach the client, and behind the API the answers to the commits of the first attempt are lost.
        network.lose_answers(2);
        database.lose_commits(1 + round % 2);
        let mut intent = client.intent(format!("Order {round}"));
        let answer = done(intent.post_transfer(&transfer).await);
        assert!(answer.replayed, "{answer:?}");
        assert_eq!(client.transfer(answer.value.id).await.unwrap(), answer.value);
        intent.forget().await.unwrap();
        assert_eq!(client.account(account).await.unwrap().balance.posted, 5 * i64::from(round));
    }

    // Nothing is heard until the caller dies; his successor asks again under the same name.
    network.lose_answers(u32::MAX);
    let doomed = network.client(&books.owner.test, store(), Policy { attempts: 3, ..POLICY });
    let mut intent = doomed.intent("Order 11");
    let unheard = intent.post_transfer(&transfer).await;
    assert!(matches!(unheard, Err(Error::Unresolved { attempts: 3, .. })), "{unheard:?}");
    drop((intent, doomed));
    network.lose_answers(0);
    let successor = network.client(&books.owner.test, store(), POLICY);
    let mut intent = successor.intent("Order 11");
    let answer: client::Answer<Transfer> = done(intent.post_transfer(&transfer).await);
    assert!(answer.replayed);
    intent.forget().await.unwrap();
    assert_eq!(client.account(account).await.unwrap().balance.posted, 55);

    // A rule's no is final, and stays so.
    let mut intent = client.intent("Order 12");
    for again in [false, true] {
        let rejected = intent.post_transfer(&PostTransfer::new(account, world, 56, "EUR")).await;
        let Err(Error::Rejected { problem, replayed }) = rejected else { panic!("{rejected:?}") };
        assert_eq!((problem.name(), problem.account_id, replayed), ("insufficient-funds", Some(account), again));
    }
    intent.forget().await.unwrap();
    assert_eq!(books.count("SELECT count(*) FROM transfers").await, 11);
    assert_eq!(books.count("SELECT count(*) FROM idempotency_records").await, 14, "one key for each intent");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_gets_through_the_faults_that_it_asks_for() {
    let books = Books::open().await;
    let api = books.api().await;
    let folder = tempfile::tempdir().unwrap();
    // Less than the delay that is asked for, and more than any answer takes.
    let policy = Policy { attempts: 4, attempt_timeout: Duration::from_secs(5), ..POLICY };
    let builder = Client::builder(api.url(), ApiKey::new(&books.owner.test), FileStore::open(folder.path()).unwrap());
    let client = builder.policy(policy).no_proxy().build().unwrap();
    let (world, account) = (open(&client, "World", None).await, open(&client, "Account", Some(0)).await);
    let transfer = PostTransfer::new(world, account, 5, "EUR");
    let staged = |fault| (HeaderName::from_static("oncepost-fault"), HeaderValue::from_static(fault));

    // A fault strikes the first answer; the replay comes through.
    for fault in ["drop-reply", "delay=30000", "fail-after-commit"] {
        let (name, value) = staged(fault);
        let mut intent = client.intent(fault).header(name, value);
        let answer = done(intent.post_transfer(&transfer).await);
        assert!(answer.replayed, "{fault}: {answer:?}");
        intent.forget().await.unwrap();
    }

    // What never commits is never answered, and stays open until the same intent gets through.
    let (name, value) = staged("fail-before-commit");
    let mut intent = client.intent("fail-before-commit").header(name, value);
    let unresolved = intent.post_transfer(&transfer).await;
    assert!(matches!(unresolved, Err(Error::Unresolved { .. })), "{unresolved:?}");
    assert!(matches!(intent.forget().await, Err(Error::Unsettled { .. })));
    let mut intent = client.intent("fail-before-commit");
    assert!(!done(intent.post_transfer(&transfer).await).replayed);
    intent.forget().await.unwrap();
    assert_eq!(client.account(account).await.unwrap().balance.posted, 20);
    assert_eq!(books.count("SELECT count(*) FROM transfers").await, 4);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_waits_for_accepted_work_and_gets_its_final_answer() {
    let books = Books::open().await;
    let api = books.api().await;
    let network = Network::before(&api).await;
    let folder = tempfile::tempdir().unwrap();
    let client = network.client(&books.owner.test, FileStore::open(folder.path()).unwrap(), POLICY);
    let (world, account) = (open(&client, "World", None).await, open(&client, "Account", Some(0)).await);
    for (source, destination, ended) in
        [(world, account, OperationStatus::Succeeded), (account, world, OperationStatus::Failed)]
    {
        let transfer = PostTransfer::new(source, destination, if source == world { 5 } else { 6 }, "EUR");
        let mut intent = client.intent("Order").respond_async();
        network.lose_answers(1);
        let accepted = intent.post_transfer(&transfer).await;
        // The work may be done before the client hears of it: then it hears the end.
        if let Ok(Outcome::Accepted(answer)) = &accepted {
            network.lose_answers(1);
            let operation = client.wait_for(answer.value.id, Duration::from_secs(45)).await.unwrap();
            assert_eq!(operation.status, ended);
        }
        match intent.post_transfer(&transfer).await {
            Ok(Outcome::Done(answer)) => assert!(answer.replayed && ended == OperationStatus::Succeeded),
            Err(Error::Rejected { problem, .. }) => {
                assert!(problem.name() == "insufficient-funds" && ended == OperationStatus::Failed);
            }
            other => panic!("{other:?}"),
        }
        intent.forget().await.unwrap();
    }
    assert_eq!(client.account(account).await.unwrap().balance.posted, 5);
    books.finish().await;
}
