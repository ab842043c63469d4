//! The OpenAPI document against the running server: what is generated from it fits the server, and the server answers
//! nothing that it doesn't declare. The tools are Python's; `requirements.txt` pins them.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use harness::{Books, Client};

/// Where the tools' files stand.
fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "openapi"].iter().collect()
}

/// Runs a tool to its end.
///
/// # Panics
/// Where it fails; what it says is on the terminal.
async fn run(mut command: Command) {
    let name = command.get_program().to_owned();
    let ended = tokio::task::spawn_blocking(move || command.status()).await.unwrap();
    assert!(ended.as_ref().is_ok_and(ExitStatus::success), "{name:?}: {ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs schemathesis in PATH: pip install -r tests/openapi/requirements.txt"]
async fn schemathesis_finds_no_undeclared_status_header_or_body() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let (world, purse) = (books.account(&client, None).await, books.account(&client, Some(0)).await);
    let mut schemathesis = Command::new("schemathesis");
    schemathesis
        .args(["run", &format!("{}/openapi.json", api.url())])
        .current_dir(folder())
        .env("ONCEPOST_KEY", &books.owner.test)
        .env("ONCEPOST_ACCOUNTS", format!("{world} {purse}"));
    run(schemathesis).await;
    // It has met the rules' yes and their no, and whatever it has sent, the books balance.
    assert!(books.count("SELECT count(*) FROM transfers").await > 20);
    assert!(books.count("SELECT count(*) FROM operations").await > 0);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs openapi-python-client in PATH: pip install -r tests/openapi/requirements.txt"]
async fn a_client_that_is_generated_from_the_document_sends_a_transfer() {
    let books = Books::open().await;
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let (world, purse) = (books.account(&client, None).await, books.account(&client, Some(0)).await);
    let generated = tempfile::tempdir().unwrap();
    let mut generate = Command::new("openapi-python-client");
    generate.args(["generate", "--meta", "none", "--fail-on-warning", "--config"]).arg(folder().join("client.yaml"));
    generate.args(["--url", &format!("{}/openapi.json", api.url()), "--output-path"]);
    generate.arg(generated.path().join("oncepost"));
    run(generate).await;
    let mut send = Command::new("python3");
    send.arg(folder().join("transfer.py"))
        .env("PYTHONPATH", generated.path())
        .env("ONCEPOST_URL", api.url())
        .env("ONCEPOST_KEY", &books.owner.test)
        .env("ONCEPOST_ACCOUNTS", format!("{world} {purse}"));
    run(send).await;
    assert_eq!(books.posted(&purse).await, 1250);
    assert_eq!(books.count("SELECT count(*) FROM transfers").await, 1);
    books.finish().await;
}
