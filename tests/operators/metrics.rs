//! `/metrics`: what the page says is what the processes show.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use harness::{Books, Client, Metrics, Topic, document, until};
use ledger::metric::Metric;
use serde_json::json;
use stack::Kafka;

fn tables() -> [(&'static str, Vec<Metric>); 3] {
    [
        ("ledger", ledger::metric::METRICS.to_vec()),
        ("api", api::metrics::METRICS.to_vec()),
        ("relay", relay::METRICS.to_vec()),
    ]
}

#[test]
fn the_page_names_every_metric_as_the_code_has_it() {
    for (name, metrics) in tables() {
        let rows = metrics.iter().map(|metric| {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{}` | {} | {} | {} |", metric.name, metric.kind.name(), labels.join(", "), metric.meaning)
        });
        let name = format!("the metrics of {name}");
        document::assert_table("docs/metrics.md", &name, &["name", "kind", "labels", "meaning"], rows);
    }
}

/// The names of metrics in the sources below a folder.
fn named_below(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.extend(named_below(&path));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for call in ["counter!(", "gauge!(", "histogram!("] {
            let named =
                text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
            names.extend(named.map(str::to_owned));
        }
    }
    names
}

#[test]
fn no_metric_is_measured_that_the_tables_do_not_have_and_none_is_only_told_of() {
    let measured: BTreeSet<String> = ["ledger", "process", "api", "relay", "demo"]
        .iter()
        .flat_map(|name| named_below(&document::root().join("crates").join(name).join("src")))
        .collect();
    let told: BTreeSet<String> =
        tables().into_iter().flat_map(|(_, table)| table).map(|metric| metric.name.to_owned()).collect();
    assert_eq!(measured, told);
}

/// Each series has the labels that the table says, and nothing of the table is missing but what did not happen.
fn assert_shown(shown: &Metrics, table: &[Metric], did_not_happen: &[&str]) {
    let labels: BTreeMap<&str, BTreeSet<&str>> =
        table.iter().map(|metric| (metric.name, metric.labels.iter().copied().collect())).collect();
    for series in shown.series() {
        let name = series.base_name();
        let expected = labels.get(name).unwrap_or_else(|| panic!("{name} is in no table"));
        let found: BTreeSet<&str> = series.labels().filter(|label| *label != "le").collect();
        assert_eq!(found, *expected, "the labels of {name}");
    }
    let missing: Vec<&str> = table
        .iter()
        .map(|metric| metric.name)
        .filter(|name| !shown.series().any(|series| series.base_name() == *name))
        .collect();
    assert_eq!(missing, did_not_happen);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mixed_run_shows_every_metric_and_counts_what_happened() {
    let books = Books::open().await;
    let api = books.api_with(&[("AUDIT_INTERVAL_SECONDS", "1")]).await;
    let client = Client::new(&api, &books.owner.test);
    let live = Client::new(&api, &books.owner.live);
    let world = books.account(&client, None).await;
    let shop = books.account(&client, Some(0)).await;

    // The first conflict must show as a change, so it has to be 0 before.
    let before = Metrics::of(&api).await;
    let answers = |answer| {
        format!(
            "oncepost_idempotency_answers_total{{endpoint=\"/v1/transfers\",environment=\"test\",answer=\"{answer}\"}}"
        )
    };
    for answer in ["fresh", "replayed", "reused", "in_progress", "expired", "environment_mismatch"] {
        assert_eq!(before.value(&answers(answer)), Some(0.0), "{answer}");
    }

    let key = client.fresh_key();
    assert_eq!(client.transfer(&key, &world, &shop, 5).await.status, 201);
    assert!(client.transfer(&key, &world, &shop, 5).await.replayed());
    assert_eq!(client.transfer(&key, &world, &shop, 6).await.problem(), "idempotency-key-reused");
    let mismatched = live.transfer(&key, &world, &shop, 5).await;
    assert_eq!(mismatched.problem(), "idempotency-key-environment-mismatch");
    assert_eq!(client.transfer(&client.fresh_key(), &shop, &world, 6).await.problem(), "insufficient-funds");
    assert_eq!(client.post("/v1/transfers", &client.fresh_key(), &json!({"amount": "x"})).await.status, 400);
    assert_eq!(client.get("/nowhere").await.status, 404);

    until("an audit", async || {
        Metrics::of(&api).await.value("oncepost_audit_finished_timestamp_seconds").is_some_and(|at| at > 0.0)
    })
    .await;
    let shown = Metrics::of(&api).await;
    for (answer, count) in [("fresh", 2.0), ("replayed", 1.0), ("reused", 1.0)] {
        assert_eq!(shown.value(&answers(answer)), Some(count), "{answer}");
    }
    let live = "oncepost_idempotency_answers_total{endpoint=\"/v1/transfers\",environment=\"live\",answer=\"environment_mismatch\"}";
    assert_eq!(shown.value(live), Some(1.0));
    for (series, count) in [
        ("oncepost_rejections_total{environment=\"test\",kind=\"insufficient-funds\"}", 1.0),
        ("oncepost_problems_total{endpoint=\"/v1/transfers\",kind=\"malformed-request\"}", 1.0),
        ("oncepost_problems_total{endpoint=\"unmatched\",kind=\"not-found\"}", 1.0),
        ("oncepost_http_requests_total{endpoint=\"/v1/transfers\",method=\"POST\",status=\"201\"}", 2.0),
        ("oncepost_database_up", 1.0),
        ("oncepost_audit_findings{promise=\"I2\"}", 0.0),
        ("oncepost_pool_sessions_max{pool=\"reads\"}", 8.0),
        ("oncepost_operations_unfinished", 0.0),
    ] {
        assert_eq!(shown.value(series), Some(count), "{series}");
    }
    // One machine has one clock.
    assert!(shown.value("oncepost_clock_skew_seconds").unwrap().abs() < 1.0);
    assert!(shown.value("oncepost_table_bytes{table=\"transfers\"}").unwrap() > 0.0);
    let table = [&ledger::metric::METRICS[..], &api::metrics::METRICS[..]].concat();
    assert_shown(&shown, &table, &["oncepost_batch_reruns_total", "oncepost_contended_seconds"]);
    books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relay_shows_every_metric() {
    let books = Books::open().await;
    let kafka = Kafka::temporary().await.unwrap();
    let api = books.api().await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    books.funded(&client, &world, 5).await;
    let relay = books.relay_with(&kafka.bootstrap(), &[]).probed().await;
    let published = "oncepost_relay_published_total{shard=\"0\"}";
    until("the event to be counted", async || Metrics::of(&relay).await.value(published) == Some(1.0)).await;
    let shown = Metrics::of(&relay).await;
    let build = ledger::metric::METRICS.into_iter().filter(|metric| metric.name == "oncepost_build_info");
    let table: Vec<Metric> = relay::METRICS.into_iter().chain(build).collect();
    assert_shown(&shown, &table, &[]);
    assert_eq!(Topic::at(&kafka.bootstrap()).read().len(), 1);
    drop(relay);
    books.finish().await;
}
