//! The real servers, started, killed and found again. All of it runs as root and as an ordinary user.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "clippy does not take the functions beside the tests for tests"
)]

use sqlx::{Connection, PgConnection};
use stack::{Error, Kafka, KafkaOptions, Postgres, PostgresOptions, TemporaryFolder};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The longest a test waits for an answer that must not come or for one that must.
const SILENCE: Duration = Duration::from_millis(200);

/// Names the data folder to the process that plays an owner who is killed.
const DOOMED_DATA_DIR: &str = "STACK_TEST_DOOMED_DATA_DIR";

fn postgres_in(folder: &Path) -> PostgresOptions {
    PostgresOptions { data_dir: folder.join("postgres"), port: None }
}

async fn connect(postgres: &Postgres) -> PgConnection {
    PgConnection::connect(&postgres.url()).await.unwrap()
}

async fn execute(postgres: &Postgres, sql: &'static str) {
    let mut connection = connect(postgres).await;
    sqlx::query(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

async fn read(postgres: &Postgres, sql: &'static str) -> String {
    let mut connection = connect(postgres).await;
    let text = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    text
}

#[tokio::test]
async fn postgres_is_durable_and_open_to_its_password_only() {
    let mut postgres = Postgres::temporary().await.unwrap();
    for (setting, value) in [("fsync", "on"), ("synchronous_commit", "on"), ("max_connections", "250")] {
        let mut connection = connect(&postgres).await;
        let told: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(setting).fetch_one(&mut connection).await.unwrap();
        assert_eq!(told, value, "{setting}");
    }
    let stranger = format!("postgres://postgres:wrong@127.0.0.1:{}/postgres", postgres.port());
    assert!(PgConnection::connect(&stranger).await.is_err());
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn postgres_keeps_its_data_and_its_port_over_a_stop_a_kill_and_another_owner() {
    let folder = TemporaryFolder::create().unwrap();
    let mut postgres = Postgres::start(postgres_in(folder.path())).await.unwrap();
    let url = postgres.url();
    execute(&postgres, "CREATE TABLE witnesses AS SELECT 'here' AS word").await;

    postgres.restart().await.unwrap();
    assert_eq!(read(&postgres, "SELECT word FROM witnesses").await, "here");
    execute(&postgres, "UPDATE witnesses SET word = 'still here'").await;
    postgres.kill();
    postgres.restart().await.unwrap();
    assert_eq!(read(&postgres, "SELECT word FROM witnesses").await, "still here");
    assert_eq!(postgres.url(), url);

    drop(postgres);
    let mut postgres = Postgres::start(postgres_in(folder.path())).await.unwrap();
    assert_eq!(read(&postgres, "SELECT word FROM witnesses").await, "still here");
    postgres.stop().await.unwrap();
    assert!(matches!(postgres.pause(), Err(Error::NotRunning { .. })));
}

#[tokio::test]
async fn a_paused_postgres_says_nothing_until_it_is_resumed() {
    let postgres = Postgres::temporary().await.unwrap();
    let mut connection = connect(&postgres).await;
    postgres.pause().unwrap();
    let answer = sqlx::query_scalar("SELECT 'late'").fetch_one(&mut connection);
    tokio::pin!(answer);
    assert!(tokio::time::timeout(SILENCE, &mut answer).await.is_err());
    postgres.resume().unwrap();
    let word: String = answer.await.unwrap();
    assert_eq!(word, "late");
}

#[tokio::test]
async fn a_second_owner_of_a_data_folder_is_refused() {
    let folder = TemporaryFolder::create().unwrap();
    let first = Postgres::start(postgres_in(folder.path())).await.unwrap();
    let second = Postgres::start(postgres_in(folder.path())).await;
    assert!(matches!(second, Err(Error::FolderInUse { .. })), "{second:?}");
    drop(first);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let first = Postgres::temporary().await.unwrap();
    let folder = TemporaryFolder::create().unwrap();
    let second = Postgres::start(PostgresOptions { port: Some(first.port()), ..postgres_in(folder.path()) }).await;
    assert!(matches!(second, Err(Error::PortTaken { port }) if port == first.port()), "{second:?}");
}

#[tokio::test]
async fn the_server_of_a_killed_owner_is_stopped_by_the_next_one() {
    let folder = TemporaryFolder::create().unwrap();
    let (url, mut owner) = start_doomed_owner(Some(folder.path()));
    owner.kill().unwrap();
    owner.wait().unwrap();
    PgConnection::connect(&url).await.expect("it runs on, as nobody could stop it");

    let postgres = Postgres::start(postgres_in(folder.path())).await.unwrap();
    assert!(PgConnection::connect(&url).await.is_err());
    assert_eq!(read(&postgres, "SELECT word FROM witnesses").await, "here");
}

#[tokio::test]
async fn data_is_deleted_once_its_owner_is_dead_and_with_it_the_server_left_behind() {
    let folder = TemporaryFolder::create().unwrap();
    let data_dir = postgres_in(folder.path()).data_dir;
    stack::delete_data(&data_dir).expect("there is nothing to delete");
    let (url, mut owner) = start_doomed_owner(Some(folder.path()));
    assert!(matches!(stack::delete_data(&data_dir), Err(Error::FolderInUse { .. })));
    owner.kill().unwrap();
    owner.wait().unwrap();

    stack::delete_data(&data_dir).unwrap();
    assert!(!data_dir.exists());
    assert!(PgConnection::connect(&url).await.is_err());
}

#[tokio::test]
async fn the_temporary_folder_of_a_killed_owner_is_swept() {
    let (url, mut owner) = start_doomed_owner(None);
    owner.kill().unwrap();
    let prefix = format!("oncepost-stack-{}-", owner.id());
    owner.wait().unwrap();
    assert_eq!(temporary_folders(&prefix).len(), 1);

    let _own = TemporaryFolder::create().unwrap();
    assert!(temporary_folders(&prefix).is_empty());
    assert!(PgConnection::connect(&url).await.is_err());
}

fn temporary_folders(prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().map(|entry| entry.unwrap());
    entries.filter(|entry| entry.file_name().to_str().unwrap().starts_with(prefix)).map(|entry| entry.path()).collect()
}

/// Starts a process that starts PostgreSQL, in the folder or in a temporary one, and returns the server's URL.
fn start_doomed_owner(folder: Option<&Path>) -> (String, Child) {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "plays_an_owner_who_is_killed"])
        .env(DOOMED_DATA_DIR, folder.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let url = read_url(owner.stdout.take().unwrap());
    (url, owner)
}

fn read_url(told: ChildStdout) -> String {
    let mut lines = BufReader::new(told).lines().map(|line| line.unwrap());
    let url = lines.find_map(|line| line.find("postgres://").map(|start| line[start..].to_owned()));
    url.expect("the owner started its server")
}

#[tokio::test]
#[ignore = "the tests of killed owners run it in a process of its own"]
async fn plays_an_owner_who_is_killed() {
    let Some(folder) = std::env::var_os(DOOMED_DATA_DIR) else { return };
    let postgres = if folder.is_empty() {
        Postgres::temporary().await.unwrap()
    } else {
        Postgres::start(postgres_in(Path::new(&folder))).await.unwrap()
    };
    execute(&postgres, "CREATE TABLE witnesses AS SELECT 'here' AS word").await;
    println!("{}", postgres.url());
    std::io::stdout().flush().unwrap();
    // Its stdin ends when the test does, even if that fails before it kills.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[tokio::test]
async fn kafka_answers_again_on_its_port_after_a_stop_and_a_kill() {
    let folder = TemporaryFolder::create().unwrap();
    let options = KafkaOptions { data_dir: folder.path().join("kafka"), port: None };
    let mut kafka = Kafka::start(options.clone()).await.unwrap();
    let bootstrap = kafka.bootstrap();
    assert!(matches!(Kafka::start(options).await, Err(Error::FolderInUse { .. })));

    kafka.stop().await.unwrap();
    assert!(TcpStream::connect(&bootstrap).is_err());
    kafka.restart().await.unwrap();
    kafka.kill();
    assert!(TcpStream::connect(&bootstrap).is_err());
    kafka.restart().await.unwrap();
    assert_eq!(kafka.bootstrap(), bootstrap);
    assert!(TcpStream::connect(&bootstrap).is_ok());
    kafka.stop().await.unwrap();
}
