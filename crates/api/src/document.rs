//! The OpenAPI document: routes and shapes come from the handlers' annotations, problems and headers from the code that
//! sends them.

use std::collections::BTreeMap;

use axum::Router;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::problem::ProblemKind;
use crate::{Api, accounts, health, keys, metrics, operations, page, schema, transfers};

/// What the handlers' annotations don't say.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Oncepost",
        description = "Transfers of money over HTTP: post once, however often it is sent. Every POST carries an \
                       `Idempotency-Key`; a retry with the same key and the same request gets the first answer again, byte \
                       for byte, and nothing runs twice. Amounts are integers in minor units. Unknown members of answers \
                       are to be ignored; unknown members of requests are refused."
    ),
    tags(
        (name = "accounts", description = "Where money stands."),
        (name = "transfers", description = "Money that moves from a source, which is debited, to a destination, which is credited."),
        (name = "accepted work", description = "Work that is accepted at once and done later."),
        (name = "idempotency keys", description = "What became of them."),
        (name = "operations", description = "For those who run the service.")
    ),
    components(schemas(schema::RequestFault, schema::OriginalAnswer))
)]
struct Described;

/// Every route with its description.
fn described_routes() -> (Router<Api>, Document) {
    OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(accounts::open, accounts::list))
        .routes(routes!(accounts::read))
        .routes(routes!(accounts::postings))
        .routes(routes!(transfers::post, transfers::list))
        .routes(routes!(transfers::read))
        .routes(routes!(operations::read))
        .routes(routes!(keys::look_up))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::read))
        .routes(routes!(page::read))
        .split_for_parts()
}

/// The routes of the API, the document itself and the pages that show it.
pub(crate) fn routes() -> Router<Api> {
    let (routes, described) = described_routes();
    let swagger: Router<Api> =
        SwaggerUi::new("/docs").external_url_unchecked("/openapi.json", complete(&described)).into();
    routes.merge(swagger)
}

/// The OpenAPI document, as text that ends with a newline.
pub fn text() -> String {
    let (_, described) = described_routes();
    // A document made of maps with text keys has no way to fail.
    let mut text = serde_json::to_string_pretty(&complete(&described)).unwrap_or_default();
    text.push('\n');
    text
}

/// Adds what is the same for many operations: problems, headers and the key that every POST carries.
fn complete(described: &Document) -> Value {
    let mut document = serde_json::to_value(described).unwrap_or_default();
    for (path, methods) in members(&mut document, "paths") {
        let Value::Object(methods) = methods else { continue };
        for (method, operation) in methods.iter_mut() {
            complete_operation(path, method, operation);
        }
    }
    if let Some(components) = document.get_mut("components") {
        let schemas = ProblemKind::ALL.map(|kind| (schema_name(kind), problem_schema(kind)));
        let Value::Object(components) = components else { return document };
        if let Some(Value::Object(all)) = components.get_mut("schemas") {
            all.extend(schemas);
            // The bodies of requests, of which unknown members are refused.
            for name in ["OpenAccount", "PostTransfer", "LookUpKey"] {
                let Some(Value::Object(body)) = all.get_mut(name) else { continue };
                body.insert("additionalProperties".to_owned(), Value::Bool(false));
                if let Some(Value::Object(currency)) =
                    body.get_mut("properties").and_then(|all| all.get_mut("currency"))
                {
                    currency.insert("enum".to_owned(), json!(currencies()));
                }
            }
        }
        components.insert(
            "securitySchemes".to_owned(),
            json!({"api_key": {"type": "http", "scheme": "bearer", "description": "An API key, `sk_test_…` or `sk_live_…`."}}),
        );
    }
    document
}

/// Every currency, found by asking for every code that there could be: the table itself is the ledger's.
fn currencies() -> Vec<&'static str> {
    let letters = || 'A'..='Z';
    let codes =
        letters().flat_map(|a| letters().flat_map(move |b| letters().map(move |c| String::from_iter([a, b, c]))));
    codes.filter_map(|code| ledger::Currency::parse(&code)).map(ledger::Currency::code).collect()
}

