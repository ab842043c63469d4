//! Strict JSON. Two readers of one text must not see two requests, so everything that RFC 8259 leaves to the reader is
//! refused here: duplicate members, whatever their spelling; anything after the value; a byte order mark; NUL; lone
//! surrogates; deep nesting. Numbers keep their text: `100`, `100.0` and `1e2` are told apart by whoever asks for one.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::Serialize;

use crate::fault::{Fault, pointer};

/// The deepest nesting of arrays and objects; every request of this API needs two.
const DEPTH_MAX: usize = 16;

/// A value as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    /// The number's text.
    Number(&'a str),
    Text(Cow<'a, str>),
    Array(Vec<Value<'a>>),
    /// The members, each name once, in the order of RFC 8785 (UTF-16 code units).
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

/// Reads one value.
///
/// # Errors
/// The first fault, with the place where the text breaks.
pub(crate) fn parse(body: &[u8]) -> Result<Value<'_>, Fault> {
    let text = std::str::from_utf8(body).map_err(|_| Fault::new("", "is not UTF-8"))?;
    if text.starts_with('\u{feff}') {
        return Err(Fault::new("", "begins with a byte order mark"));
    }
    let mut parser = Parser { text, at: 0 };
    parser.document().map_err(|broken| {
        let path: Vec<&str> = broken.path.iter().rev().map(AsRef::as_ref).collect();
        Fault::new(pointer(&path), broken.detail)
    })
}

/// A value as an answer's body: JSON and a newline, so that a shell's prompt and tools that read lines find its end.
pub(crate) fn line<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = serde_json::to_vec(value)?;
    body.push(b'\n');
    Ok(body)
}

/// The order in which RFC 8785 sorts members (section 3.2.3).
pub(crate) fn member_order(one: &str, other: &str) -> Ordering {
    // UTF-8 orders like UTF-16 wherever no surrogates are involved; in ASCII they never are.
    if one.is_ascii() && other.is_ascii() { one.cmp(other) } else { one.encode_utf16().cmp(other.encode_utf16()) }
}

/// A fault with the path to it, innermost first: it is only built while the fault travels outwards.
struct Broken<'a> {
    detail: &'static str,
    path: Vec<Cow<'a, str>>,
}

impl<'a> Broken<'a> {
    const fn new(detail: &'static str) -> Self {
        Self { detail, path: Vec::new() }
    }

    fn inside(mut self, name: impl Into<Cow<'a, str>>) -> Self {
        self.path.push(name.into());
        self
    }
}

