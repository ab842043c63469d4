//! The statements of the version before this one, on this one's schema: both serve side by side while one takes the other's place.

use harness::{Books, Client};
use serde::Deserialize;
use sqlx::postgres::{PgColumn, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Column, Connection, Executor, Row, SqlSafeStr, Statement as _, TypeInfo};
use uuid::Uuid;

/// A statement of the previous version, with what it asked of the schema.
#[derive(Deserialize)]
struct Statement {
    query: String,
    parameters: Vec<String>,
    columns: Vec<Named>,
}

/// A column of an answer.
#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Named {
    name: String,
    r#type: String,
}

fn statements() -> Vec<Statement> {
    serde_json::from_str(include_str!("../fixtures/statements_0.1.0.json")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_of_the_previous_version_fits_this_schema() {
    let books = Books::open().await;
    let mut connection = PgConnection::connect(&books.url).await.unwrap();
    let statements = statements();
    assert!(statements.len() > 50);
    for Statement { query, parameters, columns } in statements {
        let prepared = connection.prepare(AssertSqlSafe(query.clone()).into_sql_str()).await;
        let prepared = prepared.unwrap_or_else(|error| panic!("{error}\n{query}"));
        let asked = prepared.parameters().and_then(|parameters| parameters.left()).unwrap();
        assert!(asked.iter().map(TypeInfo::name).eq(parameters), "{query}");
        let name = |column: &PgColumn| Named {
            name: Column::name(column).to_owned(),
            r#type: column.type_info().name().to_owned(),
        };
        assert_eq!(prepared.columns().iter().map(name).collect::<Vec<_>>(), columns, "{query}");
    }
    books.finish().await;
}

/// A session of the previous version.
struct Previous {
    connection: PgConnection,
    statements: Vec<Statement>,
}

impl Previous {
    /// Runs the one statement that has these words in it, with parameters in SQL.
    async fn run(&mut self, words: &str, parameters: &[String]) -> Vec<PgRow> {
        let mut found = self.statements.iter().enumerate().filter(|(_, statement)| statement.query.contains(words));
        let (at, statement) = found.next().unwrap();
        assert!(found.next().is_none(), "more than one statement has the words {words}");
        let types = statement.parameters.join(", ");
        let prepare = format!("PREPARE previous_{at} ({types}) AS {}", statement.query);
        self.connection.execute(sqlx::raw_sql(AssertSqlSafe(prepare))).await.unwrap();
        let execute = format!("EXECUTE previous_{at} ({})", parameters.join(", "));
        let rows = sqlx::query(AssertSqlSafe(execute)).persistent(false).fetch_all(&mut self.connection).await;
        let rows = rows.unwrap_or_else(|error| panic!("{error}\n{words}"));
        self.connection.execute(sqlx::raw_sql(AssertSqlSafe(format!("DEALLOCATE previous_{at}")))).await.unwrap();
        rows
    }

    async fn say(&mut self, word: &'static str) {
        self.connection.execute(word).await.unwrap();
    }
}

/// An array in SQL.
fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("ARRAY[{}]", items.join(", "))
}

fn quoted(text: impl std::fmt::Display) -> String {
    format!("'{text}'")
}

/// Bytes in SQL.
fn bytes(bytes: &[u8]) -> String {
    format!("'\\x{}'::bytea", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_previous_version_moves_money_beside_this_one_and_reads_its_records() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let (world, account) = (books.account(&client, None).await, books.account(&client, Some(0)).await);
    let ours = client.transfer(&client.fresh_key(), &world, &account, 5).await;
    assert_eq!(ours.status, 201);

    // One transfer of 7, as the previous version's committer runs it.
    let connection = PgConnection::connect(&books.url).await.unwrap();
    let mut previous = Previous { connection, statements: statements() };
    let mut ids = [&world, &account];
    ids.sort_unstable();
    let hash = bytes(&[7; 32]);
    previous.say("BEGIN").await;
    assert!(previous.run("SELECT k.key_hash AS", &[list([&hash]), "0".into()]).await.is_empty());
    let accounts = list(ids.map(|id| format!("'{id}'::uuid")));
    let lock = [accounts.clone(), "0".into(), list([&hash])];
    let locked = previous.run("FOR NO KEY UPDATE SKIP LOCKED) a", &lock).await;
    let after: Vec<(i64, i64, i64)> = locked
        .iter()
        .map(|row| {
            let amount = if row.get::<Uuid, _>("id").to_string() == world { -7 } else { 7 };
            (amount, row.get::<i64, _>("posted") + amount, row.get::<i64, _>("posting_count") + 1)
        })
        .collect();
    assert_eq!(after.len(), 2);
    let transfer = Uuid::now_v7();
    let id = list([format!("'{transfer}'::uuid")]);
    let both = list([format!("'{transfer}'::uuid"), format!("'{transfer}'::uuid")]);
    let sequence = |of: &str| list(after.iter().zip(ids).filter(|(_, id)| *id == of).map(|((.., count), _)| count));
    let (posted, counts) = (list(after.iter().map(|leg| leg.1)), list(after.iter().map(|leg| leg.2)));
    let tenant = list([format!("'{}'::uuid", books.owner.tenant)]);
    let test = list([quoted("test")]);
    let payload = list([bytes(br#"{"amount":7}"#)]);
    let event = list([format!("'{}'::uuid", Uuid::now_v7())]);
    let nothing = || list(["NULL"]);
    let write = [
        // The record.
        "0".into(),
        "now()".into(),
        list([&hash]),
        test.clone(),
        list([format!("'{}'::uuid", books.owner.principal)]),
        test.clone(),
        list([quoted("transfer.post")]),
        list([bytes(&[1; 32])]),
        list([bytes(&[])]),
        list(["201"]),
        id.clone(),
        // Its answer.
        id.clone(),
        list([quoted("application/json")]),
        list([quoted(format!("/v1/transfers/{transfer}"))]),
        payload.clone(),
        // The accounts.
        accounts.clone(),
        posted.clone(),
        counts.clone(),
        // The transfer.
        id.clone(),
        tenant.clone(),
        test.clone(),
        list([format!("'{world}'::uuid")]),
        list([format!("'{account}'::uuid")]),
        sequence(&world),
        sequence(&account),
        list([7]),
        list([quoted("EUR")]),
        nothing(),
        nothing(),
        // Its postings.
        accounts,
        counts,
        both,
        list(after.iter().map(|leg| leg.0)),
        posted,
        // The stream is locked, and its end is not known.
        "true".into(),
        "1".into(),
        "NULL".into(),
        event.clone(),
        list([&hash]),
        payload.clone(),
    ];
    let written = previous.run("WITH records AS", &write).await;
    assert_eq!((written[0].get::<i64, _>("records!"), written[0].get::<i64, _>("changed!")), (1, 2));
    let epoch: i32 = written[0].get("epoch");
    let number = ["0".into(), epoch.to_string(), "now()".into(), event, id, tenant, test, list([&hash]), payload];
    let last = previous.run("SELECT $1, last.position + e.ordinal", &number).await;
    assert_eq!(last[0].get::<i64, _>("last!"), 2);
    previous.say("COMMIT").await;

    // This version goes on from there, and reads what the other one made.
    assert_eq!(client.transfer(&client.fresh_key(), &world, &account, 1).await.status, 201);
    assert_eq!(books.posted(&account).await, 13);
    assert_eq!(client.get(&format!("/v1/transfers/{transfer}")).await.json()["amount"], 7);

    // The other one finds this one's record and answers with its bytes, hands its event on, and takes its books for right.
    let made = "SELECT key_hash FROM idempotency_records WHERE response_id = $1::uuid";
    let made: Vec<u8> = sqlx::query_scalar(made).bind(ours.json()["id"].as_str()).fetch_one(&books.pool).await.unwrap();
    let found = previous.run("SELECT k.key_hash AS", &[list([bytes(&made)]), "0".into()]).await;
    assert_eq!((found[0].get::<i16, _>("status"), found[0].get::<Vec<u8>, _>("body?")), (201, ours.body));
    let events =
        previous.run("sum(octet_length(payload))", &["0".into(), "1".into(), "10".into(), "1000000".into()]).await;
    assert!(events.iter().map(|event| event.get::<i64, _>("position")).eq(1..=3));
    let rules: Vec<String> = previous.statements.iter().map(|statement| statement.query.clone()).collect();
    for rule in rules.iter().filter(|query| query.starts_with("WITH broken AS")) {
        assert!(previous.run(rule, &["20".into()]).await.is_empty(), "{rule}");
    }
    books.finish().await;
}