fn members<'a>(value: &'a mut Value, name: &str) -> impl Iterator<Item = (&'a String, &'a mut Value)> {
    let members = value.get_mut(name).and_then(Value::as_object_mut);
    members.into_iter().flat_map(Map::iter_mut)
}

/// The status that a key of another request can be configured to have (`IDEMPOTENCY_CONFLICT_STATUS`).
const CONFIGURED_CONFLICT: u16 = 409;

/// The problems that an operation may answer with.
fn problems(path: &str, method: &str) -> Vec<ProblemKind> {
    use ProblemKind as P;
    if !path.starts_with("/v1/") {
        return match path {
            "/readyz" => vec![P::Unavailable],
            "/problems/{name}" => vec![P::NotFound],
            _ => Vec::new(),
        };
    }
    let mut problems = vec![
        P::MalformedRequest,
        P::Unauthenticated,
        P::Forbidden,
        P::MethodNotAllowed,
        P::RateLimited,
        P::Internal,
        P::Unavailable,
    ];
    if path.contains("{id}") {
        problems.push(P::NotFound);
    }
    if method == "post" {
        problems.extend([P::BodyTooLarge, P::UnsupportedMediaType, P::IdempotencyKeyEnvironmentMismatch]);
    }
    if keyed(path, method) {
        problems.extend([
            P::IdempotencyKeyMissing,
            P::IdempotencyKeyMalformed,
            P::RequestInProgress,
            P::IdempotencyKeyReused,
            P::IdempotencyKeyExpired,
        ]);
    }
    if (path, method) == ("/v1/transfers", "post") {
        problems.extend([
            P::AccountNotFound,
            P::SameAccount,
            P::CurrencyMismatch,
            P::InsufficientFunds,
            P::BalanceLimitExceeded,
            P::AccountFrozen,
            P::AccountClosed,
        ]);
    }
    problems
}

/// Whether an operation carries an `Idempotency-Key`. Asking about a key carries none: it runs nothing.
fn keyed(path: &str, method: &str) -> bool {
    method == "post" && path.starts_with("/v1/") && path != "/v1/idempotency-keys/lookup"
}

/// What every request under a key may be answered beside 201: a dry run, and work that is accepted.
fn complete_keyed(responses: &mut Map<String, Value>) {
    if let Some(content) = responses.get("201").and_then(|made| made.get("content")).cloned() {
        let description =
            "With `dry_run=true`: what the request would come to. Nothing was made; the id names nothing.";
        responses.insert("200".to_owned(), json!({"description": description, "content": content}));
    }
    let description = "With `Prefer: respond-async`: the work is accepted, and done later.";
    let schema = json!({"$ref": "#/components/schemas/Operation"});
    let accepted = json!({"description": description, "content": {"application/json": {"schema": schema}}});
    responses.insert("202".to_owned(), accepted);
}

/// The parameters of every request under a key.
fn keyed_parameters() -> [Value; 4] {
    [
        json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": true,
            "description": "A fresh random value for each intent, and the same one for each retry of it. Bare, or as a quoted string. A dry run needs none.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21\\x23-\\x2B\\x2D-\\x3A\\x3C-\\x5B\\x5D-\\x7E]+$"},
            "example": "4f8c9a57-6f0e-4be1-9ad0-3c1f6d2b7e10"
        }),
        json!({
            "name": "dry_run",
            "in": "query",
            "required": false,
            "description": "`true` has the request decided and answered, and nothing recorded.",
            "schema": {"type": "boolean"}
        }),
        json!({
            "name": "Prefer",
            "in": "header",
            "required": false,
            "description": "RFC 7240. `respond-async` accepts the work at once and does it later; with `wait=N` it is tried for N seconds first. `wait=N` alone shortens the wait for a running original.",
            "schema": {"type": "string"},
            "example": "respond-async"
        }),
        json!({
            "name": "Oncepost-Fault",
            "in": "header",
            "required": false,
            "description": "Only in the test environment, for trying out retries: the first answer is lost, late or refused; a replay comes through.",
            "schema": {"type": "string", "pattern": "^(drop-reply|delay=([1-9]?[0-9]{1,3}|1[0-9]{4}|2[0-9]{4}|30000)|fail-before-commit|fail-after-commit)$"}
        }),
    ]
}

