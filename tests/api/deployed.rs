//! What `docs/deploying.md` says of PostgreSQL, tried.

use harness::{Books, Client, binary};
use sqlx::{AssertSqlSafe, PgPool};

async fn run(pool: &PgPool, statement: impl Into<String>) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement.into())).execute(pool).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_is_durable_whatever_the_database_is_set_to() {
    let books = Books::open().await;
    // A row for each transfer, which says how the session that writes it commits.
    for statement in [
        "ALTER DATABASE postgres SET synchronous_commit = off",
        "CREATE TABLE commits (kind text)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql
           AS $$ BEGIN INSERT INTO commits SELECT current_setting('synchronous_commit'); RETURN NULL; END $$",
        "CREATE TRIGGER note AFTER INSERT ON transfers FOR EACH ROW EXECUTE FUNCTION note()",
    ] {
        run(&books.pool, statement).await.unwrap();
    }
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let (world, account) = (books.account(&client, None).await, books.account(&client, Some(0)).await);
    assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 5).await.status, 201);
    let kinds: Vec<String> = sqlx::query_scalar("SELECT kind FROM commits").fetch_all(&books.pool).await.unwrap();
    assert_eq!(kinds, ["on"]);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_that_serves_does_its_work_and_changes_nothing_that_stands() {
    const APP: &str = "an_application";
    let books = Books::open().await;
    run(&books.pool, format!("CREATE ROLE {APP} LOGIN PASSWORD 'of-a-test'")).await.unwrap();
    ledger::Database::from_url(&books.url).unwrap().migrate(Some(APP)).await.unwrap();
    let (_, place) = books.url.split_once('@').unwrap();
    let url = format!("postgres://{APP}:of-a-test@{place}");

    let api = books.api_with(&[("DATABASE_URL", &url)]).await;
    let client = Client::new(&api, &books.owner.test);
    let (world, account) = (books.account(&client, None).await, books.account(&client, Some(0)).await);
    let key = client.fresh_key();
    let first = client.transfer(&key, &world, &account, 5).await;
    assert_eq!((first.status, client.transfer(&key, &world, &account, 5).await.body), (201, first.body));
    let accepted = client.request(reqwest::Method::POST, "/v1/accounts").header("idempotency-key", client.fresh_key());
    let accepted = accepted.header("prefer", "respond-async, wait=10").header("content-type", "application/json");
    assert_eq!(client.send(accepted.body(r#"{"currency":"EUR"}"#)).await.unwrap().status, 201);
    for command in [["audit"].as_slice(), &["retention"], &["tenants", "create", "another"]] {
        let ended = std::process::Command::new(binary("api")).args(command).env("DATABASE_URL", &url).output().unwrap();
        assert!(ended.status.success(), "{command:?}: {ended:?}");
    }

    let app = PgPool::connect(&url).await.unwrap();
    for statement in [
        "UPDATE postings SET amount = amount + 1",
        "DELETE FROM postings",
        "TRUNCATE postings",
        "UPDATE transfers SET amount = amount + 1",
        "DELETE FROM transfers",
        "UPDATE idempotency_records SET fingerprint = ''",
        "DELETE FROM idempotency_records",
        "UPDATE idempotency_responses SET body = ''",
        "DELETE FROM idempotency_responses",
        "UPDATE outbox SET payload = ''",
        "DELETE FROM outbox",
        "DELETE FROM accounts",
        "UPDATE tenants SET shard = 1",
        "DROP TABLE postings",
        "ALTER TABLE accounts DROP CONSTRAINT accounts_within_limits",
        "CREATE TABLE something ()",
        "SELECT pg_read_file('PG_VERSION')",
    ] {
        let refused = run(&app, statement).await.expect_err(statement);
        // insufficient_privilege
        assert_eq!(refused.as_database_error().and_then(|error| error.code()).as_deref(), Some("42501"), "{statement}");
    }
    app.close().await;
    books.finish().await;
}
