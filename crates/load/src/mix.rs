//! Which requests a load sends, and what must be true of their answers.
//!
//! Every mix holds the server to its promises: whoever has a final answer must get the same bytes again, and one intent has
//! one effect. What does not hold is a violation.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounts::AccountId;
use crate::answer::Answer;
use crate::connection::Connection;
use crate::measurement::Measurement;
use crate::request::{Intent, Target};
use crate::schedule::{Pace, Turn};

/// The pause before a request is sent again whose answer says so, or did not come.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How often a request is sent again at most: with the pauses about 15 s, and up to 30 s more for each that goes unanswered.
const RETRIES_MAX: u32 = 300;
/// How many requests each worker keeps to replay.
const KEPT: usize = 16;

/// Which requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mix {
    /// Transfers of one cent between any two accounts.
    Uniform,
    /// The same, with one account in every transfer.
    HotAccount,
    /// Each transfer is sent twice at once, on two connections; both must get the same bytes.
    RetryStorm,
    /// The answer is lost, by cutting the connection here or (with a test key) there; the transfer is sent again until it is
    /// final, and must have happened once. Nothing else may move money of these accounts meanwhile.
    LostAnswers,
    /// A transfer, then its account, then a transfer that was acknowledged, in turn.
    MixedReads,
    /// Transfers that have been answered before.
    Replays,
}

impl Mix {
    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::HotAccount => "hot-account",
            Self::RetryStorm => "retry-storm",
            Self::LostAnswers => "lost-answers",
            Self::MixedReads => "mixed-reads",
            Self::Replays => "replays",
        }
    }

    /// How many connections a worker has under way at once.
    pub(crate) const fn connections_per_worker(self) -> usize {
        match self {
            Self::RetryStorm => 2,
            Self::Uniform | Self::HotAccount | Self::LostAnswers | Self::MixedReads | Self::Replays => 1,
        }
    }

    /// How many accounts so many workers need.
    pub(crate) const fn accounts_needed(self, workers: usize) -> usize {
        match self {
            // Each worker has two of its own, so that it can tell what its transfers have moved.
            Self::LostAnswers => 2 * workers,
            Self::Uniform | Self::HotAccount | Self::RetryStorm | Self::MixedReads | Self::Replays => 2,
        }
    }
}

/// What all workers of a load share.
pub(crate) struct Shared {
    pub(crate) mix: Mix,
    pub(crate) target: Target,
    pub(crate) accounts: Rc<[AccountId]>,
    /// Set when every worker is prepared.
    pub(crate) pace: OnceCell<Pace>,
    pub(crate) measurement: RefCell<Measurement>,
    /// Begins every idempotency key, so that no two runs share one.
    pub(crate) run: String,
}

/// One client: it has one request under way at a time, or two of one intent.
pub(crate) struct Worker {
    shared: Rc<Shared>,
    number: usize,
    connection: Connection,
    second: Connection,
    random: StdRng,
    intents: u64,
    /// The last transfer that was acknowledged.
    acknowledged: Option<String>,
    kept: Vec<(Vec<u8>, Answer)>,
}

impl Worker {
    pub(crate) fn new(shared: &Rc<Shared>, number: usize, seed: u64) -> Self {
        let address = shared.target.address;
        Self {
            shared: Rc::clone(shared),
            number,
            connection: Connection::to(address),
            second: Connection::to(address),
            random: StdRng::seed_from_u64(seed.wrapping_add((number as u64) << 32)),
            intents: 0,
            acknowledged: None,
            kept: Vec::new(),
        }
    }

    /// What has to be there before the clock starts.
    pub(crate) async fn prepare(&mut self) {
        if self.shared.mix == Mix::Replays {
            // Before the clock starts, nothing is counted.
            let now = Instant::now();
            for _ in 0..KEPT {
                let intent = self.intent();
                let request = self.shared.target.transfer(&intent, None);
                if let Some(answer) = self.until_final(&request, now).await {
                    self.kept.push((request, answer));
                }
            }
        }
    }

