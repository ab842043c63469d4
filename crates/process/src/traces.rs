//! Traces for an OpenTelemetry collector, by OTLP over HTTP. Without an endpoint nothing is recorded, and what a client has
//! begun is passed on as it is.

use std::time::Duration;

use opentelemetry::global;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

/// How long one export may take; what can't be exported is dropped, never waited for.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last spans may take to leave when the process ends.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Where traces go, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The collector's base URL, such as `http://collector:4318`.
    pub endpoint: String,
    /// The part of the traces that begin here which is recorded, from 0 to 1. Whoever calls decides for its own.
    pub ratio: f64,
}

/// The recorder of this process. Dropping it sends what is left.
pub struct Traces(SdkTracerProvider);

/// Begins to record, where there is somewhere to send traces.
///
/// # Errors
/// A sentence, where the exporter can't be made.
pub fn begin(service: &'static str, settings: Option<&Settings>) -> Result<Option<Traces>, String> {
    let Some(Settings { endpoint, ratio }) = settings else { return Ok(None) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|error| format!("traces can't be sent to {endpoint}: {error}"))?;
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(*ratio))))
        .with_resource(Resource::builder().with_service_name(service).build())
        .with_batch_exporter(exporter)
        .build();
    global::set_tracer_provider(provider.clone());
    Ok(Some(Traces(provider)))
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(END_TIMEOUT) {
            tracing::warn!(%error, "the last traces are lost");
        }
    }
}
