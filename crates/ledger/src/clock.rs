//! Times as the ledger keeps and shows them: UTC, to the microsecond, as PostgreSQL stores them.

use serde::Serializer;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

/// RFC 3339 with six decimals and a `Z`, so that times sort as text.
const FORMAT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// Now, cut to the microsecond so that what is answered equals what is stored.
pub(crate) fn now() -> OffsetDateTime {
    let now = OffsetDateTime::now_utc();
    let excess = now.nanosecond().checked_rem(1000).unwrap_or(0);
    now.checked_sub(time::Duration::nanoseconds(i64::from(excess))).unwrap_or(now)
}

/// A time as clients see it: RFC 3339, UTC, ending in `Z`, microseconds.
pub fn format(time: OffsetDateTime) -> String {
    time.to_offset(UtcOffset::UTC).format(FORMAT).unwrap_or_default()
}

pub(crate) fn serialize<S: Serializer>(time: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*time))
}
