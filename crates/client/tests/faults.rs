//! The client against a server that does what networks and servers do on bad days, step by step.

#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy does not take the functions beside the tests for tests")]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::header::{HeaderName, HeaderValue};
use client::{
    ApiKey, Client, Error, Fault, FileStore, Intent, MemoryStore, OperationStatus, Outcome, Policy, PostTransfer,
    Store, Transfer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use uuid::Uuid;

const TRANSFER: &str = r#"{"id":"0198c0de-0000-7000-8000-000000000003","object":"transfer","status":"posted",
    "source_account_id":"0198c0de-0000-7000-8000-000000000001","destination_account_id":"0198c0de-0000-7000-8000-000000000002",
    "amount":1250,"currency":"EUR","description":null,"metadata":null,"created_at":"2026-01-31T23:59:59.123456Z","new":[1]}"#;
const PROCESSING: &str = r#"{"id":"0198c0de-0000-7000-8000-000000000004","object":"operation","status":"processing",
    "done":0,"total":1,"result":null,"created_at":"2026-01-31T23:59:59.123456Z","finished_at":null}"#;

/// What the server does with a request, after it has read it.
enum Step {
    /// Answers: status, more headers, body.
    Answer(u16, &'static str, String),
    /// Resets the connection.
    Reset,
    /// Sends the beginning of a good answer, then resets the connection.
    ResetInBody,
    /// Never answers.
    Hang,
}

use Step::{Answer, Hang, Reset, ResetInBody};

fn transfer() -> Step {
    Answer(201, "", TRANSFER.into())
}

fn replay() -> Step {
    Answer(201, "Idempotent-Replayed: true\r\nX-Request-Id: r-2\r\n", TRANSFER.into())
}

fn problem(status: u16, headers: &'static str, name: &str) -> Step {
    Answer(status, headers, format!(r#"{{"type":"/problems/{name}","title":"t","status":{status},"detail":"d"}}"#))
}

/// One request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        let value = |line: &'_ str| line.split_once(": ").is_some_and(|(found, _)| found.eq_ignore_ascii_case(name));
        self.head.lines().find(|line| value(line)).map_or("", |line| line.split_once(": ").unwrap().1)
    }

    /// What must be the same for every attempt of an intent.
    fn sent(&self) -> (&str, &str, &[u8]) {
        (self.head.lines().next().unwrap(), self.header("idempotency-key"), &self.body)
    }
}

/// Takes a step for each request, and keeps the requests. Requests beyond the last step find nobody.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Server {
    async fn script(steps: impl IntoIterator<Item = Step, IntoIter: Send + 'static>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (kept, steps) = (Arc::clone(&requests), steps.into_iter());
        let task = tokio::spawn(async move {
            let mut hanging = Vec::new();
            for step in steps {
                let (mut socket, _) = listener.accept().await.unwrap();
                let request = receive(&mut socket).await;
                kept.lock().unwrap().push(request);
                let answer = |status: u16, length: usize, headers: &str, body: &str| {
                    format!(
                        "HTTP/1.1 {status} \r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
                    )
                };
                match step {
                    Answer(status, headers, body) => {
                        // Whoever has heard enough hangs up.
                        let _ = socket.write_all(answer(status, body.len(), headers, &body).as_bytes()).await;
                    }
                    Reset => socket.set_zero_linger().unwrap(),
                    ResetInBody => {
                        let half = answer(201, TRANSFER.len(), "", &TRANSFER[..TRANSFER.len() / 2]);
                        socket.write_all(half.as_bytes()).await.unwrap();
                        socket.set_zero_linger().unwrap();
                    }
                    Hang => hanging.push(socket),
                }
            }
            // Whoever hangs does so until the test is over.
            std::future::pending::<()>().await;
        });
        Self { url, requests, task }
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    fn client<S: Store>(&self, store: S) -> Client<S> {
        client(&self.url, store, quick())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn receive(socket: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let mut request = Request { head, body: bytes.split_off(end + 4) };
            let length = request.header("content-length").parse().unwrap_or(0);
            while request.body.len() < length {
                assert_ne!(socket.read_buf(&mut request.body).await.unwrap(), 0);
            }
            return request;
        }
        assert_ne!(socket.read_buf(&mut bytes).await.unwrap(), 0);
    }
}

/// No pauses worth naming: the clock here is the real one.
fn quick() -> Policy {
    Policy { attempts: 5, backoff: Duration::from_millis(1), ..Policy::default() }
}

fn client<S: Store>(url: &str, store: S, policy: Policy) -> Client<S> {
    let builder = Client::builder(url, ApiKey::new("sk_test_secret"), store).policy(policy).no_proxy();
    builder.header(HeaderName::from_static("x-team"), HeaderValue::from_static("shop")).build().unwrap()
}

fn request() -> PostTransfer {
    let id = |last: u128| Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0000 + last);
    PostTransfer::new(id(1), id(2), 1250, "EUR")
}

