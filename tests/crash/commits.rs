//! Around one COMMIT: the process dies right before it or right after it, or only its answer is lost.

use harness::{Books, Client, Proxy};

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_before_commit_leaves_nothing_and_the_retry_executes() {
    killed_around_commit("before-commit:kill:3", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_after_commit_leaves_the_transfer_and_the_retry_replays_it() {
    killed_around_commit("after-commit:kill:3", 1).await;
}

/// The first two commits open the accounts; the third is the transfer's.
async fn killed_around_commit(failpoint: &str, left_behind: i64) {
    let books = Books::open().await;
    let mut doomed = books.api_with(&[("ONCEPOST_FAILPOINT", failpoint)]).await;
    let client = Client::new(&doomed, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    let key = client.fresh_key();
    assert!(client.try_transfer(&key, &world, &account, 5).await.is_err(), "the process dies before it answers");
    assert!(!doomed.ended().await.success());
    let stands = "SELECT count(*) FROM transfers";
    assert_eq!(books.count(stands).await, left_behind);

    let api = books.api().await;
    let client = client.at(&api);
    let retry = client.transfer_until_final(&key, &world, &account, 5).await;
    assert_eq!((retry.status, retry.replayed()), (201, left_behind == 1));
    let again = client.transfer(&key, &world, &account, 5).await;
    assert_eq!((again.status, again.replayed(), again.body), (201, true, retry.body));
    assert_eq!(books.count(stands).await, 1);
    assert_eq!(books.posted(&account).await, 5);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_found_out_and_answered() {
    let books = Books::open().await;
    let proxy = Proxy::before(&books.url).await;
    let api = books.api_with(&[("DATABASE_URL", &proxy.url(&books.url))]).await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    for round in 1..=10 {
        proxy.lose_commits(1);
        let key = client.fresh_key();
        let reply = client.transfer(&key, &world, &account, 5).await;
        assert_eq!(proxy.left_to_lose(), 0, "an answer was lost");
        assert_eq!((reply.status, reply.replayed()), (201, false), "{reply:?}");
        assert_eq!(client.transfer(&key, &world, &account, 5).await.body, reply.body);
        assert_eq!(books.posted(&account).await, 5 * round);
    }
    // Several in a row, also those of the attempts that find the first one out.
    proxy.lose_commits(3);
    let key = client.fresh_key();
    assert_eq!(client.transfer_until_final(&key, &world, &account, 5).await.status, 201);
    assert_eq!(books.posted(&account).await, 55);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_draws_a_warning_is_not_taken_at_its_word() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let account = books.account(&client, Some(0)).await;
    // Stands for a cancelled wait for a synchronous standby: COMMIT succeeds, with a warning.
    sqlx::raw_sql(
        "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER warn AFTER INSERT ON transfers DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION warn()",
    )
    .execute(&books.pool)
    .await
    .unwrap();
    let reply = client.transfer(&client.fresh_key(), &world, &account, 5).await;
    assert_eq!((reply.status, reply.replayed()), (201, false), "{reply:?}");
    assert!(
        api.said("COMMIT drew a warning; whether it is durable is not known yet").is_some(),
        "the warning was seen: {:#?}",
        api.log()
    );
    assert_eq!(books.posted(&account).await, 5);
    books.finish().await;
}