fn complete_operation(path: &str, method: &str, operation: &mut Value) {
    let mut by_status: BTreeMap<u16, Vec<ProblemKind>> = BTreeMap::new();
    for kind in problems(path, method) {
        by_status.entry(kind.status().as_u16()).or_default().push(kind);
        if kind == ProblemKind::IdempotencyKeyReused {
            by_status.entry(CONFIGURED_CONFLICT).or_default().push(kind);
        }
    }
    if let Some(Value::Object(responses)) = operation.get_mut("responses") {
        if keyed(path, method) {
            complete_keyed(responses);
        }
        for (status, kinds) in by_status {
            let description = kinds.iter().map(|kind| format!("`{}`", kind.name())).collect::<Vec<_>>().join(", ");
            let mut schemas: Vec<Value> = kinds
                .iter()
                .map(|kind| json!({"$ref": format!("#/components/schemas/{}", schema_name(*kind))}))
                .collect();
            let schema = match schemas.len() {
                1 => schemas.swap_remove(0),
                _ => json!({"oneOf": schemas}),
            };
            responses.insert(
                status.to_string(),
                json!({"description": description, "content": {"application/problem+json": {"schema": schema}}}),
            );
        }
        for (status, response) in responses.iter_mut() {
            if let Value::Object(response) = response {
                response.insert("headers".to_owned(), headers(path, method, status));
            }
        }
    }
    if path == "/problems/{name}"
        && let Some(Value::Object(name)) = operation.pointer_mut("/parameters/0/schema")
    {
        name.insert("enum".to_owned(), json!(ProblemKind::ALL.map(ProblemKind::name)));
    }
    if let Some(pattern) = cursor_pattern(path)
        && let Some(Value::Array(parameters)) = operation.get_mut("parameters")
        && let Some(cursor) = parameters.iter_mut().find(|parameter| parameter["name"] == "cursor")
    {
        cursor["schema"]["pattern"] = json!(pattern);
    }
    if keyed(path, method)
        && let Value::Object(operation) = operation
    {
        let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
        if let Value::Array(parameters) = parameters {
            parameters.extend(keyed_parameters());
        }
    }
}

/// What a cursor of a list looks like: an id, or the sequence of a posting.
fn cursor_pattern(path: &str) -> Option<&'static str> {
    match path {
        "/v1/accounts" => Some("^a[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
        "/v1/accounts/{id}/postings" => Some("^s[1-9][0-9]{0,17}$"),
        "/v1/transfers" => Some("^(t[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|s[1-9][0-9]{0,17})$"),
        _ => None,
    }
}

