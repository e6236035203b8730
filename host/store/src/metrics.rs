//! What an operator watches.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Row;
use crate::step::Wait;
use crate::{Store, StoreError};

/// The state of the whole database, all tenants together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// Receipts whose outcome is unknown.
    pub unknown: u64,
    /// Age of the oldest of them, since it was sent.
    pub unknown_oldest: Option<Duration>,
    /// Open steps by what they wait for.
    pub open_steps: BTreeMap<&'static str, u64>,
    /// Events that are not published yet.
    pub pending_events: u64,
    /// For how long finished runs that are past their time may not have been forgotten; none where all are kept for ever.
    pub retention_lag: Option<Duration>,
}

impl Store {
    /// Counts what an operator watches.
    pub async fn counts(&self) -> Result<Counts, StoreError> {
        let row = Row { table: "counts of", id: "the database" };
        let unsigned = |column, count: i64| row.read(column, u64::try_from(count));
        let open = sqlx::query!(r#"SELECT wait, count(*) AS "count!" FROM open_steps GROUP BY wait"#)
            .fetch_all(self.reads())
            .await?;
        let mut open_steps: BTreeMap<_, _> = Wait::ALL.iter().map(|wait| (wait.name(), 0)).collect();
        for open in open {
            let wait = row.need("wait", Wait::from_name(&open.wait))?;
            open_steps.insert(wait.name(), unsigned("open_steps", open.count)?);
        }
        let rest = sqlx::query!(
            r#"SELECT u.unknown AS "unknown!", u.oldest_seconds,
                 (SELECT count(*) FROM events WHERE pending) AS "pending_events!"
             FROM (SELECT count(*) AS unknown,
                       EXTRACT(EPOCH FROM clock_timestamp() - min(dispatched_at))::float8 AS oldest_seconds
                   FROM receipts WHERE unresolved) u"#
        )
        .fetch_one(self.reads())
        .await?;
        Ok(Counts {
            unknown: unsigned("unknown", rest.unknown)?,
            unknown_oldest: rest
                .oldest_seconds
                .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
            open_steps,
            pending_events: unsigned("pending_events", rest.pending_events)?,
            retention_lag: self.retention_lag().await?,
        })
    }
}