async fn post<S: Store>(intent: &mut Intent<S>) -> Result<Outcome<Transfer>, Error> {
    intent.post_transfer(&request()).await
}

/// Lets an intent meet the steps, and holds that every attempt is the same to the byte.
async fn met(steps: Vec<Step>) -> Result<Outcome<Transfer>, Error> {
    let count = steps.len();
    let server = Server::script(steps).await;
    let result = post(&mut server.client(MemoryStore::default()).intent("order-42")).await;
    let requests = server.requests();
    assert_eq!(requests.len(), count, "{result:?}");
    for request in &requests {
        assert_eq!(request.sent(), requests[0].sent());
        assert_eq!(request.body, serde_json::to_vec(&self::request()).unwrap());
        assert_eq!(request.header("authorization"), "Bearer sk_test_secret");
        assert_eq!(request.header("content-type"), "application/json");
        assert_eq!(request.header("x-team"), "shop");
    }
    assert_eq!(Uuid::parse_str(requests[0].header("idempotency-key")).unwrap().get_version_num(), 4);
    result
}

fn done(result: Result<Outcome<Transfer>, Error>) -> client::Answer<Transfer> {
    let Ok(Outcome::Done(answer)) = result else { panic!("{result:?}") };
    assert_eq!(answer.value.amount, 1250);
    answer
}

#[tokio::test]
async fn a_first_answer_and_a_replay_are_told_apart() {
    let first = done(met(vec![transfer()]).await);
    assert!(!first.replayed);
    let second = done(met(vec![replay()]).await);
    assert!(second.replayed);
    assert_eq!(second.request_id.as_deref(), Some("r-2"));
}

#[tokio::test]
async fn what_does_not_settle_it_is_tried_again() {
    let busy = || problem(409, "Retry-After: 0\r\n", "request-in-progress");
    done(met(vec![Reset, replay()]).await);
    done(met(vec![ResetInBody, replay()]).await);
    done(met(vec![busy(), busy(), replay()]).await);
    done(met(vec![problem(503, "Retry-After: 0\r\n", "unavailable"), transfer()]).await);
    done(met(vec![problem(429, "Retry-After: 0\r\n", "rate-limited"), transfer()]).await);
    done(met(vec![problem(500, "", "internal"), transfer()]).await);
    done(met(vec![Answer(502, "", "<html>".into()), Answer(504, "", String::new()), transfer()]).await);
    // Done, but who can read it?
    done(met(vec![Answer(201, "", "{".into()), Answer(200, "", "<html>".into()), replay()]).await);
    let endless = format!("{TRANSFER}{}", " ".repeat(1024 * 1024));
    assert!(done(met(vec![Answer(201, "", endless), replay()]).await).replayed);
    let statuses = met((0..5).map(|_| busy()).collect()).await;
    let Err(Error::Unresolved { attempts: 5, last: Fault::Status { status: 409, .. }, .. }) = statuses else {
        panic!("{statuses:?}")
    };
}

#[tokio::test]
async fn an_attempt_that_hangs_is_made_again() {
    let server = Server::script(std::iter::once(Hang).chain(std::iter::repeat_with(replay))).await;
    let policy = Policy { attempt_timeout: Duration::from_millis(500), ..quick() };
    done(post(&mut client(&server.url, MemoryStore::default(), policy).intent("order-42")).await);
    let requests = server.requests();
    assert!(requests.len() > 1 && requests.iter().all(|request| request.sent() == requests[0].sent()), "{requests:?}");
}

