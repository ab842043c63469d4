//! What every answer must have, whatever it answers, and what the OpenAPI document says that it may have.

use std::collections::{BTreeMap, HashSet};

use harness::Reply;
use reqwest::Method;
use serde_json::Value;
use uuid::Uuid;

use crate::request::{Request, problem};
use crate::table::Row;

/// A rule for every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    NoStore,
    RequestId,
    ProblemForm,
    NoKey,
    Documented,
    RateLimited,
}

impl Rule {
    const ALL: [Self; 6] =
        [Self::NoStore, Self::RequestId, Self::ProblemForm, Self::NoKey, Self::Documented, Self::RateLimited];

    const fn clause(self) -> &'static str {
        match self {
            Self::NoStore => "Every /v1 answer must not be stored",
            Self::RequestId => "Every answer has an id of its own",
            Self::ProblemForm => "Every refusal is a problem of RFC 9457",
            Self::NoKey => "No answer repeats an API key or an idempotency key",
            Self::Documented => "Every status, media type and header is in /openapi.json",
            Self::RateLimited => "Too many requests are told when to come back",
        }
    }

    const fn expected(self) -> &'static str {
        match self {
            Self::NoStore => "cache-control: no-store",
            Self::RequestId => "x-request-id: a UUID, never the same twice",
            Self::ProblemForm => "application/problem+json with type title status detail instance request_id",
            Self::NoKey => "neither in headers nor in the body",
            Self::Documented => "declared for the operation, and what is required is there",
            Self::RateLimited => "429 with retry-after, ratelimit and ratelimit-policy",
        }
    }
}

/// Headers of HTTP itself, and of connections, which documents don't declare.
const OF_HTTP: [&str; 6] = ["content-type", "content-length", "date", "connection", "transfer-encoding", "vary"];

/// Keys that are shorter stand in an answer by chance.
const KEY_MIN: usize = 16;

/// What was looked at so far.
pub(crate) struct EveryAnswer {
    document: Value,
    api_key: String,
    ids: HashSet<String>,
    looked: BTreeMap<Rule, usize>,
    breaches: BTreeMap<Rule, Vec<String>>,
}

impl EveryAnswer {
    pub(crate) fn new(document: Value, api_key: &str) -> Self {
        let (looked, breaches) = (BTreeMap::new(), BTreeMap::new());
        Self { document, api_key: api_key.to_owned(), ids: HashSet::new(), looked, breaches }
    }

    pub(crate) fn document(&self) -> &Value {
        &self.document
    }

    /// Holds an answer against every rule.
    pub(crate) fn look_at(&mut self, request: &Request, reply: &Reply) {
        let path = request.path.split('?').next().unwrap_or_default();
        if path.starts_with("/v1/") {
            self.judge(Rule::NoStore, request, reply, reply.header("cache-control") == "no-store");
        }
        let id = reply.header("x-request-id").to_owned();
        let fresh = Uuid::parse_str(&id).is_ok() && self.ids.insert(id.clone());
        self.judge(Rule::RequestId, request, reply, fresh);
        if reply.status >= 400 && request.method != Method::HEAD {
            self.judge(Rule::ProblemForm, request, reply, is_problem(reply, path, &id));
        }
        let silent = !self.repeats_a_key(request, reply);
        self.judge(Rule::NoKey, request, reply, silent);
        if let Some(undeclared) = self.undeclared(&request.method, path, reply) {
            self.note(Rule::Documented, request, reply, &undeclared);
        }
        *self.looked.entry(Rule::Documented).or_default() += 1;
        if reply.status == 429 {
            let told =
                ["retry-after", "ratelimit", "ratelimit-policy"].iter().all(|name| !reply.header(name).is_empty());
            self.judge(Rule::RateLimited, request, reply, told);
        }
    }

    fn judge(&mut self, rule: Rule, request: &Request, reply: &Reply, kept: bool) {
        *self.looked.entry(rule).or_default() += 1;
        if !kept {
            self.note(rule, request, reply, "");
        }
    }

