//! The rules of the tree, read off its sources.

use std::fs;
use std::path::{Path, PathBuf};

use harness::document::root;

/// The sources below a folder, with what they say outside of comments.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            found.push((path, code.join("\n")));
        }
    }
    assert!(!found.is_empty(), "{} has no sources", folder.display());
    found
}

fn names_of_our_crates(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).unwrap();
    let dependencies = text.split("[dependencies]").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    ["ledger", "process", "api", "relay", "client", "stack", "demo", "load"]
        .into_iter()
        .filter(|name| {
            dependencies
                .lines()
                .any(|line| line.starts_with(&format!("{name}.")) || line.starts_with(&format!("{name} ")))
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let allowed: [(&str, &[&str]); 7] = [
        ("ledger", &[]),
        ("client", &[]),
        ("stack", &[]),
        ("process", &["ledger"]),
        ("api", &["ledger", "process"]),
        ("relay", &["ledger", "process"]),
        // It asks the API over HTTP only. What it fills a ledger with is rows, and SQL is the ledger's.
        ("load", &["ledger", "stack"]),
    ];
    for (name, ours) in allowed {
        let found = names_of_our_crates(&root().join("crates").join(name).join("Cargo.toml"));
        assert_eq!(found, ours, "crates/{name}");
    }
}

#[test]
fn each_technology_stands_in_its_crate() {
    // What gives a technology away, and the crates that may use it.
    let rules: [(&[&str], &[&str]); 3] = [
        (&["sqlx::", "SELECT ", "INSERT INTO "], &["ledger"]),
        (&["axum::", "hyper::", "hyper_util::"], &["api", "demo"]),
        (&["rdkafka::"], &["relay"]),
    ];
    for (signs, crates) in rules {
        for name in ["ledger", "process", "api", "relay", "client", "demo", "load"] {
            let used = sources(&root().join("crates").join(name).join("src"))
                .into_iter()
                .filter(|(path, _)| !(name == "relay" && path.ends_with("src/probes.rs")))
                .find(|(_, code)| signs.iter().any(|sign| code.contains(sign)));
            match used {
                Some((path, _)) => assert!(crates.contains(&name), "{} uses one of {signs:?}", path.display()),
                None => {
                    assert!(!crates.contains(&name) || name == "demo", "crates/{name} no longer uses any of {signs:?}")
                }
            }
        }
    }
}

#[test]
fn the_example_is_a_service_of_its_own() {
    // It has a database, a Kafka client and probes of its own; what it knows of the ledger is its events.
    let example = root().join("examples/receipts");
    assert!(names_of_our_crates(&example.join("Cargo.toml")).is_empty());
    let rules: [(&[&str], &[&str]); 3] = [
        (&["sqlx::query", "SELECT ", "INSERT INTO "], &["inbox"]),
        (&["axum::"], &["probes"]),
        (&["lettre::"], &["config", "receipt", "sender"]),
    ];
    for (signs, files) in rules {
        for (path, code) in sources(&example.join("src")) {
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            let used = signs.iter().any(|sign| code.contains(sign));
            assert_eq!(used, files.contains(&stem.as_str()), "{} and {signs:?}", path.display());
        }
    }
}

#[test]
fn files_are_nouns_of_the_glossary() {
    let crates = ["ledger", "process", "api", "relay", "client", "stack", "demo", "load"]
        .map(|name| root().join("crates").join(name));
    for folder in crates.into_iter().chain([root().join("examples/receipts")]) {
        for (path, _) in sources(&folder.join("src")) {
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            for vague in ["util", "utils", "common", "helpers", "manager", "service", "misc"] {
                assert_ne!(stem, vague, "{}", path.display());
            }
        }
    }
}

#[test]
fn the_ledger_has_no_floats_and_no_casts_of_numbers() {
    for (path, code) in sources(&root().join("crates/ledger/src")) {
        for number in
            ["i8", "i16", "i32", "i64", "i128", "u8", "u16", "u32", "u64", "u128", "usize", "isize", "f32", "f64"]
        {
            assert!(!code.contains(&format!(" as {number}")), "{} casts to {number}", path.display());
        }
        assert!(!code.contains("f32") && !code.contains(": f64"), "{} has a float", path.display());
    }
}
