//! What is sent, and what must come.

use std::fmt;

use harness::Reply;
use reqwest::Method;
use serde_json::Value;

/// A request, apart from who sends it.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// A POST of JSON, without a key.
    pub(crate) fn post(path: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::new(Method::POST, path) }.header("content-type", "application/json")
    }

    /// One more header line.
    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_owned()));
        self
    }

    /// One more line with an idempotency key.
    pub(crate) fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.header("idempotency-key", key)
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(header, _)| *header != name);
        self
    }

    pub(crate) fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }
}

/// One thing that must hold of an answer.
pub(crate) enum Want<'a> {
    /// It is JSON with this status.
    Status(u16),
    /// It is a problem with this status and type.
    Problem(u16, &'static str),
    /// The header has this value.
    Header(&'static str, &'a str),
    /// The header is there.
    Has(&'static str),
    /// The header is not there.
    Lacks(&'static str),
    /// The header begins so.
    Begins(&'static str, &'static str),
    /// The member at this JSON pointer has this value.
    Member(&'static str, Value),
    /// The object has these members and no others.
    Members(&'static str, &'static [&'static str]),
    /// The array has this many items.
    Count(&'static str, usize),
    /// The problem names these places, in any order.
    Errors(&'static [&'static str]),
    /// It is no replay.
    First,
    /// It is this answer again: status, stored headers and every byte; marked, and with an id of its own.
    Replay(&'a Reply),
    /// The connection ends without an answer.
    Nothing,
}

/// The headers of an answer that are stored with it.
const STORED: [&str; 3] = ["location", "content-type", "retry-after"];

impl Want<'_> {
    /// What is wrong with what came, if anything is.
    pub(crate) fn miss(&self, reply: Option<&Reply>) -> Option<String> {
        let Some(reply) = reply else {
            return (!matches!(self, Self::Nothing)).then(|| "no answer".to_owned());
        };
        let json = || serde_json::from_slice::<Value>(&reply.body).unwrap_or_default();
        let header = |name: &str| reply.headers.get(name).map(|_| reply.header(name));
        let unless = |held: bool, miss: &dyn Fn() -> String| (!held).then(miss);
        match self {
            // What came is in the row anyway.
            Self::Status(status) => {
                unless(reply.status == *status && !json().is_null(), &|| "another status".to_owned())
            }
            Self::Problem(status, name) => {
                // A server may be configured to answer a key of another request so; clients branch on the type.
                let conflict = *name == "idempotency-key-reused" && reply.status == 409;
                let same = (reply.status == *status || conflict) && problem(reply).as_deref() == Some(*name);
                unless(same, &|| "another problem".to_owned())
            }
            Self::Header(name, value) => {
                unless(header(name) == Some(*value), &|| format!("{name}: {:?}", header(name)))
            }
            Self::Has(name) => unless(header(name).is_some(), &|| format!("no {name}")),
            Self::Lacks(name) => unless(header(name).is_none(), &|| format!("{name}: {:?}", header(name))),
            Self::Begins(name, start) => unless(header(name).is_some_and(|value| value.starts_with(start)), &|| {
                format!("{name}: {:?}", header(name))
            }),
            Self::Member(at, value) => {
                unless(json().pointer(at) == Some(value), &|| format!("{at}: {:?}", json().pointer(at)))
            }
            Self::Members(at, names) => {
                let mut found = names_of(json().pointer(at));
                let mut names = names.to_vec();
                found.sort_unstable();
                names.sort_unstable();
                unless(found == names, &|| format!("members {found:?}"))
            }
            Self::Count(at, count) => {
                let found = json().pointer(at).and_then(Value::as_array).map(Vec::len);
                unless(found == Some(*count), &|| format!("{found:?} items"))
            }
            Self::Errors(places) => {
                let mut found = places_of(&json());
                let mut places = places.to_vec();
                found.sort_unstable();
                places.sort_unstable();
                unless(found == places, &|| format!("errors at {found:?}"))
            }
            Self::First => unless(!reply.replayed(), &|| "a replay".to_owned()),
            Self::Replay(first) => {
                let stored = |reply: &Reply| STORED.map(|name| reply.header(name).to_owned());
                let same = (reply.status, stored(reply), &reply.body) == (first.status, stored(first), &first.body);
                let fresh = reply.header("x-request-id") != first.header("x-request-id");
                unless(reply.replayed() && same && fresh, &|| "not the first answer again".to_owned())
            }
            Self::Nothing => Some("an answer".to_owned()),
        }
    }
}

fn names_of(object: Option<&Value>) -> Vec<String> {
    object.and_then(Value::as_object).map(|object| object.keys().cloned().collect()).unwrap_or_default()
}

fn places_of(problem: &Value) -> Vec<String> {
    let errors = problem["errors"].as_array().cloned().unwrap_or_default();
    errors.iter().filter_map(|error| Some(error["pointer"].as_str()?.to_owned())).collect()
}

/// The last part of the problem's type, if the answer is one.
pub(crate) fn problem(reply: &Reply) -> Option<String> {
    let json: Value = serde_json::from_slice(&reply.body).ok()?;
    Some(json["type"].as_str()?.strip_prefix("/problems/")?.to_owned())
}

impl fmt::Display for Want<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(formatter, "{status}"),
            Self::Problem(status, name) => write!(formatter, "{status} {name}"),
            Self::Header(name, value) => write!(formatter, "{name}: {value}"),
            Self::Has(name) => write!(formatter, "{name}"),
            Self::Lacks(name) => write!(formatter, "no {name}"),
            Self::Begins(name, start) => write!(formatter, "{name}: {start}…"),
            Self::Member("", _) => write!(formatter, "the same JSON"),
            Self::Member(at, value) => write!(formatter, "{at} = {value}"),
            Self::Members("", names) => write!(formatter, "members {}", names.join(" ")),
            Self::Members(at, names) => write!(formatter, "{at} with {}", names.join(" ")),
            Self::Count(at, count) => write!(formatter, "{count} items in {at}"),
            Self::Errors(places) => write!(formatter, "errors at {}", places.join(" ")),
            Self::First => write!(formatter, "no replay"),
            Self::Replay(_) => write!(formatter, "the first answer again, marked"),
            Self::Nothing => write!(formatter, "no answer"),
        }
    }
}
