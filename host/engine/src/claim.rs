//! Takes due steps, as many as this host has room for, shared fairly among those that have any.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::fair_share::{Queue, Turns};
use counterfoil_domain::id::RunId;
use counterfoil_domain::ports::Site;
use counterfoil_store::StoreError;
use counterfoil_store::run::RunContext;
use counterfoil_store::step::{ClaimRequest, Claimed, Take};
use counterfoil_store::wake::Marks;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::held::Grant;
use crate::known::Known;
use crate::{Inner, homes};

/// Pause after a failed look, so that a database that is down is not hammered.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(500);

/// Between two looks of a host that has no room: a few short steps.
const LOOK_WHILE_FULL_EVERY: Duration = Duration::from_millis(50);

/// A look at everything takes at most this share of the time, however many tenants there are.
const LOOKING_SHARE: u32 = 20;

/// Claims and executes until `stop`.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let mut claimer = Claimer::new(inner);
    while !stop.is_cancelled() {
        // Only the wait for room is given up: a claim that was begun must be known of, or its steps count as lost.
        tokio::select! {
            () = stop.cancelled() => return,
            () = claimer.wait_for_room() => {}
        }
        let looked = match claimer.look().await {
            Ok(looked) => looked,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "due steps could not be claimed");
                // What is known may be wrong by now.
                claimer.look_at_all_at = Instant::now();
                Looked::Failed
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = claimer.wait(looked) => {}
        }
    }
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// Steps, and there may be more.
    Found,
    /// Nothing that is due and may be taken.
    Nothing,
    /// Something is due of those who have all that they may have.
    Capped,
    Failed,
}

struct Claimer {
    inner: Arc<Inner>,
    marks: Marks,
    known: Known,
    turns: Turns,
    look_at_all_at: Instant,
}

impl Claimer {
    fn new(inner: Arc<Inner>) -> Self {
        let marks = inner.store.marks();
        let (known, turns) = (Known::default(), Turns::default());
        Self { inner, marks, known, turns, look_at_all_at: Instant::now() }
    }

