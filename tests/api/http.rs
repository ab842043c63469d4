//! HTTP and JSON at their edges: what clients, proxies and attackers send besides plain requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use harness::{Account, Books, Client, Process, Reply, until};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Books with one API before them, and two accounts to move money between.
struct Scene {
    books: Books,
    api: Process,
    client: Client,
    world: Account,
    account: Account,
}

impl Scene {
    async fn open() -> Self {
        Self::with(&[]).await
    }

    async fn with(environment: &[(&str, &str)]) -> Self {
        let books = Books::open().await;
        let api = books.api_with(environment).await;
        let client = Client::new(&api, &books.owner.test);
        let world = books.account(&client, None).await;
        let account = books.account(&client, Some(0)).await;
        Self { books, api, client, world, account }
    }

    /// A transfer's body, with text for the amount.
    fn body(&self, amount: &str) -> String {
        let Self { world, account, .. } = self;
        format!(
            r#"{{"source_account_id":"{world}","destination_account_id":"{account}","amount":{amount},"currency":"EUR"}}"#
        )
    }

    /// Posts a transfer's body as it is.
    async fn post(&self, key: &str, body: impl Into<Vec<u8>>) -> Reply {
        self.client.post_raw("/v1/transfers", &[("idempotency-key", key.as_bytes())], body).await
    }

    /// Shows that a key is still free, by using it for its first transfer.
    async fn assert_free(&self, key: &str) {
        let before = self.transfers().await;
        let reply = self.post(key, self.body("5")).await;
        assert_eq!((reply.status, reply.replayed()), (201, false), "{reply:?}");
        assert_eq!(self.transfers().await, before + 1);
    }

    async fn transfers(&self) -> i64 {
        self.books.count("SELECT count(*) FROM transfers").await
    }

    /// The head of a transfer's POST over HTTP/1.1, without the lines that tell its body.
    fn head(&self, key: &str) -> String {
        format!(
            "POST /v1/transfers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nIdempotency-Key: {key}\r\n",
            self.books.owner.test
        )
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.api.url().strip_prefix("http://").unwrap()).await.unwrap()
    }

    /// Sends a request after which the server closes, and reads all that comes back.
    async fn converse(&self, request: &[u8]) -> String {
        read_to_end(self.connect().await, request, false).await
    }

    /// Sends a part of a request and goes away; tells what the server says to that.
    async fn break_off(&self, part: &[u8]) -> String {
        read_to_end(self.connect().await, part, true).await
    }

    /// Opens an HTTP/2 connection; the task ends with it.
    async fn connect_h2(&self) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
        let (send, connection) = h2::client::handshake(self.connect().await).await.unwrap();
        (send.ready().await.unwrap(), tokio::spawn(connection))
    }

    /// A transfer's POST over HTTP/2.
    fn h2_request(&self, key: &str) -> http::request::Builder {
        http::Request::post(format!("{}/v1/transfers", self.api.url()))
            .header("authorization", format!("Bearer {}", self.books.owner.test))
            .header("content-type", "application/json")
            .header("idempotency-key", key)
    }
}

