//! What Prometheus would have seen: the text of real processes' `/metrics`, read before, during and after a fault, and held
//! for some minutes each. The real rules are evaluated over it, unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::document::root;
use harness::{Metrics, until};
use serde_json::json;

use crate::rules::{RULES, promtool};

/// The longest that a process may take to answer a scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that is scraped.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// As in `docker/prometheus.yml`.
    pub(crate) job: &'static str,
    /// Where it serves, such as `http://127.0.0.1:8080`.
    pub(crate) url: String,
}

/// The jobs without which there is an alert.
const JOBS: [&str; 2] = ["oncepost-api", "oncepost-relay"];

/// What was seen so far.
pub(crate) struct Tape {
    http: reqwest::Client,
    targets: Vec<Target>,
    holds: Vec<Hold>,
}

/// One scrape of all targets, and for how many minutes it stands.
struct Hold {
    minutes: usize,
    series: BTreeMap<String, f64>,
}

impl Tape {
    /// A tape of these processes. What is not among them is well.
    pub(crate) fn of(targets: &[Target]) -> Self {
        let http = reqwest::Client::builder().timeout(SCRAPE_TIMEOUT).no_proxy().build().unwrap();
        Self { http, targets: targets.to_vec(), holds: Vec::new() }
    }

    /// One scrape: what the target says, with the labels that Prometheus adds; nothing if it does not answer.
    async fn scrape(&self, target: &Target) -> Option<BTreeMap<String, f64>> {
        let response = self.http.get(format!("{}/metrics", target.url)).send().await.ok()?;
        let text = response.error_for_status().ok()?.text().await.ok()?;
        let labels = format!("job=\"{}\",instance=\"{}\"", target.job, target.url);
        let labelled = |name: &str| match name.split_once('{') {
            Some((name, rest)) => format!("{name}{{{labels},{rest}"),
            None => format!("{name}{{{labels}}}"),
        };
        Some(Metrics::parse(&text).series().map(|series| (labelled(&series.name), series.value)).collect())
    }

    /// Reads every target now, and lets that stand for some minutes. Moments are told by the tape's own clock.
    pub(crate) async fn hold(&mut self, minutes: usize) {
        let begins: usize = self.holds.iter().map(|hold| hold.minutes).sum();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let shift = f64::from(u32::try_from(begins * 60).unwrap()) - now;
        let mut series = BTreeMap::new();
        for target in &self.targets {
            let scraped = self.scrape(target).await;
            let up = if scraped.is_some() { 1.0 } else { 0.0 };
            series.insert(format!("up{{job=\"{}\",instance=\"{}\"}}", target.job, target.url), up);
            series.extend(scraped.unwrap_or_default());
        }
        for (name, value) in &mut series {
            if name.contains("_timestamp_seconds{") && *value != 0.0 {
                *value += shift;
            }
        }
        for job in JOBS.iter().filter(|job| self.targets.iter().all(|target| target.job != **job)) {
            series.insert(format!("up{{job=\"{job}\",instance=\"elsewhere\"}}"), 1.0);
        }
        self.holds.push(Hold { minutes, series });
    }

    /// Waits until the one series that has this in its name or labels is what it has to be.
    pub(crate) async fn wait_for(&self, series: &[&str], condition: impl Fn(f64) -> bool) {
        until(&format!("{series:?} to be as it has to"), async || {
            let mut found = false;
            for target in &self.targets {
                let scraped = self.scrape(target).await.unwrap_or_default();
                let of_it = |name: &str| series.iter().all(|part| name.contains(part));
                found |= scraped.iter().any(|(name, value)| of_it(name) && condition(*value));
            }
            found
        })
        .await;
    }

    /// The values of a series over all holds, in promtool's words.
    fn values(&self, name: &str) -> String {
        let mut words = Vec::new();
        let mut stood = false;
        for Hold { minutes, series } in &self.holds {
            match series.get(name) {
                Some(value) => words.push(format!("{value}x{}", minutes - 1)),
                // Prometheus notes that a series has ended, as soon as its process is gone.
                None if stood => words.push(format!("stale _x{}", minutes - 1)),
                None => words.push(format!("_x{minutes}")),
            }
            stood = series.contains_key(name);
        }
        words.join(" ")
    }

    /// Evaluates the rules over the tape. At the end of each hold exactly these alerts fire.
    ///
    /// # Panics
    /// With what promtool says, where they don't.
    pub(crate) fn fires(&self, alerts: &[&[&str]]) {
        assert_eq!(alerts.len(), self.holds.len(), "each hold has an expectation");
        let names: BTreeSet<&String> = self.holds.iter().flat_map(|hold| hold.series.keys()).collect();
        let series: Vec<_> =
            names.into_iter().map(|name| json!({"series": name, "values": self.values(name)})).collect();
        let mut minute = 0;
        let mut questions = Vec::new();
        for (hold, alerts) in self.holds.iter().zip(alerts) {
            minute += hold.minutes;
            let samples: Vec<_> = alerts
                .iter()
                .map(|alert| json!({"labels": format!("{{alertname=\"{alert}\"}}"), "value": 1}))
                .collect();
            questions.push(json!({
                "expr": "group by (alertname) (ALERTS{alertstate=\"firing\"})",
                "eval_time": format!("{}m", minute - 1),
                "exp_samples": samples,
            }));
        }
        let test = json!({
            "rule_files": RULES.map(|file| root().join(file)),
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": questions}],
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), test.to_string()).unwrap();
        promtool(&["test", "rules"], &[file.path().to_owned()]);
    }
}
