//! What the rules and the dashboard say, read off their files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use harness::document::{read, root};
use serde_json::Value;

/// The files of rules, in the order that Prometheus is told them.
pub(crate) const RULES: [&str; 2] = ["runbook/recording.yml", "runbook/alerts.yml"];

const DASHBOARD: &str = "docker/grafana/dashboards/oncepost.json";

/// Everything that could be the name of a metric of ours or of node_exporter's.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.contains("oncepost_") || word.starts_with("node_")).collect()
}

/// The name under which a series is documented: a histogram is one metric and three kinds of series.
fn documented_name<'a>(series: &'a str, documented: &BTreeSet<&str>) -> &'a str {
    let parts = ["_bucket", "_sum", "_count"].into_iter();
    parts.filter_map(|part| series.strip_suffix(part)).find(|name| documented.contains(name)).unwrap_or(series)
}

/// The alerts, each with its rule as it is written.
fn alerts(text: &str) -> Vec<(&str, &str)> {
    let rules = text.split("- alert: ").skip(1);
    rules.map(|rule| rule.split_once('\n').unwrap()).collect()
}

/// The value of a key in a rule; of one that goes on in the next lines, how it begins.
fn value<'a>(rule: &'a str, key: &str) -> Option<&'a str> {
    rule.lines().find_map(|line| line.trim_start().strip_prefix(key)?.strip_prefix(": "))
}

/// `ConflictSpike` as `conflict-spike`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(letter.to_ascii_lowercase());
    }
    kebab
}

/// Who is woken depends on where clients fail.
const BY_ENVIRONMENT: &str = r#"'{{ if eq $labels.environment "live" }}page{{ else }}ticket{{ end }}'"#;

#[test]
fn each_alert_says_how_urgent_it_is_what_it_means_and_which_page_to_read() {
    let text = read("runbook/alerts.yml");
    let alerts = alerts(&text);
    assert!(alerts.len() > 20, "{} alerts are found", alerts.len());
    for (name, rule) in alerts {
        let severity = value(rule, "severity");
        assert!(
            severity.is_some_and(|value| ["page", "ticket", BY_ENVIRONMENT].contains(&value)),
            "{name}: {severity:?}"
        );
        assert!(value(rule, "summary").is_some_and(|text| text.len() < 60), "{name} needs a short summary");
        let description = rule.split_once("description: ").unwrap_or_else(|| panic!("{name} has no description")).1;
        assert!(description.contains("$value"), "{name}'s description tells no value");
        assert!(!description.contains("$labels.window") && !description.contains("$labels.severity"), "{name}");
        let page = format!("runbook/{}.md", kebab(name));
        assert_eq!(value(rule, "runbook"), Some(page.as_str()), "{name}");
        assert!(root().join(&page).is_file(), "{page} does not exist");
    }
}

#[test]
fn rules_and_dashboard_read_only_metrics_that_are_documented_and_series_that_are_recorded() {
    let recording = read("runbook/recording.yml");
    let pages = ["docs/metrics.md", "examples/receipts/README.md"].map(read).concat();
    let documented = names(&pages);
    assert!(documented.len() > 40, "{documented:?}");
    let recorded: BTreeSet<&str> =
        recording.split("- record: ").skip(1).filter_map(|rule| rule.lines().next()).collect();
    assert!(recorded.len() > 20, "{recorded:?}");
    let review = read("runbook/change-review.md");
    let texts =
        [recording.as_str(), &read("runbook/alerts.yml"), &review, &expressions().join("\n")].map(str::to_owned);
    for text in &texts {
        let used = names(text);
        assert!(used.len() > 5, "{used:?}");
        for name in used {
            let known = match name {
                _ if name.starts_with("node_") => {
                    ["node_filesystem_avail_bytes", "node_filesystem_size_bytes"].contains(&name)
                }
                _ if name.contains(':') => recorded.contains(name),
                _ => documented.contains(documented_name(name, &documented)),
            };
            assert!(known, "{name} is neither documented in docs/metrics.md nor recorded");
        }
    }
    let all = texts.concat();
    for name in recorded {
        assert!(all.matches(name).count() > 1, "nobody reads {name}");
    }
}

/// The queries of the dashboard.
fn expressions() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("expr").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|member| collect(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(&read(DASHBOARD)).unwrap(), &mut found);
    assert!(found.len() > 20, "{found:?}");
    found
}

/// Runs promtool and fails with what it prints.
pub(crate) fn promtool(arguments: &[&str], files: &[PathBuf]) {
    let ran = Command::new("promtool").args(arguments).args(files).output();
    let ran = ran.expect("promtool has to be there: it is in Debian's package prometheus");
    let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    assert!(ran.status.success(), "promtool {arguments:?} {files:?}:\n{said}");
}

#[test]
#[ignore = "needs promtool: apt install prometheus"]
fn the_rules_and_the_configuration_are_what_prometheus_reads() {
    promtool(&["check", "rules"], &RULES.map(|file| root().join(file)));
    promtool(&["check", "config"], &[root().join("docker/prometheus.yml")]);
}

#[test]
#[ignore = "needs promtool: apt install prometheus"]
fn the_rules_keep_what_their_own_tests_ask_for() {
    let folder = std::fs::read_dir(root().join("runbook/tests")).unwrap();
    let files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 3, "{files:?}");
    promtool(&["test", "rules"], &files);
}

/// The queries of the page about changes: each begins at the beginning of a line, and may go on in the next ones.
fn queries_of_the_review() -> Vec<String> {
    let page = read("runbook/change-review.md");
    let blocks: String = page.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let lines = blocks.lines().filter(|line| !line.starts_with('#'));
    let mut queries: Vec<String> = Vec::new();
    for line in lines {
        match queries.last_mut() {
            Some(query) if line.starts_with(' ') => query.push_str(line),
            Some(_) | None => queries.push(line.to_owned()),
        }
    }
    assert!(queries.len() > 10, "{queries:?}");
    queries.into_iter().map(|query| query.replace("@ T", "@ 0")).collect()
}

#[test]
#[ignore = "needs promtool: apt install prometheus"]
fn the_queries_of_the_dashboard_and_of_the_page_about_changes_are_queries() {
    // Grafana puts its own values in the place of these.
    let of_grafana = |query: String| {
        query.replace("$__rate_interval", "5m").replace("$endpoint", ".+").replace("$environment", ".+")
    };
    let queries = expressions().into_iter().map(of_grafana).chain(queries_of_the_review()).enumerate();
    let rules: Vec<Value> =
        queries.map(|(index, query)| serde_json::json!({"record": format!("query:{index}"), "expr": query})).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let groups = serde_json::json!({"groups": [{"name": "queries", "rules": rules}]});
    std::fs::write(file.path(), groups.to_string()).unwrap();
    promtool(&["check", "rules"], &[file.path().to_owned()]);
}
