//! What the environment may say: `docs/configuration.md` says it as the code does, and a wrong one stops every binary.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use harness::{PATIENCE, binary, document};
use process::environment::Variable;
use tokio::process::Command;
use tokio::time::timeout;

/// Fails with the text that has to stand there.
fn assert_section(program: &str, rows: impl IntoIterator<Item = String>) {
    let head = ["variable", "unless set", "must be", "meaning"];
    document::assert_table("docs/configuration.md", &format!("the variables of {program}"), &head, rows);
}

fn rows(variables: &[&Variable]) -> Vec<String> {
    let row = |Variable { name, secret, unset, bounds, meaning }: &Variable| {
        let file = if *secret { format!(", `{name}_FILE`") } else { String::new() };
        format!("| `{name}`{file} | {unset} | {bounds} | {meaning} |")
    };
    variables.iter().map(|variable| row(variable)).collect()
}

#[test]
fn the_page_names_every_variable_with_its_default_and_its_bounds() {
    assert_section("api", rows(&api::config::VARIABLES));
    assert_section("relay", rows(&relay::VARIABLES));
}

/// The names of variables that the sources below a folder read: what follows one of the calls that read them.
fn read_below(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.extend(read_below(&path));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for call in ["env::var(\"", "env::var_os(\"", " variable(\"", "folder_named(\"", "env = \""] {
            let found = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
            names.extend(found.map(str::to_owned));
        }
    }
    names
}

#[test]
fn the_page_names_every_other_variable_that_a_binary_reads() {
    // What every program has: how it was started, and where.
    let of_the_system = ["CARGO", "PATH"];
    // Debug builds only, for tests.
    let of_the_tests = ["ONCEPOST_FAILPOINT"];
    let page = document::read("docs/configuration.md");
    let read: BTreeSet<String> = ["api", "relay", "ledger", "process", "demo", "stack", "load"]
        .iter()
        .flat_map(|name| read_below(&document::root().join("crates").join(name).join("src")))
        .filter(|name| !of_the_system.contains(&name.as_str()) && !of_the_tests.contains(&name.as_str()))
        .collect();
    for known in ["DATABASE_URL", "ONCEPOST_CACHE", "ONCEPOST_PROFILE", "LISTEN", "LOG_FORMAT"] {
        assert!(read.contains(known), "{known} is not found any more: {read:?}");
    }
    for name in read {
        assert!(page.contains(&format!("`{name}`")), "docs/configuration.md does not name {name}");
    }
}

/// A value that no variable takes, save those that take any text.
const WRONG: &str = "hidden=value";

/// Starts a binary with wrong values and returns its exit code and all that it says.
async fn start(program: &str, arguments: &[&str], wrong: &[&str], right: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(binary(program));
    command.args(arguments).kill_on_drop(true).env_clear();
    command.envs(wrong.iter().map(|name| (*name, WRONG))).envs(right.iter().copied());
    let output = timeout(PATIENCE, command.output()).await.expect("it has to end by itself").unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Each of the variables is named, and no value with it.
fn assert_named(said: &str, names: &[&str]) {
    for name in names {
        assert!(
            said.lines().any(|line| line.contains(&format!("{name} ")) || line.contains(&format!("{name}:"))),
            "{name} is not named:\n{said}"
        );
    }
    assert!(!said.contains("hidden"), "{said}");
}

#[tokio::test]
async fn a_wrong_environment_stops_the_api_and_all_of_it_is_told_at_once() {
    let names = api::config::VARIABLES.map(|variable| variable.name);
    let (code, said) = start("api", &["serve"], &names, &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert_named(&said, &names);
    let (code, said) = start("api", &["serve"], &[], &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert_named(&said, &["DATABASE_URL", "IDEMPOTENCY_SECRETS", "API_KEY_PEPPERS"]);
}

#[tokio::test]
async fn a_wrong_environment_stops_the_relay_and_all_of_it_is_told_at_once() {
    let names = relay::VARIABLES.map(|variable| variable.name);
    let (code, said) = start("relay", &["run"], &names, &[]).await;
    assert_eq!(code, Some(2), "{said}");
    // A user's name and passwords can be any text.
    let any = ["KAFKA_SASL_USERNAME", "KAFKA_SASL_PASSWORD", "KAFKA_SSL_KEY_PASSWORD"];
    assert_named(&said, &names.into_iter().filter(|name| !any.contains(name)).collect::<Vec<_>>());
    let (code, said) = start("relay", &["run"], &[], &[]).await;
    assert_eq!(code, Some(2), "{said}");
    assert_named(&said, &["DATABASE_URL", "KAFKA_BROKERS"]);
}

#[tokio::test]
async fn a_wrong_environment_stops_the_demo_and_all_of_it_is_told_at_once() {
    let names = api::config::VARIABLES.map(|variable| variable.name);
    let wrong: Vec<&str> = names.into_iter().filter(|name| *name != "ONCEPOST_PROFILE").collect();
    let (code, said) = start("demo", &["seed"], &wrong, &[("ONCEPOST_PROFILE", "demo")]).await;
    assert_eq!(code, Some(1), "{said}");
    assert_named(&said, &wrong);
    let (code, said) = start("demo", &["seed"], &["ONCEPOST_PROFILE"], &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert_named(&said, &["ONCEPOST_PROFILE"]);
}
