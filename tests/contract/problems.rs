//! What the server says of itself: the document, the pages of problems, the probes.

use crate::request::Request;
use crate::suite::{Caller, Suite};

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("What the server says of itself");
    let version = suite.document()["openapi"].as_str().unwrap_or_default().to_owned();
    suite.row("The document is OpenAPI 3.1", "GET /openapi.json", "3.1", version.clone(), version.starts_with("3.1."));
    for path in ["/livez", "/readyz", "/docs/"] {
        page(suite, "It is there", path, "").await;
    }
    let schemas = suite.document()["components"]["schemas"].as_object().cloned().unwrap_or_default();
    let types = schemas.values().filter_map(|schema| type_of(schema.get("properties")?.get("type")?));
    let types: Vec<String> = types.collect();
    suite.row("Problems are declared", "/openapi.json", "20 or more", types.len().to_string(), types.len() >= 20);
    for page_of in types {
        page(suite, "Each type of problem leads to a page", &page_of, "text/html").await;
    }
}

/// The one value that a problem's `type` has.
fn type_of(schema: &serde_json::Value) -> Option<String> {
    let value = schema["const"].as_str().or_else(|| schema["enum"][0].as_str())?;
    value.starts_with("/problems/").then(|| value.to_owned())
}

async fn page(suite: &mut Suite, clause: &'static str, path: &str, media_type: &'static str) {
    let reply = suite.answer(Caller::Nobody, &Request::get(path)).await;
    let (status, found) =
        reply.map(|reply| (reply.status, reply.header("content-type").to_owned())).unwrap_or_default();
    let kept = status == 200 && found.starts_with(media_type);
    suite.row(clause, format!("GET {path}"), format!("200 {media_type}"), format!("{status} {found}"), kept);
}
