//! The programs of `docs/retries.md`, as they stand there, before a network and a service that fail: each order is paid once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use harness::{Account, Books, Client, Process, document, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

/// What becomes of the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Weather {
    /// It gets its answer.
    #[default]
    Fair,
    /// The service is asked for this fault, once.
    Fault(&'static str),
    /// It arrives, and its answer never does; so do all that follow.
    Silent,
}

/// A network before the API, through which programs that know nothing of faults meet them.
struct Network {
    url: String,
    weather: Arc<Mutex<Weather>>,
}

impl Network {
    async fn before(api: &Process) -> Self {
        let target = api.url().trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let weather = Arc::new(Mutex::new(Weather::Fair));
        let shared = Arc::clone(&weather);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, target.clone(), Arc::clone(&shared)));
            }
        });
        Self { url, weather }
    }

    fn set(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }
}

/// Carries one connection; what is done to it is done to its first request.
async fn forward(mut client: TcpStream, target: String, weather: Arc<Mutex<Weather>>) {
    let mut server = TcpStream::connect(target).await.unwrap();
    let mut head = Vec::new();
    let line = loop {
        if client.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
            if let Some(end) = head.windows(2).position(|pair| pair == b"\r\n") {
                break end;
            }
        } else {
            return;
        }
    };
    let now = {
        let mut weather = weather.lock().unwrap();
        let now = *weather;
        if now != Weather::Silent {
            *weather = Weather::Fair;
        }
        now
    };
    if let Weather::Fault(fault) = now {
        head.splice(line..line, format!("\r\nOncepost-Fault: {fault}").into_bytes());
    }
    let Ok(()) = server.write_all(&head).await else { return };
    if now == Weather::Silent {
        // Nothing of what comes back goes on. The connection stays open until the client leaves.
        let (mut from_client, mut to_server) = (client, server);
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    } else {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

/// A program as it is started, before its arguments.
struct Program {
    command: PathBuf,
    script: Option<PathBuf>,
    /// How many of it may pay one order at once.
    at_once: usize,
}

/// The program of this name in the document.
fn in_document(name: &str) -> String {
    let page = document::read("docs/retries.md");
    let (_, after) = page.split_once(&format!("<!-- {name} -->\n```")).expect("the document has the program");
    let (_, code) = after.split_once('\n').unwrap();
    let (code, _) = code.split_once("\n```\n").unwrap();
    format!("{code}\n")
}

/// Writes a program of the document into a folder.
fn write(name: &str, folder: &Path) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, in_document(name)).unwrap();
    path
}

/// A shop whose orders are paid by a program, in a folder of its own.
struct Shop {
    books: Books,
    api: Process,
    network: Network,
    program: Program,
    folder: tempfile::TempDir,
    customer: Account,
    merchant: Account,
}

impl Shop {
    async fn open(program: Program, folder: tempfile::TempDir) -> Self {
        let books = Books::open().await;
        let api = books.api().await;
        let client = Client::new(&api, &books.owner.test);
        let (customer, merchant) = (books.account(&client, None).await, books.account(&client, Some(0)).await);
        let network = Network::before(&api).await;
        Self { books, api, network, program, folder, customer, merchant }
    }

