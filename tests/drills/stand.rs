//! A system to be broken, and the words by which a page reaches it: the same words as in `runbook/compose.sh`, for these
//! processes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Plain};

use harness::{Account, Books, Client, MailServer, Owner, PEPPERS, Process, Reply, SECRETS, binary, until};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use serde_json::{Value, json};
use sqlx::postgres::{PgColumn, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Column as _, Connection as _, Executor as _, Row as _, SqlSafeStr as _, Statement as _};
use stack::Kafka;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::page::runbook;

/// The words that are those of `runbook/compose.sh` as they are: they reach services by their ports and their logs.
pub(crate) const SHARED: [&str; 5] = ["logs", "metrics", "post", "ready", "top"];

/// The others: each sends its arguments and its standard input to the test, which answers with what is to be printed and, in
/// the last line, the exit status.
pub(crate) const WORDS: &str = r#"
word() {
  local input= reply
  [ -t 0 ] || input=$(cat)
  exec 9<>"/dev/tcp/127.0.0.1/$DRILL_PORT"
  printf '%s\0' "$#" "$@" "$input" >&9
  reply=$(cat <&9)
  exec 9>&-
  printf '%s' "${reply%status *}"
  return "${reply##*status }"
}
compose() { word "$1" "$3"; }
for name in sql receipts_sql api relay running start stop restart configure disk backup restore kafka next; do
  eval "$name() { word $name \"\$@\"; }"
done
"#;

/// A service that is a process of ours.
#[derive(Default)]
pub(crate) struct Service {
    process: Option<Process>,
    port: u16,
    /// What its earlier processes have logged.
    past: Vec<String>,
}

impl Service {
    fn on_a_free_port() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { port, ..Self::default() }
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.process.as_mut().unwrap().kill();
    }

    fn running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::running)
    }

    async fn get(&self, path: &str) -> Result<(u16, String), reqwest::Error> {
        let http = reqwest::Client::builder().no_proxy().timeout(std::time::Duration::from_secs(20)).build()?;
        let answer = http.get(format!("http://127.0.0.1:{}{path}", self.port)).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    fn log(&self) -> Vec<String> {
        let now = self.process.as_ref().map(Process::log).unwrap_or_default();
        [self.past.clone(), now].concat()
    }

    /// Waits until it is ready, or has ended, which is a refusal to start.
    async fn started(&mut self) -> bool {
        let mut running = true;
        until("a service to be ready or to end", async || {
            running = self.running();
            !running || self.get("/readyz").await.is_ok_and(|(status, _)| status == 200)
        })
        .await;
        running
    }

    async fn stopped(&mut self) {
        if let Some(mut process) = self.process.take() {
            if process.running() {
                process.terminate();
            }
            process.ended().await;
            self.past.extend(process.log());
        }
    }
}

/// Everything that a drill may break.
pub(crate) struct Parts {
    pub(crate) books: Books,
    pub(crate) kafka: Option<Kafka>,
    pub(crate) mail: MailServer,
    pub(crate) api: Service,
    pub(crate) relay: Service,
    pub(crate) receipts: Service,
    /// What `configure` has set.
    pub(crate) settings: BTreeMap<String, String>,
    /// What a release does to the environment: a bad one has a fault.
    pub(crate) releases: BTreeMap<&'static str, (&'static str, &'static str)>,
}

/// A transfer that a client may send again and again.
pub(crate) struct Request {
    pub(crate) key: String,
    pub(crate) body: Value,
    pub(crate) owner: Owner,
}

impl Request {
    pub(crate) async fn send(&self, client: &Client) -> Reply {
        client.post("/v1/transfers", &self.key, &self.body).await
    }

