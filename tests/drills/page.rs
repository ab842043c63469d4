//! A page of the runbook: its parts, its commands, and what it says that they print.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::matcher::matches;
use crate::stand::Stand;

/// The parts of a page, in their order.
pub(crate) const PARTS: [&str; 10] = [
    "Severity",
    "Meaning",
    "Impact",
    "First five minutes",
    "Decision",
    "Mitigation",
    "Rollback command",
    "Never do",
    "Verify",
    "Escalate",
];
/// The parts whose commands only read. What they show may come some seconds late, so they are asked again for a while.
const READING: [&str; 2] = ["First five minutes", "Verify"];
/// For how long: a relay that has halted looks again every 30 s.
const READING_WAIT: Duration = Duration::from_secs(45);
const READING_TURN: Duration = Duration::from_millis(500);
/// The longest that one block of commands may take.
const BLOCK_WAIT: Duration = Duration::from_secs(90);

/// The folder of the pages.
pub(crate) fn runbook() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("runbook")
}

/// Commands with the output that stands after them.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The line that the commands begin in.
    pub(crate) line: usize,
    /// The part of the page that they stand in.
    pub(crate) part: String,
    /// The section of that part, where a page has one for each of several faults.
    pub(crate) section: String,
    pub(crate) commands: String,
    pub(crate) output: String,
}

/// A page as it is written.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) blocks: Vec<Block>,
}

