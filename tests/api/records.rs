//! Records over time: what a replay costs, how long answers are kept, and secrets that change under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Books, Client, Reply, binary, until};

const A: &str = "a:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "b:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const A_AND_B: &str = "a:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,b:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// Every version of every row that a transfer touches, and the write counters of the whole database but for attempts.
async fn stamps(books: &Books) -> String {
    let query = "SELECT concat_ws(' ',
        (SELECT string_agg(format('%s %s %s', ctid, xmin, xmax), ',' ORDER BY id) FROM accounts),
        (SELECT string_agg(format('%s %s %s', ctid, xmin, xmax), ',' ORDER BY shard) FROM streams),
        (SELECT string_agg(format('%s %s %s', ctid, xmin, xmax), ',' ORDER BY key_hash) FROM idempotency_records),
        (SELECT string_agg(format('%s %s %s', ctid, xmin, xmax), ',' ORDER BY id) FROM idempotency_responses),
        (SELECT count(*) FROM outbox), (SELECT count(*) FROM postings), (SELECT count(*) FROM transfers))";
    sqlx::query_scalar(query).fetch_one(&books.pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_locks_nothing_writes_nothing_and_takes_one_statement_at_most() {
    const REPLAYS: usize = 100;
    let mut books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let first = client.transfer(&key, &world, &account, 5).await;
    assert_eq!(first.status, 201);
    for setting in ["log_statement = 'all'", "log_line_prefix = '%a '"] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("ALTER SYSTEM SET {setting}"))).execute(&books.pool).await.unwrap();
    }
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&books.pool).await.unwrap();
    let log = books.postgres().log();
    // Executed with parameters: BEGIN and ROLLBACK, which no one waits for, are not among them.
    let executed = |line: &&str| line.starts_with("oncepost-committer LOG:") && line.contains(" execute ");
    let statements = |log: &str| log.lines().filter(executed).count();
    let read = || std::fs::read_to_string(&log).unwrap();
    // The setting reaches the committer's session between two of its statements.
    until("statements to be logged", async || {
        assert!(client.transfer(&key, &world, &account, 5).await.replayed());
        statements(&read()) > 0
    })
    .await;
    let before = (stamps(&books).await, statements(&read()));
    for _ in 0..REPLAYS {
        let replay = client.transfer(&key, &world, &account, 5).await;
        assert_eq!((replay.status, replay.replayed()), (201, true));
    }
    let logged = read();
    assert_eq!(stamps(&books).await, before.0, "a replay left a trace in a row");
    let taken = statements(&logged) - before.1;
    // A request that comes while the one before it is being answered gets that one's record, without any statement.
    assert!((1..=REPLAYS).contains(&taken), "{REPLAYS} replays took {taken} statements");
    let since: Vec<&str> = logged.lines().filter(executed).skip(before.1).collect();
    for line in since {
        let writes = ["INSERT", "UPDATE accounts", "COMMIT", "DELETE"].iter().any(|word| line.contains(word));
        assert!(!writes, "a replay wrote: {line}");
    }

    // And it waits for no one's lock.
    let mut lock = books.pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM accounts FOR UPDATE").execute(&mut *lock).await.unwrap();
    let replay = client.transfer(&key, &world, &account, 5).await;
    assert_eq!((replay.status, replay.body), (201, first.body));
    drop(lock);
    books.finish().await;
}