    /// What the reader of a page knows of it, with more.
    pub(crate) fn known(&self, more: &[(&'static str, String)]) -> Vec<(&'static str, String)> {
        let mut known = vec![
            ("key", self.key.clone()),
            ("body", self.body.to_string()),
            ("api_key", self.owner.test.clone()),
            ("principal", self.owner.principal.to_string()),
            ("key_id", id_of(&self.owner.test)),
            ("environment", "test".to_owned()),
            ("scopes", "transfers:write,read".to_owned()),
        ];
        known.extend_from_slice(more);
        known
    }
}

/// The characters of id in an API key.
pub(crate) fn id_of(api_key: &str) -> String {
    api_key.split('_').nth(2).unwrap().to_owned()
}

/// What a reader who has looked for a session knows of it.
pub(crate) async fn seen(session: &mut PgConnection) -> (&'static str, String) {
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(session).await.unwrap();
    ("pid", pid.to_string())
}

/// A system of its own for each drill.
#[derive(Clone)]
pub(crate) struct Stand {
    parts: Arc<Mutex<Parts>>,
    desk: Arc<Desk>,
}

/// Where words are said.
#[derive(Default)]
struct Desk {
    port: u16,
    /// Whether the page is at a part that only reads.
    reading: AtomicBool,
    /// What commands have written to stderr.
    trouble: Plain<String>,
    /// A person has said that the drill goes on.
    next: Notify,
}

/// The database of the example consumer, beside the ledger's.
const RECEIPTS: &str = "receipts";

impl Stand {
    /// PostgreSQL and the API.
    pub(crate) async fn open() -> Self {
        Self::open_with(None, &[]).await
    }

    /// PostgreSQL, Kafka, the API and the relay.
    pub(crate) async fn open_with_kafka() -> Self {
        let stand = Self::open_with(Some(Kafka::temporary().await.unwrap()), &[]).await;
        stand.word(&["start", "relay"]).await;
        stand
    }

    /// What is wanted, with the API in an environment of its own.
    pub(crate) async fn open_with(kafka: Option<Kafka>, environment: &[(&str, &str)]) -> Self {
        let parts = Parts {
            books: Books::open().await,
            kafka,
            mail: MailServer::start(),
            api: Service::on_a_free_port(),
            relay: Service::on_a_free_port(),
            receipts: Service::on_a_free_port(),
            settings: environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            releases: BTreeMap::new(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stand = Self { parts: Arc::new(Mutex::new(parts)), desk: Arc::new(Desk { port, ..Desk::default() }) };
        // The parts end with the drill, not with the thread that serves them.
        let (parts, desk) = (Arc::downgrade(&stand.parts), Arc::clone(&stand.desk));
        let runtime = Handle::current();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = runtime.block_on(listener.accept()) {
                let Some(parts) = parts.upgrade() else { return };
                let (serving, runtime) = (Self { parts, desk: Arc::clone(&desk) }, runtime.clone());
                // One word at a time, as a person types them. One that panics leaves the others at work.
                let _panicked = std::thread::spawn(move || runtime.block_on(serving.answer(stream))).join();
            }
        });
        stand.word(&["start", "api"]).await;
        stand
    }

    /// The parts, for a drill to break them.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().await
    }

    /// A client of the owner in `test`; it outlives restarts of the API, whose port stays.
    pub(crate) async fn client(&self) -> Client {
        let parts = self.lock().await;
        Client::at_port(parts.api.port, &parts.books.owner.test)
    }

    /// An account that may owe, and one that holds 10,000.
    pub(crate) async fn accounts(&self, client: &Client) -> (Account, Account) {
        let parts = self.lock().await;
        let world = parts.books.account(client, None).await;
        let account = parts.books.funded(client, &world, 10_000).await;
        (world, account)
    }

    /// What a page may ask of a case: a transfer that moves 5 from one account to the other, its key and its sender's API key.
    pub(crate) async fn request(&self, client: &Client, source: &Account, destination: &Account) -> Request {
        let body =
            json!({"source_account_id": source, "destination_account_id": destination, "amount": 5, "currency": "EUR"});
        let owner = self.lock().await.books.owner.clone();
        Request { key: client.fresh_key(), body, owner }
    }

    /// Puts another release or setting in place, as a person did before the page is opened.
    pub(crate) async fn configured(&self, name: &str, value: &str) {
        self.lock().await.settings.insert(name.to_owned(), value.to_owned());
        self.word(&["start", "api"]).await;
    }

    /// Statements of the drill's own.
    pub(crate) async fn sql(&self, statements: &str) {
        let pool = self.lock().await.books.pool.clone();
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&pool).await.unwrap();
    }