/// The headers of a response.
fn headers(path: &str, method: &str, status: &str) -> Value {
    let mut headers = Map::new();
    let mut declare = |name: &str, description: &str, schema: Value, required: bool| {
        headers.insert(name.to_owned(), json!({"description": description, "schema": schema, "required": required}));
    };
    let text = || json!({"type": "string"});
    let post = keyed(path, method);
    declare("X-Request-Id", "Names this answer; fresh for each.", json!({"type": "string", "format": "uuid"}), true);
    if path.starts_with("/v1/") {
        declare("Cache-Control", "Always `no-store`.", text(), true);
    }
    if path == "/problems/{name}" && status == "200" {
        declare("Content-Security-Policy", "What the page may load: nothing but its own style.", text(), true);
        declare("X-Content-Type-Options", "Always `nosniff`.", text(), true);
    }
    if post && (status == "201" || status == "202") {
        declare("Location", "Where the resource that was made is found.", text(), true);
    }
    if post && status == "202" {
        let seconds = json!({"type": "integer"});
        declare("Retry-After", "Seconds until the operation is worth asking for again.", seconds, true);
        declare("Preference-Applied", "Always `respond-async`.", text(), true);
    }
    if post && matches!(status, "201" | "202" | "422") {
        declare("RateLimit-Policy", "How many requests may run in which time, where that is limited.", text(), false);
        declare("RateLimit", "How many may still run, and until when, where that is limited.", text(), false);
        declare(
            "Idempotent-Replayed",
            "`true` on an answer that was given before; otherwise absent.",
            json!({"type": "string", "enum": ["true"]}),
            false,
        );
    }
    match status {
        "400" if post => declare("Link", "The problem's page, where the key is missing or malformed.", text(), false),
        "401" | "403" => declare("WWW-Authenticate", "How to authenticate.", text(), true),
        "405" => declare("Allow", "The methods that the resource has.", text(), true),
        "409" => declare(
            "Retry-After",
            "Seconds until the request is worth sending again, with the same key.",
            json!({"type": "integer"}),
            false,
        ),
        "415" => {
            declare("Accept", "Always `application/json`.", text(), true);
            declare("Accept-Encoding", "`identity`, where the body was compressed.", text(), false);
        }
        "429" => {
            declare(
                "Retry-After",
                "Seconds until the request is worth sending again.",
                json!({"type": "integer"}),
                true,
            );
            declare("RateLimit-Policy", "How many requests may run in which time.", text(), true);
            declare("RateLimit", "How many may still run, and until when.", text(), true);
        }
        "503" => declare(
            "Retry-After",
            "Seconds until the request is worth sending again, with the same key.",
            json!({"type": "integer"}),
            true,
        ),
        _ => {}
    }
    Value::Object(headers)
}

fn schema_name(kind: ProblemKind) -> String {
    let words = kind.name().split('-').map(|word| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    });
    words.chain(["Problem".to_owned()]).collect()
}