    /// Sends until the load ends.
    pub(crate) async fn run(mut self) {
        let shared = Rc::clone(&self.shared);
        let Some(pace) = shared.pace.get() else { return };
        let before = if shared.mix == Mix::LostAnswers { self.own_balance().await } else { None };
        let mut moved = Some(0_i64);
        loop {
            let intended = match pace.next().await {
                Turn::Send(intended) => intended,
                Turn::Late(intended) => {
                    shared.measurement.borrow_mut().unsent(intended);
                    continue;
                }
                Turn::End => break,
            };
            match shared.mix {
                Mix::Uniform | Mix::HotAccount => self.transfer(intended).await,
                Mix::RetryStorm => self.send_twice(intended).await,
                Mix::LostAnswers => {
                    let cents = self.lose_answer(intended).await;
                    moved = moved.zip(cents).map(|(so_far, cents)| so_far + cents);
                }
                Mix::MixedReads => self.read_and_write(intended).await,
                Mix::Replays => self.replay(intended).await,
            }
        }
        if let (Some(before), Some(moved)) = (before, moved)
            && let Some(after) = self.own_balance().await
            && after != before + moved
        {
            self.violated(format!(
                "an account went from {before} to {after}, and its acknowledged transfers moved {moved}"
            ));
        }
    }

    fn violated(&self, what: String) {
        self.shared.measurement.borrow_mut().violated(what);
    }

    /// A new transfer of the mix.
    fn intent(&mut self) -> Intent {
        let accounts = Rc::clone(&self.shared.accounts);
        self.intents += 1;
        let (source, destination) = match self.shared.mix {
            // Between its own two, to and fro.
            Mix::LostAnswers if self.intents.is_multiple_of(2) => (2 * self.number, 2 * self.number + 1),
            Mix::LostAnswers => (2 * self.number + 1, 2 * self.number),
            Mix::HotAccount => {
                let other = self.random.random_range(1..accounts.len());
                if self.intents.is_multiple_of(2) { (0, other) } else { (other, 0) }
            }
            Mix::Uniform | Mix::RetryStorm | Mix::MixedReads | Mix::Replays => {
                let source = self.random.random_range(0..accounts.len());
                let step = self.random.random_range(1..accounts.len());
                (source, (source + step) % accounts.len())
            }
        };
        let key = format!("{}-{}-{}", self.shared.run, self.number, self.intents);
        Intent { key, source: accounts[source], destination: accounts[destination], amount: 1 }
    }

    /// Sends a request once, and counts what comes of it.
    async fn send(&mut self, request: &[u8], intended: Instant) -> Option<Answer> {
        let answered = self.connection.exchange(request).await.ok();
        count(&self.shared, intended, answered.as_ref());
        answered
    }

    /// Sends a request until it has a final answer; each attempt after the first counts from its own beginning.
    async fn until_final(&mut self, request: &[u8], intended: Instant) -> Option<Answer> {
        let mut intended = intended;
        for _ in 0..=RETRIES_MAX {
            match self.send(request, intended).await {
                Some(answer) if answer.is_final() => return Some(answer),
                Some(answer) if !answer.asks_again() => return None,
                Some(_) | None => {}
            }
            tokio::time::sleep(RETRY_PAUSE).await;
            intended = Instant::now();
        }
        self.shared.measurement.borrow_mut().unresolved();
        None
    }

    async fn transfer(&mut self, intended: Instant) {
        let intent = self.intent();
        let request = self.shared.target.transfer(&intent, None);
        self.send(&request, intended).await;
    }

    async fn send_twice(&mut self, intended: Instant) {
        let intent = self.intent();
        let request = self.shared.target.transfer(&intent, None);
        let (one, other) = tokio::join!(self.connection.exchange(&request), self.second.exchange(&request));
        let mut finals = Vec::with_capacity(2);
        for answered in [one.ok(), other.ok()] {
            count(&self.shared, intended, answered.as_ref());
            match answered.filter(Answer::is_final) {
                Some(answer) => finals.push(answer),
                None => finals.extend(self.until_final(&request, Instant::now()).await),
            }
        }
        if let [one, other] = finals.as_slice() {
            if (one.status, &one.body) != (other.status, &other.body) {
                self.violated(format!("a request sent twice at once got {} and {}", one.shown(), other.shown()));
            } else if !one.replayed && !other.replayed {
                self.violated(format!("a request sent twice at once ran twice: {}", one.shown()));
            }
        }
    }

