//! What is measured beside the money path: what only PostgreSQL can tell, at a pace that it doesn't notice.

use std::time::{Duration, Instant};

use metrics::gauge;
use sqlx::PgPool;
use time::OffsetDateTime;

use crate::audit;

/// How often PostgreSQL is asked whether it is there, what time it is and what is unfinished.
const TURN: Duration = Duration::from_secs(5);
/// Every so many turns, what changes slowly and costs more to ask: once a minute.
const SLOW_EVERY: u32 = 12;
/// How long one turn may take before PostgreSQL counts as gone.
const TURN_TIMEOUT: Duration = Duration::from_secs(4);

/// Measures until the task is ended.
pub(crate) async fn run(pool: PgPool) {
    let mut turn = 0_u32;
    loop {
        let slow = turn.checked_rem(SLOW_EVERY) == Some(0);
        let measured = tokio::time::timeout(TURN_TIMEOUT, measure(&pool, slow)).await;
        gauge!("oncepost_database_up").set(if matches!(measured, Ok(Ok(()))) { 1.0 } else { 0.0 });
        match measured {
            Ok(Ok(())) => turn = turn.wrapping_add(1),
            // What costs more is asked first once PostgreSQL is back.
            Ok(Err(_)) | Err(_) => turn = 0,
        }
        tokio::time::sleep(TURN).await;
    }
}

async fn measure(pool: &PgPool, slow: bool) -> Result<(), sqlx::Error> {
    // Before the clocks are compared, so that opening a session doesn't count as a difference.
    let mut connection = pool.acquire().await?;
    let asked_at = (OffsetDateTime::now_utc(), Instant::now());
    let row = sqlx::query!(
        r#"SELECT clock_timestamp() AS "now!", count(o.id) AS "unfinished!", min(o.created_at) AS oldest
           FROM operations o WHERE o.status = 'processing'"#
    )
    .fetch_one(&mut *connection)
    .await?;
    let half_way = asked_at.0 + asked_at.1.elapsed() / 2;
    gauge!("oncepost_clock_skew_seconds").set((half_way - row.now).as_seconds_f64());
    gauge!("oncepost_operations_unfinished").set(whole(row.unfinished));
    let age = row.oldest.map_or(0.0, |oldest| (row.now - oldest).as_seconds_f64());
    gauge!("oncepost_operations_oldest_seconds").set(age.max(0.0));
    if !slow {
        return Ok(());
    }
    let days = sqlx::query_scalar!(
        r#"SELECT coalesce((now() AT TIME ZONE 'UTC')::date - to_date(right(min(c.relname), 8), 'YYYYMMDD') + 1, 0)::bigint
             AS "days!" FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
           WHERE i.inhparent = 'idempotency_responses'::regclass"#
    )
    .fetch_one(&mut *connection)
    .await?;
    gauge!("oncepost_answer_days").set(whole(days));
    let tables = sqlx::query!(
        r#"SELECT t.name AS "name!", sum(pg_total_relation_size(p.relid))::bigint AS "bytes!"
           FROM unnest(ARRAY['accounts', 'transfers', 'postings', 'idempotency_records', 'idempotency_responses', 'outbox'])
               AS t (name),
             LATERAL (SELECT relid FROM pg_partition_tree(t.name::regclass)
                      UNION SELECT t.name::regclass) p
           GROUP BY t.name"#
    )
    .fetch_all(&mut *connection)
    .await?;
    for table in tables {
        gauge!("oncepost_table_bytes", "table" => table.name).set(whole(table.bytes));
    }
    audit::show_last(&mut connection).await
}

/// Gauges are floats: exact up to 2^53, and beyond 2^32 nobody reads the last digits. No `as` in this crate, so a number is
/// put together from its halves.
pub(crate) fn whole(number: i64) -> f64 {
    let number = u64::try_from(number).unwrap_or(0);
    let high = u32::try_from(number >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    f64::from(high).mul_add(4_294_967_296.0, f64::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_gauges_as_they_are() {
        for number in [0, 1, 4_294_967_295, 4_294_967_296, 9_007_199_254_740_991] {
            assert_eq!(format!("{:.0}", whole(number)), number.to_string());
        }
        assert_eq!(whole(-1), 0.0);
    }
}
