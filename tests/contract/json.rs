//! JSON that two readers could read differently, and values that no rule takes: refused where they are wrong.

use crate::request::Want;
use crate::suite::Suite;

const REFUSED: Want<'_> = Want::Problem(400, "malformed-request");

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("JSON and values");
    let body = suite.transfer(5).to_string();
    // Nothing of this runs, so that one key serves for all, and is free in the end.
    let key = suite.fresh_key();
    let request = suite.post(&key, 5);

    for amount in [
        "100.0",
        "1e2",
        "\"100\"",
        "0100",
        "-0",
        "0",
        "-1",
        "0.1",
        "1e400",
        "NaN",
        "null",
        "true",
        "[100]",
        "9007199254740992",
        "9223372036854775808",
        "18446744073709551616",
    ] {
        let body = body.replace("\"amount\":5", &format!("\"amount\":{amount}"));
        let wants = [REFUSED, Want::Errors(&["/amount"])];
        let clause = "An amount is a JSON integer from 1 to 2^53 - 1";
        suite.clause(clause, format!("\"amount\": {amount}"), &request.clone().body(body), &wants).await;
    }
    for currency in ["usd", "EURO", "XXX", "XAU", "BTC", "", "978"] {
        let body = body.replace("EUR", currency);
        let wants = [REFUSED, Want::Errors(&["/currency"])];
        let clause = "A currency is one of ISO 4217, in upper case";
        suite.clause(clause, format!("\"currency\": \"{currency}\""), &request.clone().body(body), &wants).await;
    }

    let more = |members: &str| body.replacen('{', &format!("{{{members},"), 1);
    let nested = format!("\"metadata\":{}{}", "[".repeat(17), "]".repeat(17));
    let many: Vec<String> = (0..21).map(|at| format!("\"m{at}\":\"\"")).collect();
    let many = format!("\"metadata\":{{{}}}", many.join(","));
    let long = format!("\"description\":\"{}\"", "x".repeat(501));
    let long_name = format!("\"metadata\":{{\"{}\":\"\"}}", "n".repeat(41));
    let deep_at = format!("/metadata{}", "/0".repeat(15));
    let deep_at: &'static str = deep_at.leak();
    let long_at: &'static str = format!("/metadata/{}", "n".repeat(41)).leak();
    let places: [(&'static str, &str, String, &'static [&'static str]); 22] = [
        ("No member twice", "amount twice", more("\"amount\":900"), &["/amount"]),
        ("No member twice", "amount twice, once as \\u0061mount", more("\"\\u0061mount\":900"), &["/amount"]),
        ("No unknown member", "\"stranger\"", more("\"stranger\":1"), &["/stranger"]),
        ("No unknown member", "\"Amount\"", more("\"Amount\":1"), &["/Amount"]),
        (
            "Every fault is named at once",
            "{}",
            "{}".into(),
            &["/source_account_id", "/destination_account_id", "/amount", "/currency"],
        ),
        ("One JSON value", "two of them", format!("{body}{body}"), &[""]),
        ("One JSON value", "one, and a letter", format!("{body}x"), &[""]),
        ("One JSON value", "none", String::new(), &[""]),
        (
            "An object",
            "an array",
            format!("[{body}]"),
            &["", "/source_account_id", "/destination_account_id", "/amount", "/currency"],
        ),
        ("No byte order mark", "one", format!("\u{feff}{body}"), &[""]),
        ("No NUL", "\\u0000 in a text", more("\"description\":\"\\u0000\""), &["/description"]),
        ("No half of a surrogate pair", "\\ud800 in a text", more("\"description\":\"\\ud800\""), &["/description"]),
        ("No control characters", "\\u0007 in a text", more("\"description\":\"\\u0007\""), &["/description"]),
        ("At most 16 levels", "17 of them", more(&nested), std::slice::from_ref(Box::leak(Box::new(deep_at)))),
        ("A description has at most 500 characters", "501", more(&long), &["/description"]),
        ("Metadata has at most 20 members", "21", more(&many), &["/metadata"]),
        (
            "Names in metadata have at most 40 characters",
            "41",
            more(&long_name),
            std::slice::from_ref(Box::leak(Box::new(long_at))),
        ),
        ("Values in metadata are strings", "a number", more("\"metadata\":{\"a\":1}"), &["/metadata/a"]),
        ("Metadata is an object", "an array", more("\"metadata\":[]"), &["/metadata"]),
        ("Ids are UUIDs", "\"1\"", body.replace(&suite.purse, "1"), &["/destination_account_id"]),
        ("Ids are UUIDs", "a number", body.replace(&format!("\"{}\"", suite.purse), "1"), &["/destination_account_id"]),
        ("A text is a string", "a number", more("\"description\":5"), &["/description"]),
    ];
    for (clause, sent, body, at) in places {
        suite.clause(clause, sent, &request.clone().body(body), &[REFUSED, Want::Errors(at)]).await;
    }
    let latin: Vec<u8> =
        more("\"description\":\"?\"").bytes().map(|byte| if byte == b'?' { 0xe9 } else { byte }).collect();
    suite.clause("UTF-8", "Latin-1", &request.clone().body(latin), &[REFUSED, Want::Errors(&[""])]).await;
    let query = crate::request::Request::post("/v1/transfers?stranger=1", body.clone()).key(&key);
    suite.clause("No unknown query members", "?stranger=1", &query, &[REFUSED, Want::Errors(&["?stranger"])]).await;

    let marked = "\u{202e}right to left\u{202c} \u{2067}and back\u{2069}\ttab\nline";
    let text = more(&format!("\"description\":{}", serde_json::Value::from(marked)));
    let wants = [Want::Status(201), Want::First, Want::Member("/description", marked.into())];
    suite
        .clause("Text comes back as it was sent", "marks for right to left, tab, newline", &request.body(text), &wants)
        .await;
}