/// The shape of a problem: the members of RFC 9457, `request_id`, and those that the kind adds.
fn problem_schema(kind: ProblemKind) -> Value {
    use ProblemKind as P;
    let mut statuses = vec![kind.status().as_u16()];
    if kind == P::IdempotencyKeyReused {
        statuses.push(CONFIGURED_CONFLICT);
    }
    let mut properties = json!({
        "type": {"type": "string", "enum": [kind.type_uri()]},
        "title": {"type": "string"},
        "status": {"type": "integer", "enum": statuses},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "request_id": {"type": "string", "format": "uuid", "description": "The first attempt's, where the answer is replayed."}
    });
    let original = || json!({"$ref": "#/components/schemas/OriginalAnswer"});
    let added = match kind {
        P::MalformedRequest => {
            vec![("errors", json!({"type": "array", "items": {"$ref": "#/components/schemas/RequestFault"}}))]
        }
        P::IdempotencyKeyReused => vec![
            (
                "members",
                json!({"type": "array", "items": {"type": "string"}, "description": "What differs; `:path` and `:query` stand for parts of the address."}),
            ),
            ("original", original()),
        ],
        P::IdempotencyKeyEnvironmentMismatch => vec![("used_in", json!({"type": "string", "enum": ["test", "live"]}))],
        P::IdempotencyKeyExpired => vec![("original", original())],
        P::AccountNotFound
        | P::SameAccount
        | P::CurrencyMismatch
        | P::InsufficientFunds
        | P::BalanceLimitExceeded
        | P::AccountFrozen
        | P::AccountClosed => vec![("account_id", json!({"type": "string", "format": "uuid"}))],
        P::IdempotencyKeyMissing
        | P::IdempotencyKeyMalformed
        | P::Unauthenticated
        | P::Forbidden
        | P::NotFound
        | P::MethodNotAllowed
        | P::RequestInProgress
        | P::BodyTooLarge
        | P::UnsupportedMediaType
        | P::RateLimited
        | P::Internal
        | P::Unavailable => Vec::new(),
    };
    if let Value::Object(properties) = &mut properties {
        properties.extend(added.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    }
    let required: Vec<String> = properties.as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default();
    json!({"type": "object", "description": kind.title(), "required": required, "properties": properties})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Says what to do where the document has changed.
    const STALE: &str = "openapi/openapi.json is not what the code says; run `cargo run -p oncepost-api -- openapi > openapi/openapi.json`";

    #[test]
    fn the_committed_document_is_the_generated_one() {
        let committed = include_str!("../../../openapi/openapi.json");
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert!(read(committed) == read(&text()), "{STALE}");
    }

    #[test]
    fn every_operation_declares_problems_with_bodies_and_no_reference_leads_nowhere() {
        let document: Value = serde_json::from_str(&text()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let mut references = Vec::new();
        collect_references(&document, &mut references);
        for reference in references {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
        let post = &document["paths"]["/v1/transfers"]["post"];
        for status in ["201", "400", "401", "403", "405", "409", "413", "415", "422", "500", "503"] {
            assert!(post["responses"][status]["content"].is_object(), "{status}");
        }
    }

    fn collect_references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    if name == "$ref"
                        && let Value::String(reference) = value
                    {
                        found.push(reference.clone());
                    }
                    collect_references(value, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn declared(document: &Value, schema: &str) -> Vec<String> {
        let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        let names: Vec<String> = properties.keys().cloned().collect();
        // Optional members of answers are always there, null when unset.
        let required = document["components"]["schemas"][schema]["required"].as_array().unwrap();
        assert_eq!(required.len(), names.len(), "{schema}");
        names
    }

    fn written(value: &impl serde::Serialize) -> Vec<String> {
        let value = serde_json::to_value(value).unwrap();
        value.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn answers_have_the_members_that_are_declared() {
        use ledger::{
            Account, AccountId, AccountStatus, Amount, Balance, Currency, Environment, Posting, TenantId, Transfer,
            TransferId,
        };
        let document: Value = serde_json::from_str(&text()).unwrap();
        let now = time::OffsetDateTime::now_utc();
        let currency = Currency::parse("EUR").unwrap();
        let account = Account {
            id: AccountId::fresh(),
            tenant: TenantId::fresh(),
            environment: Environment::Test,
            currency,
            status: AccountStatus::Open,
            name: None,
            min_balance: None,
            max_balance: None,
            posted: Balance::ZERO,
            held: Balance::ZERO,
            posting_count: 0,
            metadata: None,
            created_at: now,
        };
        let transfer = Transfer {
            id: TransferId::fresh(),
            tenant: account.tenant,
            environment: account.environment,
            source: account.id,
            destination: AccountId::fresh(),
            amount: Amount::new(1).unwrap(),
            currency,
            description: None,
            metadata: None,
            created_at: now,
        };
        let posting = Posting {
            account_id: account.id,
            sequence: 1,
            transfer_id: transfer.id,
            amount: -1,
            balance_after: Balance::ZERO,
            created_at: now,
        };
        assert_eq!(written(&account), declared(&document, "Account"));
        assert_eq!(written(&transfer), declared(&document, "Transfer"));
        assert_eq!(written(&posting), declared(&document, "Posting"));

        // An event carries the transfer as it is answered, and its document is written by hand.
        let events = include_str!("../../../openapi/asyncapi.yaml");
        let (_, schema) = events.split_once("\n    transfer:\n").unwrap();
        let (_, required) = schema.split_once("\n      required:\n").unwrap();
        let required = required.lines().map_while(|line| line.strip_prefix("        - "));
        assert_eq!(required.collect::<BTreeSet<_>>(), written(&transfer).iter().map(String::as_str).collect());
    }
}
