//! What makes two requests the same: method, path, query and the JSON value, whatever its spelling.
//!
//! The value is hashed in the canonical form of RFC 8785, as it was received and not as today's types see it: a version
//! that learns a new optional member must not turn yesterday's retries into conflicts.

use std::borrow::Cow;

use axum::http::Method;
use ledger::Fingerprint;
use sha2::{Digest, Sha256};

use crate::json::Value;

/// The part of a fingerprint that stands for method and path. No member of a body that is accepted has such a name.
const PATH: &str = ":path";
/// The part that stands for the query.
const QUERY: &str = ":query";

/// Every name that a request of any route may have, for naming what only the first request under a key had.
pub(crate) const KNOWN_MEMBERS: &[&str] = &[
    PATH,
    QUERY,
    "amount",
    "currency",
    "description",
    "destination_account_id",
    "max_balance",
    "metadata",
    "min_balance",
    "name",
    "source_account_id",
];

/// The most members that can be named when requests differ. The whole is hashed in any case; the bound keeps a body made
/// of thousands of members from costing thousands of hashes.
const MEMBERS_MAX: usize = 64;

/// Takes the fingerprint of a request.
pub(crate) fn take(method: &Method, path: &str, query: Option<&str>, body: &Value<'_>) -> Fingerprint {
    let query = sorted(query.unwrap_or_default());
    let mut whole = Sha256::new();
    for part in [method.as_str(), path, &query] {
        // With its length before it, no part can pass for a piece of its neighbour.
        whole.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        whole.update(part.as_bytes());
    }

    let mut members: Vec<(Cow<'static, str>, [u8; 32])> = Vec::with_capacity(8);
    members.push((Cow::Borrowed(PATH), digest(format!("{method} {path}").as_bytes())));
    if !query.is_empty() {
        members.push((Cow::Borrowed(QUERY), digest(query.as_bytes())));
    }
    let mut canonical = Vec::with_capacity(512);
    match body {
        Value::Object(fields) => {
            canonical.push(b'{');
            for (at, (name, value)) in fields.iter().enumerate() {
                if at > 0 {
                    canonical.push(b',');
                }
                write_text(name, &mut canonical);
                canonical.push(b':');
                let start = canonical.len();
                write(value, &mut canonical);
                if members.len() < MEMBERS_MAX {
                    members.push((known(name), digest(canonical.get(start..).unwrap_or_default())));
                }
            }
            canonical.push(b'}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Array(_) => {
            write(body, &mut canonical)
        }
    }
    whole.update(&canonical);
    members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Fingerprint { whole: whole.finalize().into(), members }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The name without a copy where it is one of ours.
fn known(name: &str) -> Cow<'static, str> {
    match KNOWN_MEMBERS.iter().find(|known| **known == name) {
        Some(known) => Cow::Borrowed(*known),
        None => Cow::Owned(name.to_owned()),
    }
}

/// The query with its parameters sorted.
fn sorted(query: &str) -> String {
    if query.is_empty() {
        return String::new();
    }
    let mut parameters: Vec<&str> = query.split('&').collect();
    parameters.sort_unstable();
    parameters.join("&")
}

/// The canonical form, for looking at it by itself.
#[cfg(any(test, fuzzing))]
pub(crate) fn canonical(value: &Value<'_>) -> Vec<u8> {
    let mut form = Vec::new();
    write(value, &mut form);
    form
}

/// Appends the canonical form (RFC 8785).
fn write(value: &Value<'_>, to: &mut Vec<u8>) {
    match value {
        Value::Null => to.extend_from_slice(b"null"),
        Value::Bool(true) => to.extend_from_slice(b"true"),
        Value::Bool(false) => to.extend_from_slice(b"false"),
        Value::Number(text) => write_number(text, to),
        Value::Text(text) => write_text(text, to),
        Value::Array(items) => {
            to.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    to.push(b',');
                }
                write(item, to);
            }
            to.push(b']');
        }
        Value::Object(members) => {
            to.push(b'{');
            for (at, (name, value)) in members.iter().enumerate() {
                if at > 0 {
                    to.push(b',');
                }
                write_text(name, to);
                to.push(b':');
                write(value, to);
            }
            to.push(b'}');
        }
    }
}

/// RFC 8785, section 3.2.2.2.
fn write_text(text: &str, to: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    to.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => to.extend_from_slice(b"\\\""),
            b'\\' => to.extend_from_slice(b"\\\\"),
            0x08 => to.extend_from_slice(b"\\b"),
            b'\t' => to.extend_from_slice(b"\\t"),
            b'\n' => to.extend_from_slice(b"\\n"),
            0x0c => to.extend_from_slice(b"\\f"),
            b'\r' => to.extend_from_slice(b"\\r"),
            0..0x20 => {
                to.extend_from_slice(b"\\u00");
                to.extend([byte >> 4, byte & 15].iter().filter_map(|digit| HEX.get(usize::from(*digit))));
            }
            _ => to.push(byte),
        }
    }
    to.push(b'"');
}

/// The most digits of an integer that a double holds exactly whatever they are (10^15 < 2^53).
const EXACT_DIGITS: usize = 15;

