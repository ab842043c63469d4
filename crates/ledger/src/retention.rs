//! How long answers are kept. Their bytes stand in a table for each UTC day; a day that is past its retention is dropped at
//! once. The records stay.

use std::time::Duration;

use sqlx::{Connection, PgPool};

use crate::database::{Database, DatabaseError};

/// How many days ahead there are tables. A ledger that could make none for so long has been shouting for a week.
const DAYS_AHEAD: i32 = 7;
/// The most days that are dropped at one go; further ones come at the next turn.
const MAX_DROPPED: i32 = 100;
/// How often the tables are looked after.
const TURN: Duration = Duration::from_secs(600);
/// How soon again after it failed, such as when a lock did not come at once.
const TURN_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Names the advisory lock under which one process at a time does this.
const LOCK: i64 = 0x6f6e_6365_0001;

/// How many days an answer's bytes are kept, at least; they are dropped by whole days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    days: u16,
}

/// What looking after the days has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Tables made for days to come.
    pub added: i32,
    /// Tables dropped with what was in them.
    pub dropped: i32,
}

impl Retention {
    /// The fewest and the most days: each is a table, and a look-up knows of all of them.
    pub const DAYS: std::ops::RangeInclusive<u16> = 1..=90;
    /// A week, where nothing is said.
    pub const DEFAULT: Self = Self { days: 7 };

    /// `None` outside of [`Retention::DAYS`].
    pub fn of_days(days: u16) -> Option<Self> {
        Self::DAYS.contains(&days).then_some(Self { days })
    }

    /// The most days that there are while this works: those that are kept, today, and one that is just being dropped.
    pub(crate) const fn days_max(self) -> u16 {
        self.days.saturating_add(2)
    }

    /// Looks after the days now, as a running ledger does every ten minutes.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn keep_now(self, database: &Database) -> Result<Kept, DatabaseError> {
        let pool = database.pool(1);
        let kept = self.keep(&pool).await?;
        pool.close().await;
        Ok(kept)
    }

    /// Makes tables for the days to come and drops those that are past; does nothing where another process is at it.
    ///
    /// # Errors
    /// What the database says; `lock_not_available` where requests kept it from the lock, which is worth another try.
    pub(crate) async fn keep(self, pool: &PgPool) -> Result<Kept, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        let mut transaction = connection.begin().await?;
        let first = sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock($1) AS "first!""#, LOCK)
            .fetch_one(&mut *transaction)
            .await?;
        if !first {
            return Ok(Kept::default());
        }
        let added = sqlx::query_scalar!(r#"SELECT add_response_days($1) AS "added!""#, DAYS_AHEAD)
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        // Each in a transaction of its own, which ends as soon as its day is gone: it locks what every request writes to.
        let mut kept = Kept { added, dropped: 0 };
        while kept.dropped < MAX_DROPPED {
            let dropped = sqlx::query_scalar!(r#"SELECT drop_response_day($1) AS "dropped!""#, i32::from(self.days))
                .fetch_one(&mut *connection)
                .await?;
            if dropped == 0 {
                break;
            }
            kept.dropped = kept.dropped.saturating_add(dropped);
        }
        Ok(kept)
    }

    /// Looks after the days until the task is ended.
    pub(crate) async fn run(self, pool: PgPool) {
        loop {
            let pause = match self.keep(&pool).await {
                Ok(Kept { added: 0, dropped: 0 }) => TURN,
                Ok(kept) => {
                    tracing::info!(added = kept.added, dropped = kept.dropped, "days of answers were added or dropped");
                    TURN
                }
                Err(error) => {
                    tracing::warn!(%error, "the days of answers can't be looked after; trying again");
                    TURN_AFTER_FAILURE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_bounded() {
        assert_eq!(Retention::of_days(7), Some(Retention::DEFAULT));
        assert_eq!(Retention::of_days(0), None);
        assert_eq!(Retention::of_days(91), None);
    }
}
