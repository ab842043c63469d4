//! PostgreSQL goes back to an earlier moment: what Kafka holds of the time in between is listed, and a new epoch goes on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Account, Books, Client, Event, Process, Topic, until};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::Value;
use stack::Kafka;

/// Copies a stopped server's data folder to where a backup would lie, or back.
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        std::fs::remove_dir_all(to).unwrap();
    }
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Posts so many transfers of one cent.
async fn post(client: &Client, from: &Account, to: &Account, count: usize) {
    for _ in 0..count {
        assert_eq!(client.transfer(&client.fresh_key(), from, to, 1).await.status, 201);
    }
}

/// Stops a relay that has nothing left to do.
async fn stop(mut relay: Process) {
    relay.terminate();
    relay.ended().await;
}

async fn halted(relay: &Process, reason: &str) {
    let page = format!("relay-halted.md#{reason}");
    until(&format!("the relay to halt as {reason}"), async || relay.log().iter().any(|line| line.contains(&page)))
        .await;
}

/// Runs `relay new-epoch`, which must be refused with these words.
async fn refused(books: &Books, brokers: &str, arguments: &[&str], words: &str) {
    let refused = books.relay_command(brokers, &[&["new-epoch"], arguments].concat(), &[]).await;
    assert!(refused.code == 1 && refused.stderr.contains(words), "{refused:?}");
}

/// Runs `relay new-epoch`, which must begin the epoch after the position.
async fn begun(books: &Books, brokers: &str, arguments: &[&str], epoch: i64, after: i64) {
    let begun = books.relay_command(brokers, &[&["new-epoch"], arguments].concat(), &[]).await;
    assert_eq!(begun.stdout, format!("epoch {epoch} begins after position {after}\n"), "{begun:?}");
}

