//! How long answers are kept. Their bytes stand in a table for each UTC day; a day that is past its retention is dropped at
//! once. The records stay.

use std::time::Duration;

use sqlx::PgPool;
use time::{Date, OffsetDateTime};

use crate::clock;
use crate::database::{Database, DatabaseError};

/// How many days ahead there are tables. A ledger that could make none for so long has been shouting for a week.
const DAYS_AHEAD: i64 = 7;
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
    /// The fewest and the most days.
    pub const DAYS: std::ops::RangeInclusive<u16> = 1..=3_650;
    /// A week, where nothing is said.
    pub const DEFAULT: Self = Self { days: 7 };

    /// `None` outside of [`Retention::DAYS`].
    pub fn of_days(days: u16) -> Option<Self> {
        Self::DAYS.contains(&days).then_some(Self { days })
    }

    /// The first day that is still kept on another day.
    fn first_kept(self, today: Date) -> Date {
        today.saturating_sub(time::Duration::days(i64::from(self.days)))
    }

    /// Looks after the days now, as a running ledger does every ten minutes.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn keep_now(self, database: &Database) -> Result<Kept, DatabaseError> {
        let pool = database.pool(1);
        let kept = self.keep(&pool, clock::now()).await?;
        pool.close().await;
        Ok(kept)
    }

    /// Makes tables for the days to come and drops those that are past; does nothing where another process is at it.
    ///
    /// # Errors
    /// What the database says; `lock_not_available` where requests kept it from the lock, which is worth another try.
    pub(crate) async fn keep(self, pool: &PgPool, now: OffsetDateTime) -> Result<Kept, sqlx::Error> {
        let today = now.to_offset(time::UtcOffset::UTC).date();
        let mut transaction = pool.begin().await?;
        let first = sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock($1) AS "first!""#, LOCK)
            .fetch_one(&mut *transaction)
            .await?;
        if !first {
            return Ok(Kept::default());
        }
        let last = today.saturating_add(time::Duration::days(DAYS_AHEAD));
        let added = sqlx::query_scalar!(r#"SELECT add_response_days($1, $2) AS "added!""#, today, last)
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        // In a transaction of its own, which ends as soon as the tables are gone: it locks what every request writes to.
        let dropped = sqlx::query_scalar!(r#"SELECT drop_response_days($1) AS "dropped!""#, self.first_kept(today))
            .fetch_one(pool)
            .await?;
        Ok(Kept { added, dropped })
    }

    /// Looks after the days until the task is ended.
    pub(crate) async fn run(self, pool: PgPool) {
        loop {
            let pause = match self.keep(&pool, clock::now()).await {
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
    fn an_answer_is_kept_for_the_whole_of_its_retention() {
        let day = |day| Date::from_calendar_date(2026, time::Month::March, day).unwrap();
        // What was answered late on the 2nd is seven days old late on the 9th, and goes on the 10th.
        assert_eq!(Retention::DEFAULT.first_kept(day(9)), day(2));
        assert_eq!(Retention::DEFAULT.first_kept(day(10)), day(3));
        assert_eq!(Retention::of_days(0), None);
    }
}