    fn pay(&self, order: &str, source: &str, destination: &str) -> Command {
        let mut command = Command::new(&self.program.command);
        command
            .args(&self.program.script)
            .args([order, source, destination, "1250"])
            .current_dir(self.folder.path())
            .env("ONCEPOST_URL", &self.network.url)
            .env("ONCEPOST_KEY", &self.books.owner.test)
            .env("NO_PROXY", "127.0.0.1")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Pays an order, and returns what the program prints.
    async fn paid(&self, order: &str) -> String {
        let ended = self.pay(order, &self.customer, &self.merchant).output().await.unwrap();
        assert!(ended.status.success(), "{order}: {ended:?}");
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    }

    async fn transfers(&self) -> i64 {
        self.books.count("SELECT count(*) FROM transfers").await
    }
}

/// Lets a program pay orders in every weather. Each order is paid once, also where the program dies in the middle of it.
async fn pays_once(program: Program, folder: tempfile::TempDir) {
    let shop = Shop::open(program, folder).await;
    let faults = ["drop-reply", "fail-before-commit", "fail-after-commit"].map(Weather::Fault);
    let mut count = 0;
    for weather in [Weather::Fair].into_iter().chain(faults) {
        let order = format!("order-{count}");
        shop.network.set(weather);
        let transfer = shop.paid(&order).await;
        count += 1;
        let newest = "SELECT count(*) FROM transfers WHERE id = $1::uuid AND id = (SELECT id FROM transfers ORDER BY id DESC LIMIT 1)";
        let found: i64 = sqlx::query_scalar(newest).bind(&transfer).fetch_one(&shop.books.pool).await.unwrap();
        assert_eq!((found, shop.transfers().await), (1, count), "{weather:?}");
        assert_eq!(shop.paid(&order).await, transfer, "a paid order is paid");
        assert_eq!(shop.transfers().await, count, "{weather:?}");
    }

    // Several are called for one order at once; each hears of the one transfer.
    let at_once: Vec<_> = (0..shop.program.at_once)
        .map(|_| tokio::spawn(shop.pay("order-crowd", &shop.customer, &shop.merchant).output()))
        .collect();
    let mut heard = HashSet::new();
    for ended in at_once {
        let ended = ended.await.unwrap().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        heard.insert(ended.stdout);
    }
    count += 1;
    assert_eq!((heard.len(), shop.transfers().await), (1, count));

    // It dies while it waits for an answer, and the one that is started next finds what it has left.
    shop.network.set(Weather::Silent);
    let mut doomed = shop.pay("order-dead", &shop.customer, &shop.merchant).spawn().unwrap();
    count += 1;
    until("the transfer to be posted, though nobody says so", async || shop.transfers().await == count).await;
    doomed.kill().await.unwrap();
    shop.network.set(Weather::Fair);
    let changed = shop.pay("order-dead", &shop.merchant, &shop.customer).output().await.unwrap();
    assert_eq!((changed.status.code(), shop.transfers().await), (Some(1), count), "{changed:?}");
    shop.paid("order-dead").await;
    assert_eq!(shop.transfers().await, count);

    // A rule's no is final, and no failure of the network changes it.
    shop.network.set(Weather::Fault("fail-after-commit"));
    let poor = shop.books.account(&Client::new(&shop.api, &shop.books.owner.test), Some(0)).await;
    for _ in 0..2 {
        let ended = shop.pay("order-declined", &poor, &shop.merchant).output().await.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), said.contains("insufficient-funds")), (Some(1), true), "{ended:?}");
    }
    // A refusal speaks for its own attempt, and leaves the key for the next one.
    let refused = shop.pay("order-refused", &shop.customer, &shop.merchant).env("ONCEPOST_KEY", "sk_test_x").output();
    assert_eq!(refused.await.unwrap().status.code(), Some(1));
    shop.paid("order-refused").await;
    count += 1;
    // One key for each order that was paid, and one for the decline.
    let keys = "SELECT count(*) FROM idempotency_records WHERE operation = 'transfer.post'";
    assert_eq!((shop.transfers().await, shop.books.count(keys).await), (count, count + 1));
    shop.books.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_program_pays_once() {
    let source = document::read("crates/client/examples/pay.rs");
    assert!(
        source.contains(&in_document("pay.rs")),
        "the document shows another program than crates/client/examples/pay.rs"
    );
    let built = std::process::Command::new(env!("CARGO"))
        .args(["build", "--workspace", "--example", "pay", "--quiet"])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "the example can't be built");
    let program = Program { command: harness::binary("examples/pay"), script: None, at_once: 4 };
    pays_once(program, tempfile::tempdir().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js 18 or newer"]
async fn the_javascript_program_pays_once() {
    let folder = tempfile::tempdir().unwrap();
    let shop = document::root().join("crates/demo/shop");
    for name in ["retry.js", "package.json"] {
        std::fs::copy(shop.join(name), folder.path().join(name)).unwrap();
    }
    let script = write("pay.js", folder.path());
    pays_once(Program { command: "node".into(), script: Some(script), at_once: 1 }, folder).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Python 3"]
async fn the_python_program_pays_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = write("pay.py", folder.path());
    pays_once(Program { command: "python3".into(), script: Some(script), at_once: 4 }, folder).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs bash and curl"]
async fn the_curl_program_pays_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = write("pay.sh", folder.path());
    pays_once(Program { command: "bash".into(), script: Some(script), at_once: 4 }, folder).await;
}