const ENDS_EARLY: &str = "ends before it is complete";

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn step(&mut self) {
        self.at = self.at.saturating_add(1);
    }

    fn skip_white_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.step();
        }
    }

    /// The text from `start` to here.
    fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn document(&mut self) -> Result<Value<'a>, Broken<'a>> {
        self.skip_white_space();
        if self.peek().is_none() {
            return Err(Broken::new("is empty"));
        }
        let value = self.value(0)?;
        self.skip_white_space();
        if self.peek().is_some() {
            return Err(Broken::new("has more after the JSON value"));
        }
        Ok(value)
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, Broken<'a>> {
        match self.peek() {
            Some(b'"') => self.string().map(Value::Text),
            Some(b'{') => self.object(depth.saturating_add(1)),
            Some(b'[') => self.array(depth.saturating_add(1)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'n') => self.word("null", Value::Null),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(_) => Err(Broken::new("is not a JSON value")),
            None => Err(Broken::new(ENDS_EARLY)),
        }
    }

    fn word(&mut self, word: &'static str, value: Value<'a>) -> Result<Value<'a>, Broken<'a>> {
        if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            self.at = self.at.saturating_add(word.len());
            Ok(value)
        } else {
            Err(Broken::new("is not a JSON value"))
        }
    }

    fn digits(&mut self) -> bool {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.step();
        }
        self.at > start
    }

    fn number(&mut self) -> Result<Value<'a>, Broken<'a>> {
        let broken = || Broken::new("is not a JSON number");
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.step();
        }
        if self.peek() == Some(b'0') {
            self.step();
        } else if !self.digits() {
            return Err(broken());
        }
        if self.peek() == Some(b'.') {
            self.step();
            if !self.digits() {
                return Err(broken());
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.step();
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.step();
            }
            if !self.digits() {
                return Err(broken());
            }
        }
        // Said here, so that 0100 and 1_000 are faults of this number and not of what stands around it.
        if matches!(self.peek(), Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'+' | b'-' | b'_')) {
            return Err(broken());
        }
        Ok(Value::Number(self.since(start)))
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Broken<'a>> {
        self.step();
        let mut start = self.at;
        // Stays empty, and costs nothing, until the first escape.
        let mut unescaped = String::new();
        loop {
            match self.peek() {
                None => return Err(Broken::new(ENDS_EARLY)),
                Some(b'"') => {
                    let rest = self.since(start);
                    self.step();
                    if unescaped.is_empty() {
                        return Ok(Cow::Borrowed(rest));
                    }
                    unescaped.push_str(rest);
                    return Ok(Cow::Owned(unescaped));
                }
                Some(b'\\') => {
                    unescaped.push_str(self.since(start));
                    self.step();
                    unescaped.push(self.escape()?);
                    start = self.at;
                }
                Some(0..0x20) => return Err(Broken::new("holds a control character that must be escaped")),
                Some(_) => self.step(),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Broken<'a>> {
        let Some(kind) = self.peek() else { return Err(Broken::new(ENDS_EARLY)) };
        self.step();
        match kind {
            b'"' => Ok('"'),
            b'\\' => Ok('\\'),
            b'/' => Ok('/'),
            b'b' => Ok('\u{8}'),
            b'f' => Ok('\u{c}'),
            b'n' => Ok('\n'),
            b'r' => Ok('\r'),
            b't' => Ok('\t'),
            b'u' => self.unicode(),
            _ => Err(Broken::new("holds an escape that JSON does not have")),
        }
    }

    fn unicode(&mut self) -> Result<char, Broken<'a>> {
        let first = self.code_unit()?;
        let mut units = [first, 0];
        let mut length = 1;
        if matches!(first, 0xD800..=0xDBFF) && self.text.get(self.at..).is_some_and(|rest| rest.starts_with("\\u")) {
            self.at = self.at.saturating_add(2);
            units = [first, self.code_unit()?];
            length = 2;
        }
        let decoded = char::decode_utf16(units.into_iter().take(length)).next();
        match decoded {
            Some(Ok('\0')) => Err(Broken::new("holds NUL")),
            Some(Ok(character)) => Ok(character),
            Some(Err(_)) | None => Err(Broken::new("holds half of a surrogate pair")),
        }
    }

    fn code_unit(&mut self) -> Result<u16, Broken<'a>> {
        let mut unit: u16 = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit.and_then(|digit| u16::try_from(digit).ok()) else {
                return Err(Broken::new("holds an escape that JSON does not have"));
            };
            unit = (unit << 4) | digit;
            self.step();
        }
        Ok(unit)
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>, Broken<'a>> {
        if depth > DEPTH_MAX {
            return Err(Broken::new("is nested too deeply"));
        }
        self.step();
        let mut items = Vec::new();
        self.skip_white_space();
        if self.peek() == Some(b']') {
            self.step();
            return Ok(Value::Array(items));
        }
        loop {
            self.skip_white_space();
            let item = self.value(depth).map_err(|broken| broken.inside(items.len().to_string()))?;
            items.push(item);
            self.skip_white_space();
            match self.peek() {
                Some(b',') => self.step(),
                Some(b']') => {
                    self.step();
                    return Ok(Value::Array(items));
                }
                Some(_) => return Err(Broken::new("has something other than a comma between its items")),
                None => return Err(Broken::new(ENDS_EARLY)),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, Broken<'a>> {
        if depth > DEPTH_MAX {
            return Err(Broken::new("is nested too deeply"));
        }
        self.step();
        let mut members = Vec::new();
        self.skip_white_space();
        if self.peek() == Some(b'}') {
            self.step();
            return Ok(Value::Object(members));
        }
        loop {
            self.skip_white_space();
            match self.peek() {
                Some(b'"') => {}
                Some(_) => return Err(Broken::new("has something other than a name where a member begins")),
                None => return Err(Broken::new(ENDS_EARLY)),
            }
            let name = self.string()?;
            self.skip_white_space();
            match self.peek() {
                Some(b':') => self.step(),
                Some(_) => return Err(Broken::new("has no colon after its name").inside(name)),
                None => return Err(Broken::new(ENDS_EARLY).inside(name)),
            }
            self.skip_white_space();
            match self.value(depth) {
                Ok(value) => members.push((name, value)),
                Err(broken) => return Err(broken.inside(name)),
            }
            self.skip_white_space();
            match self.peek() {
                Some(b',') => self.step(),
                Some(b'}') => {
                    self.step();
                    return unique(members).map(Value::Object);
                }
                Some(_) => return Err(Broken::new("has something other than a comma between its members")),
                None => return Err(Broken::new(ENDS_EARLY)),
            }
        }
    }
}

type Members<'a> = Vec<(Cow<'a, str>, Value<'a>)>;

