//! Whether what was printed is what a page says. A page writes `<number>` and the like where each case has another value,
//! and `…` where it does not matter what stands there; a line of `…` alone stands for any number of lines.

const ANY: &str = "…";

/// A kind of values: its name on pages, which characters they consist of, and whether the whole is one.
type Kind = (&'static str, fn(char) -> bool, fn(&str) -> bool);

const KINDS: [Kind; 5] = [
    ("<uuid>", |c| c.is_ascii_hexdigit() || c == '-', |text| uuid::Uuid::try_parse(text).is_ok() && text.len() == 36),
    ("<number>", |c| c.is_ascii_digit() || "-.e".contains(c), |text| text.parse::<f64>().is_ok()),
    ("<time>", |c| c.is_ascii_digit() || "-:.+TZ ".contains(c), |text| text.len() >= 19 && text.starts_with("20")),
    ("<hex>", |c| c.is_ascii_hexdigit(), |text| text.len() >= 8),
    ("<word>", |c| c.is_ascii_alphanumeric() || "-_.:/@".contains(c), |text| !text.is_empty()),
];

/// Whether the output of commands is what the page says, line by line.
pub(crate) fn matches(expected: &str, printed: &str) -> bool {
    let expected: Vec<&str> = expected.lines().collect();
    let printed: Vec<&str> = printed.lines().collect();
    lines_match(&expected, &printed)
}

fn lines_match(expected: &[&str], printed: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return printed.is_empty() };
    if *first == ANY {
        return (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]));
    }
    printed.split_first().is_some_and(|(line, left)| line_matches(first, line) && lines_match(rest, left))
}

fn line_matches(expected: &str, line: &str) -> bool {
    if let Some(rest) = expected.strip_prefix(ANY) {
        return (0..=line.len()).any(|skipped| line.is_char_boundary(skipped) && line_matches(rest, &line[skipped..]));
    }
    for (name, of_kind, whole) in KINDS {
        let Some(rest) = expected.strip_prefix(name) else { continue };
        let longest = line.find(|c| !of_kind(c)).unwrap_or(line.len());
        // Every character of a kind is one byte long.
        return (1..=longest).rev().any(|end| whole(&line[..end]) && line_matches(rest, &line[end..]));
    }
    match (expected.chars().next(), line.chars().next()) {
        (None, None) => true,
        (Some(one), Some(other)) if one == other => line_matches(&expected[one.len_utf8()..], &line[one.len_utf8()..]),
        _ => false,
    }
}

#[test]
fn values_match_by_their_kind_and_nothing_else_does() {
    let line = "a <uuid> of <number>, at <time>";
    assert!(matches(line, "a 0198c0de-0000-7000-8000-00000000000a of -1.5, at 2026-01-02 03:04:05.6+00\n"));
    assert!(!matches(line, "a 0198c0de of -1.5, at 2026-01-02 03:04:05.6+00\n"));
    assert!(!matches(line, "a 0198c0de-0000-7000-8000-00000000000a of many, at 2026-01-02 03:04:05.6+00\n"));
    assert!(!matches("<number> rows", "5 rows or so\n"));
    assert!(!matches("one\n", "one\ntwo\n") && !matches("one\ntwo\n", "one\n"));
    assert!(matches("one\n…\nfour\n", "one\ntwo\nthree\nfour\n") && matches("one\n…\n", "one\n"));
    assert!(matches("{\"status\":503,…}", "{\"status\":503,\"cause\":\"x\"}\n"));
    assert!(!matches("{\"status\":503,…}", "{\"status\":500,\"cause\":\"x\"}\n"));
}