    /// Waits until another look may find something.
    async fn wait(&mut self, looked: Looked) {
        let until = self.known.next().map_or(self.look_at_all_at, |next| next.min(self.look_at_all_at));
        match looked {
            Looked::Found => {}
            Looked::Failed => tokio::time::sleep(PAUSE_AFTER_ERROR).await,
            Looked::Nothing | Looked::Capped => {
                tokio::select! {
                    () = self.marks.changed() => {}
                    () = self.inner.preparations.done() => self.look_at_all_at = Instant::now(),
                    () = self.inner.held.change(), if looked == Looked::Capped => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            }
        }
    }

    /// Learns what has become due.
    async fn learn(&mut self) -> Result<(), StoreError> {
        let learned = self.take_marks().await;
        if learned.is_err() {
            // What was marked is not known any more.
            self.look_at_all_at = Instant::now();
        }
        learned
    }

    async fn take_marks(&mut self) -> Result<(), StoreError> {
        let marked = self.marks.take();
        if marked.all || self.look_at_all_at <= Instant::now() {
            return self.look_at_all().await;
        }
        if !marked.tenants.is_empty() {
            let tenants: Vec<_> = marked.tenants.into_iter().collect();
            let lines = self.inner.store.due_of(&tenants).await?;
            self.known.learn(&lines, Instant::now());
        }
        for queue in marked.queues {
            self.known.mark(queue);
        }
        self.known.ripen(Instant::now());
        Ok(())
    }

    /// The safety net: everything is right with every wake-up lost.
    async fn look_at_all(&mut self) -> Result<(), StoreError> {
        let begun = Instant::now();
        let store = &self.inner.store;
        let (lines, shares) = tokio::try_join!(store.due(), store.shares())?;
        let now = Instant::now();
        self.known.learn_all(&lines, now);
        self.inner.held.share_by(Arc::new(shares));
        self.look_at_all_at = now + self.inner.config.poll_every.max((now - begun) * LOOKING_SHARE);
        Ok(())
    }

    async fn look(&mut self) -> Result<Looked, StoreError> {
        self.learn().await?;
        let inner = Arc::clone(&self.inner);
        // Counted after it was learnt what is due, and until what is claimed is held: runs begin here meanwhile as well.
        let granted = match inner.held.grant(self.known.due(), &mut self.turns, inner.config.in_flight_max) {
            Grant::Places(granted) => granted,
            Grant::NobodyIsDue => {
                inner.held.wait_with(std::iter::empty());
                return Ok(Looked::Nothing);
            }
            Grant::Capped => return Ok(Looked::Capped),
        };
        inner.faults.reach(Site::BeforeClaim);
        let takes: Vec<Take> =
            granted.places.iter().map(|(queue, places)| self.known.take(*queue, *places)).collect();
        let request = ClaimRequest {
            host: inner.config.host,
            lease: inner.config.lease,
            takes,
            without: inner.preparations.unrunnable(),
        };
        let begun = Instant::now();
        let claimed = inner.store.claim(&request).await?;
        // Held before anything else is waited for, so that the next renewal covers them and the next look counts them.
        let held: Vec<_> = claimed.iter().map(|step| inner.held.add(step.fence, step.queue())).collect();
        let is_full = granted.is_filled_by(claimed.len());
        drop(granted);
        let exhausted = self.known.taken(&request.takes, &claimed);
        // With what was claimed counted: whoever fills the host alone has nobody to make room for.
        inner.held.wait_with(self.known.due().filter(|_| is_full));
        // Where one line gave nothing, another may.
        let is_all = claimed.is_empty() && self.known.due().next().is_none();
        let looked = if is_all { Looked::Nothing } else { Looked::Found };
        begin(&inner, claimed, held).await;
        self.foresee(&exhausted, begun).await?;
        Ok(looked)
    }

    /// Finds out when lines become due again that had nothing due for a claim.
    async fn foresee(&mut self, exhausted: &[Queue], claim_begun: Instant) -> Result<(), StoreError> {
        if exhausted.is_empty() {
            return Ok(());
        }
        let next = self.inner.store.next_of(exhausted, claim_begun.elapsed()).await?;
        let now = Instant::now();
        for (queue, next_in) in exhausted.iter().zip(next) {
            self.known.foresee(*queue, next_in, now);
        }
        Ok(())
    }

    /// Waits until there is room for at least one more step. Meanwhile it looks whose work waits, so that those who have
    /// their share make room between two steps of a run.
    async fn wait_for_room(&mut self) {
        let mut looks = interval_at(Instant::now() + LOOK_WHILE_FULL_EVERY, LOOK_WHILE_FULL_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let inner = Arc::clone(&self.inner);
        loop {
            tokio::select! {
                biased;
                () = inner.held.room(inner.config.in_flight_max) => return,
                _ = looks.tick() => match self.learn().await {
                    Ok(()) => inner.held.wait_with(self.known.due()),
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "due steps could not be looked for");
                    }
                },
            }
        }
    }
}

/// Begins executions of what was claimed.
async fn begin(inner: &Arc<Inner>, claimed: Vec<Claimed>, held: Vec<CancellationToken>) {
    let mut runs = runs(inner, &claimed).await;
    for (step, lost) in claimed.into_iter().zip(held) {
        let key = (step.run, step.place.iteration.clone());
        homes::begin(inner, step, runs.remove(&key), lost);
    }
}

/// What is to be known of the runs of these steps, read at once. What is not here, the execution reads by itself.
async fn runs(inner: &Inner, claimed: &[Claimed]) -> HashMap<(RunId, Vec<u32>), RunContext> {
    if claimed.is_empty() {
        return HashMap::new();
    }
    let wanted: Vec<_> =
        claimed.iter().map(|step| (step.fence.tenant, step.run, step.place.iteration.clone())).collect();
    inner.store.run_contexts(&wanted).await.unwrap_or_else(|error| {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the runs of claimed steps could not be read at once"
        );
        HashMap::new()
    })
}
