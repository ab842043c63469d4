//! Metrics for Prometheus. One recorder serves the whole process.

use std::time::Duration;

use ledger::metric::{Metric, MetricKind};
use metrics::{describe_counter, describe_gauge, describe_histogram, gauge};
pub use metrics_exporter_prometheus::{BuildError, PrometheusHandle};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// How often samples are folded into their buckets, so that memory stays flat where nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Installs the process's recorder for these metrics. It is called once, before anything is measured, inside a Tokio
/// runtime.
///
/// # Errors
/// [`BuildError`] if a recorder is installed already.
pub fn install(metrics: &[Metric]) -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in metrics {
        if let MetricKind::Histogram(bounds) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
        }
    }
    let handle = builder.install_recorder()?;
    for metric in metrics {
        match metric.kind {
            // A counter that first appears with its first event hides that event from `rate`.
            MetricKind::Counter => {
                describe_counter!(metric.name, metric.meaning);
                if metric.labels.is_empty() {
                    metrics::counter!(metric.name).absolute(0);
                }
            }
            MetricKind::Gauge => describe_gauge!(metric.name, metric.meaning),
            MetricKind::Histogram(_) => describe_histogram!(metric.name, metric.meaning),
        }
    }
    gauge!("oncepost_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}
