//! The panel: what the API, the books and Kafka know of a payment, asked anew each time. Nothing of it is the shop's own
//! word but the attempts that have arrived at it.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use ledger::Shard;
use ledger::outbox::{Outbox, OutboxError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::attempts::Attempt;
use super::catalogue::{order_number, pays_for};
use super::client::Unanswered;
use super::stream::Published;
use super::{Shop, problem};
use crate::controls::{Part, Stage};

/// How far back the books are searched for the payment's transfers and postings: a page of the API.
const PAGE: &str = "limit=100";
/// How far back the outbox is searched, in positions; and the most bytes that are read of it.
const OUTBOX_ROWS: i64 = 500;
const OUTBOX_BYTES: i64 = 4 * 1024 * 1024;

/// What the panel asks about: a payment by its key, which must not stand in a URL, or by the order's number.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    key: Option<String>,
    order: Option<String>,
}

/// What is known.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    switches: Switches,
    order: Option<String>,
    /// What has arrived at the shop.
    attempts: Vec<Attempt>,
    /// Whether the API has answered.
    api_answers: bool,
    /// The record under the key, as the API tells it.
    record: Option<Value>,
    /// The transfers that pay for the order, as the API lists them: one, if everything keeps its word.
    transfers: Vec<Value>,
    /// Their postings.
    postings: Vec<Value>,
    /// The customer's account and the merchant's.
    accounts: Vec<Value>,
    /// The rows of the transfers' events in the outbox; nothing where the database does not answer.
    outbox: Option<Vec<Waiting>>,
    /// The transfers' events in Kafka.
    kafka: Kafka,
}

/// A row of the outbox.
#[derive(Debug, Serialize)]
struct Waiting {
    position: i64,
    event_id: String,
}

/// What a consumer of Kafka sees.
#[derive(Debug, Serialize)]
struct Kafka {
    events: Vec<Published>,
    /// Why it sees nothing.
    fault: Option<String>,
}

/// The switches that the backend has; the double tap is the page's.
#[derive(Debug, Serialize)]
struct Switches {
    lost_reply: Switch,
    slow_network: Switch,
    stopped_api: Switch,
    stopped_kafka: Switch,
    /// What went wrong with the last one.
    fault: Option<String>,
}

#[derive(Debug, Serialize)]
struct Switch {
    on: bool,
    /// Whether it is on its way to where it was put.
    turning: bool,
    /// Why it can't be used.
    unusable: Option<&'static str>,
}

impl Switch {
    const fn network(on: bool) -> Self {
        Self { on, turning: false, unusable: None }
    }

    const fn part(stage: Stage) -> Self {
        Self {
            on: matches!(stage, Stage::Stopping | Stage::Stopped),
            turning: matches!(stage, Stage::Stopping | Stage::Starting),
            unusable: None,
        }
    }

    const fn unusable(why: &'static str) -> Self {
        Self { on: false, turning: false, unusable: Some(why) }
    }
}

/// Which switch to put where.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Turn {
    switch: Name,
    on: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    LostReply,
    SlowNetwork,
    StoppedApi,
    StoppedKafka,
}

/// The session in which the outbox is read, opened when it is first needed and again after an error.
pub(crate) type OutboxSession = Mutex<Option<Outbox>>;

/// Tells what is known of a payment, and how the switches stand.
pub(crate) async fn show(State(shop): State<Shop>, question: Result<Json<Question>, JsonRejection>) -> Response {
    let Ok(Json(Question { key, order })) = question else { return refuse() };
    let order = order.or_else(|| key.as_ref().map(|key| order_number(key.as_bytes())));
    let books = async {
        match &order {
            Some(order) => read_books(&shop, order).await,
            None => Ok(Books { accounts: read_accounts(&shop).await?, ..Books::default() }),
        }
    };
    let (books, record) = tokio::join!(books, read_record(&shop, key.as_deref()));
    let api_answers = books.is_ok();
    let Books { transfers, postings, accounts } = books.unwrap_or_default();
    let ids: Vec<&str> = transfers.iter().filter_map(|transfer| transfer["id"].as_str()).collect();
    let outbox = read_outbox(&shop, &ids).await.ok();
    let kafka = match shop.stream().map(|stream| stream.watch(&ids)) {
        Some(Ok(events)) => Kafka { events, fault: None },
        Some(Err(fault)) => Kafka { events: Vec::new(), fault: Some(fault) },
        None => Kafka { events: Vec::new(), fault: Some(NO_KAFKA.to_owned()) },
    };
    let attempts = order.as_deref().map(|order| shop.attempts().of(order)).unwrap_or_default();
    let switches = switches(&shop);
    Json(Facts { switches, order, attempts, api_answers, record, transfers, postings, accounts, outbox, kafka })
        .into_response()
}