    /// A session of the drill's own, which may hold locks.
    pub(crate) async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.lock().await.books.url).await.unwrap()
    }

    /// A transfer with a receipt for the recipient.
    pub(crate) async fn transfer_with_receipt(&self, client: &Client, from: &Account, to: &Account, email: &str) {
        let body = json!({"source_account_id": from, "destination_account_id": to, "amount": 1, "currency": "EUR",
            "metadata": {"email": email}});
        assert_eq!(client.post("/v1/transfers", &client.fresh_key(), &body).await.status, 201);
    }

    /// What bash has to know before it reads a page.
    pub(crate) async fn words(&self) -> String {
        let Parts { api, relay, receipts, .. } = &*self.lock().await;
        format!(
            "DRILL_PORT={}\nONCEPOST_API_PORT={}\nONCEPOST_RELAY_PORT={}\nONCEPOST_RECEIPTS_PORT={}\nsource '{}'\n{WORDS}",
            self.desk.port,
            api.port,
            relay.port,
            receipts.port,
            runbook().join("compose.sh").display(),
        )
    }

    /// Waits until a person says that the drill goes on.
    pub(crate) async fn next(&self) {
        self.desk.next.notified().await;
    }

    pub(crate) fn set_reading(&self, reading: bool) {
        self.desk.reading.store(reading, Ordering::SeqCst);
    }

    pub(crate) fn forget_trouble(&self) {
        self.desk.trouble.lock().unwrap().clear();
    }

    pub(crate) fn trouble(&self) -> String {
        self.desk.trouble.lock().unwrap().clone()
    }

    async fn answer(&self, stream: TcpStream) {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        let mut fields = Vec::new();
        let mut next = async || {
            let mut field = Vec::new();
            read.read_until(0, &mut field).await.unwrap();
            field.pop();
            String::from_utf8(field).unwrap()
        };
        let count: usize = next().await.parse().unwrap();
        for _ in 0..=count {
            fields.push(next().await);
        }
        let input = fields.pop().unwrap();
        let words: Vec<&str> = fields.iter().map(String::as_str).collect();
        let (status, text) = self.say(&words, &input).await;
        write.write_all(format!("{text}status {status}\n").as_bytes()).await.unwrap();
    }

    /// Says a word as a page would, and expects that it works.
    pub(crate) async fn word(&self, words: &[&str]) -> String {
        let (status, text) = self.say(words, "").await;
        assert_eq!(status, 0, "{words:?}: {text}\n{}", self.trouble());
        text
    }

    async fn say(&self, words: &[&str], input: &str) -> (i32, String) {
        let [word, arguments @ ..] = words else { panic!("no word") };
        let mut parts = self.lock().await;
        match (*word, arguments) {
            ("sql", [statement]) => self.query(&parts.books.url, statement).await,
            ("receipts_sql", [statement]) => {
                let url = parts.books.postgres().url_of(RECEIPTS);
                self.query(&url, statement).await
            }
            ("api" | "relay", _) => {
                let mut command = Command::new(binary(word));
                command.args(arguments).envs(parts.environment());
                // Other words work meanwhile.
                drop(parts);
                self.run(command, input).await
            }
            ("metrics", [service]) => match parts.service(service).get("/metrics").await {
                Ok((_, text)) => (0, text),
                Err(_) => (1, String::new()),
            },
            ("ready", [service]) => match parts.service(service).get("/readyz").await {
                Ok((_, text)) => (0, text),
                Err(_) => (0, "no answer\n".to_owned()),
            },
            ("logs", ["kafka"]) => (0, std::fs::read_to_string(parts.kafka.as_ref().unwrap().log()).unwrap()),
            ("logs", ["postgres"]) => (0, std::fs::read_to_string(parts.books.postgres().log()).unwrap()),
            ("logs", [service]) => {
                (0, parts.service(service).log().into_iter().map(|line| line + "\n").collect::<String>())
            }
            ("running", services) => (0, parts.running(services).await),
            ("disk", []) => {
                let folder = parts.books.postgres().log().parent().unwrap().to_owned();
                let mut command = Command::new("df");
                command.arg("-P").arg(folder);
                let (status, text) = self.run(command, "").await;
                let columns: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
                (status, format!("{} used, {} KiB free\n", columns[4], columns[3]))
            }
            // The one that pages use; what there is of the group are the positions.
            ("kafka", ["consumer-groups", "--delete-offsets", "--group", group, "--topic", _]) => {
                let brokers = parts.kafka.as_ref().unwrap().bootstrap();
                let admin: AdminClient<DefaultClientContext> =
                    ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
                let deleted = admin.delete_groups(&[group], &AdminOptions::new()).await.unwrap();
                (i32::from(deleted.iter().any(Result::is_err)), format!("{deleted:?}\n"))
            }
            ("backup" | "restore" | "start" | "stop" | "restart" | "configure", _) => {
                assert!(!self.desk.reading.load(Ordering::SeqCst), "{words:?} stands where a page only reads");
                let worked = parts.change(word, arguments).await;
                (i32::from(!worked), String::new())
            }
            ("next", []) => {
                self.desk.next.notify_one();
                (0, String::new())
            }
            _ => (127, format!("no such word: {words:?}\n")),
        }
    }

    async fn run(&self, mut command: Command, input: &str) -> (i32, String) {
        let input = input.to_owned();
        let ran = tokio::task::spawn_blocking(move || -> std::io::Result<Output> {
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            // A command that does not read it may be gone already.
            let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
            child.wait_with_output()
        });
        let output = ran.await.unwrap().unwrap();
        self.desk.trouble.lock().unwrap().push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap_or(-1), String::from_utf8(output.stdout).unwrap())
    }

    /// What `psql --quiet --no-align` prints, without the count of rows.
    async fn query(&self, url: &str, statement: &str) -> (i32, String) {
        let mut session = match PgConnection::connect(url).await {
            Ok(session) => session,
            Err(error) => {
                self.desk.trouble.lock().unwrap().push_str(&error.to_string());
                return (2, String::new());
            }
        };
        if self.desk.reading.load(Ordering::SeqCst) {
            session.execute("SET default_transaction_read_only = on").await.unwrap();
        }
        let rows = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).fetch_all(&mut session).await;
        match rows {
            // psql names the columns of no rows, too.
            Ok(rows) if rows.is_empty() => {
                let prepared = session.prepare(AssertSqlSafe(statement.to_owned()).into_sql_str()).await;
                (0, prepared.map(|prepared| heading(prepared.columns())).unwrap_or_default())
            }
            Ok(rows) => (0, rows_as_text(&rows)),
            Err(error) => {
                self.desk.trouble.lock().unwrap().push_str(&format!("{statement}: {error}\n"));
                (1, String::new())
            }
        }
    }
}

