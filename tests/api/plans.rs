//! The committer's statements go by primary keys, whatever the planner believes about the tables.

use harness::{Books, Client, until};
use sqlx::{Connection, Executor, PgConnection};

/// Tables on the money path; the answers stand in one for each day.
async fn tables(books: &Books) -> Vec<String> {
    let query = "SELECT relname::text FROM pg_stat_user_tables
                 WHERE relname IN ('accounts', 'transfers', 'postings', 'idempotency_records', 'outbox')
                   OR relname LIKE 'idempotency_responses_%'";
    let tables: Vec<String> = sqlx::query_scalar(query).fetch_all(&books.pool).await.unwrap();
    assert!(tables.len() > 5, "{tables:?}");
    tables
}
/// Index entries that one transfer may read, over all tables: it needs about ten, a scan of a table needs thousands.
const ENTRIES_PER_TRANSFER: i64 = 40;

/// Fills the tables by SQL, without any statistics about them, in a session whose own reads are reported when it returns.
async fn fill(books: &Books) {
    let mut session = PgConnection::connect(&books.url).await.unwrap();
    session.execute("SET application_name = 'oncepost filler'").await.unwrap();
    for statement in [
        "DELETE FROM outbox",
        "INSERT INTO accounts (id, shard, tenant_id, environment, currency, status, created_at)
         SELECT gen_random_uuid(), 0, id, 'test', 'EUR', 'open', now() FROM generate_series(1, 20000), tenants",
        "INSERT INTO idempotency_records (key_hash, shard, secret_id, principal_id, environment, operation, fingerprint,
           members, status, response_id, completed_at)
         SELECT sha256(i::text::bytea), 0, 'test', id, 'test', 'filler', sha256(''), '', 422, gen_random_uuid(), now()
         FROM generate_series(1, 20000) i, principals",
        "INSERT INTO idempotency_responses (id, shard, day, content_type, body)
         SELECT response_id, 0, (now() AT TIME ZONE 'UTC')::date, 'application/json', '' FROM idempotency_records
         WHERE operation = 'filler'",
        "INSERT INTO outbox (shard, position, epoch, event_id, event_type, resource_id, tenant_id, environment, key_hash,
           payload, created_at)
         SELECT 0, i, 1, gen_random_uuid(), 'transfer.posted', gen_random_uuid(), gen_random_uuid(), 'test', sha256(''), '',
           now()
         FROM generate_series(1, 20000) i",
    ] {
        session.execute(statement).await.unwrap();
    }
    session.close().await.unwrap();
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncepost filler'";
    until("the filler's reads to be reported", async || books.count(busy).await == 0).await;
}

/// Sequential scans of the tables, and index entries read, by all sessions so far.
async fn reads(books: &Books) -> (i64, i64) {
    let query = "SELECT coalesce(sum(t.seq_scan), 0)::bigint, coalesce(sum(i.entries), 0)::bigint
                 FROM pg_stat_user_tables t,
                   LATERAL (SELECT sum(idx_tup_read) AS entries FROM pg_stat_user_indexes i WHERE i.relid = t.relid) i
                 WHERE t.relname = ANY($1)";
    sqlx::query_as(query).bind(tables(books).await).fetch_one(&books.pool).await.unwrap()
}

async fn transfers_go_by_keys(books: Books) {
    for table in tables(&books).await {
        let statement = format!("ALTER TABLE {table} SET (autovacuum_enabled = false)");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&books.pool).await.unwrap();
    }
    let mut api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    // Plans are cached from the sixth run of a statement on: first on nearly empty tables, then on full ones.
    for _ in 0..10 {
        assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    }
    fill(&books).await;
    let (scans, entries) = reads(&books).await;
    let transfers = 200;
    for _ in 0..transfers {
        let key = client.fresh_key();
        assert_eq!(client.transfer(&key, &world, &account, 1).await.status, 201);
        assert!(client.transfer(&key, &world, &account, 1).await.replayed());
    }
    api.terminate();
    assert!(api.ended().await.success());
    // Sessions report what they have read when they end.
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'oncepost%'";
    until("the API's sessions to end", async || books.count(busy).await == 0).await;
    let (scans_after, entries_after) = reads(&books).await;
    assert_eq!(scans_after - scans, 0, "tables were read from end to end");
    let each = (entries_after - entries) / transfers;
    assert!(each <= ENTRIES_PER_TRANSFER, "each transfer and its replay read {each} index entries");
    assert!(each > 0, "nothing was measured");
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_go_by_keys_on_a_database_that_was_never_analysed() {
    transfers_go_by_keys(Books::open().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_go_by_keys_on_a_database_that_was_analysed_while_empty() {
    let books = Books::open().await;
    sqlx::raw_sql("VACUUM ANALYZE").execute(&books.pool).await.unwrap();
    transfers_go_by_keys(books).await;
}
