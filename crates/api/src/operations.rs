//! Accepted work over HTTP, and the task that finishes what a process left behind.

use std::time::Duration;

use axum::extract::State;
use axum::http::request::Parts;
use axum::response::Response;
use ledger::{Answer, OperationId, SubmitError, Unfinished};
use time::OffsetDateTime;
use tokio::task::{JoinHandle, JoinSet};

use crate::Api;
use crate::accounts::refuse_parameters;
use crate::get::{self, PathId, path_id, reader};
use crate::post::render;
use crate::problem::Problem;

/// How often work that was left behind is looked for.
const TURN: Duration = Duration::from_secs(1);
/// Work that was accepted less than this ago is still in the hands of the process that accepted it.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(2);

/// Reads accepted work.
#[utoipa::path(
    get,
    path = "/v1/operations/{id}",
    operation_id = "read_operation",
    tag = "accepted work",
    params(("id" = uuid::Uuid, Path, description = "The operation's identifier.")),
    responses((status = 200, description = "The operation as it stands now.", body = crate::schema::Operation)),
    security(("api_key" = []))
)]
pub(crate) async fn read(State(api): State<Api>, id: PathId, parts: Parts) -> Result<Response, Problem> {
    let caller = reader(&api, &parts).await?;
    refuse_parameters(&parts)?;
    let operation = api.ledger().operation(&caller.scope, OperationId(path_id(id)?)).await?;
    get::json(&operation.ok_or(Problem::NotFound)?)
}

/// Runs accepted work in a task of its own: it goes on although no one waits for it any more.
pub(crate) fn spawn_run(api: &Api, unfinished: Unfinished) -> JoinHandle<Result<Answer, SubmitError>> {
    let ledger = api.ledger().clone();
    let render = render(unfinished.origin.endpoint.clone().into(), unfinished.origin.request_id);
    tokio::spawn(async move { ledger.run(unfinished, render).await })
}

/// Finishes the work that its process did not, one page at a time, until the task is ended.
pub(crate) async fn finish_left_behind(api: Api) {
    loop {
        tokio::time::sleep(TURN).await;
        let accepted_before = OffsetDateTime::now_utc() - LEFT_BEHIND_AFTER;
        let mut after = None;
        loop {
            let page = match api.ledger().unfinished(accepted_before, after).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "accepted work can't be looked for");
                    break;
                }
            };
            run_all(&api, page.items).await;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
}

async fn run_all(api: &Api, left_behind: Vec<Unfinished>) {
    let mut runs = JoinSet::new();
    for unfinished in left_behind {
        let (id, run) = (unfinished.id, spawn_run(api, unfinished));
        runs.spawn(async move { (id, run.await) });
    }
    while let Some(run) = runs.join_next().await {
        if let Ok((id, Ok(Err(error)))) = run {
            tracing::warn!(operation = %id, %error, "accepted work is not done yet");
        }
    }
}
