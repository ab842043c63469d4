//! What `/metrics` shows.

use crate::process::Process;

/// The series of one process at one moment.
#[derive(Clone, Debug)]
pub struct Metrics(Vec<Series>);

/// One line: a name with its labels, and a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name with its labels, as it is shown.
    pub name: String,
    /// What it says.
    pub value: f64,
}

impl Series {
    /// The metric's name: without labels, and without what a histogram puts behind it.
    pub fn base_name(&self) -> &str {
        let name = self.name.split('{').next().unwrap();
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name)
    }

    /// The names of the labels.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let inside = self.name.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
        inside.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name)
    }
}

impl Metrics {
    /// Asks a process.
    ///
    /// # Panics
    /// Where it does not answer with metrics.
    pub async fn of(process: &Process) -> Self {
        let text = reqwest::get(format!("{}/metrics", process.url())).await.unwrap().text().await.unwrap();
        Self::parse(&text)
    }

    /// Reads the text format of Prometheus.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a series: {line}"));
            Series { name: name.to_owned(), value: value.parse().unwrap() }
        });
        Self(series.collect())
    }

    /// Every series.
    pub fn series(&self) -> impl Iterator<Item = &Series> {
        self.0.iter()
    }

    /// The value of the series with this name and these labels, written as they are shown.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|series| series.name == name).map(|series| series.value)
    }
}
