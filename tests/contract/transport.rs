//! HTTP around the JSON: media types, limits, API keys, methods.

use reqwest::Method;

use crate::request::{Request, Want};
use crate::suite::{Caller, Suite};

/// The highest rate that is tried to be passed, in requests a second.
const RATE_MAX: usize = 200;

pub(crate) async fn check(suite: &mut Suite) {
    suite.chapter("HTTP");
    http(suite).await;
    suite.chapter("Rate limits");
    rate_limit(suite).await;
}

async fn http(suite: &mut Suite) {
    let bare = suite.post(suite.fresh_key(), 1).without("content-type");
    let unsupported = [Want::Problem(415, "unsupported-media-type"), Want::Header("accept", "application/json")];
    for media_type in
        ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16", "application/jsonp"]
    {
        let request = bare.clone().header("content-type", media_type);
        suite.clause("The body is JSON in UTF-8", format!("Content-Type: {media_type}"), &request, &unsupported).await;
    }
    suite.clause("The body is JSON in UTF-8", "no Content-Type", &bare, &unsupported).await;
    for coding in ["gzip", "br", "identity, gzip"] {
        let request = suite.post(suite.fresh_key(), 1).header("content-encoding", coding);
        let [problem, accept] = &unsupported;
        let wants = [problem, accept, &Want::Header("accept-encoding", "identity")];
        suite.clause_with("The body is not compressed", format!("Content-Encoding: {coding}"), &request, &wants).await;
    }
    for media_type in ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;charset=\"UTF-8\""] {
        let request = suite.post(suite.fresh_key(), 1).without("content-type").header("content-type", media_type);
        suite
            .clause("Spellings of it are taken", format!("Content-Type: {media_type}"), &request, &[Want::Status(201)])
            .await;
    }

    let body = suite.transfer(1).to_string();
    let padded = |length: usize| format!("{body}{}", " ".repeat(length - body.len()));
    let whole = suite.post(suite.fresh_key(), 1).body(padded(64 * 1024));
    suite.clause("A body has up to 64 KiB", "65,536 bytes", &whole, &[Want::Status(201)]).await;
    let longer = suite.post(suite.fresh_key(), 1).body(padded(64 * 1024 + 1));
    suite.clause("A body has up to 64 KiB", "65,537 bytes", &longer, &[Want::Problem(413, "body-too-large")]).await;

    let unauthenticated = [Want::Problem(401, "unauthenticated"), Want::Header("www-authenticate", "Bearer")];
    let wrong = "Bearer sk_test_00000000_000000000000000000000000000000000000";
    for (sent, authorization) in
        [("none", None), ("another scheme", Some("Basic c2s6")), ("a key that is none", Some(wrong))]
    {
        let request = Request::get("/v1/accounts");
        let request = match authorization {
            Some(line) => request.header("authorization", line),
            None => request,
        };
        suite
            .clause_as(
                Caller::Nobody,
                "An API key is needed",
                format!("Authorization: {sent}"),
                &request,
                &unauthenticated,
            )
            .await;
    }
    suite.untried("403 where the API key lacks a scope", "the key has every scope");

    for (method, path, allowed) in [
        (Method::PUT, "/v1/transfers", "POST"),
        (Method::DELETE, "/v1/accounts/0198c0de-0000-7000-8000-000000000001", "GET"),
        (Method::GET, "/v1/idempotency-keys/lookup", "POST"),
    ] {
        let sent = format!("{method} {path}");
        let request = Request::new(method, path);
        let reply = suite
            .clause(
                "405 names the methods that there are",
                sent,
                &request,
                &[Want::Problem(405, "method-not-allowed"), Want::Has("allow")],
            )
            .await;
        let allow = reply.map(|reply| reply.header("allow").to_owned()).unwrap_or_default();
        let named = allow.split(',').any(|method| method.trim() == allowed);
        suite.row("… in Allow", "the same", format!("allow with {allowed}"), format!("allow: {allow}"), named);
    }
    let head = Request::new(Method::HEAD, "/v1/transfers");
    let reply = suite.answer(Caller::Test, &head).await;
    let seen = reply.map(|reply| format!("{} with {} bytes", reply.status, reply.body.len())).unwrap_or_default();
    suite.row(
        "HEAD is GET without its body",
        "HEAD of the transfers",
        "200 with 0 bytes",
        seen.clone(),
        seen == "200 with 0 bytes",
    );
}

async fn rate_limit(suite: &mut Suite) {
    const CLAUSE: &str = "Beyond the limit a fresh request is refused …";
    let within = suite.answer(Caller::Test, &suite.post(suite.fresh_key(), 1)).await.expect("the server answers");
    // "principal";q=100;w=1
    let policy = within.header("ratelimit-policy").to_owned();
    let quota = policy.split(';').find_map(|part| part.strip_prefix("q=")?.parse::<usize>().ok());
    let Some(quota) = quota.filter(|quota| *quota <= RATE_MAX) else {
        let why = if policy.is_empty() { "the server has no limit" } else { "its limit is too high to be passed" };
        return suite.untried(CLAUSE, why);
    };
    let burst: Vec<Request> = (0..3 * quota).map(|_| suite.post(suite.fresh_key(), 1)).collect();
    let replies = suite.answer_at_once(&burst).await;
    let refused = burst.iter().zip(&replies).find(|(_, reply)| reply.status == 429);
    let sent = format!("{} transfers at once, where {quota} may run in a second", burst.len());
    let seen = refused.map_or_else(|| "none of them".to_owned(), |(_, reply)| format!("429 {}", reply.problem()));
    let kept = refused.is_some_and(|(_, reply)| reply.problem() == "rate-limited");
    suite.row(CLAUSE, sent, "429 rate-limited", seen, kept);
    if let Some((request, _)) = refused {
        let wants = [Want::Status(201), Want::First];
        suite.clause("… and its key stays free", "the same after Retry-After", request, &wants).await;
    }
    if let Some((request, first)) = burst.iter().zip(&replies).find(|(_, reply)| reply.status == 201) {
        suite.clause("What ran is replayed", "one of those that ran", request, &[Want::Replay(first)]).await;
    }
}
