//! The accounts that a load moves money between.

use std::fmt;
use std::path::Path;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::request::{Intent, Target};

/// What each account that is opened here is given, in cents: enough for a load of one-cent transfers that never ends.
const FUNDS: u64 = 100_000_000;
/// How often a request of the preparation is sent again where the server asks for that.
const ATTEMPTS: u32 = 20;

/// An account's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountId(Uuid);

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads ids, one a line.
pub(crate) fn read(path: &Path) -> Result<Vec<AccountId>> {
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            let id =
                Uuid::try_parse(line.trim()).map_err(|_| Error::BadAccount { path: path.to_owned(), line: at + 1 });
            id.map(AccountId)
        })
        .collect()
}

/// Opens accounts through the API and gives each enough money, from an account of the outside world.
pub(crate) async fn open(target: &Target, count: usize) -> Result<Vec<AccountId>> {
    let mut connection = Connection::to(target.address);
    let world =
        open_one(&mut connection, target, &json!({"currency": "EUR", "name": "load", "min_balance": null})).await?;
    let mut accounts = Vec::with_capacity(count);
    for _ in 0..count {
        let account = open_one(&mut connection, target, &json!({"currency": "EUR", "name": "load"})).await?;
        let funding = Intent { key: Uuid::new_v4().to_string(), source: world, destination: account, amount: FUNDS };
        post(&mut connection, "give money to an account", &target.transfer(&funding, None)).await?;
        accounts.push(account);
    }
    Ok(accounts)
}

async fn open_one(connection: &mut Connection, target: &Target, body: &Value) -> Result<AccountId> {
    let request = target.post("/v1/accounts", &Uuid::new_v4().to_string(), None, &body.to_string());
    post(connection, "open an account", &request).await
}

/// Sends a request until it is answered for good, and returns the id of what it made.
async fn post(connection: &mut Connection, doing: &'static str, request: &[u8]) -> Result<AccountId> {
    let mut attempt = 1;
    loop {
        let answer = connection.exchange(request).await.map_err(Error::io(doing))?;
        let id = answer.id().and_then(|id| Uuid::try_parse(id).ok());
        match id {
            Some(id) if answer.status == 201 => return Ok(AccountId(id)),
            Some(_) | None if answer.asks_again() && attempt < ATTEMPTS => {
                tokio::time::sleep(crate::mix::RETRY_PAUSE).await;
            }
            Some(_) | None => return Err(Error::Refused { doing, answer: answer.shown() }),
        }
        attempt += 1;
    }
}
