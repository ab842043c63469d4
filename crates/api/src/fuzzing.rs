//! What has to hold for every input of the readers that decide what a request is: the header, strict JSON, the canonical
//! form and the fingerprint. The fuzz targets (`fuzz/`) call these with what libFuzzer finds, the tests below with what
//! proptest makes up. Each panics where something does not hold.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "to panic is how a finding is told")]

use std::collections::{BTreeMap, BTreeSet};

use axum::http::{HeaderMap, HeaderValue, Method};
use ledger::{Fingerprint, IdempotencyKey};

use crate::fingerprint;
use crate::idempotency_key::{self, IDEMPOTENCY_KEY};
use crate::json::{self, Value};

/// The header `Idempotency-Key`: what is accepted means what it says, in both spellings; what is a key is accepted.
pub fn check_idempotency_key(line: &[u8]) {
    if let Some(key) = read_key(line) {
        let line = line.trim_ascii();
        let content = match line {
            [b'"', quoted @ .., b'"'] => unescape(quoted),
            bare => bare.to_owned(),
        };
        assert_key(&content, Some(&key));
    }
    // The same bytes as the content of a key.
    let printable =
        (1..=IdempotencyKey::MAX_BYTES).contains(&line.len()) && line.iter().all(|byte| matches!(byte, 0x20..=0x7E));
    if printable {
        assert_key(line, None);
    }
}

/// Asserts that a key is read from its quoted spelling and, where it has one, from its bare spelling.
fn assert_key(content: &[u8], read: Option<&IdempotencyKey>) {
    let key = String::from_utf8(content.to_owned())
        .ok()
        .and_then(IdempotencyKey::new)
        .expect("a key is 1 to 255 printable bytes");
    assert!(read.is_none_or(|read| *read == key), "another key was read");
    let escaped = content.iter().flat_map(|byte| match byte {
        b'"' | b'\\' => vec![b'\\', *byte],
        _ => vec![*byte],
    });
    let quoted: Vec<u8> = [b'"'].into_iter().chain(escaped).chain([b'"']).collect();
    assert!(read_key(&quoted).as_ref() == Some(&key), "the quoted spelling is another key");
    if !content.iter().any(|byte| b" \",;\\".contains(byte)) {
        assert!(read_key(content).as_ref() == Some(&key), "the bare spelling is another key");
    }
}

fn read_key(line: &[u8]) -> Option<IdempotencyKey> {
    let mut headers = HeaderMap::new();
    headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_bytes(line).ok()?);
    idempotency_key::read(&headers).ok()
}

fn unescape(quoted: &[u8]) -> Vec<u8> {
    let mut bytes = quoted.iter().copied();
    std::iter::from_fn(|| bytes.next().and_then(|byte| if byte == b'\\' { bytes.next() } else { Some(byte) })).collect()
}

/// Strict JSON: what is accepted is what serde_json reads, too; what serde_json reads and is refused has one of the faults
/// that are refused on purpose.
pub fn check_strict_json(body: &[u8]) {
    match (json::parse(body), serde_json::from_slice::<serde_json::Value>(body)) {
        (Ok(value), Ok(meant)) => assert!(means(&value, &meant), "{value:?} is not {meant}"),
        // A number that no double is near has no place in serde_json's value.
        (Ok(value), Err(error)) => assert!(!finite(&value), "{value:?} is accepted, though {error}"),
        (Err(fault), Ok(meant)) => {
            let on_purpose = ["appears more than once", "holds NUL", "is nested too deeply"];
            assert!(on_purpose.contains(&fault.detail.as_ref()), "{} {}, and is {meant}", fault.pointer, fault.detail);
        }
        (Err(_), Err(_)) => {}
    }
}

fn finite(value: &Value<'_>) -> bool {
    match value {
        Value::Number(text) => text.parse().is_ok_and(f64::is_finite),
        Value::Array(items) => items.iter().all(finite),
        Value::Object(members) => members.iter().all(|(_, value)| finite(value)),
        Value::Null | Value::Bool(_) | Value::Text(_) => true,
    }
}

fn means(value: &Value<'_>, meant: &serde_json::Value) -> bool {
    match (value, meant) {
        (Value::Null, serde_json::Value::Null) => true,
        (Value::Bool(value), serde_json::Value::Bool(meant)) => value == meant,
        (Value::Number(text), serde_json::Value::Number(meant)) => {
            let (read, meant): (f64, f64) = (text.parse().unwrap(), meant.as_f64().unwrap());
            // serde_json reads doubles fast rather than exactly, unless told otherwise.
            (read - meant).abs() <= (read.abs() * 4.0 * f64::EPSILON).max(f64::MIN_POSITIVE)
        }
        (Value::Text(text), serde_json::Value::String(meant)) => text == meant,
        (Value::Array(items), serde_json::Value::Array(meant)) => {
            items.len() == meant.len() && items.iter().zip(meant).all(|(item, meant)| means(item, meant))
        }
        (Value::Object(members), serde_json::Value::Object(meant)) => {
            members.len() == meant.len()
                && members.iter().all(|(name, value)| meant.get(name.as_ref()).is_some_and(|meant| means(value, meant)))
        }
        _ => false,
    }
}

