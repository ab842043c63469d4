//! The commands that tell what stands in the ledger: for whoever is on call. None of them changes anything.

use std::io::Read as _;
use std::time::Duration;

use api::config::process_variables;
use ledger::principal::Principals;
use ledger::{Configured, IdempotencyKey, Inspection, KeptRecord, NotedSecret, UnfinishedOperation, format_time};
use serde_json::json;

use crate::Failure;
use crate::administration::{PrincipalChoice, SESSIONS, find_principal, print};

/// The most bytes of a key with a line's end behind it.
const KEY_MAX: u64 = IdempotencyKey::MAX_BYTES as u64 + 2;

/// Prints the records under the key that stands on stdin.
///
/// # Errors
/// A sentence for the person at the terminal; also where there is no record.
pub(crate) async fn record(principal: &PrincipalChoice) -> Result<(), Failure> {
    let (database, secrets) = process_variables().records()?;
    let mut key = String::new();
    std::io::stdin().lock().take(KEY_MAX + 1).read_to_string(&mut key)?;
    let key = IdempotencyKey::new(key.trim_end_matches(['\r', '\n']).to_owned())
        .ok_or_else(|| Failure("a key has 1 to 255 bytes, all of them printable ASCII characters".to_owned()))?;
    let principals = Principals::open(&database, SESSIONS);
    let principal = find_principal(&principals, principal).await;
    principals.close().await;
    let inspection = Inspection::open(&database);
    let found = inspection.records(&secrets, principal?, &key).await;
    inspection.close().await;
    let found = found?;
    if found.is_empty() {
        return Err(Failure("no record: nothing ran under this key of this principal".to_owned()));
    }
    for record in found {
        let KeptRecord {
            key_hash,
            secret_id,
            environment,
            operation,
            status,
            resource_id,
            completed_at,
            answer_kept,
            retries,
            last_retry_at,
        } = record;
        print(&json!({
            "key_hash": key_hash.to_string(),
            "secret_id": secret_id,
            "environment": environment,
            "operation": operation,
            "status": status,
            "resource_id": resource_id,
            "completed_at": format_time(completed_at),
            "answer_kept": answer_kept,
            "retries": retries,
            "last_retry_at": last_retry_at.map(format_time),
        }))?;
    }
    Ok(())
}

/// Prints the accepted work that is not done.
///
/// # Errors
/// A sentence for the person at the terminal.
pub(crate) async fn operations(older_than_seconds: u32) -> Result<(), Failure> {
    let inspection = Inspection::open(&process_variables().database_only()?);
    let found = inspection.unfinished(Duration::from_secs(older_than_seconds.into())).await;
    inspection.close().await;
    for operation in found? {
        let UnfinishedOperation { id, tenant, principal, environment, endpoint, created_at, age } = operation;
        print(&json!({
            "id": id,
            "tenant_id": tenant,
            "principal_id": principal,
            "environment": environment,
            "endpoint": endpoint,
            "created_at": format_time(created_at),
            "age_seconds": age.as_secs(),
        }))?;
    }
    Ok(())
}

/// Prints the secrets that are noted.
///
/// # Errors
/// A sentence for the person at the terminal.
pub(crate) async fn secrets() -> Result<(), Failure> {
    let (database, secrets) = process_variables().records()?;
    let inspection = Inspection::open(&database);
    let found = inspection.secrets(&secrets).await;
    inspection.close().await;
    for NotedSecret { id, first_seen_at, configured } in found? {
        let configured = match configured {
            Configured::Write => "write",
            Configured::LookUp => "look-up",
            Configured::No => "no",
        };
        print(&json!({ "id": id, "first_seen_at": format_time(first_seen_at), "configured": configured }))?;
    }
    Ok(())
}