/// Makes a record's answer as old as `days`, by moving both back in time.
async fn age(books: &Books, days: i32) {
    let query = format!(
        "DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - {days}; BEGIN
           EXECUTE format('CREATE TABLE %I PARTITION OF idempotency_responses FOR VALUES FROM (%L) TO (%L)',
             'idempotency_responses_' || to_char(day, 'YYYYMMDD'), day, day + 1);
         END $$;
         UPDATE idempotency_responses SET day = day - {days};
         UPDATE idempotency_records SET completed_at = completed_at - make_interval(days => {days})"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(query)).execute(&books.pool).await.unwrap();
}

/// Runs a command of `api` on the books; returns what it printed.
fn command(books: &Books, arguments: &[&str], environment: &[(&str, &str)]) -> (bool, String) {
    let mut command = std::process::Command::new(binary("api"));
    command.args(arguments).env("DATABASE_URL", &books.url).envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_past_its_retention_is_refused_and_never_runs_again() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    let first = client.transfer(&key, &world, &account, 5).await;
    assert_eq!(first.status, 201);
    age(&books, 8).await;
    assert_eq!(client.transfer(&key, &world, &account, 5).await.body, first.body, "not dropped yet, so replayed");

    // Load, and 20 clients that retry the old key, while its day is dropped.
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = Vec::new();
    for _ in 0..4 {
        let (client, world, account, stop) = (client.clone(), world.clone(), account.clone(), Arc::clone(&stop));
        load.push(tokio::spawn(async move {
            let (mut slowest, mut count) = (Duration::ZERO, 0);
            while !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                let reply = client.transfer(&client.fresh_key(), &world, &account, 1).await;
                assert_eq!(reply.status, 201, "{reply:?}");
                slowest = slowest.max(started.elapsed());
                count += 1;
            }
            (slowest, count)
        }));
    }
    let mut retries = Vec::new();
    for _ in 0..20 {
        let (client, key, world, account, stop) =
            (client.clone(), key.clone(), world.clone(), account.clone(), Arc::clone(&stop));
        retries.push(tokio::spawn(async move {
            let mut replies: Vec<Reply> = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                replies.push(client.transfer_until_final(&key, &world, &account, 5).await);
            }
            replies
        }));
    }
    until("the day to be dropped", async || {
        let (succeeded, text) = command(&books, &["retention"], &[]);
        succeeded && text.contains("1 dropped")
    })
    .await;
    let expired = client.transfer(&key, &world, &account, 5).await;
    stop.store(true, Ordering::Relaxed);
    assert_eq!((expired.status, expired.problem().as_str()), (422, "idempotency-key-expired"));
    assert_eq!(expired.json()["original"]["status"], 201);
    assert_eq!(expired.json()["original"]["location"], first.header("location"));
    for replies in retries {
        for reply in replies.await.unwrap() {
            let replayed = reply.status == 201 && reply.replayed() && reply.body == first.body;
            assert!(replayed || (reply.status == 422 && reply.problem() == "idempotency-key-expired"), "{reply:?}");
        }
    }
    let mut moved = 5;
    for task in load {
        let (slowest, count) = task.await.unwrap();
        eprintln!("beside a day that is dropped, the slowest of {count} transfers took {slowest:?}");
        moved += count;
    }
    assert_eq!(books.posted(&account).await, moved);
    let other = client.transfer(&key, &world, &account, 6).await;
    assert_eq!(other.problem(), "idempotency-key-reused", "another request is told so, expired or not");
    books.finish().await;
}