/// Sorts the members and refuses a name that stands there twice. Names are compared as they are meant, not as they are
/// written. Sorting finds duplicates without a quadratic walk, and the canonical form needs the order anyway.
fn unique(mut members: Members<'_>) -> Result<Members<'_>, Broken<'_>> {
    members.sort_unstable_by(|(one, _), (other, _)| member_order(one, other));
    let twice = members.windows(2).find_map(|pair| match pair {
        [(one, _), (other, _)] if one == other => Some(one.clone()),
        _ => None,
    });
    match twice {
        Some(name) => Err(Broken::new("appears more than once").inside(name)),
        None => Ok(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_at(body: &[u8]) -> String {
        match parse(body) {
            Ok(value) => panic!("{} was read as {value:?}", String::from_utf8_lossy(body)),
            Err(fault) => fault.pointer,
        }
    }

    #[test]
    fn what_is_no_number_is_refused_where_it_stands() {
        for number in
            ["0100", "00", "-", "+1", ".1", "1.", "1e", "1e+", "NaN", "Infinity", "-Infinity", "0x10", "1_000", "01"]
        {
            assert_eq!(refused_at(format!("{{\"amount\":{number},\"x\":1}}").as_bytes()), "/amount", "{number}");
            assert_eq!(refused_at(format!("{{\"amount\":{number}}}").as_bytes()), "/amount", "{number}");
        }
    }

    #[test]
    fn numbers_keep_their_text() {
        for number in
            ["100", "100.0", "1e2", "-0", "0", "-1", "0.1", "1e400", "9007199254740993", "18446744073709551616"]
        {
            assert_eq!(parse(number.as_bytes()), Ok(Value::Number(number)));
        }
    }

    #[test]
    fn a_member_that_stands_twice_is_refused_whatever_its_spelling() {
        assert_eq!(refused_at(br#"{"amount":1,"currency":"EUR","amount":900}"#), "/amount");
        assert_eq!(refused_at(br#"{"amount":1,"\u0061mount":900}"#), "/amount");
        assert_eq!(refused_at(br#"{"metadata":{"a":"1","b":"2","a":"1"}}"#), "/metadata/a");
        assert!(parse(br#"{"amount":1,"Amount":2}"#).is_ok());
    }

    #[test]
    fn what_one_reader_takes_and_another_does_not_is_refused() {
        let deep = [b"[".repeat(200), b"]".repeat(200)].concat();
        let texts: [&[u8]; 19] = [
            b"",
            b"  ",
            b"{}{}",
            b"{} x",
            b"{} \0",
            b"\xef\xbb\xbf{}",
            b"\xff",
            b"{\"a\":\"\xed\xa0\x80\"}",
            br#"{"a":"\u0000"}"#,
            b"{\"a\":\"\0\"}",
            br#"{"a":"\ud800"}"#,
            br#"{"a":"\udc00\ud800"}"#,
            br#"{"a":"\ud800\u0041"}"#,
            br#"{"a":1,}"#,
            br#"{'a':1}"#,
            br#"{"a":"\x41"}"#,
            br#"{"a" 1}"#,
            b"{\"a\":\"\n\"}",
            &deep,
        ];
        for text in texts {
            refused_at(text);
        }
        assert_eq!(refused_at(br#"{"a":{"b/c":["#), "/a/b~1c/0");
    }

    #[test]
    fn nesting_ends_at_its_limit() {
        let nested = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
        assert!(parse(&nested(DEPTH_MAX)).is_ok());
        refused_at(&nested(DEPTH_MAX + 1));
    }

    #[test]
    fn texts_are_read_as_they_are_meant() {
        let read = |body: &'static str| match parse(body.as_bytes()) {
            Ok(Value::Text(text)) => text.into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(r#""\u0041\n\"\\\/\b\f\r\t""#), "A\n\"\\/\u{8}\u{c}\r\t");
        assert_eq!(read(r#""\ud83d\ude00 and 😀""#), "😀 and 😀");
        assert_eq!(read("\"\u{202e}right to left\u{202c}\""), "\u{202e}right to left\u{202c}");
        assert_eq!(read(r#""""#), "");
    }

    #[test]
    fn members_are_sorted_by_utf_16() {
        // The example of RFC 8785, section 3.2.3.
        let body = "{\"\u{20ac}\":1,\"\\r\":2,\"\u{fb33}\":3,\"1\":4,\"😀\":5,\"\u{80}\":6,\"ö\":7}";
        let Ok(Value::Object(members)) = parse(body.as_bytes()) else { panic!("must be an object") };
        let order: Vec<&str> = members
            .iter()
            .map(|(_, value)| {
                let Value::Number(number) = value else { panic!("{value:?}") };
                *number
            })
            .collect();
        assert_eq!(order, ["2", "4", "6", "7", "1", "5", "3"]);
    }
}
