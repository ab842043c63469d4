//! Which trace a request belongs to: W3C Trace Context (<https://www.w3.org/TR/trace-context/>), in the form of the header
//! `traceparent`. It goes with an operation through its batch and into its event.

use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, global};
use std::time::{Duration, SystemTime};

/// The name that spans are recorded under.
const TRACER: &str = "oncepost";

/// Reads a `traceparent`; `None` unless it is one that this version of the standard understands (section 3.2).
#[must_use]
pub fn parse(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex =
        |text: &str, digits| text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let understood = hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    if !understood || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let context =
        SpanContext::new(TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

/// The `traceparent` of a span that is recorded; `None` for every other, whose trace nobody keeps.
#[must_use]
pub fn format(context: &SpanContext) -> Option<String> {
    context.is_sampled().then(|| format!("00-{}-{}-01", context.trace_id(), context.span_id()))
}

/// A span that begins now, below the span that called, if there is one. Where no traces are recorded, its context is the
/// caller's own.
pub fn begin(
    name: impl Into<std::borrow::Cow<'static, str>>,
    kind: SpanKind,
    caller: &SpanContext,
) -> global::BoxedSpan {
    let tracer = global::tracer(TRACER);
    let parent = Context::new().with_remote_span_context(caller.clone());
    tracer.span_builder(name).with_kind(kind).start_with_context(&tracer, &parent)
}

/// Records what an operation spent in the committer, below its request.
pub(crate) fn record_commit(caller: &SpanContext, waited: Duration, batch: usize) {
    if !caller.is_sampled() {
        return;
    }
    let now = SystemTime::now();
    let since = now.checked_sub(waited).unwrap_or(now);
    let tracer = global::tracer(TRACER);
    let parent = Context::new().with_remote_span_context(caller.clone());
    let operations = KeyValue::new("oncepost.batch.operations", i64::try_from(batch).unwrap_or(i64::MAX));
    let span = tracer.span_builder("commit").with_start_time(since).with_attributes([operations]);
    span.start_with_context(&tracer, &parent).end();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let context = parse(SAMPLED).unwrap();
        assert_eq!(format(&context).as_deref(), Some(SAMPLED));
        let unsampled = parse(&SAMPLED.replace("-01", "-00")).unwrap();
        assert_eq!(format(&unsampled), None);
        // A later version may have more parts and more flags.
        assert!(parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more").is_some());
    }

    #[test]
    fn what_is_none_is_refused() {
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b71692033310-01",
        ] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn without_a_recorder_a_span_stands_for_its_caller() {
        let caller = parse(SAMPLED).unwrap();
        let span = begin("POST", SpanKind::Server, &caller);
        assert_eq!(format(span.span_context()).as_deref(), Some(SAMPLED));
        assert!(!begin("POST", SpanKind::Server, &SpanContext::empty_context()).span_context().is_valid());
    }
}
