//! The client against the OpenAPI document: what it sends is declared, what it reads is sent, and it knows what to do with every
//! answer.

use std::collections::BTreeSet;

use reqwest::header::HeaderMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::error::{Error, Fault, Miss};
use crate::problem::{OF_THE_BODY, OF_THE_KEY, REQUEST_IN_PROGRESS};
use crate::reply::Reply;
use crate::{
    Account, AccountStatus, OpenAccount, Operation, OperationStatus, PostTransfer, Problem, Transfer, TransferStatus,
};

struct Document(Value);

impl Document {
    fn read() -> Self {
        Self(serde_json::from_str(include_str!("../../../openapi/openapi.json")).unwrap())
    }

    fn schema(&self, name: &str) -> &Value {
        let schema = &self.0["components"]["schemas"][name];
        assert!(schema.is_object(), "there is no schema {name}");
        schema
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.0["components"]["schemas"].as_object().unwrap().keys()
    }

    /// A value of the schema with every member, null nowhere.
    fn sample(&self, schema: &Value) -> Value {
        if let Some(name) = schema["$ref"].as_str() {
            return self.sample(self.schema(name.rsplit('/').next().unwrap()));
        }
        // A schema or null.
        if let Some(first) = schema["oneOf"].get(0) {
            return self.sample(first);
        }
        if let Some(first) = schema["enum"].get(0) {
            return first.clone();
        }
        let kinds = schema["type"].as_array().and_then(|kinds| kinds.iter().find(|kind| *kind != "null"));
        match (kinds.unwrap_or(&schema["type"]).as_str().unwrap(), schema["format"].as_str()) {
            ("object", _) => match schema["properties"].as_object() {
                Some(members) => members.iter().map(|(name, member)| (name.clone(), self.sample(member))).collect(),
                None => json!({"name": "value"}),
            },
            ("array", _) => json!([self.sample(&schema["items"])]),
            ("integer", _) => json!(7),
            ("string", Some("uuid")) => json!(Uuid::nil()),
            ("string", Some("date-time")) => json!("2026-01-31T23:59:59.123456Z"),
            ("string", None) => json!("text"),
            other => panic!("no sample for {other:?}"),
        }
    }