/// Puts a switch where it is asked to be.
pub(crate) async fn turn(State(shop): State<Shop>, turn: Result<Json<Turn>, JsonRejection>) -> Response {
    let Ok(Json(Turn { switch, on })) = turn else { return refuse() };
    let order = |part| shop.controls().is_some_and(|controls| controls.order(part, !on));
    let heard = match switch {
        Name::LostReply => {
            shop.network().set_loses_reply(on);
            true
        }
        Name::SlowNetwork => {
            shop.network().set_slow(on);
            true
        }
        Name::StoppedApi => order(Part::Api),
        Name::StoppedKafka => order(Part::Kafka),
    };
    if heard {
        StatusCode::ACCEPTED.into_response()
    } else {
        problem(StatusCode::CONFLICT, "switch-unusable", "Not now", "this switch can't be used here, or not again yet")
    }
}

fn refuse() -> Response {
    problem(StatusCode::BAD_REQUEST, "malformed-request", "Not understood", "the body is not what the page sends")
}

const API_ELSEWHERE: &str = "It runs on its own and is stopped there, such as by `docker compose stop api`.";
const KAFKA_ELSEWHERE: &str = "It runs on its own and is stopped there, such as by `docker compose stop kafka`.";
const NO_KAFKA: &str = "This demo runs without Kafka: events wait in the outbox.";

fn switches(shop: &Shop) -> Switches {
    let stages = shop.controls().map(crate::controls::Controls::stages);
    Switches {
        lost_reply: Switch::network(shop.network().loses_reply()),
        slow_network: Switch::network(shop.network().slow()),
        stopped_api: stages.as_ref().map_or(Switch::unusable(API_ELSEWHERE), |stages| Switch::part(stages.api)),
        stopped_kafka: match stages.as_ref().and_then(|stages| stages.kafka) {
            Some(stage) => Switch::part(stage),
            None if shop.stream().is_none() => Switch::unusable(NO_KAFKA),
            None => Switch::unusable(KAFKA_ELSEWHERE),
        },
        fault: stages.and_then(|stages| stages.fault).map(|fault| fault.to_string()),
    }
}

#[derive(Default)]
struct Books {
    transfers: Vec<Value>,
    postings: Vec<Value>,
    accounts: Vec<Value>,
}

/// Reads what the books hold of an order. Its transfers are found by the order's number, which would show a second one.
async fn read_books(shop: &Shop, order: &str) -> Result<Books, Unanswered> {
    let (customer, merchant) = (&shop.accounts().customer, &shop.accounts().merchant);
    let listed = format!("/v1/transfers?account_id={customer}&{PAGE}");
    let debits = format!("/v1/accounts/{customer}/postings?{PAGE}");
    let credits = format!("/v1/accounts/{merchant}/postings?{PAGE}");
    let (transfers, debits, credits, accounts) = tokio::try_join!(
        read_page(shop, &listed),
        read_page(shop, &debits),
        read_page(shop, &credits),
        read_accounts(shop)
    )?;
    let transfers: Vec<Value> = transfers.into_iter().filter(|found| pays_for(found, Some(order))).collect();
    let ours = |posting: &Value| transfers.iter().any(|transfer| transfer["id"] == posting["transfer_id"]);
    let postings = debits.into_iter().chain(credits).filter(ours).collect();
    Ok(Books { transfers, postings, accounts })
}

async fn read_accounts(shop: &Shop) -> Result<Vec<Value>, Unanswered> {
    let at = |id: &String| format!("/v1/accounts/{id}");
    let (customer, merchant) = (at(&shop.accounts().customer), at(&shop.accounts().merchant));
    let (customer, merchant) = tokio::try_join!(shop.client().get(&customer), shop.client().get(&merchant))?;
    Ok([customer, merchant].iter().filter_map(|answer| answer.found()).collect())
}

async fn read_page(shop: &Shop, path: &str) -> Result<Vec<Value>, Unanswered> {
    let page = shop.client().get(path).await?.found().ok_or(Unanswered)?;
    Ok(page["data"].as_array().cloned().unwrap_or_default())
}

/// Reads the record under a key.
async fn read_record(shop: &Shop, key: Option<&str>) -> Option<Value> {
    let body = json!({ "key": key? });
    let answer = shop.client().post("/v1/idempotency-keys/lookup", std::iter::empty(), &body).await.ok()?;
    answer.found()
}

/// Reads the rows of the transfers' events in the newest part of the outbox.
async fn read_outbox(shop: &Shop, transfers: &[&str]) -> Result<Vec<Waiting>, OutboxError> {
    if transfers.is_empty() {
        return Ok(Vec::new());
    }
    let mut kept = shop.outbox().lock().await;
    // Taken out meanwhile: what has failed once is not used again.
    let mut session = match kept.take() {
        Some(session) => session,
        None => Outbox::open(shop.database(), Shard::default()).await?,
    };
    let last = session.last_position().await?.unwrap_or_default();
    let rows = session.read((last - OUTBOX_ROWS).max(1), OUTBOX_ROWS + 1, OUTBOX_BYTES).await?;
    *kept = Some(session);
    let ours = rows.into_iter().filter(|row| transfers.contains(&row.resource_id.to_string().as_str()));
    Ok(ours.map(|row| Waiting { position: row.position, event_id: row.event_id.to_string() }).collect())
}
