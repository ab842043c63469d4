//! What was bought. The ledger is the shop's only memory, so an order is listed exactly if it is paid.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use super::Shop;
use super::catalogue::pays_for;
use super::checkout::{pass_on, unavailable};

/// How far back orders are listed: a page of the API.
const PAGE: &str = "limit=100";

/// The newest orders as their transfers.
pub(crate) async fn list(State(shop): State<Shop>) -> Response {
    let path = format!("/v1/transfers?account_id={}&{PAGE}", shop.accounts().customer);
    let Ok(answer) = shop.client().get(&path).await else { return unavailable() };
    let Some(page) = answer.found() else { return pass_on(answer) };
    let transfers = page["data"].as_array().into_iter().flatten();
    Json(json!({"data": transfers.filter(|transfer| pays_for(transfer, None)).collect::<Vec<_>>()})).into_response()
}