fn heading(columns: &[PgColumn]) -> String {
    if columns.is_empty() {
        return String::new();
    }
    columns.iter().map(PgColumn::name).collect::<Vec<_>>().join(" | ") + "\n"
}

fn rows_as_text(rows: &[PgRow]) -> String {
    let mut text = heading(rows[0].columns());
    for row in rows {
        let value = |index| row.try_get_raw(index).unwrap().as_str().unwrap_or_default();
        text += &(0..row.len()).map(value).collect::<Vec<_>>().join(" | ");
        text.push('\n');
    }
    text
}

impl Parts {
    pub(crate) fn service(&mut self, name: &str) -> &mut Service {
        match name {
            "api" => &mut self.api,
            "relay" => &mut self.relay,
            "receipts" => &mut self.receipts,
            _ => panic!("no such service: {name}"),
        }
    }

    /// What our processes and their commands have in their environment.
    fn environment(&self) -> BTreeMap<String, String> {
        let mut environment = BTreeMap::from([
            ("DATABASE_URL".to_owned(), self.books.url.clone()),
            ("IDEMPOTENCY_SECRETS".to_owned(), SECRETS.to_owned()),
            ("API_KEY_PEPPERS".to_owned(), PEPPERS.to_owned()),
            ("KAFKA_REPLICATION_FACTOR".to_owned(), "1".to_owned()),
            ("KAFKA_MIN_INSYNC_REPLICAS".to_owned(), "1".to_owned()),
            ("LISTEN".to_owned(), format!("127.0.0.1:{}", self.api.port)),
            ("RELAY_LISTEN".to_owned(), format!("127.0.0.1:{}", self.relay.port)),
            ("RECEIPTS_LISTEN".to_owned(), format!("127.0.0.1:{}", self.receipts.port)),
        ]);
        if let Some(kafka) = &self.kafka {
            environment.insert("KAFKA_BROKERS".to_owned(), kafka.bootstrap());
        }
        environment.extend(self.settings.clone());
        if let Some((name, value)) = self.settings.get("ONCEPOST_IMAGE").and_then(|image| self.releases.get(&**image)) {
            environment.insert((*name).to_owned(), (*value).to_owned());
        }
        environment
    }