    /// Loses an answer and asks for it again. Returns what the transfer has moved into the first of the worker's accounts, or
    /// nothing where that is not known.
    async fn lose_answer(&mut self, intended: Instant) -> Option<i64> {
        let intent = self.intent();
        let request = self.shared.target.transfer(&intent, None);
        if self.shared.target.in_test() && self.random.random::<bool>() {
            let staged = self.shared.target.transfer(&intent, Some("drop-reply"));
            // It is meant to fail; where it does not, the answer is one like any other.
            if let Ok(answer) = self.connection.exchange(&staged).await {
                count(&self.shared, intended, Some(&answer));
            }
        } else {
            // Whether it has got through is what the client can't know.
            drop(self.connection.send_and_close(&request).await);
        }
        let first = self.until_final(&request, intended).await?;
        let again = self.until_final(&request, Instant::now()).await?;
        if (first.status, &first.body) != (again.status, &again.body) || !again.replayed {
            self.violated(format!("an acknowledged request got {} and then {}", first.shown(), again.shown()));
        }
        if first.status != 201 {
            return Some(0);
        }
        Some(if intent.destination == self.shared.accounts[2 * self.number] { 1 } else { -1 })
    }

    /// The posted balance of the worker's first account.
    async fn own_balance(&mut self) -> Option<i64> {
        let path = format!("/v1/accounts/{}", self.shared.accounts[2 * self.number]);
        let request = self.shared.target.get(&path);
        for _ in 0..=RETRIES_MAX {
            match self.connection.exchange(&request).await {
                Ok(answer) if answer.status == 200 => {
                    let account: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                    return account["balance"]["posted"].as_i64();
                }
                Ok(answer) if !answer.asks_again() => return None,
                Ok(_) | Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
        None
    }

    async fn read_and_write(&mut self, intended: Instant) {
        let intent = self.intent();
        match (self.intents % 3, &self.acknowledged) {
            (1, Some(id)) => {
                let request = self.shared.target.get(&format!("/v1/transfers/{id}"));
                let answered = self.send(&request, intended).await;
                if let Some(answer) = answered.filter(|answer| answer.status == 404) {
                    self.violated(format!("an acknowledged transfer is not there: {}", answer.shown()));
                }
            }
            (2, _) => {
                let request = self.shared.target.get(&format!("/v1/accounts/{}", intent.source));
                self.send(&request, intended).await;
            }
            _ => {
                let request = self.shared.target.transfer(&intent, None);
                let answered = self.send(&request, intended).await;
                if let Some(answer) = answered.filter(|answer| answer.status == 201) {
                    self.acknowledged = answer.id().map(str::to_owned);
                }
            }
        }
    }

    async fn replay(&mut self, intended: Instant) {
        if self.kept.is_empty() {
            // Nothing was accepted before the load began: what is sent now is told as what it is.
            return self.transfer(intended).await;
        }
        let chosen = self.random.random_range(0..self.kept.len());
        let (request, first) = self.kept[chosen].clone();
        let answered = self.send(&request, intended).await;
        if let Some(again) = answered.filter(Answer::is_final)
            && ((first.status, &first.body) != (again.status, &again.body) || !again.replayed)
        {
            self.violated(format!("an acknowledged request got {} and then {}", first.shown(), again.shown()));
        }
    }
}

fn count(shared: &Shared, intended: Instant, answered: Option<&Answer>) {
    let mut measurement = shared.measurement.borrow_mut();
    match answered {
        Some(answer) => measurement.answered(intended, answer),
        None => measurement.lost(intended),
    }
}
