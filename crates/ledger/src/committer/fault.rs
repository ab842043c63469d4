//! What may go wrong with a batch, sorted by what must be done about it.

/// Why a batch did not commit.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Fewer records were inserted than sent, or an id of this batch stands already: another process owns a key, or an
    /// earlier run of the batch took effect after all. Rolled back; the look-up finds it next time.
    KeyTaken,
    /// Another process has given out the positions that this batch took to be free. Rolled back; they are read next time.
    PositionTaken,
    /// A lock, a deadlock or a resource of the server: rolled back, and worth another try.
    Retry,
    /// The schema changed under the session's prepared statements: the same batch on a new connection.
    SchemaChanged,
    /// The connection is gone before COMMIT was sent: nothing committed.
    Connection,
    /// COMMIT was sent, and whether it took effect isn't known.
    Unknown,
    /// Anything else: something in the batch, or a fault of ours.
    Poison(sqlx::Error),
}

impl Fault {
    /// The fault in one word, for metrics.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::KeyTaken => "key_taken",
            Self::PositionTaken => "position_taken",
            Self::Retry => "retry",
            Self::SchemaChanged => "schema_changed",
            Self::Connection => "connection",
            Self::Unknown => "unknown",
            Self::Poison(_) => "poison",
        }
    }

    /// Sorts an error of a statement before COMMIT.
    pub(crate) fn before_commit(error: sqlx::Error) -> Self {
        match code(&error).as_deref() {
            // lock_not_available, deadlock_detected, serialization_failure, query_canceled (the statement time-out).
            Some("55P03" | "40P01" | "40001" | "57014") => Self::Retry,
            // feature_not_supported ("cached plan must not change result type"), invalid_sql_statement_name.
            Some("0A000" | "26000") => Self::SchemaChanged,
            // invalid_transaction_state: ended by a time-out, read-only since a primary was demoted, or not as this code
            // believes it to be. Whatever it is, a new session is outside of it.
            Some(code) if code.starts_with("25") => Self::Connection,
            Some("23505") if made_before(&error) => Self::KeyTaken,
            Some("23505") if constraint(&error) == Some("outbox_position") => Self::PositionTaken,
            // No table for the answer's day: clocks differ, or the tables could not be looked after. They will be.
            Some("23514") if constraint(&error).is_none() => Self::Retry,
            Some(code) if is_connection(code) => Self::Connection,
            // insufficient_resources: disk full, out of memory, too many connections.
            Some(code) if code.starts_with("53") => Self::Retry,
            Some(_) => Self::Poison(error),
            None => Self::without_code(error, Self::Connection),
        }
    }

    /// Sorts an error of COMMIT itself. An error that the server reports means that it rolled back, unless the session
    /// was ended meanwhile or the server says that it doesn't know (40003).
    pub(crate) fn at_commit(error: sqlx::Error) -> Self {
        match code(&error).as_deref() {
            Some("40003") => Self::Unknown,
            Some(code) if is_connection(code) => Self::Unknown,
            Some(_) => Self::before_commit(error),
            None => Self::without_code(error, Self::Unknown),
        }
    }

    /// An error that no server sent: of the transport, where `transport` says what that means, or of our own making.
    fn without_code(error: sqlx::Error, transport: Self) -> Self {
        let ours = matches!(
            error,
            sqlx::Error::Encode(_)
                | sqlx::Error::Decode(_)
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::RowNotFound
        );
        if ours { Self::Poison(error) } else { transport }
    }
}

/// Whether a unique violation says that what this batch makes is there already.
fn made_before(error: &sqlx::Error) -> bool {
    constraint(error).is_some_and(|name| {
        // The answers of a day are a table of their own, whose key is named after it.
        name.starts_with("idempotency_responses_")
            || matches!(name, "transfers_id" | "accounts_id" | "postings_id" | "operations_id")
    })
}

fn constraint(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error().and_then(|error| error.constraint())
}

fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned())
}

/// connection_exception, admin_shutdown, crash_shutdown, cannot_connect_now.
fn is_connection(code: &str) -> bool {
    code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03")
}
