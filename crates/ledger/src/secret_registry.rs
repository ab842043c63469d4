//! The secrets that records were ever made with. A process that lacks one would not find the records made with it and would
//! run their requests again, so it does not open the ledger (I3).

use sqlx::PgPool;
use thiserror::Error;

use crate::idempotency::{Secret, Secrets};

/// What is wrong with the configured secrets, by the ids of those at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SecretFault {
    /// A process of this ledger had a secret that is not configured here, so records may be made with it.
    #[error("records are made with the secret {id}, which is not configured; add it to those that are looked up")]
    Missing {
        /// The secret's id.
        id: String,
    },
    /// The secret of this id is another one than records were made with.
    #[error("the secret {id} is not the one that records were made with under this id")]
    Changed {
        /// The secret's id.
        id: String,
    },
}

/// What tells whether a secret is the same, and nothing about it.
pub(crate) fn proof(secret: &Secret) -> Vec<u8> {
    secret.mac(&[b"which secret is this"]).to_vec()
}

/// Names the advisory lock under which one process at a time compares and notes.
const LOCK: i64 = 0x6f6e_6365_0002;

/// Compares the configured secrets with those that processes of this ledger ever had; notes them where all is well. Compared
/// and noted under one lock, so that of two first starts with different secrets one is refused.
pub(crate) async fn check(pool: &PgPool, secrets: &Secrets) -> Result<Vec<SecretFault>, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query!(r#"SELECT pg_advisory_xact_lock($1)::text AS "locked!""#, LOCK).fetch_one(&mut *transaction).await?;
    let noted =
        sqlx::query!("SELECT id, proof FROM idempotency_secrets ORDER BY id").fetch_all(&mut *transaction).await?;
    let faults: Vec<SecretFault> = noted
        .into_iter()
        .filter_map(|row| match secrets.all().find(|secret| secret.id() == row.id) {
            Some(secret) if row.proof.as_ref().is_none_or(|noted| *noted == proof(secret)) => None,
            Some(_) => Some(SecretFault::Changed { id: row.id }),
            None => Some(SecretFault::Missing { id: row.id }),
        })
        .collect();
    if !faults.is_empty() {
        return Ok(faults);
    }
    for secret in secrets.all() {
        // ON CONFLICT: an earlier start has noted it, perhaps without its proof.
        sqlx::query!(
            "INSERT INTO idempotency_secrets AS s (id, proof) VALUES ($1, $2)
             ON CONFLICT ON CONSTRAINT idempotency_secrets_id DO UPDATE SET proof = excluded.proof WHERE s.proof IS NULL",
            secret.id(),
            proof(secret),
        )
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(faults)
}