#[tokio::test]
async fn nobody_at_home_is_unresolved() {
    let server = Server::script([]).await;
    server.task.abort();
    let mut intent = server.client(MemoryStore::default()).intent("order-42");
    // The listener is closed when the task has ended, and until then a connection gets no answer.
    while !server.task.is_finished() {
        tokio::task::yield_now().await;
    }
    let result = post(&mut intent).await;
    assert!(matches!(result, Err(Error::Unresolved { attempts: 5, last: Fault::Transport(_), .. })), "{result:?}");
    assert!(matches!(intent.forget().await, Err(Error::Unsettled { .. })));
}

#[tokio::test]
async fn a_server_that_wants_more_time_than_there_is_is_left_alone() {
    for headers in [
        "Retry-After: 3600\r\n",
        "Date: Fri, 31 Dec 1999 22:59:59 GMT\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n",
    ] {
        let result = met(vec![problem(429, headers, "rate-limited")]).await;
        let Err(Error::Unresolved { retry_after, .. }) = result else { panic!("{result:?}") };
        assert_eq!(retry_after, Some(Duration::from_secs(3_600)));
    }
}

#[tokio::test]
async fn what_is_final_is_not_tried_again() {
    let rejected = met(vec![problem(422, "Idempotent-Replayed: true\r\n", "insufficient-funds")]).await;
    let Err(Error::Rejected { problem: why, replayed: true }) = rejected else { panic!("{rejected:?}") };
    assert_eq!(why.to_string(), "insufficient-funds: d");
    for (status, name) in [
        (400, "malformed-request"),
        (401, "unauthenticated"),
        (403, "forbidden"),
        (404, "not-found"),
        (413, "body-too-large"),
        (415, "unsupported-media-type"),
        (409, "idempotency-key-reused"),
        (422, "idempotency-key-expired"),
    ] {
        let refused = met(vec![problem(status, "Retry-After: 0\r\n", name)]).await;
        let Err(Error::Refused { status: found, problem: Some(why) }) = refused else { panic!("{refused:?}") };
        assert_eq!((found, why.name()), (status, name));
    }
    for (status, headers) in [(307, "Location: /elsewhere\r\n"), (408, ""), (204, "")] {
        let refused = met(vec![Answer(status, headers, String::new())]).await;
        assert!(matches!(refused, Err(Error::Refused { problem: None, .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_key_outlives_the_caller_until_he_forgets_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = || FileStore::open(folder.path().join("intents")).unwrap();
    let files = |folder: &Path| std::fs::read_dir(folder.join("intents")).unwrap().count();
    let server = Server::script([Reset, transfer(), replay(), transfer()]).await;
    let once = Policy { attempts: 1, ..quick() };

    // The caller dies before the answer.
    let result = post(&mut client(&server.url, store(), once).intent("order-42")).await;
    assert!(matches!(result, Err(Error::Unresolved { attempts: 1, .. })), "{result:?}");
    // He dies after the answer, and before he has recorded it.
    assert!(!done(post(&mut client(&server.url, store(), once).intent("order-42")).await).replayed);
    assert_eq!(files(folder.path()), 1);
    let client = client(&server.url, store(), once);
    let mut intent = client.intent("order-42");
    assert!(done(post(&mut intent).await).replayed);
    intent.forget().await.unwrap();
    assert_eq!(files(folder.path()), 0);
    // From here on the name is a new intent.
    done(post(&mut client.intent("order-42")).await);

    let requests = server.requests();
    assert_eq!(requests.len(), 4);
    assert!(requests[..3].iter().all(|request| request.sent() == requests[0].sent()), "{requests:?}");
    assert_ne!(requests[3].sent().1, requests[0].sent().1);
}

#[tokio::test]
async fn another_request_under_the_same_name_is_not_sent() {
    let server = Server::script([Reset, transfer()]).await;
    let client = client(&server.url, MemoryStore::default(), Policy { attempts: 1, ..quick() });
    let mut intent = client.intent("order-42");
    post(&mut intent).await.unwrap_err();
    let mut other = request();
    other.amount += 1;
    assert!(matches!(intent.post_transfer(&other).await, Err(Error::IntentChanged { .. })));
    assert!(matches!(client.intent("order-42").forget().await, Err(Error::Unsettled { .. })));
    done(client.intent("order-43").post_transfer(&other).await);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_ne!(requests[0].sent().1, requests[1].sent().1);
}

#[tokio::test]
async fn a_refused_body_may_be_corrected_under_its_name_only_if_nothing_can_be_on_its_way() {
    let malformed = || problem(400, "", "malformed-request");
    let settles = async |steps: Vec<Step>, calls: usize| {
        let attempts = if calls > 1 { 1 } else { 5 };
        let server = Server::script(steps).await;
        let client = client(&server.url, MemoryStore::default(), Policy { attempts, ..quick() });
        let mut intent = client.intent("order-42");
        for _ in 0..calls {
            post(&mut intent).await.unwrap_err();
        }
        intent.forget().await.is_ok()
    };
    assert!(settles(vec![malformed()], 1).await);
    assert!(!settles(vec![Reset, malformed()], 1).await);
    assert!(!settles(vec![Reset, malformed()], 2).await);
    assert!(!settles(vec![problem(401, "", "unauthenticated")], 1).await);
}

#[tokio::test]
async fn a_call_that_is_dropped_settles_nothing() {
    let server = Server::script([problem(400, "", "malformed-request")]).await;
    let client = server.client(MemoryStore::default());
    let mut intent = client.intent("order-42");
    post(&mut intent).await.unwrap_err();
    // Polled once, and dropped while it waits for the network.
    tokio::time::timeout(Duration::ZERO, post(&mut intent)).await.unwrap_err();
    assert!(matches!(intent.forget().await, Err(Error::Unsettled { .. })));
}

#[tokio::test]
async fn accepted_work_is_waited_for_and_then_answered() {
    let accepted = || Answer(202, "Retry-After: 0\r\n", PROCESSING.into());
    let processing = || Answer(200, "Retry-After: 0\r\n", PROCESSING.into());
    let ended = Answer(200, "", PROCESSING.replace("processing", "succeeded"));
    let server = Server::script([accepted(), processing(), Reset, ended, transfer()]).await;
    let client = server.client(MemoryStore::default());
    let mut intent = client.intent("order-42").respond_async();
    let Ok(Outcome::Accepted(answer)) = post(&mut intent).await else { panic!() };
    let ended = client.wait_for(answer.value.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(ended.status, OperationStatus::Succeeded);
    done(post(&mut intent).await);
    intent.forget().await.unwrap();
    let requests = server.requests();
    assert_eq!(requests[0].header("prefer"), "respond-async");
    assert_eq!(requests[0].sent(), requests[4].sent());
    for request in &requests[1..4] {
        assert_eq!(request.head.lines().next().unwrap(), format!("GET /v1/operations/{} HTTP/1.1", answer.value.id));
        assert_eq!(request.header("idempotency-key"), "");
    }
}

#[tokio::test]
async fn calls_can_be_spawned_and_reads_are_tried_again() {
    let server =
        Server::script([transfer(), Reset, Answer(200, "", TRANSFER.into()), problem(404, "", "not-found")]).await;
    let client = server.client(MemoryStore::default());
    let task = tokio::spawn(async move {
        let posted = done(post(&mut client.intent("order-42")).await).value;
        assert_eq!(client.transfer(posted.id).await.unwrap(), posted);
        client.account(posted.source_account_id).await
    });
    assert!(matches!(task.await.unwrap(), Err(Error::Refused { status: 404, .. })));
}

#[tokio::test]
async fn addresses_and_keys_that_cannot_work_are_refused_at_the_start() {
    let build = |base: &str, key: &str| Client::builder(base, ApiKey::new(key), MemoryStore::default()).build();
    for base in [
        "ledger.example",
        "ftp://ledger.example",
        "https://user:secret@ledger.example",
        "https://ledger.example/?x=1",
        "",
    ] {
        let error = build(base, "sk_test_secret").unwrap_err();
        assert!(matches!(error, Error::Setup(_)) && !error.to_string().contains("secret"), "{base} {error}");
    }
    assert!(matches!(build("https://ledger.example", "sk_test\n"), Err(Error::Setup(_))));
    build("https://ledger.example/", "sk_test_secret").unwrap();
}