/// The lines of `relay reconcile`: the events in the order of their positions, and the summary.
async fn reconcile(books: &Books, brokers: &str) -> (Vec<Value>, Value) {
    let output = books.relay_command(brokers, &["reconcile"], &[]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let mut lines: Vec<Value> = output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap();
    lines.sort_by_key(|line| (line["epoch"].as_i64(), line["position"].as_i64()));
    (lines, summary)
}

fn positions(epoch: i64, range: impl IntoIterator<Item = i64>) -> Vec<(i64, i64)> {
    range.into_iter().map(|position| (epoch, position)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_restored_from_a_backup_goes_on_in_a_new_epoch() {
    let mut books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let topic = Topic::at(&brokers);
    let mut api = books.api().await;
    let mut client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let relay = books.relay_with(&brokers, &[]);
    post(&client, &world, &account, 7).await;
    topic.wait_for(7).await;

    // The backup: the data folder of a server that is stopped. Then five more, the first with a key that is kept.
    let cluster = books.postgres().log().parent().unwrap().join("cluster");
    let backup: PathBuf = cluster.with_file_name("backup");
    api.kill();
    books.postgres().stop().await.unwrap();
    copy(&cluster, &backup);
    books.postgres().restart().await.unwrap();
    api = books.api().await;
    client = client.at(&api);
    let lost_key = client.fresh_key();
    let lost = client.transfer(&lost_key, &world, &account, 1).await;
    post(&client, &world, &account, 4).await;
    let published = topic.wait_for(12).await;
    stop(relay).await;
    let (none, summary) = reconcile(&books, &brokers).await;
    assert_eq!((none.len(), &summary["agreed"]["position"]), (0, &12.into()), "{summary}");
    refused(&books, &brokers, &["--begin", "2"], "nothing is in doubt").await;

    // The restore. The server lost the last five; the API goes on before anyone notices.
    api.kill();
    books.postgres().stop().await.unwrap();
    copy(&backup, &cluster);
    books.postgres().restart().await.unwrap();
    assert_eq!(books.count("SELECT max(position) FROM outbox").await, 7);
    api = books.api().await;
    client = client.at(&api);
    let again = client.transfer(&lost_key, &world, &account, 1).await;
    assert_eq!((again.status, again.replayed()), (201, false), "its record is lost: it runs anew");
    assert_ne!(again.json()["id"], lost.json()["id"]);
    post(&client, &world, &account, 2).await;
    let relay = books.relay_with(&brokers, &[]);
    halted(&relay, "outbox-behind").await;

    // The list is exactly what was lost.
    let (lines, summary) = reconcile(&books, &brokers).await;
    let mut expected: Vec<&Event> = published.iter().filter(|event| event.position > 7).collect();
    expected.sort_by_key(|event| event.position);
    assert_eq!(lines.len(), expected.len());
    for (line, event) in lines.iter().zip(expected) {
        assert_eq!((line["epoch"].as_i64(), line["position"].as_i64()), (Some(1), Some(event.position)));
        assert_eq!((line["event_id"].as_str(), line["transfer_id"].as_str()), (Some(&*event.id), Some(&*event.key)));
        assert_eq!(line["transfer"], serde_json::from_slice::<Value>(&event.value).unwrap());
        assert_eq!(line["tenant_id"], books.owner.tenant.to_string());
        assert_eq!(line["environment"], "test");
        assert_eq!(line["outbox"].is_null(), event.position > 10, "{line}");
    }
    let same_key = "SELECT count(*) FROM idempotency_records WHERE encode(key_hash, 'hex') = $1";
    let key_hash = lines[0]["key_hash"].as_str().unwrap();
    assert_eq!(sqlx::query_scalar::<_, i64>(same_key).bind(key_hash).fetch_one(&books.pool).await.unwrap(), 1);
    assert_eq!((summary["missing"].as_u64(), summary["differing"].as_u64()), (Some(2), Some(3)), "{summary}");
    assert_eq!(summary["agreed"]["position"], 7);
    assert_eq!(summary["committed"]["position"], 12);
    assert_eq!(summary["topic_end"]["position"], 12);
    assert_eq!(summary["outbox_end"]["position"], 10);
    assert_eq!((&summary["complete"], &summary["next_epoch"]), (&true.into(), &2.into()));

    // Not by accident, and not another one. The halted relay stays; it finds the doubt gone and goes on.
    refused(&books, &brokers, &["--begin", "3"], "the epoch that comes next is 2, not 3").await;
    begun(&books, &brokers, &["--begin", "2"], 2, 7).await;
    post(&client, &world, &account, 2).await;
    let all = [positions(1, 1..=12), positions(2, 8..=12)].concat();
    topic.wait_for_all(&all).await;
    refused(&books, &brokers, &["--begin", "2"], "a relay works on this shard").await;
    refused(&books, &brokers, &["--begin", "3"], "a relay works on this shard").await;
    stop(relay).await;
    refused(&books, &brokers, &["--begin", "3"], "nothing is in doubt").await;
    let (none, summary) = reconcile(&books, &brokers).await;
    assert_eq!((none.len(), &summary["agreed"]["epoch"]), (0, &2.into()), "{summary}");

    // Restored once more, to before the second epoch: the third one comes next, and Kafka knows that.
    api.kill();
    books.postgres().stop().await.unwrap();
    copy(&backup, &cluster);
    books.postgres().restart().await.unwrap();
    let (lines, summary) = reconcile(&books, &brokers).await;
    assert_eq!((lines.len(), &summary["next_epoch"]), (10, &3.into()), "{summary}");
    begun(&books, &brokers, &["--begin", "3"], 3, 7).await;
    api = books.api().await;
    post(&client.at(&api), &world, &account, 1).await;
    let relay = books.relay_with(&brokers, &[]);
    topic.wait_for_all(&[all, positions(3, 8..=8)].concat()).await;
    stop(relay).await;
    kafka.stop().await.unwrap();
    drop(api);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_epoch_that_dies_at_any_step_is_finished_by_running_it_again() {
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let topic = Topic::at(&brokers);
    let mut expected = Vec::new();
    let (mut epoch, mut last, mut agreed) = (1, 0, 0);
    let mut accounts = None;
    for (failpoint, left) in [
        ("new-epoch-before-ledger", "outbox-behind"),
        ("new-epoch-after-ledger", "epoch-changed"),
        ("relay-before-commit", "epoch-changed"),
        ("relay-after-commit", "nothing"),
        ("relay-after-floor", "nothing"),
    ] {
        // The API is started anew each time, as it is after a restore.
        let mut api = books.api().await;
        let client = Client::new(&api, &books.owner.test);
        if accounts.is_none() {
            accounts = Some((books.account(&client, None).await, books.account(&client, Some(0)).await));
        }
        let (world, account) = accounts.clone().unwrap();
        post(&client, &world, &account, 3).await;
        expected.extend(positions(epoch, agreed + 1..=last + 3));
        let relay = books.relay_with(&brokers, &[]);
        topic.wait_for_all(&expected).await;
        stop(relay).await;
        api.kill();
        // Back to an earlier moment, the first time to one before any event; and one is accepted since.
        agreed = if epoch == 1 { 0 } else { last + 1 };
        sqlx::query("DELETE FROM outbox WHERE position > $1").bind(agreed).execute(&books.pool).await.unwrap();
        let api = books.api().await;
        post(&client.at(&api), &world, &account, 1).await;
        last = agreed + 1;
        drop(api);

        let begin = (epoch + 1).to_string();
        let armed = format!("{failpoint}:kill");
        let arguments = ["new-epoch", "--begin", &begin];
        let killed = books.relay_command(&brokers, &arguments, &[("ONCEPOST_FAILPOINT", &armed)]).await;
        assert_eq!(killed.code, -1, "{failpoint} kills it: {killed:?}");
        epoch += 1;
        if left == "nothing" {
            refused(&books, &brokers, &arguments[1..], "nothing is in doubt").await;
        } else {
            let relay = books.relay_with(&brokers, &[]);
            halted(&relay, left).await;
            drop(relay);
            begun(&books, &brokers, &arguments[1..], epoch, agreed).await;
        }
    }
    expected.extend(positions(epoch, agreed + 1..=last));
    let relay = books.relay_with(&brokers, &[]);
    topic.wait_for_all(&expected).await;
    stop(relay).await;
    kafka.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_gets_the_old_epoch_once_a_new_one_has_begun() {
    const CLIENTS: usize = 16;
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let topic = Topic::at(&brokers);
    let mut api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    post(&client, &world, &account, 10).await;
    let relay = books.relay_with(&brokers, &[]);
    topic.wait_for(10).await;
    stop(relay).await;
    api.kill();
    sqlx::raw_sql("DELETE FROM outbox WHERE position > 7").execute(&books.pool).await.unwrap();

    // Two processes give out positions while the epoch begins.
    let processes = [books.api().await, books.api().await];
    let enough = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for index in 0..CLIENTS {
        let (client, enough) = (client.at(&processes[index % 2]), Arc::clone(&enough));
        let (world, account) = (world.clone(), account.clone());
        tasks.push(tokio::spawn(async move {
            let mut posted = 0;
            while !enough.load(Ordering::SeqCst) {
                let reply = client.transfer_until_final(&client.fresh_key(), &world, &account, 1).await;
                assert_eq!(reply.status, 201);
                posted += 1;
            }
            posted
        }));
    }
    let events = "SELECT count(*) FROM outbox";
    until("transfers to come in", async || books.count(events).await > 200).await;
    begun(&books, &brokers, &["--begin", "2"], 2, 7).await;
    let then = books.count(events).await;
    until("transfers to go on", async || books.count(events).await > then + 200).await;
    enough.store(true, Ordering::SeqCst);
    let mut posted = 0;
    for task in tasks {
        posted += task.await.unwrap();
    }
    let last = 7 + posted;
    assert_eq!(books.count("SELECT count(*) FROM outbox WHERE (position > 7) <> (epoch = 2)").await, 0);
    assert_eq!(books.count("SELECT max(position) FROM outbox").await, last);
    let relay = books.relay_with(&brokers, &[]);
    topic.wait_for_all(&[positions(1, 1..=10), positions(2, 8..=last)].concat()).await;
    stop(relay).await;
    kafka.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_retention_has_left_no_proof_a_person_names_the_position() {
    let books = Books::open().await;
    let mut kafka = Kafka::temporary().await.unwrap();
    let brokers = kafka.bootstrap();
    let mut api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    post(&client, &world, &account, 10).await;
    let relay = books.relay_with(&brokers, &[("KAFKA_PARTITIONS", "1")]);
    Topic::at(&brokers).wait_for(10).await;
    stop(relay).await;
    api.kill();
    sqlx::raw_sql("DELETE FROM outbox WHERE position > 7").execute(&books.pool).await.unwrap();
    let api = books.api().await;
    post(&client.at(&api), &world, &account, 3).await;
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &brokers).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset("transfers", 0, Offset::End).unwrap();
    admin.delete_records(&offsets, &AdminOptions::new()).await.unwrap();

    let (lines, summary) = reconcile(&books, &brokers).await;
    assert_eq!((lines.len(), &summary["complete"], &summary["agreed"]), (0, &false.into(), &Value::Null), "{summary}");
    refused(&books, &brokers, &["--begin", "2"], "--after").await;
    refused(&books, &brokers, &["--begin", "2", "--after", "11"], "the outbox doesn't hold it").await;
    begun(&books, &brokers, &["--begin", "2", "--after", "7"], 2, 7).await;
    let relay = books.relay_with(&brokers, &[]);
    Topic::at(&brokers).wait_for_all(&positions(2, 8..=10)).await;
    stop(relay).await;
    kafka.stop().await.unwrap();
}