    /// Does what changes the system; returns whether it worked.
    async fn change(&mut self, word: &str, arguments: &[&str]) -> bool {
        match (word, arguments) {
            ("configure", [name, ""]) => {
                self.settings.remove(*name);
                true
            }
            ("configure", [name, value]) => {
                self.settings.insert((*name).to_owned(), (*value).to_owned());
                true
            }
            ("backup" | "restore", [name]) => {
                let cluster = self.books.postgres().log().with_file_name("cluster");
                let kept = cluster.with_file_name(format!("backup-{name}"));
                let (from, to) = if word == "backup" { (cluster, kept) } else { (kept, cluster) };
                self.books.postgres().stop().await.unwrap();
                if to.exists() {
                    std::fs::remove_dir_all(&to).unwrap();
                }
                assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
                self.books.postgres().restart().await.is_ok()
            }
            (_, services) => {
                let mut worked = true;
                for service in services {
                    if word != "start" {
                        self.stop(service).await;
                    }
                    if word != "stop" {
                        worked &= self.start(service).await;
                    }
                }
                worked
            }
        }
    }

    async fn stop(&mut self, service: &str) {
        match service {
            "postgres" => self.books.postgres().stop().await.unwrap(),
            "kafka" => self.kafka.as_mut().unwrap().stop().await.unwrap(),
            _ => self.service(service).stopped().await,
        }
    }

    /// Starts a service, anew where its configuration may have changed.
    pub(crate) async fn start(&mut self, service: &str) -> bool {
        match service {
            "postgres" => self.books.postgres().restart().await.is_ok(),
            "kafka" => self.kafka.as_mut().unwrap().restart().await.is_ok(),
            _ => {
                self.launch(service).await;
                self.service(service).started().await
            }
        }
    }

    /// Starts a process of ours without waiting until it is ready, which it may never be.
    pub(crate) async fn launch(&mut self, service: &str) {
        self.service(service).stopped().await;
        let environment = self.environment();
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (&**name, &**value)).collect();
        let process = match service {
            "api" => self.books.api_with(&environment).await,
            "relay" => self.books.relay_with("", &environment),
            _ => self.launch_receipts(environment).await,
        };
        self.service(service).process = Some(process);
    }

    async fn launch_receipts(&mut self, mut environment: Vec<(&str, &str)>) -> Process {
        let exists = "SELECT count(*) FROM pg_database WHERE datname = 'receipts'";
        if self.books.count(exists).await == 0 {
            self.books.pool.execute("CREATE DATABASE receipts").await.unwrap();
        }
        let (url, smtp) = (self.books.postgres().url_of(RECEIPTS), self.mail.url());
        environment.extend([
            ("DATABASE_URL", &*url),
            ("RECEIPT_FROM", "Shop <receipts@shop.example>"),
            ("RECEIPT_ENVIRONMENT", "test"),
            ("SMTP_TIMEOUT_SECONDS", "5"),
        ]);
        Process::receipts(&url, "", &smtp, &environment).await
    }

    async fn running(&mut self, services: &[&str]) -> String {
        let mut lines = String::new();
        for service in services {
            let running = match *service {
                "postgres" => sqlx::PgConnection::connect(&self.books.url).await.is_ok(),
                "kafka" => match &self.kafka {
                    Some(kafka) => TcpStream::connect(kafka.bootstrap()).await.is_ok(),
                    None => false,
                },
                _ => self.service(service).running(),
            };
            lines += &format!("{service} {}\n", if running { "running" } else { "exited" });
        }
        lines
    }
}