async fn read_to_end(mut stream: TcpStream, request: &[u8], leave: bool) -> String {
    stream.write_all(request).await.unwrap();
    if leave {
        stream.shutdown().await.unwrap();
    }
    let mut answer = Vec::new();
    // Where more was sent than the server reads, the end of the connection is an error, after the answer.
    let _ = timeout(harness::PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection has to end");
    String::from_utf8_lossy(&answer).into_owned()
}

fn assert_problem(reply: &Reply, status: u16, kind: &str) {
    assert_eq!((reply.status, reply.header("content-type")), (status, "application/problem+json"), "{reply:?}");
    assert_eq!(reply.problem(), kind, "{reply:?}");
}

/// Where a refused request is wrong.
fn pointers(reply: &Reply) -> Vec<String> {
    let errors = reply.json()["errors"].as_array().cloned().unwrap_or_default();
    errors.iter().map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_any_length_and_any_bytes_is_a_key_or_a_400_and_stands_in_no_log() {
    let scene = Scene::with(&[("RUST_LOG", "trace")]).await;
    let post =
        async |key: &[u8]| scene.client.post_raw("/v1/transfers", &[("idempotency-key", key)], scene.body("5")).await;
    let long = |length: usize| "secret-of-the-client-".chars().cycle().take(length).collect::<String>();
    // Plain data, however odd it looks.
    for key in ["k", &long(255), "null", "undefined", "%0a", "''", "{}", "\"secret of the client\""] {
        let reply = post(key.as_bytes()).await;
        assert_eq!((reply.status, reply.replayed()), (201, false), "{key}");
        assert!(post(key.as_bytes()).await.replayed(), "{key}");
    }
    for key in ["", " ", "  \t ", "\"\""] {
        assert_problem(&post(key.as_bytes()).await, 400, "idempotency-key-missing");
    }
    let (over, far_over) = (long(256), long(4_000));
    let malformed: [&[u8]; 7] = [
        over.as_bytes(),
        far_over.as_bytes(),
        "é".repeat(128).leak().as_bytes(),
        "ключ".as_bytes(),
        b"secret-of-the-client-\xff",
        b"secret-of-the-client\tand more",
        b"\"secret-of-the-client",
    ];
    for key in malformed {
        assert_problem(&post(key).await, 400, "idempotency-key-malformed");
    }
    // Past the limit of headers, the parser answers before anything is routed.
    let answer = scene.converse(format!("{}\r\n", scene.head(&long(60_000))).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");

    let log = scene.api.log();
    assert!(log.len() > 25, "each request leaves a line: {log:#?}");
    for line in log {
        assert!(serde_json::from_str::<Value>(&line).is_ok(), "a broken line: {line}");
        assert!(!line.contains("secret-of-the-client") && !line.contains("secret of the client"), "{line}");
    }
    scene.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_another_spelling_is_a_replay_and_another_value_or_query_is_not() {
    let scene = Scene::open().await;
    let Scene { world, account, .. } = &scene;
    let body = format!(
        r#"{{"source_account_id":"{world}","destination_account_id":"{account}","amount":100,"currency":"EUR","metadata":{{"a":"A/1","b":"é😀"}}}}"#
    );
    let first = scene.post("key", body.clone()).await;
    assert_eq!(first.status, 201, "{first:?}");
    let value: Value = serde_json::from_str(&body).unwrap();
    let members = value.as_object().unwrap().iter().rev();
    let turned: Vec<String> = members.map(|(name, value)| format!("\"{name}\" :\t{value}")).collect();
    for spelling in [
        format!("{{\r\n{}\n}}", turned.join(",\n")),
        serde_json::to_string_pretty(&value).unwrap(),
        body.replace("EUR", "\\u0045\\u0055R").replace("\"amount\"", "\"\\u0061mount\""),
        body.replace("A/1", "\\u0041\\/1").replace('é', "\\u00e9").replace('😀', "\\uD83D\\ude00"),
        // The parser would refuse these as amounts. They are the same JSON value, and that one has run.
        body.replace("100", "100.0"),
        body.replace("100", "1e2"),
    ] {
        let again = scene.post("key", spelling.clone()).await;
        assert!(again.replayed(), "{spelling}: {again:?}");
        assert_eq!((again.status, &again.body), (first.status, &first.body));
    }
    for (other, members) in [
        (body.replace("100", "101"), json!(["amount"])),
        (body.replace("100", "\"100\""), json!(["amount"])),
        (body.replace("100", "1e400"), json!(["amount"])),
        (body.replace("A/1", "a/1").replace("EUR", "USD"), json!(["currency", "metadata"])),
        (body.replace("\"currency\"", "\"Currency\""), json!(["Currency", "currency"])),
    ] {
        let reply = scene.post("key", other).await;
        assert_problem(&reply, 422, "idempotency-key-reused");
        assert_eq!(reply.json()["members"], members);
    }
    let reply = scene.client.post_raw("/v1/transfers?x=1", &[("idempotency-key", b"key")], body.clone()).await;
    assert_problem(&reply, 422, "idempotency-key-reused");
    assert_eq!(reply.json()["members"], json!([":query"]));
    let reply = scene.client.post_raw("/v1/accounts", &[("idempotency-key", b"key")], body).await;
    assert_problem(&reply, 422, "idempotency-key-reused");
    assert_eq!(reply.json()["members"], json!([":path"]));
    assert_eq!(scene.books.posted(&scene.account).await, 100);
    scene.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_two_readers_could_read_differently_is_refused_where_it_is_wrong_and_leaves_the_key_free() {
    let scene = Scene::open().await;
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
        "Infinity",
        "null",
        "true",
        "[100]",
        "9007199254740992",
        "9223372036854775808",
        "18446744073709551616",
    ] {
        let reply = scene.post("key", scene.body(amount)).await;
        assert_problem(&reply, 400, "malformed-request");
        assert_eq!(pointers(&reply), ["/amount"], "{amount}");
    }
    let body = scene.body("1");
    let more = |members: &str| body.replacen('{', &format!("{{{members},"), 1);
    let deep = format!("\"metadata\":{}{}", "[".repeat(200), "]".repeat(200));
    let metadata_at_17 = format!("/metadata{}", "/0".repeat(15));
    for (wrong, at) in [
        (more("\"amount\":900"), "/amount"),
        (more("\"\\u0061mount\":900"), "/amount"),
        (more("\"amounts\":1"), "/amounts"),
        (more("\"Amount\":1"), "/Amount"),
        (more("\"description\":\"\\u0000\""), "/description"),
        (more("\"description\":\"\\ud800\""), "/description"),
        (more("\"description\":\"\\udc00\\ud800\""), "/description"),
        (more("\"description\":\"\u{7}\""), "/description"),
        (more(&deep), &metadata_at_17),
        (format!("{body}{body}"), ""),
        (format!("{body}x"), ""),
        (format!("\u{feff}{body}"), ""),
        (body.replace(":1,", ":1,,"), ""),
        (format!("[{body}]"), ""),
        (String::new(), ""),
    ] {
        let reply = scene.post("key", wrong.clone()).await;
        assert_problem(&reply, 400, "malformed-request");
        assert!(pointers(&reply).contains(&at.to_owned()), "{wrong}: {reply:?}");
    }
    let latin = body.replace("EUR", "EUR\", \"description\":\"?").into_bytes();
    let latin: Vec<u8> = latin.into_iter().map(|byte| if byte == b'?' { 0xe9 } else { byte }).collect();
    assert_problem(&scene.post("key", latin).await, 400, "malformed-request");
    assert_eq!(scene.transfers().await, 0);
    scene.assert_free("key").await;

    let marked = "\u{202e}right to left\u{202c} \u{200f}\u{2067}and back\u{2069}";
    let reply = scene.post("marked", more(&format!("\"description\":\"{marked}\""))).await;
    assert_eq!((reply.status, reply.json()["description"].as_str()), (201, Some(marked)));
    let shown = scene.client.get(reply.header("location")).await.json();
    assert_eq!(shown["description"], marked);
    scene.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_uncompressed_json_in_utf_8_is_taken() {
    let scene = Scene::open().await;
    let post = async |headers: &[(&str, &[u8])]| {
        let headers = [&[("idempotency-key", b"key".as_slice())], headers].concat();
        scene.client.post_raw("/v1/transfers", &headers, scene.body("5")).await
    };
    for refused in ["text/plain", "", "application/json; charset=utf-16", "application/x-www-form-urlencoded"] {
        let reply = post(&[("content-type", refused.as_bytes())]).await;
        assert_problem(&reply, 415, "unsupported-media-type");
        assert_eq!(reply.header("accept"), "application/json");
    }
    let json: &[u8] = b"application/json";
    assert_problem(&post(&[("content-type", json), ("content-type", json)]).await, 415, "unsupported-media-type");
    let untyped = scene.head("key").replace("Content-Type: application/json\r\n", "");
    let answer =
        scene.converse(format!("{untyped}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 415 ") && answer.contains("/problems/unsupported-media-type"), "{answer}");
    for coding in ["gzip", "br", "deflate", "zstd", "identity, gzip", "GZIP"] {
        let reply = post(&[("content-encoding", coding.as_bytes())]).await;
        assert_problem(&reply, 415, "unsupported-media-type");
        assert_eq!(reply.header("accept-encoding"), "identity");
    }
    // 60 KB that gzip would unpack to 60 MB: nobody does, so that it costs no more than any other refusal.
    let before = scene.api.peak_memory();
    let zeros = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xec\xc1\x01\x01\0\0\0\x80\x90\xfe\xaf\xee\x08\x0a";
    let bomb = [zeros.as_slice(), &[0; 60_000]].concat();
    for coding in ["gzip", "br"] {
        let headers: [(&str, &[u8]); 2] = [("idempotency-key", b"key"), ("content-encoding", coding.as_bytes())];
        let reply = scene.client.post_raw("/v1/transfers", &headers, bomb.clone()).await;
        assert_problem(&reply, 415, "unsupported-media-type");
    }
    assert!(scene.api.peak_memory() < before + 16 * MIB, "a bomb went off");
    scene.assert_free("key").await;
    for (at, taken) in ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;charset=\"UTF-8\""]
        .into_iter()
        .enumerate()
    {
        let (key, taken) = (format!("taken-{at}"), taken.as_bytes());
        let headers: [(&str, &[u8]); 3] =
            [("idempotency-key", key.as_bytes()), ("content-type", taken), ("content-encoding", b"identity")];
        assert_eq!(scene.client.post_raw("/v1/transfers", &headers, scene.body("5")).await.status, 201);
    }
    scene.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_handler_is_a_500_of_one_request() {
    // The scene's two accounts come first.
    let scene = Scene::with(&[("ONCEPOST_FAILPOINT", "read-body:panic:3")]).await;
    let reply = scene.post("key", scene.body("5")).await;
    assert_problem(&reply, 500, "internal");
    assert!(!String::from_utf8_lossy(&reply.body).contains("read-body"), "{reply:?}");
    assert!(scene.api.log().iter().any(|line| line.contains("a handler panicked: failpoint read-body")));
    scene.assert_free("key").await;
    scene.books.finish().await;
}

/// The largest body.
const BODY_MAX: usize = 64 * 1024;
const MIB: u64 = 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_taken_up_to_the_limit_with_a_length_and_in_chunks_and_an_endless_one_costs_no_memory() {
    let scene = Scene::open().await;
    // White space makes any length a valid body.
    let padded = |length: usize| {
        let body = scene.body("5");
        body.clone() + &" ".repeat(length - body.len())
    };
    for (length, status) in [(BODY_MAX - 1, 201), (BODY_MAX, 201), (BODY_MAX + 1, 413)] {
        let reply = scene.post(&format!("length-{length}"), padded(length)).await;
        assert_eq!(reply.status, status, "{reply:?}");
        let head = scene.head(&format!("chunks-{length}"));
        let body = padded(length);
        let chunks: String = body
            .as_bytes()
            .chunks(10_000)
            .map(|chunk| format!("{:x}\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap()))
            .collect();
        let request = format!("{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{chunks}0\r\n\r\n");
        let answer = scene.converse(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.contains("/problems/body-too-large"), status == 413, "{answer}");
    }
    assert_eq!(scene.transfers().await, 4);

    let before = scene.api.peak_memory();
    let endless: Vec<_> = (0..ENDLESS)
        .map(|index| {
            let (address, head) = (scene.api.url(), scene.head(&format!("endless-{index}")));
            tokio::spawn(async move { send_without_end(&address, &head).await })
        })
        .collect();
    let mut sent = 0;
    for sender in endless {
        let (bytes, answer) = sender.await.unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413 "), "{answer}");
        sent += bytes;
    }
    assert!(sent > ENDLESS * 64 * 1024, "each sent more than a body may have");
    let grown = scene.api.peak_memory() - before;
    assert!(grown < 32 * MIB, "{grown} bytes more for {ENDLESS} endless bodies, of which {sent} bytes were sent");
    for key in ["length-65537", "chunks-65537", "endless-0"] {
        scene.assert_free(key).await;
    }
    scene.books.finish().await;
}

/// How many endless bodies are sent at a time. If 4 MiB of each were kept, that would be 256 MiB.
const ENDLESS: u64 = 64;

/// Sends chunks until the server no longer takes them; tells how many bytes those were, and the answer.
async fn send_without_end(address: &str, head: &str) -> (u64, String) {
    let mut stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    let chunk = [b"4000\r\n".as_slice(), &[b' '; 0x4000], b"\r\n"].concat();
    let mut sent = 0;
    let mut answer = Vec::new();
    let (mut reader, mut writer) = stream.split();
    let writing = async {
        while writer.write_all(&chunk).await.is_ok() {
            sent += 0x4000;
        }
    };
    let ((), _) = timeout(harness::PATIENCE, async { tokio::join!(writing, reader.read_to_end(&mut answer)) })
        .await
        .expect("the server has to end it");
    (sent, String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_has_no_effect_and_leaves_the_key_free_over_both_versions_of_http() {
    let scene = Scene::open().await;
    let body = scene.body("5");
    let (half, _) = body.split_at(body.len() / 2);
    // The second is the whole JSON, of which the client announced more: it may have been another request.
    for (at, sent) in [half, &body].into_iter().enumerate() {
        let announced = body.len() + 1;
        for framing in [
            format!("Content-Length: {announced}\r\n\r\n{sent}"),
            format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{sent}\r\n", sent.len()),
        ] {
            let key = format!("broken-{at}");
            let answer = scene.break_off(format!("{}{framing}", scene.head(&key)).as_bytes()).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
        }
    }
    let (mut send, connection) = scene.connect_h2().await;
    for (at, sent) in [half, &body].into_iter().enumerate() {
        // Reset in the middle.
        let request = scene.h2_request(&format!("reset-{at}")).body(()).unwrap();
        let (answer, mut stream) = send.send_request(request, false).unwrap();
        stream.send_data(Bytes::copy_from_slice(sent.as_bytes()), false).unwrap();
        // What has been received is known to have been read: the window is given back, or the answer to a ping comes.
        until_read(&mut send).await;
        stream.send_reset(h2::Reason::CANCEL);
        assert!(answer.await.is_err());
        // Ended before its announced length.
        let announced = body.len() + 1;
        let request = scene.h2_request(&format!("short-{at}")).header("content-length", announced).body(()).unwrap();
        let (answer, mut stream) = send.send_request(request, false).unwrap();
        stream.send_data(Bytes::copy_from_slice(sent.as_bytes()), true).unwrap();
        if let Ok(answer) = answer.await {
            assert_eq!(answer.status(), 400);
        }
        until_read(&mut send).await;
    }
    assert_eq!(scene.transfers().await, 0);
    for key in ["broken-0", "broken-1", "reset-0", "reset-1", "short-0", "short-1"] {
        scene.assert_free(key).await;
    }
    drop(send);
    connection.await.unwrap().unwrap();
    scene.books.finish().await;
}

/// Waits until the server has answered another request of the connection, and so has read what was sent before.
async fn until_read(send: &mut SendRequest<Bytes>) {
    let request = http::Request::get("http://localhost/livez").body(()).unwrap();
    let (answer, _) = send.send_request(request, true).unwrap();
    assert_eq!(timeout(harness::PATIENCE, answer).await.unwrap().unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_drains_and_exits_with_0_and_what_was_not_answered_is_retried_elsewhere() {
    let mut scene = Scene::open().await;
    let (mut idle, idle_connection) = scene.connect_h2().await;
    until_read(&mut idle).await;
    let stopped = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..16)
        .map(|_| {
            let (client, world, account) = (scene.client.clone(), scene.world.clone(), scene.account.clone());
            let stopped = Arc::clone(&stopped);
            tokio::spawn(async move {
                let (mut sent, mut unanswered) = (0_i64, Vec::new());
                while !stopped.load(Ordering::Relaxed) {
                    let key = client.fresh_key();
                    sent += 1;
                    match client.try_transfer(&key, &world, &account, 1).await {
                        Ok(reply) if reply.status == 201 => {}
                        Ok(reply) => {
                            assert!(reply.try_again(), "{reply:?}");
                            unanswered.push(key);
                        }
                        // After the end, every further one would be refused a connection.
                        Err(_) => {
                            unanswered.push(key);
                            break;
                        }
                    }
                }
                (sent, unanswered)
            })
        })
        .collect();
    until("the load to run", async || scene.transfers().await > 200).await;
    let asked = Instant::now();
    scene.api.terminate();
    let status = scene.api.ended().await;
    stopped.store(true, Ordering::Relaxed);
    assert_eq!(status.code(), Some(0), "{:#?}", scene.api.log());
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    assert!(scene.api.said("connections that did not end in time are cut").is_none());
    timeout(harness::PATIENCE, idle_connection).await.expect("the idle connection has to end").unwrap().unwrap();

    let other_api = scene.books.api().await;
    let other = scene.client.at(&other_api);
    let mut sent = 0;
    for sender in senders {
        let (count, unanswered) = sender.await.unwrap();
        sent += count;
        for key in unanswered {
            assert_eq!(other.transfer_until_final(&key, &scene.world, &scene.account, 1).await.status, 201);
        }
    }
    assert_eq!(scene.transfers().await, sent);
    assert_eq!(scene.books.posted(&scene.account).await, sent);
    scene.books.finish().await;
}

/// When the server gives up on a header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How much later it may be noticed on a busy machine.
const LATE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_clients_that_send_a_byte_now_and_then_are_cut_off_and_slow_nobody_down() {
    let scene = Scene::open().await;
    let mut slow = Vec::new();
    for index in 0..520 {
        let stream = scene.connect().await;
        // The last ones say nothing at all.
        let header = if index < 500 { scene.head("slow") } else { String::new() };
        slow.push(tokio::spawn(drip(stream, header)));
    }
    let mut took = Vec::new();
    for _ in 0..300 {
        let begun = Instant::now();
        let reply = scene.client.transfer(&scene.client.fresh_key(), &scene.world, &scene.account, 1).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    assert!(slow.iter().all(|client| !client.is_finished()), "they were there all the time");
    // One takes some milliseconds; a server that waits for slow clients would take as long as they do.
    assert!(p99 < Duration::from_secs(1), "{p99:?}");
    for client in slow {
        let lived = timeout(HEADER_TIMEOUT + LATE, client).await.expect("the server has to end it").unwrap();
        assert!(lived > HEADER_TIMEOUT - LATE && lived < HEADER_TIMEOUT + LATE, "{lived:?}");
    }
    assert_eq!(scene.transfers().await, 300);
    scene.books.finish().await;
}

/// Sends a byte every 5 s, and tells how long that was let go on.
async fn drip(mut stream: TcpStream, header: String) -> Duration {
    let begun = Instant::now();
    let mut turns = tokio::time::interval(Duration::from_secs(5));
    let mut bytes = header.bytes();
    let mut answer = [0; 1024];
    loop {
        tokio::select! {
            _ = turns.tick() => match bytes.next() {
                Some(byte) if stream.write_all(&[byte]).await.is_err() => return begun.elapsed(),
                Some(_) | None => {}
            },
            read = stream.read(&mut answer) => match read {
                Ok(1..) => {}
                Ok(0) | Err(_) => return begun.elapsed(),
            },
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_listed_origins_may_send_keys_and_read_what_a_retry_needs_and_no_others() {
    let scene = Scene::with(&[("CORS_ORIGINS", "https://shop.example")]).await;
    let listed = |reply: &Reply, name: &str| -> Vec<String> {
        reply.header(name).split(',').map(|name| name.trim().to_ascii_lowercase()).collect()
    };
    let preflight = |client: &Client, origin: &str| {
        client
            .request(Method::OPTIONS, "/v1/transfers")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type,idempotency-key")
    };
    let reply = scene.client.send(preflight(&scene.client, "https://shop.example")).await.unwrap();
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, "https://shop.example"), "{reply:?}");
    assert!(listed(&reply, "access-control-allow-methods").contains(&"post".to_owned()));
    for header in ["authorization", "content-type", "idempotency-key"] {
        assert!(listed(&reply, "access-control-allow-headers").contains(&header.to_owned()), "{header}: {reply:?}");
    }
    let from = |origin: &'static str| [("idempotency-key", b"key".as_slice()), ("origin", origin.as_bytes())];
    let shop = from("https://shop.example");
    let first = scene.client.post_raw("/v1/transfers", &shop, scene.body("5")).await;
    let again = scene.client.post_raw("/v1/transfers", &shop, scene.body("5")).await;
    let refused = scene.client.post_raw("/v1/transfers", &shop[1..], scene.body("5")).await;
    assert_eq!((first.status, again.replayed(), refused.status), (201, true, 400));
    for reply in [first, again, refused] {
        assert_eq!(reply.header("access-control-allow-origin"), "https://shop.example", "{reply:?}");
        for header in ["location", "retry-after", "idempotent-replayed"] {
            assert!(
                listed(&reply, "access-control-expose-headers").contains(&header.to_owned()),
                "{header}: {reply:?}"
            );
        }
    }
    let stranger = scene.client.send(preflight(&scene.client, "https://stranger.example")).await.unwrap();
    assert_eq!(stranger.header("access-control-allow-origin"), "", "{stranger:?}");

    let closed_api = scene.books.api().await;
    let closed = scene.client.at(&closed_api);
    let reply = closed.send(preflight(&closed, "https://shop.example")).await.unwrap();
    assert_eq!(reply.header("access-control-allow-origin"), "", "{reply:?}");
    scene.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_type_of_problem_leads_to_a_page_that_runs_nothing() {
    let scene = Scene::open().await;
    let document = scene.client.get("/openapi.json").await.json();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let problems: Vec<(&str, &Value)> = schemas
        .values()
        .filter_map(|schema| Some((schema["properties"]["type"]["enum"][0].as_str()?, &schema["properties"]["status"])))
        .filter(|(uri, _)| uri.starts_with("/problems/"))
        .collect();
    assert!(problems.len() >= 22, "{problems:?}");
    for (uri, status) in problems {
        let page = scene.client.get(uri).await;
        assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"), "{uri}");
        assert!(page.header("content-security-policy").starts_with("default-src 'none';"), "{page:?}");
        let text = String::from_utf8(page.body).unwrap();
        let status = status["enum"][0].as_u64().unwrap();
        assert!(text.contains(&format!("status {status}<")), "{uri}: {text}");
    }
    assert_problem(&scene.client.get("/problems/nothing").await, 404, "not-found");

    let books = &scene.books;
    let other = books.api_with(&[("IDEMPOTENCY_CONFLICT_STATUS", "409")]).await;
    let page = scene.client.at(&other).get("/problems/idempotency-key-reused").await;
    assert!(String::from_utf8(page.body).unwrap().contains("status 409<"));
    scene.books.finish().await;
}
