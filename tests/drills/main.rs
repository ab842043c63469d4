//! The runbook, tried: each page is read and its commands are run against a system in the state that it describes, and what
//! they print is compared with what the page says.

mod clients;
mod database;
mod delivery;
mod ledger;
mod matcher;
mod page;
mod relay;
mod secrets;
mod service;
mod stand;

use std::collections::BTreeSet;

use crate::page::{PARTS, Page, runbook};

/// Makes a test of each drill, named after its page, and a list of the pages that have one.
macro_rules! drills {
    ($($file:ident::$page:ident),* $(,)?) => {
        mod the_runbook_resolves {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $page() {
                    crate::$file::$page().await;
                }
            )*
        }
        const DRILLED: &[&str] = &[$(stringify!($page)),*];
    };
}

drills!(
    clients::conflict_spike,
    clients::environment_mismatch_spike,
    clients::replay_spike,
    clients::runaway_client,
    database::clock_skew,
    database::contended_accounts,
    database::disk_filling,
    database::in_progress_spike,
    database::operations_stuck,
    database::pool_exhausted,
    database::postgres_down,
    database::retention_stalled,
    database::shedding,
    delivery::kafka_down,
    delivery::receipts_behind,
    delivery::relay_restarting,
    delivery::stuck_outbox,
    relay::relay_halted,
    relay::restore_from_backup,
    ledger::account_out_of_balance,
    ledger::audit_failing,
    ledger::audit_late,
    ledger::duplicate_charge_suspected,
    ledger::replay_bytes_differ,
    secrets::secret_leaked,
    secrets::secret_rotation,
    service::bad_deploy,
    service::process_down,
    service::server_errors,
    service::slo_burn,
);

/// Files of the runbook that are no pages for a fault.
const OTHERS: [&str; 3] = ["README", "drills", "change-review"];
const LINES_MAX: usize = 90;
const COLUMNS_MAX: usize = 120;

fn pages() -> BTreeSet<String> {
    let files = std::fs::read_dir(runbook()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = files.filter_map(|file| file.strip_suffix(".md").map(str::to_owned));
    names.filter(|name| !OTHERS.contains(&name.as_str())).collect()
}

#[test]
fn every_page_has_a_drill() {
    let drilled: BTreeSet<String> = DRILLED.iter().map(|name| name.replace('_', "-")).collect();
    assert_eq!(pages(), drilled);
}

#[test]
fn every_page_has_the_same_parts_in_the_same_order_and_is_short() {
    for name in pages() {
        let page = Page::read(&name);
        let headings: Vec<&str> = page.text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, PARTS, "{name}.md");
        for (index, line) in page.text.lines().enumerate() {
            // A row of a table is one line, however long.
            let fits = line.starts_with('|') || line.chars().count() <= COLUMNS_MAX;
            assert!(fits, "{name}.md, line {}, is too long", index + 1);
        }
        // What is seen, which fences and empty lines are not; and of the sections that are for one fault each, one is read.
        let (mut common, mut section, mut longest) = (0, None, 0);
        for line in page.text.lines().filter(|line| !line.is_empty() && !line.starts_with("```")) {
            if line.starts_with('#') {
                section = line.starts_with("### ").then_some(0);
            }
            match &mut section {
                Some(lines) => {
                    *lines += 1;
                    longest = longest.max(*lines);
                }
                None => common += 1,
            }
        }
        assert!(
            common + longest <= LINES_MAX,
            "{name}.md is too long for someone woken at three: {common} + {longest}"
        );
        for part in ["First five minutes", "Rollback command", "Verify"] {
            assert!(page.blocks.iter().any(|block| block.part == part), "{name}.md has no command under {part:?}");
        }
    }
}

/// The words of the table in runbook/README.md.
fn words() -> BTreeSet<String> {
    let text = std::fs::read_to_string(runbook().join("README.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| word |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    // The first column holds the words in code, each with its arguments; `start`, `stop` and `restart` share a row.
    let words = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2).map(str::to_owned));
    words.map(|word| word.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn each_word_is_told_and_stands_in_the_file_that_readers_source_and_in_the_drills() {
    let file = std::fs::read_to_string(runbook().join("compose.sh")).unwrap();
    let told = words();
    assert!(told.len() > 10, "{told:?}");
    for word in &told {
        assert!(file.contains(&format!("\n{word}() ")), "runbook/compose.sh has no {word}");
        let of_the_drills = |line: &str| line.starts_with("for name in") && line.contains(&format!(" {word} "));
        let known = stand::SHARED.contains(&word.as_str()) || stand::WORDS.lines().any(of_the_drills);
        assert!(known, "the drills know no {word}");
    }
}

#[test]
fn a_word_that_looks_for_lines_fails_where_there_are_none() {
    let looks = format!(
        "source '{}'; compose() {{ echo 'a line'; }}; logs api 'a line'; logs api another || echo none",
        runbook().join("compose.sh").display()
    );
    let said = std::process::Command::new("bash").args(["-c", &looks]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "a line\nnone\n");
}
