//! The audit that the API runs by itself.

use harness::{Books, Client, Metrics, until};

#[tokio::test(flavor = "multi_thread")]
async fn one_process_audits_for_all_and_each_shows_what_was_found() {
    let books = Books::open().await;
    let every_minute = [("AUDIT_INTERVAL_SECONDS", "3600")];
    let (one, other) = (books.api_with(&every_minute).await, books.api_with(&every_minute).await);
    let client = Client::new(&one, &books.owner.test);
    let world = books.account(&client, None).await;
    let shop = books.funded(&client, &world, 5).await;
    until("the first audit", async || books.count("SELECT count(*) FROM audits").await > 0).await;
    assert_eq!(books.count("SELECT count(*) FROM audits").await, 1, "both have started, and one audit was due");

    // Somebody has touched the books.
    sqlx::query("UPDATE accounts SET posted = posted + 1 WHERE id = $1::uuid")
        .bind(&shop)
        .execute(&books.pool)
        .await
        .unwrap();
    let found = books.command("api", &["audit"], "").await;
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.stdout.contains("I2") && found.stdout.contains(&shop), "{found:?}");
    sqlx::query("UPDATE accounts SET posted = posted - 1 WHERE id = $1::uuid")
        .bind(&shop)
        .execute(&books.pool)
        .await
        .unwrap();

    // A process that starts shows the last audit, though it didn't run it.
    let third = books.api_with(&every_minute).await;
    let findings = "oncepost_audit_findings{promise=\"I2\"}";
    until("the findings to show", async || Metrics::of(&third).await.value(findings).is_some_and(|count| count > 0.0))
        .await;
    assert_eq!(Metrics::of(&third).await.value("oncepost_audit_findings{promise=\"I1\"}"), Some(0.0));
    drop((one, other, third));

    let found = books.command("api", &["audit"], "").await;
    assert_eq!((found.code, found.stdout.as_str()), (0, ""), "{found:?}");
    books.finish().await;
}
