//! What can go wrong between this room and the database.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use sqlx::migrate::MigrateError;

/// A statement or a row that failed.
///
/// A lost compare-and-swap, a missing row and a refused change are not errors: they are the verdicts of the functions
/// that meet them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database refused a statement, or could not be reached.
    #[error("the database did not carry out a statement")]
    Database(#[from] sqlx::Error),
    /// The database let nobody in.
    #[error("no connection could be made: {0}")]
    Unreachable(sqlx::Error),
    /// It did not even say that.
    #[error("no connection within {} s: nothing answers there, or all connections that it allows are taken", .0.as_secs())]
    Silent(Duration),
    /// The migrations could not be applied.
    #[error("the migrations could not be applied")]
    Migrate(#[from] MigrateError),
    /// A row holds what no version of this program writes.
    #[error("column {column} of {table} {row} cannot be read")]
    Undecodable {
        /// Table that the row is in.
        table: &'static str,
        /// Column that cannot be read.
        column: &'static str,
        /// The row's own id.
        row: String,
        /// Why it cannot be read.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A receipt with this id exists for another request or another place: ids are digests, so one of them is wrong.
    #[error("receipt {receipt} exists with another {what}")]
    IdentityMismatch {
        /// The receipt.
        receipt: counterfoil_domain::id::EffectId,
        /// The first field that differs.
        what: &'static str,
    },
    /// The caller wrote down something that the tables cannot hold.
    #[error("a caller's value cannot be stored: {0}")]
    Unstorable(&'static str),
    /// A list was asked to go on from somewhere that no list has been.
    #[error("the cursor is not one that a list gave out")]
    InvalidCursor,
    /// The work that a transaction was given to ended without an answer.
    #[error("a database task ended without an answer")]
    TaskLost,
}

/// SQLSTATE classes and codes after which the same call may well succeed.
///
/// Source: Postgres documentation, appendix A.
const TRANSIENT: [&str; 8] = [
    "08",    // connection exceptions
    "40001", // serialization failure
    "40P01", // deadlock detected
    "53",    // insufficient resources
    "55P03", // lock timeout
    "57014", // statement timeout
    "57P",   // shutdown, crash, not yet accepting connections
    "25P03", // idle in transaction timeout
];

impl StoreError {
    /// Whether the same call may succeed if it is made again, unchanged.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Database(error)
            | Self::Unreachable(error)
            | Self::Migrate(MigrateError::Execute(error)) => is_transient(error),
            Self::TaskLost | Self::Silent(_) => true,
            Self::Migrate(_)
            | Self::Undecodable { .. }
            | Self::IdentityMismatch { .. }
            | Self::Unstorable(_)
            | Self::InvalidCursor => false,
        }
    }

    /// Whether the statement may have been carried out all the same, and only its answer been lost.
    pub(crate) fn leaves_it_open(&self) -> bool {
        self.is_transient() && !matches!(self, Self::Database(sqlx::Error::PoolTimedOut))
    }
}

fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(refused) => {
            refused.code().is_some_and(|code| TRANSIENT.iter().any(|prefix| code.starts_with(prefix)))
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed
        // What a connection that was cut in the middle of a message leaves behind.
        | sqlx::Error::Protocol(_) => true,
        _ => false,
    }
}

/// One row that is being read, so that what cannot be read can be named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<I> {
    pub(crate) table: &'static str,
    pub(crate) id: I,
}

impl<I: fmt::Display> Row<I> {
    /// The value of a column, where there must be one.
    pub(crate) fn need<T>(&self, column: &'static str, value: Option<T>) -> Result<T, StoreError> {
        value.ok_or_else(|| self.undecodable(column, None))
    }

    /// A column that was converted.
    pub(crate) fn read<T, E>(&self, column: &'static str, value: Result<T, E>) -> Result<T, StoreError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        value.map_err(|source| self.undecodable(column, Some(source.into())))
    }

    fn undecodable(&self, column: &'static str, source: Option<Box<dyn Error + Send + Sync>>) -> StoreError {
        StoreError::Undecodable { table: self.table, column, row: self.id.to_string(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_transient() {
        for (error, transient) in [
            (StoreError::Database(sqlx::Error::PoolTimedOut), true),
            (StoreError::Database(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())), true),
            (StoreError::Database(sqlx::Error::RowNotFound), false),
            (StoreError::TaskLost, true),
            (StoreError::InvalidCursor, false),
            (Row { table: "runs", id: "run_1" }.need::<()>("state", None).expect_err("none"), false),
        ] {
            assert_eq!(error.is_transient(), transient, "{error:?}");
        }
    }

    #[test]
    fn an_unreadable_row_says_which() {
        let row = Row { table: "receipts", id: "eff_1" };
        let error = row.read("kind", Err::<(), _>("no such kind")).expect_err("unreadable");
        assert_eq!(error.to_string(), "column kind of receipts eff_1 cannot be read");
        assert_eq!(error.source().map(ToString::to_string), Some("no such kind".into()));
    }
}