/// The canonical form: it means the same, and is its own canonical form.
pub fn check_canonical_form(body: &[u8]) {
    let Ok(value) = json::parse(body) else { return };
    let form = fingerprint::canonical(&value);
    let read = json::parse(&form).expect("a canonical form is strict JSON");
    assert!(same(&read, &value), "{} does not mean the same", String::from_utf8_lossy(&form));
    assert_eq!(fingerprint::canonical(&read), form);
}

/// Whether two values are the same JSON value. Numbers are doubles (RFC 8785); where no double is near, they are texts.
fn same(one: &Value<'_>, other: &Value<'_>) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let (one_read, other_read): (f64, f64) = (one.parse().unwrap(), other.parse().unwrap());
            if one_read.is_finite() && other_read.is_finite() { one_read == other_read } else { one == other }
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|((name, one), (named, other))| name == named && same(one, other))
        }
        (Value::Null | Value::Bool(_) | Value::Text(_), other) => one == other,
        (Value::Number(_) | Value::Array(_) | Value::Object(_), _) => false,
    }
}

/// The fingerprint: two bodies have the same one exactly where they are the same value, however they are spelled, and the
/// members that differ are the ones that it names.
pub fn check_fingerprint(one: &[u8], other: &[u8]) {
    let Ok(value) = json::parse(one) else { return };
    let print = print_of(&value);
    let respelled = respell(&value, other);
    let read = json::parse(respelled.as_bytes()).expect("another spelling is strict JSON");
    assert!(print_of(&read) == print, "{respelled} is another request");

    let Ok(other) = json::parse(other) else { return };
    let other_print = print_of(&other);
    assert_eq!(print.whole == other_print.whole, same(&value, &other), "{value:?} and {other:?}");
    if let (Some(members), Some(others)) = (named(&value), named(&other)) {
        let names: BTreeSet<&str> = members.keys().chain(others.keys()).copied().collect();
        let differ = |name: &&str| match (members.get(name), others.get(name)) {
            (Some(one), Some(other)) => !same(one, other),
            (_, _) => true,
        };
        let expected: BTreeSet<&str> = names.into_iter().filter(differ).collect();
        assert_eq!(differing(&print, &other_print), expected);
    }
}

fn print_of(value: &Value<'_>) -> Fingerprint {
    fingerprint::take(&Method::POST, "/v1/transfers", None, value)
}

/// The members that a fingerprint can name: those of an object that has few, none of which looks like a part of the
/// address.
fn named<'a>(value: &'a Value<'_>) -> Option<BTreeMap<&'a str, &'a Value<'a>>> {
    const FEW: usize = 32;
    let Value::Object(members) = value else { return None };
    let few = members.len() <= FEW && !members.iter().any(|(name, _)| name.starts_with(':'));
    few.then(|| members.iter().map(|(name, value)| (name.as_ref(), value)).collect())
}

fn differing<'a>(one: &'a Fingerprint, other: &'a Fingerprint) -> BTreeSet<&'a str> {
    let parts = |print: &'a Fingerprint| print.members.iter().map(|(name, hash)| (name.as_ref(), *hash)).collect();
    let (one, other): (BTreeSet<_>, BTreeSet<_>) = (parts(one), parts(other));
    one.symmetric_difference(&other).map(|(name, _)| *name).collect()
}

/// Writes a value as a client with other habits would. The choices say which: white space, members turned round, escapes,
/// another spelling of a number.
fn respell(value: &Value<'_>, choices: &[u8]) -> String {
    let mut choices = choices.iter().copied().chain(std::iter::repeat(1));
    let mut text = String::new();
    write(value, &mut text, &mut choices);
    text
}

