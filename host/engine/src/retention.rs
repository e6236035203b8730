//! Forgets what is past its time, a little at a time, and rests in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use counterfoil_domain::limits::REPLAYABLE_FOR;
use counterfoil_store::StoreError;
use counterfoil_store::retention::Retention;
use tokio_util::sync::CancellationToken;

use crate::Inner;

/// Between two walks through the runs of one tenant, and two rounds through the rest: short beside a day, which is the least that
/// anything is kept.
const WALK_EVERY: Duration = Duration::from_mins(10);
/// Between two looks whether a walk is due.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// Runs that one transaction looks at.
const PAGE: u32 = 100;
/// Rows of other tables: each is one, and no more goes with it than what it came to for each workflow.
const PRUNE_PAGE: u32 = 500;
/// For each moment of work, so many of rest: a host spends a fifth of one connection on it, and less where the database is
/// busy.
const RESTS: u32 = 4;
/// Rest at least, so that what is quick is no flood.
const REST_MIN: Duration = Duration::from_millis(10);

/// Forgets until `stop`.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let retention = Retention {
        keep: inner.config.keep,
        replayable_for: REPLAYABLE_FOR,
        walk_every: WALK_EVERY,
        page: PAGE,
        prune_page: PRUNE_PAGE,
    };
    let mut is_resting = true;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let rest = match forget(&inner, &retention, is_resting).await {
            Ok(did) => {
                is_resting = !did;
                if did { (began.elapsed() * RESTS).max(REST_MIN) } else { LOOK_EVERY }
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "what is past its time could not be forgotten");
                is_resting = true;
                LOOK_EVERY
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(rest) => {}
        }
    }
}

/// Forgets a few runs, clears away some of what is left of those before, and prunes a page of the rest. False if there was nothing to do.
async fn forget(inner: &Inner, retention: &Retention, looks_anew: bool) -> Result<bool, StoreError> {
    if looks_anew {
        inner.store.set_out_walks(retention).await?;
    }
    let walked = inner.store.walk(retention, Utc::now()).await?;
    if let Some(walked) = walked.filter(|walked| walked.forgotten > 0) {
        tracing::debug!(runs = walked.forgotten, "finished runs were past their time and are forgotten");
    }
    let cleared = inner.store.clear_forgotten().await?;
    let pruned = inner.store.prune(retention).await?;
    if let Some(pruned) = pruned.filter(|pruned| pruned.gone > 0) {
        tracing::debug!(
            what = pruned.what.name(),
            rows = pruned.gone,
            "rows were past their time and are gone"
        );
    }
    Ok(walked.is_some() || cleared || pruned.is_some())
}