impl Page {
    /// Reads a page by its name without ending.
    pub(crate) fn read(name: &str) -> Self {
        let path = runbook().join(format!("{name}.md"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut blocks: Vec<Block> = Vec::new();
        let (mut part, mut section) = (String::new(), String::new());
        let mut lines = text.lines().enumerate();
        // Where output may stand: right after commands.
        let mut after_commands = false;
        while let Some((index, line)) = lines.next() {
            if let Some(heading) = line.strip_prefix("## ") {
                heading.clone_into(&mut part);
                section.clear();
            }
            if let Some(heading) = line.strip_prefix("### ") {
                heading.clone_into(&mut section);
            }
            let Some(language) = line.strip_prefix("```") else {
                after_commands = after_commands && line.is_empty();
                continue;
            };
            let mut fenced = String::new();
            for (_, line) in lines.by_ref().take_while(|(_, line)| *line != "```") {
                writeln!(fenced, "{line}").unwrap();
            }
            match language {
                "sh" => {
                    let (part, section) = (part.clone(), section.clone());
                    blocks.push(Block { line: index + 1, part, section, commands: fenced, output: String::new() });
                }
                "text" if after_commands => blocks.last_mut().unwrap().output = fenced,
                _ => panic!("{name}.md, line {}: neither commands nor their output", index + 1),
            }
            after_commands = language == "sh";
        }
        Self { name: name.to_owned(), text, blocks }
    }

    /// The sections with commands that are for one fault each.
    pub(crate) fn sections(&self) -> BTreeSet<&str> {
        self.blocks.iter().map(|block| block.section.as_str()).filter(|section| !section.is_empty()).collect()
    }
}

/// Set where a person reads the pages and a drill only breaks the system.
const BY_HAND: &str = "DRILL_BY_HAND";
/// For how long a person may try.
const BY_HAND_WAIT: Duration = Duration::from_secs(3600);
/// What a person who is called knows from the client, the secret store and the records of deploys and backups. Everything
/// else is to be found.
const TOLD: [&str; 8] = ["api_key", "backup", "body", "key", "old", "old_peppers", "payee", "payer"];
/// The release before the one that runs, which no drill makes bad.
const PREVIOUS: &str = "oncepost:1";

/// A reader who does what a page says, command by command.
pub(crate) struct Reader {
    page: Page,
    next: usize,
    stand: Stand,
    shell: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    folder: tempfile::TempDir,
    by_hand: bool,
}

/// What the shell says after each block.
const MARK: &str = "-- the block has ended: ";

impl Reader {
    /// Opens a page before a system; `known` is what the reader knows of the case, such as the id of an account.
    pub(crate) async fn open(page: &str, stand: &Stand, known: &[(&'static str, String)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .env("previous", PREVIOUS)
            .envs(known.iter().cloned())
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(folder.path().join("stderr")).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        let stdout = BufReader::new(shell.stdout.take().unwrap()).lines();
        stdin.write_all(stand.words().await.as_bytes()).await.unwrap();
        stdin.write_all(b"trap 'failed=\"$BASH_COMMAND\"' ERR\n").await.unwrap();
        let by_hand = std::env::var_os(BY_HAND).is_some();
        if by_hand {
            let words = folder.path().join("words.sh");
            let told = known.iter().filter(|(name, _)| TOLD.contains(name));
            let told: String = told.map(|(name, value)| format!("{name}='{value}'\n")).collect();
            let here = folder.path().display();
            let text = format!("cd '{here}'\nprevious={PREVIOUS}\n{told}{}", stand.words().await);
            std::fs::write(&words, text).unwrap();
            eprintln!("The system is broken. In bash: source {}", words.display());
        }
        Self { page: Page::read(page), next: 0, stand: stand.clone(), shell, stdin, stdout, folder, by_hand }
    }

    /// Waits until a person has come to a place of the page.
    async fn by_hand_until(&self, place: &str) {
        eprintln!("When all is done that stands before {place:?} on the page, say: next");
        timeout(BY_HAND_WAIT, self.stand.next()).await.expect("nobody has said \"next\" within an hour");
    }

    /// Of the sections that are for one fault each, leaves only that one.
    pub(crate) fn choose(&mut self, section: &str) {
        self.page.blocks.retain(|block| block.section.is_empty() || block.section == section);
    }

    /// Does everything that stands before a line of the page that begins with `place`.
    pub(crate) async fn read_to(&mut self, place: &str) {
        let found = self.page.text.lines().position(|line| line.starts_with(place));
        let end = found.unwrap_or_else(|| panic!("{}.md has no line that begins with {place:?}", self.page.name));
        if self.by_hand {
            return self.by_hand_until(place).await;
        }
        while self.page.blocks.get(self.next).is_some_and(|block| block.line < end + 1) {
            self.run_next().await;
        }
    }

    /// What a command of the page has written to a file.
    pub(crate) fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Does the rest of the page, and proves the books.
    pub(crate) async fn finish(mut self) {
        self.finish_with_broken_books().await;
        self.stand.lock().await.books.check().await;
    }

    /// Does the rest of the page, where the fault is one that `api audit` goes on to find.
    pub(crate) async fn finish_with_broken_books(&mut self) {
        if self.by_hand {
            return self.by_hand_until("the end").await;
        }
        while self.next < self.page.blocks.len() {
            self.run_next().await;
        }
    }

    async fn run_next(&mut self) {
        let block = self.page.blocks[self.next].clone();
        self.next += 1;
        let reading = READING.contains(&block.part.as_str());
        let begun = Instant::now();
        let mut turns = tokio::time::interval(READING_TURN);
        loop {
            turns.tick().await;
            self.stand.set_reading(reading);
            let (printed, failed) = self.run(&block).await;
            self.stand.set_reading(false);
            if failed.is_empty() && matches(&block.output, &printed) {
                return;
            }
            if !reading || begun.elapsed() > READING_WAIT {
                let stderr = std::fs::read_to_string(self.folder.path().join("stderr")).unwrap();
                panic!(
                    "{}.md, line {}, \"{}\"\n{}\n-- should print\n{}\n-- printed\n{printed}\n-- failed: {failed}\n-- stderr\n{stderr}\n{}",
                    self.page.name,
                    block.line,
                    block.part,
                    block.commands,
                    block.output,
                    self.stand.trouble(),
                );
            }
        }
    }

    /// Runs a block in the shell; returns what it printed and the command that failed, if one did.
    async fn run(&mut self, block: &Block) -> (String, String) {
        self.stand.forget_trouble();
        let file = self.folder.path().join("block.sh");
        std::fs::write(&file, &block.commands).unwrap();
        let line = format!("failed=; source {} </dev/null; printf '\\n{MARK}%s\\n' \"$failed\"\n", file.display());
        self.stdin.write_all(line.as_bytes()).await.unwrap();
        let mut printed = String::new();
        let run = async {
            while let Some(line) = self.stdout.next_line().await.unwrap() {
                if let Some(failed) = line.strip_prefix(MARK) {
                    return failed.to_owned();
                }
                writeln!(printed, "{line}").unwrap();
            }
            panic!("the shell has ended: {:?}", self.shell.try_wait());
        };
        let failed = timeout(BLOCK_WAIT, run).await;
        let failed = failed.unwrap_or_else(|_| panic!("{}.md, line {}: hangs", self.page.name, block.line));
        // The line break before the mark is not the block's.
        printed.pop();
        (printed, failed)
    }
}
