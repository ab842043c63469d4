//! Traces: from a client's span through the request, its batch and the relay into the event's record.

use std::sync::{Arc, Mutex};

use harness::{Books, Client, Topic, until};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use reqwest::Method;
use serde_json::json;
use stack::Kafka;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

/// A span as a collector gets it.
#[derive(Clone, Debug)]
struct Span {
    service: String,
    name: String,
    trace: String,
    id: String,
    parent: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A collector that keeps all it gets; OTLP over HTTP, of which it understands what the exporter sends.
async fn collect() -> (String, Arc<Mutex<Vec<Span>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let spans = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&spans);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                loop {
                    let (mut head, mut length) = (String::new(), 0);
                    while stream.read_line(&mut head).await.unwrap_or(0) > 2 {
                        let line = head.trim().to_ascii_lowercase();
                        if let Some(value) = line.strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                        head.clear();
                    }
                    let mut body = vec![0; length];
                    if length == 0 || stream.read_exact(&mut body).await.is_err() {
                        return;
                    }
                    let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
                    kept.lock().unwrap().extend(request.resource_spans.into_iter().flat_map(spans_of));
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                }
            });
        }
    });
    (url, spans)
}

fn spans_of(resource: opentelemetry_proto::tonic::trace::v1::ResourceSpans) -> Vec<Span> {
    let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
    let service = format!("{:?}", attributes.iter().find(|attribute| attribute.key == "service.name"));
    let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
    let spans = spans.map(|span| Span {
        service: service.clone(),
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
    });
    spans.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_from_the_client_through_the_batch_into_the_record() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const CLIENT: &str = "b7ad6b7169203331";
    let books = Books::open().await;
    let kafka = Kafka::temporary().await.unwrap();
    let (collector, spans) = collect().await;
    // What begins here is not recorded; the client's own is, as it has decided.
    let traced = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector),
        ("OTEL_TRACES_SAMPLER_ARG", "0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let api = books.api_with(&traced).await;
    let client = Client::new(&api, &books.owner.test);
    let world = books.account(&client, None).await;
    let shop = books.account(&client, Some(0)).await;
    let untraced = client.transfer(&client.fresh_key(), &world, &shop, 1).await;
    let body = json!({"source_account_id": world, "destination_account_id": shop, "amount": 2, "currency": "EUR"});
    let request = client
        .request(Method::POST, "/v1/transfers")
        .header("idempotency-key", client.fresh_key())
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{TRACE}-{CLIENT}-01"));
    let traced_transfer = client.send(request.body(body.to_string())).await.unwrap();
    assert_eq!((untraced.status, traced_transfer.status), (201, 201));

    let relay = books.relay_with(&kafka.bootstrap(), &traced);
    let named = |name: &str| spans.lock().unwrap().iter().find(|span| span.name == name).cloned();
    let names = ["POST /v1/transfers", "commit", "publish"];
    until("all three spans", async || names.iter().all(|name| named(name).is_some())).await;
    let [request, commit, publish] = names.map(|name| named(name).unwrap());
    assert_eq!((&*request.trace, &*request.parent), (TRACE, CLIENT));
    assert_eq!((&*commit.trace, &commit.parent), (TRACE, &request.id));
    assert_eq!((&*publish.trace, &publish.parent), (TRACE, &request.id));
    assert!(request.service.contains("oncepost-api") && publish.service.contains("oncepost-relay"), "{publish:?}");
    assert!(spans.lock().unwrap().iter().all(|span| span.trace == TRACE), "only the client's trace is recorded");

    let mut events = Topic::at(&kafka.bootstrap()).wait_for(2).await;
    events.sort_by_key(|event| event.position);
    let told: Vec<Option<String>> = events.into_iter().map(|event| event.traceparent).collect();
    assert_eq!(told, [None, Some(format!("00-{TRACE}-{}-01", publish.id))]);
    let line = api.log().into_iter().find(|line| line.contains(TRACE));
    assert!(line.is_some_and(|line| line.contains("api::access")), "the log names the trace");
    drop(relay);
    books.finish().await;
}
