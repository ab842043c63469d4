//! The header `Idempotency-Key`: bare, or as the quoted string of the IETF draft (draft-ietf-httpapi-idempotency-key-header).

use axum::http::{HeaderMap, HeaderName};
use ledger::IdempotencyKey;

use crate::problem::Problem;

/// The header's name.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Reads the one key of a request. No refusal repeats any part of it (I10).
///
/// # Errors
/// [`Problem::IdempotencyKeyMissing`] and [`Problem::IdempotencyKeyMalformed`].
pub(crate) fn read(headers: &HeaderMap) -> Result<IdempotencyKey, Problem> {
    let malformed = |why| Problem::IdempotencyKeyMalformed { why };
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let line = lines.next().ok_or(Problem::IdempotencyKeyMissing)?;
    if lines.next().is_some() {
        return Err(malformed("There is more than one Idempotency-Key header."));
    }
    let line = line.as_bytes().trim_ascii();
    if line.is_empty() || line == b"\"\"" {
        return Err(Problem::IdempotencyKeyMissing);
    }
    let key = match line {
        [b'"', ..] => unquote(line).map_err(malformed)?,
        bare => {
            let plain = |byte: &u8| matches!(byte, 0x21..=0x7E) && !matches!(byte, b'"' | b',' | b';' | b'\\');
            if !bare.iter().all(plain) {
                return Err(malformed(
                    "A key without quotes is made of printable ASCII characters other than the space, '\"', ',', ';' and '\\'.",
                ));
            }
            bare.iter().map(|byte| char::from(*byte)).collect()
        }
    };
    IdempotencyKey::new(key).ok_or(malformed("A key has 1 to 255 bytes, all of them printable ASCII characters."))
}

/// The content of a quoted string (RFC 8941, section 3.3.3), which must be all there is.
fn unquote(line: &[u8]) -> Result<String, &'static str> {
    let mut key = String::with_capacity(line.len());
    let mut bytes = line.iter().copied().skip(1);
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if bytes.next().is_none() => return Ok(key),
            b'"' => return Err("There is something after the quoted key; parameters and lists are not taken."),
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => key.push(char::from(escaped)),
                Some(_) | None => return Err("Only '\"' and '\\' are escaped in a quoted key."),
            },
            0x20..=0x7E => key.push(char::from(byte)),
            _ => return Err("A quoted key is made of printable ASCII characters."),
        }
    }
    Err("The quoted key has no closing quote.")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[derive(Debug, PartialEq)]
    enum Read {
        Key(&'static str),
        Missing,
        Malformed,
    }

    fn assert_read(lines: &[&[u8]], expected: &Read) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(line).unwrap());
        }
        let shown = || lines.iter().map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>();
        match (read(&headers), expected) {
            (Ok(key), Read::Key(expected)) => {
                assert!(Some(key) == IdempotencyKey::new((*expected).to_owned()), "{:?}", shown())
            }
            (Err(Problem::IdempotencyKeyMissing), Read::Missing)
            | (Err(Problem::IdempotencyKeyMalformed { .. }), Read::Malformed) => {}
            (read, expected) => panic!("{:?} should be {expected:?} and is {:?}", shown(), read.map(|_| "a key")),
        }
    }

    #[test]
    fn bare_and_quoted_spellings_are_one_key() {
        assert_read(&[b"k"], &Read::Key("k"));
        assert_read(&[b"\"k\""], &Read::Key("k"));
        assert_read(&[b" \t k \t"], &Read::Key("k"));
        assert_read(&[b"K"], &Read::Key("K"));
    }

    #[test]
    fn one_quote_parameters_and_lists_are_refused_and_the_rest_is_data() {
        for line in [
            "\"k",
            "\"k\";p=1",
            "\"k\", \"l\"",
            "k\"",
            "k;p=1",
            "k,l",
            "k l",
            "k\\",
            "\"a\\b\"",
            "\"a\\",
            "\"",
            "\"k\"x",
        ] {
            assert_read(&[line.as_bytes()], &Read::Malformed);
        }
        assert_read(&[b":YWJj:"], &Read::Key(":YWJj:"));
        assert_read(&[br#""a\"b""#], &Read::Key("a\"b"));
        assert_read(&[br#""a\\b""#], &Read::Key("a\\b"));
        assert_read(&[b"\"a, b; c\""], &Read::Key("a, b; c"));
        for data in ["null", "%0a", "''", "{}", "\u{7e}"] {
            assert_read(&[data.as_bytes()], &Read::Key(data));
        }
    }

    #[test]
    fn no_key_is_not_a_key() {
        for line in ["", "   ", "\t", "\"\""] {
            assert_read(&[line.as_bytes()], &Read::Missing);
        }
        assert_read(&[], &Read::Missing);
        assert_read(&[b"k", b"k"], &Read::Malformed);
        assert_read(&[b"", b"k"], &Read::Malformed);
    }

    #[test]
    fn a_key_has_at_most_255_bytes() {
        let of = |length: usize| "k".repeat(length);
        assert_read(&[of(255).as_bytes()], &Read::Key(of(255).leak()));
        assert_read(&[format!("\"{}\"", of(255)).as_bytes()], &Read::Key(of(255).leak()));
        for length in [256, 4_000, 60_000] {
            assert_read(&[of(length).as_bytes()], &Read::Malformed);
            assert_read(&[format!("\"{}\"", of(length)).as_bytes()], &Read::Malformed);
        }
    }

    #[test]
    fn bytes_outside_of_ascii_are_refused_quoted_or_bare() {
        for line in [
            "é".repeat(128).as_bytes(),
            "ключ".as_bytes(),
            b"\xff",
            b"a\tb",
            b"\"\xff\"",
            b"\"a\tb\"",
            "\"é\"".as_bytes(),
        ] {
            assert_read(&[line], &Read::Malformed);
        }
    }
}