/// A number as ECMAScript writes the double nearest to it (RFC 8785, section 3.2.2.3).
fn write_number(text: &str, to: &mut Vec<u8>) {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits.len() <= EXACT_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain && text != "-0" {
        to.extend_from_slice(text.as_bytes());
        return;
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => to.extend_from_slice(ecmascript(number).as_bytes()),
        // No double is near it, so no value equals it but itself. Every version refuses it where a number is asked for.
        Ok(_) | Err(_) => to.extend_from_slice(text.as_bytes()),
    }
}

/// `Number::toString` of ECMA-262 with radix 10.
fn ecmascript(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    // serde_json writes the shortest digits that read back as the same double, and of two equally near ones the even: as
    // RFC 8785 asks. Where it puts the point, and when it uses an exponent, differs.
    let shortest = serde_json::to_string(&number.abs()).unwrap_or_default();
    let sign = if number < 0.0 { "-" } else { "" };
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let count = |digits: &str| i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0');
    let digits = significant.trim_end_matches('0');
    let length = count(digits);
    // The value is 0.digits × 10^point.
    let point = exponent
        .parse::<i32>()
        .unwrap_or(0)
        .saturating_add(count(whole))
        .saturating_sub(count(&all).saturating_sub(count(significant)));
    let split = |at: i32| digits.split_at_checked(usize::try_from(at).unwrap_or(0)).unwrap_or((digits, ""));
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    match point {
        _ if length <= point && point <= 21 => format!("{sign}{digits}{}", zeros(point.saturating_sub(length))),
        1..=21 => {
            let (whole, fraction) = split(point);
            format!("{sign}{whole}.{fraction}")
        }
        -5..=0 => format!("{sign}0.{}{digits}", zeros(point.saturating_neg())),
        _ => {
            let (first, rest) = split(1);
            let dot = if rest.is_empty() { "" } else { "." };
            let exponent = point.saturating_sub(1);
            let plus = if exponent > 0 { "+" } else { "" };
            format!("{sign}{first}{dot}{rest}e{plus}{exponent}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn canonical(body: &str) -> String {
        String::from_utf8(super::canonical(&json::parse(body.as_bytes()).unwrap())).unwrap()
    }

    fn fingerprint(body: &str) -> Fingerprint {
        take(&Method::POST, "/v1/transfers", None, &json::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn numbers_are_written_as_ecmascript_writes_them() {
        // Most lines are from RFC 8785, appendix B.
        for (text, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("9007199254740992", "9007199254740992"),
            ("-9007199254740992", "-9007199254740992"),
            ("295147905179352830000", "295147905179352830000"),
            ("9.999999999999997e22", "9.999999999999997e+22"),
            ("1e23", "1e+23"),
            ("1.0000000000000001e23", "1.0000000000000001e+23"),
            ("999999999999999700000", "999999999999999700000"),
            ("999999999999999900000", "999999999999999900000"),
            ("1e21", "1e+21"),
            ("9.999999999999997e-7", "9.999999999999997e-7"),
            ("0.000001", "0.000001"),
            ("333333333.3333332", "333333333.3333332"),
            ("-0.0000033333333333333333", "-0.0000033333333333333333"),
            ("1424953923781206.2", "1424953923781206.2"),
            ("100.0", "100"),
            ("1e2", "100"),
            ("123456789012345", "123456789012345"),
            ("-1E-7", "-1e-7"),
            ("1e400", "1e400"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn the_example_of_rfc_8785_comes_out_as_it_does_there() {
        let body = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        assert_eq!(
            canonical(body),
            "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
             \"string\":\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
        );
    }

    #[test]
    fn spelling_does_not_matter_and_values_do() {
        let first = fingerprint(r#"{"amount":100,"currency":"EUR","metadata":{"a":"1","b":"2"}}"#);
        let again = fingerprint(
            "{ \"metadata\" : {\"b\":\"2\",\n\"a\":\"1\"},\"\\u0063urrency\":\"\\u0045UR\", \"amount\":100 }",
        );
        assert_eq!(first, again);

        let other = fingerprint(r#"{"amount":900,"currency":"EUR","metadata":{"a":"1","b":"2"}}"#);
        assert_ne!(first.whole, other.whole);
        let differing: Vec<&str> = first
            .members
            .iter()
            .zip(&other.members)
            .filter(|(one, other)| one != other)
            .map(|((name, _), _)| name.as_ref())
            .collect();
        assert_eq!(differing, ["amount"]);
    }

    #[test]
    fn method_path_and_query_are_part_of_the_request() {
        let body = Value::Object(Vec::new());
        let of = |method: Method, path: &str, query: Option<&str>| take(&method, path, query, &body).whole;
        let first = of(Method::POST, "/v1/transfers", Some("a=1&b=2"));
        assert_eq!(first, of(Method::POST, "/v1/transfers", Some("b=2&a=1")));
        for other in [
            of(Method::PUT, "/v1/transfers", Some("a=1&b=2")),
            of(Method::POST, "/v1/accounts", Some("a=1&b=2")),
            of(Method::POST, "/v1/transfers", Some("a=1&b=3")),
            of(Method::POST, "/v1/transfers", None),
        ] {
            assert_ne!(first, other);
        }
        assert_eq!(of(Method::POST, "/v1/transfers", Some("")), of(Method::POST, "/v1/transfers", None));
    }

    #[test]
    fn known_members_are_sorted() {
        assert!(KNOWN_MEMBERS.is_sorted());
    }
}