fn write(value: &Value<'_>, to: &mut String, choices: &mut impl Iterator<Item = u8>) {
    let mut choose = |options: u8| choices.next().unwrap_or(0) % options;
    to.push_str(["", " ", "\n\t", "\r"][usize::from(choose(4))]);
    match value {
        Value::Null => to.push_str("null"),
        Value::Bool(value) => to.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => {
            // One that no double is near has no other spelling.
            let plain = finite(value) && !text.contains(['e', 'E']);
            let whole = plain && !text.contains('.');
            match choose(4) {
                0 if whole => *to += &format!("{text}.0"),
                1 if whole && !text.ends_with('0') => *to += &format!("{text}0e-1"),
                2 if plain => *to += &format!("{text}E+00"),
                3 if plain && !whole => *to += &format!("{text}00"),
                _ => to.push_str(text),
            }
        }
        Value::Text(text) => write_text(text, to, choices),
        Value::Array(items) => {
            to.push('[');
            for (at, item) in items.iter().enumerate() {
                to.push_str(if at > 0 { "," } else { "" });
                write(item, to, choices);
            }
            to.push_str(" ]");
        }
        Value::Object(members) => {
            let turned = choose(2) == 0;
            to.push('{');
            for at in 0..members.len() {
                let (name, value) = &members[if turned { members.len() - 1 - at } else { at }];
                to.push_str(if at > 0 { ",\n" } else { "" });
                write_text(name, to, choices);
                to.push_str(" :");
                write(value, to, choices);
            }
            to.push('}');
        }
    }
}

fn write_text(text: &str, to: &mut String, choices: &mut impl Iterator<Item = u8>) {
    to.push('"');
    for character in text.chars() {
        let must = matches!(character, '"' | '\\' | '\0'..='\u{1f}');
        match choices.next().unwrap_or(0) % 3 {
            0 if character == '/' => to.push_str("\\/"),
            1 if !must => to.push(character),
            _ => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    *to += &format!("\\u{unit:04x}");
                }
            }
        }
    }
    to.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(serde_json::Value::from),
            (-3..3_i64).prop_map(serde_json::Value::from),
            any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(serde_json::Value::from),
            "[^\0]{0,8}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
                prop::collection::hash_map("[^\0]{0,6}|amount|currency", inner, 0..5)
                    .prop_map(|members| serde_json::Value::from(serde_json::Map::from_iter(members))),
            ]
        })
    }

    /// A body, and another that is nearly the same: one member is replaced.
    fn neighbours() -> impl Strategy<Value = (String, String)> {
        let members = prop::collection::btree_map("[^\0:]{1,6}|amount", value(), 1..6);
        (members, any::<prop::sample::Index>(), value()).prop_map(|(members, at, other)| {
            let one: serde_json::Map<String, serde_json::Value> = members.into_iter().collect();
            let mut changed = one.clone();
            let name = changed.keys().nth(at.index(changed.len())).unwrap().clone();
            changed.insert(name, other);
            (serde_json::Value::from(one).to_string(), serde_json::Value::from(changed).to_string())
        })
    }

    /// Text made of JSON's pieces, right or wrong.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"",
            "\"a\"",
            "\"\\u0061\"",
            "\"b\":",
            "null",
            "true",
            "false",
            "0",
            "-0",
            "01",
            "1.50",
            "1e2",
            "1E400",
            "9007199254740993",
            "\\ud800",
            "\\udc00",
            "\\u0000",
            "\u{feff}",
            "é",
            " ",
            "\n",
            "\0",
            "\u{1}",
        ]);
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn a_key_has_one_meaning_in_both_spellings(line in prop_oneof!["[ -~]{0,300}", "[\"a\\\\, ]{0,8}", "\"[ -~]{0,260}\""]) {
            check_idempotency_key(line.as_bytes());
        }

        #[test]
        fn no_bytes_of_a_key_are_too_strange(line in prop::collection::vec(any::<u8>(), 0..300)) {
            check_idempotency_key(&line);
        }

        #[test]
        fn what_is_accepted_is_what_other_readers_read(body in prop_oneof![pieces(), value().prop_map(|value| value.to_string())]) {
            check_strict_json(body.as_bytes());
        }

        #[test]
        fn no_bytes_of_a_body_are_too_strange(body in prop::collection::vec(any::<u8>(), 0..300)) {
            check_strict_json(&body);
            check_canonical_form(&body);
        }

        #[test]
        fn the_canonical_form_means_the_same_and_is_its_own(body in prop_oneof![pieces(), value().prop_map(|value| value.to_string())]) {
            check_canonical_form(body.as_bytes());
        }

        #[test]
        fn equal_values_have_equal_fingerprints_and_different_ones_different(
            bodies in prop_oneof![
                neighbours(),
                (value(), value()).prop_map(|(one, other)| (one.to_string(), other.to_string())),
                (pieces(), pieces()),
            ],
        ) {
            check_fingerprint(bodies.0.as_bytes(), bodies.1.as_bytes());
        }

        #[test]
        fn spelling_does_not_matter(value in value(), choices in prop::collection::vec(any::<u8>(), 0..200)) {
            check_fingerprint(value.to_string().as_bytes(), &choices);
        }
    }
}
