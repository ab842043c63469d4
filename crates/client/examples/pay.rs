//! `pay ORDER SOURCE DESTINATION AMOUNT`: pays one order once, however often it is called for it. The service's address is in
//! `ONCEPOST_URL`, an API key in `ONCEPOST_KEY`, and the orders stand in the folder `orders`.
#![expect(clippy::print_stdout, reason = "it is a program for a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};

use client::{ApiKey, Client, Error, FileStore, Outcome, PostTransfer};
use uuid::Uuid;

/// How a shell is told to try again later (`EX_TEMPFAIL` of sysexits.h).
const TRY_AGAIN_LATER: u8 = 75;

/// What has become of an order.
enum Paid {
    /// This transfer has paid it.
    By(Uuid),
    /// A rule of the ledger said no.
    Rejected(String),
    /// It is not known yet.
    Open,
}

/// The orders: a folder, where you have a database.
struct Orders(PathBuf);

impl Orders {
    /// Waits until nobody else is about this order, and holds it until the file is dropped, or the process dies.
    fn hold(&self, order: &str) -> Result<fs::File, Error> {
        let lock = fs::File::create(self.0.join(format!(".{order}.lock")));
        lock.and_then(|file| file.lock().map(|()| file)).map_err(|error| Error::Store(error.into()))
    }

    /// What is recorded of an order.
    fn outcome(&self, order: &str) -> Result<Option<Paid>, Error> {
        let recorded = match fs::read_to_string(self.path(order)) {
            Ok(recorded) => recorded,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::Store(error.into())),
        };
        Ok(Some(recorded.parse().map_or(Paid::Rejected(recorded), Paid::By)))
    }

    /// Records what has become of an order, for good.
    fn record(&self, order: &str, paid: &Paid) -> Result<(), Error> {
        let text = match paid {
            Paid::By(transfer) => transfer.to_string(),
            Paid::Rejected(problem) => problem.clone(),
            Paid::Open => return Ok(()),
        };
        let part = self.0.join(format!(".{order}.{}", Uuid::new_v4()));
        let written = fs::write(&part, text).and_then(|()| fs::File::open(&part)?.sync_all());
        let written = written.and_then(|()| fs::rename(&part, self.path(order)));
        written.and_then(|()| fs::File::open(&self.0)?.sync_all()).map_err(|error| Error::Store(error.into()))
    }

    fn path(&self, order: &str) -> PathBuf {
        self.0.join(format!("{order}.outcome"))
    }
}

/// Pays an order once, however often it is called for it, by whichever process.
async fn pay(orders: &Orders, client: &Client<FileStore>, order: &str, transfer: &PostTransfer) -> Result<Paid, Error> {
    // One at a time: who finds no outcome here, and no key after `forget`, would make another key.
    let _held = orders.hold(order)?;
    if let Some(paid) = orders.outcome(order)? {
        return Ok(paid);
    }
    let mut intent = client.intent(order);
    let paid = match intent.post_transfer(transfer).await {
        Ok(Outcome::Done(answer)) => Paid::By(answer.value.id),
        Err(Error::Rejected { problem, .. }) => Paid::Rejected(problem.name().to_owned()),
        // Refused, or not known yet: the key stays, and the same call later goes on with it.
        Ok(Outcome::Accepted(_)) => return Ok(Paid::Open),
        Err(error) => return Err(error),
    };
    // Our own books first, and only then the key: a crash in between costs one more request, and not one more payment.
    orders.record(order, &paid)?;
    intent.forget().await?;
    Ok(paid)
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [order, source, destination, amount] = arguments.as_slice() else {
        return Err("pay ORDER SOURCE DESTINATION AMOUNT".into());
    };
    let store = FileStore::open("orders")?;
    let client = Client::builder(env::var("ONCEPOST_URL")?, ApiKey::new(env::var("ONCEPOST_KEY")?), store).build()?;
    let transfer = PostTransfer::new(source.parse()?, destination.parse()?, amount.parse()?, "EUR");
    match pay(&Orders("orders".into()), &client, order, &transfer).await {
        Ok(Paid::By(transfer)) => println!("{transfer}"),
        Ok(Paid::Rejected(problem)) => return Err(problem.into()),
        Ok(Paid::Open) => return Ok(TRY_AGAIN_LATER.into()),
        Err(error @ Error::Unresolved { .. }) => {
            eprintln!("{error}: the same command later goes on with it");
            return Ok(TRY_AGAIN_LATER.into());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}