/// Sends transfers, each to both processes at once under one key, until told to stop; returns how many.
async fn load_both(
    one: Client,
    two: Client,
    world: String,
    account: String,
    stop: Arc<AtomicBool>,
) -> Vec<(String, Vec<u8>)> {
    let mut sent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = one.fresh_key();
        let (here, there) = tokio::join!(
            one.transfer_until_final(&key, &world, &account, 1),
            two.transfer_until_final(&key, &world, &account, 1)
        );
        assert_eq!((here.status, there.status), (201, 201));
        assert_eq!(here.body, there.body, "one key, one answer, whichever process is asked");
        sent.push((key, here.body));
    }
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_rotate_under_load_and_no_key_runs_twice() {
    let books = Books::open().await;
    // Each step replaces one of two processes; in between they differ by one step.
    let steps: [&[(&str, &str)]; 3] = [
        &[("IDEMPOTENCY_SECRETS", A)],
        &[("IDEMPOTENCY_SECRETS", A_AND_B)],
        &[("IDEMPOTENCY_SECRETS", B), ("IDEMPOTENCY_LOOKUP_SECRETS", A)],
    ];
    let mut one = books.api_with(steps[0]).await;
    let mut two = books.api_with(steps[0]).await;
    let client = Client::new(&one, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let mut sent: Vec<(String, Vec<u8>)> = Vec::new();
    let mut configurations = vec![(0, 0)];
    for step in 1..steps.len() {
        configurations.extend([(step, step - 1), (step, step)]);
    }
    let mut at = (0, 0);
    for (first, second) in configurations {
        if first != at.0 {
            one.terminate();
            assert!(one.ended().await.success());
            one = books.api_with(steps[first]).await;
        }
        if second != at.1 {
            two.terminate();
            assert!(two.ended().await.success());
            two = books.api_with(steps[second]).await;
        }
        at = (first, second);
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Vec::new();
        for _ in 0..4 {
            let (one, two) = (client.at(&one), client.at(&two));
            load.push(tokio::spawn(load_both(one, two, world.clone(), account.clone(), Arc::clone(&stop))));
        }
        // Beside the load, every key so far is replayed by both.
        for (key, body) in &sent {
            for client in [client.at(&one), client.at(&two)] {
                let reply = client.transfer_until_final(key, &world, &account, 1).await;
                assert_eq!((reply.status, reply.replayed(), &reply.body), (201, true, body), "at {first}, {second}");
            }
        }
        let before = books.count("SELECT count(*) FROM transfers").await;
        until("some load", async || books.count("SELECT count(*) FROM transfers").await > before + 20).await;
        stop.store(true, Ordering::Relaxed);
        for task in load {
            sent.extend(task.await.unwrap().into_iter().take(10));
        }
    }
    let transfers = books.count("SELECT count(*) FROM transfers").await;
    assert_eq!(books.posted(&account).await, transfers);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_lacks_a_secret_or_has_another_by_its_name_does_not_start() {
    let books = Books::open().await;
    let peppers = ("API_KEY_PEPPERS", "test:fedcba9876543210fedcba9876543210");
    let mut api = books.api_with(&[("IDEMPOTENCY_SECRETS", A)]).await;
    let client = Client::new(&api, &books.owner.test);
    books.account(&client, None).await;
    api.terminate();
    assert!(api.ended().await.success());
    let start = |secrets, look_up| {
        let environment = [
            peppers,
            ("IDEMPOTENCY_SECRETS", secrets),
            ("IDEMPOTENCY_LOOKUP_SECRETS", look_up),
            ("LISTEN", "127.0.0.1:0"),
        ];
        command(&books, &["serve"], &environment)
    };
    let (started, text) = start(B, "");
    assert!(!started && text.contains("the secret a, which is not configured"), "{text}");
    let (started, text) = start(B, "a:another-secret-of-at-least-32-bytes");
    assert!(!started && text.contains("the secret a is not the one"), "{text}");
    assert!(!text.contains("another-secret"), "no secret is printed");
    // A refused start leaves nothing behind.
    let api = books.api_with(&[("IDEMPOTENCY_SECRETS", A)]).await;
    assert_eq!(client.at(&api).get("/readyz").await.status, 200);
    assert_eq!(books.count("SELECT count(*) FROM idempotency_secrets").await, 1);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_with_different_secrets_the_second_does_not_start_though_nothing_is_recorded_yet() {
    let books = Books::open().await;
    let _first = books.api_with(&[("IDEMPOTENCY_SECRETS", A)]).await;
    let peppers = ("API_KEY_PEPPERS", "test:fedcba9876543210fedcba9876543210");
    let (started, text) =
        command(&books, &["serve"], &[peppers, ("IDEMPOTENCY_SECRETS", B), ("LISTEN", "127.0.0.1:0")]);
    assert!(!started && text.contains("the secret a, which is not configured"), "{text}");
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_stays_as_it_was_whatever_becomes_of_its_resource() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let key = client.fresh_key();
    let opened = client.post("/v1/accounts", &key, &serde_json::json!({"currency": "EUR"})).await;
    let account = opened.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 5).await.status, 201);
    let again = client.post("/v1/accounts", &key, &serde_json::json!({"currency": "EUR"})).await;
    assert_eq!((again.status, again.replayed()), (201, true));
    assert_eq!(again.body, opened.body, "the balance is that of the first answer");
    assert_eq!(again.header("location"), opened.header("location"));
    assert_eq!(again.header("content-type"), opened.header("content-type"));
    assert_ne!(again.header("x-request-id"), opened.header("x-request-id"), "the request's id is its own");
    assert_eq!(client.get(opened.header("location")).await.json()["balance"]["posted"], 5, "GET shows today's state");
    books.finish().await;
}