    fn note(&mut self, rule: Rule, request: &Request, reply: &Reply, what: &str) {
        let breach = format!("{} {} → {} {what}", request.method, request.path, reply.status);
        self.breaches.entry(rule).or_default().push(breach.trim_end().to_owned());
    }

    fn repeats_a_key(&self, request: &Request, reply: &Reply) -> bool {
        let keys = request.headers.iter().filter(|(name, _)| *name == "idempotency-key").map(|(_, key)| key.as_slice());
        let mut secrets = keys.chain([self.api_key.as_bytes()]).filter(|key| key.len() >= KEY_MIN);
        let headers: Vec<&[u8]> = reply.headers.values().map(|value| value.as_bytes()).collect();
        secrets.any(|secret| {
            headers
                .iter()
                .chain([&reply.body.as_slice()])
                .any(|text| text.windows(secret.len()).any(|part| part == secret))
        })
    }

    /// What of an answer the document doesn't declare, or declares and misses.
    fn undeclared(&self, method: &Method, path: &str, reply: &Reply) -> Option<String> {
        let paths = self.document["paths"].as_object()?;
        // A path that is not in the document has no operation, and its answers are those of every unknown path.
        let (_, methods) = paths.iter().find(|(template, _)| matches(template, path))?;
        // HEAD is GET without its body; a method that the path doesn't have is refused alike for all.
        let method = if *method == Method::HEAD { "get".to_owned() } else { method.as_str().to_ascii_lowercase() };
        let operation = methods.get(method)?;
        let Some(response) = operation["responses"].get(reply.status.to_string()) else {
            return Some("is not declared".to_owned());
        };
        let content = reply.header("content-type");
        let media_type = content.split(';').next().unwrap_or_default();
        let declared = response["content"].as_object();
        if declared.is_some_and(|declared| !declared.contains_key(media_type)) {
            return Some(format!("with content of type {content:?}"));
        }
        let none = serde_json::Map::new();
        let headers = response["headers"].as_object().unwrap_or(&none);
        let declares = |name: &str| headers.keys().any(|header| header.eq_ignore_ascii_case(name));
        if let Some(stranger) =
            reply.headers.keys().find(|name| !OF_HTTP.contains(&name.as_str()) && !declares(name.as_str()))
        {
            return Some(format!("with the header {stranger}"));
        }
        let missing =
            headers.iter().find(|(name, header)| header["required"] == true && !reply.headers.contains_key(*name));
        missing.map(|(name, _)| format!("without the header {name}"))
    }

    /// A row for each rule.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let row = |rule: Rule| {
            let looked = self.looked.get(&rule).copied().unwrap_or_default();
            let breaches = self.breaches.get(&rule).map(Vec::as_slice).unwrap_or_default();
            let seen = match breaches {
                [] if looked == 0 => "not tried: no such answer came".to_owned(),
                [] => "all of them".to_owned(),
                breaches => breaches.join("; "),
            };
            let (clause, expected) = (rule.clause(), rule.expected().to_owned());
            Row {
                clause,
                sent: format!("{looked} answers"),
                expected,
                seen,
                kept: (looked > 0).then_some(breaches.is_empty()),
            }
        };
        Rule::ALL.map(row).into()
    }
}

/// Whether the refusal has the form of a problem, and says the same as the answer around it.
fn is_problem(reply: &Reply, path: &str, id: &str) -> bool {
    let Ok(json) = serde_json::from_slice::<Value>(&reply.body) else { return false };
    let texts = ["type", "title", "detail", "instance", "request_id"].iter().all(|name| json[*name].is_string());
    let named = problem(reply).is_some_and(|name| !name.is_empty());
    // A replayed problem was written for the first attempt, and tells of that one.
    let same_request = reply.replayed() || json["request_id"] == id;
    reply.header("content-type") == "application/problem+json"
        && texts
        && named
        && same_request
        && json["status"] == reply.status
        && json["instance"] == path
}

fn matches(template: &str, path: &str) -> bool {
    let (mut known, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (known.next(), given.next()) {
            (None, None) => return true,
            (Some(known), Some(given)) if known == given || known.starts_with('{') => {}
            _ => return false,
        }
    }
}
