//! Transactions, opened so that a caller may be dropped at any await.

use sqlx::{PgPool, Postgres, Transaction};

use crate::StoreError;

/// A transaction that is rolled back when it is dropped.
pub(crate) type Tx = Transaction<'static, Postgres>;

/// Begins a transaction.
///
/// A `begin` that is dropped between its BEGIN and the answer leaves the connection in a transaction that nobody knows
/// of, and the pool hands it to the next caller. In a task of its own it is never dropped there: if the caller is gone
/// when it is done, the transaction is dropped whole, and that rolls it back.
pub(crate) async fn begin(pool: &PgPool) -> Result<Tx, StoreError> {
    let pool = pool.clone();
    let begun = tokio::spawn(async move { pool.begin().await });
    Ok(begun.await.map_err(|_| StoreError::TaskLost)??)
}

/// Rolls back, and passes the verdict on. A transaction that is only dropped holds its locks until its connection is
/// back in the pool, and a claim passes over what is locked.
pub(crate) async fn undo<T>(tx: Tx, verdict: T) -> Result<T, StoreError> {
    tx.rollback().await?;
    Ok(verdict)
}
