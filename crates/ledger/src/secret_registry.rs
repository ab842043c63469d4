//! The secrets that records were ever made with. A process that lacks one would not find the records made with it and would
//! run their requests again, so it does not open the ledger (I3).

use sqlx::PgPool;
use thiserror::Error;

use crate::idempotency::{Secret, Secrets};

/// What is wrong with the configured secrets, by the ids of those at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SecretFault {
    /// Records stand that were made with a secret that is not configured.
    #[error("records were made with the secret {id}, which is not configured; add it to those that are looked up")]
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
fn proof(secret: &Secret) -> Vec<u8> {
    secret.mac(&[b"which secret is this"]).to_vec()
}

/// Notes the configured secrets and compares them with those of all records.
pub(crate) async fn check(pool: &PgPool, secrets: &Secrets) -> Result<Vec<SecretFault>, sqlx::Error> {
    for secret in secrets.all() {
        // ON CONFLICT: another process, or an earlier start, has noted it.
        sqlx::query!(
            "INSERT INTO idempotency_secrets (id, proof) VALUES ($1, $2) ON CONFLICT ON CONSTRAINT idempotency_secrets_id
             DO NOTHING",
            secret.id(),
            proof(secret),
        )
        .execute(pool)
        .await?;
    }
    let noted = sqlx::query!("SELECT id, proof FROM idempotency_secrets ORDER BY id").fetch_all(pool).await?;
    let mut faults = Vec::new();
    for row in noted {
        match secrets.all().find(|secret| secret.id() == row.id) {
            Some(secret) if proof(secret) == row.proof => {}
            Some(_) => faults.push(SecretFault::Changed { id: row.id }),
            // A secret that was noted and never used is no one's loss.
            None if used(pool, &row.id).await? => faults.push(SecretFault::Missing { id: row.id }),
            None => {}
        }
    }
    Ok(faults)
}

/// Whether a record was made with the secret. Reads many records only where the secret was hardly used.
async fn used(pool: &PgPool, id: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM idempotency_records WHERE secret_id = $1) AS "used!""#, id)
        .fetch_one(pool)
        .await
}