    /// The answers of an operation: status, header names and every body that it may have.
    fn answers(&self, method: &str, path: &str) -> Vec<(u16, BTreeSet<String>, Vec<Value>)> {
        let responses = self.0["paths"][path][method]["responses"].as_object().unwrap();
        responses
            .iter()
            .map(|(status, response)| {
                let headers = response["headers"].as_object().map(Map::keys).into_iter().flatten().cloned().collect();
                let schemas = response["content"].as_object().unwrap().values().flat_map(|content| {
                    let schema = &content["schema"];
                    schema["oneOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()])
                });
                (status.parse().unwrap(), headers, schemas.map(|schema| self.sample(&schema)).collect())
            })
            .collect()
    }
}

/// Every name of a member, with those around it.
fn members(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(object) => object
            .iter()
            .flat_map(|(name, member)| {
                let inner = members(member).into_iter().map(move |inner| format!("{name}.{inner}"));
                std::iter::once(name.clone()).chain(inner)
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(members).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => BTreeSet::new(),
    }
}

#[test]
fn what_is_sent_is_declared_and_what_is_required_is_sent() {
    let document = Document::read();
    let check = |name: &str, least: Value, whole: Value| {
        let (declared, least, whole) = (document.schema(name), members(&least), members(&whole));
        let known = members(&document.sample(declared));
        assert!(whole.is_subset(&known), "{name}: {whole:?} is not within {known:?}");
        for required in declared["required"].as_array().unwrap() {
            assert!(least.contains(required.as_str().unwrap()), "{name}: {required} is not always sent");
        }
    };
    let metadata = Some([("name".to_owned(), "value".to_owned())].into());
    let least = PostTransfer::new(Uuid::nil(), Uuid::nil(), 1, "EUR");
    let whole = PostTransfer { description: Some("text".into()), metadata: metadata.clone(), ..least.clone() };
    check("PostTransfer", json!(least), json!(whole));
    let least = OpenAccount::new("EUR");
    let whole = OpenAccount { name: Some("text".into()), max_balance: Some(1), metadata, ..least.clone() };
    check("OpenAccount", json!(least), json!(whole));
    for path in ["/v1/transfers", "/v1/accounts"] {
        let parameters = document.0["paths"][path]["post"]["parameters"].as_array().unwrap();
        assert!(
            parameters.iter().any(|parameter| parameter["name"] == "Idempotency-Key" && parameter["in"] == "header")
        );
    }
}

#[test]
fn what_is_read_is_what_the_service_sends() {
    fn check<T: DeserializeOwned + Serialize>(document: &Document, name: &str) {
        let sent = document.sample(document.schema(name));
        let read: T = serde_json::from_value(sent.clone()).unwrap();
        let (read, known) = (members(&json!(read)), members(&sent));
        assert!(read.is_subset(&known), "{name}: {read:?} is not within {known:?}");
    }
    let document = Document::read();
    check::<Account>(&document, "Account");
    check::<Transfer>(&document, "Transfer");
    check::<Operation>(&document, "Operation");

    fn check_statuses<T: DeserializeOwned + PartialEq>(document: &Document, name: &str, unknown: &T) {
        for status in document.schema(name)["properties"]["status"]["enum"].as_array().unwrap() {
            assert!(serde_json::from_value::<T>(status.clone()).unwrap() != *unknown, "{name}: {status}");
        }
    }
    check_statuses(&document, "Account", &AccountStatus::Unknown);
    check_statuses(&document, "Transfer", &TransferStatus::Unknown);
    check_statuses(&document, "Operation", &OperationStatus::Unknown);
}

#[test]
fn problems_are_read_whole_and_those_with_a_meaning_exist() {
    let document = Document::read();
    let (mut names, mut read, mut known) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for schema in document.names().filter(|name| name.ends_with("Problem")) {
        let sent = document.sample(document.schema(schema));
        let problem = Problem::read(sent.to_string().as_bytes()).unwrap();
        names.insert(problem.name().to_owned());
        // Unset members are those of other problems.
        let mut again = json!(problem);
        again.as_object_mut().unwrap().retain(|_, member| !member.is_null() && *member != json!([]));
        read.append(&mut members(&again));
        known.append(&mut members(&sent));
    }
    assert!(read.is_subset(&known), "{read:?} is not within {known:?}");
    let ours = members(&json!(Problem::read(br#"{"type":"t"}"#).unwrap()));
    assert!(ours.is_subset(&read), "{:?} is read, but never sent", ours.difference(&read));
    for name in OF_THE_KEY.into_iter().chain(OF_THE_BODY).chain([REQUEST_IN_PROGRESS]) {
        assert!(names.contains(name), "there is no problem {name}");
    }
}

#[test]
fn every_declared_answer_has_its_meaning() {
    let document = Document::read();
    let operations = [
        ("post", "/v1/transfers"),
        ("post", "/v1/accounts"),
        ("get", "/v1/transfers/{id}"),
        ("get", "/v1/accounts/{id}"),
    ];
    for (method, path) in operations {
        for (status, headers, bodies) in document.answers(method, path) {
            assert!(!bodies.is_empty(), "{method} {path} {status}");
            for body in bodies {
                let reply = Reply { status, headers: HeaderMap::new(), body: body.to_string().into_bytes() };
                let name = body["type"].as_str().unwrap_or_default().rsplit('/').next().unwrap();
                if status < 300 {
                    // 200 is for dry runs and reads.
                    assert!(status == 200 || headers.contains("Idempotent-Replayed"), "{path} {status}");
                    let read = if status == 202 || path.contains("operations") {
                        reply.read::<Operation>().is_ok()
                    } else if path.contains("transfers") {
                        reply.read::<Transfer>().is_ok()
                    } else {
                        reply.read::<Account>().is_ok()
                    };
                    assert!(read, "{method} {path} {status} {body}");
                    continue;
                }
                let (again, rejected) = (name == REQUEST_IN_PROGRESS || status == 429 || status >= 500, status == 422);
                match reply.refusal() {
                    Miss::Again(Fault::Status { problem: Some(problem), .. }, _) => {
                        assert!(again, "{status} {name} is tried again");
                        assert_eq!(problem.name(), name);
                        assert!(status == 500 || headers.contains("Retry-After"), "{path} {status} {name}");
                    }
                    Miss::Final(Error::Rejected { problem, .. }) => {
                        assert!(
                            rejected && !name.starts_with("idempotency-key-"),
                            "{status} {name} is taken for a rejection"
                        );
                        assert_eq!(problem.name(), name);
                    }
                    Miss::Final(Error::Refused { problem: Some(problem), .. }) => {
                        assert!(
                            !again && (!rejected || name.starts_with("idempotency-key-")),
                            "{status} {name} is taken for a refusal"
                        );
                        assert_eq!(problem.name(), name);
                    }
                    other @ (Miss::Again(..) | Miss::Final(_)) => panic!("{method} {path} {status} {name}: {other:?}"),
                }
            }
        }
    }
}
