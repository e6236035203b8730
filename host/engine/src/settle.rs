//! Writes what an execution came to, and what the plan says comes next, in one transaction.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::code::Code;
use counterfoil_domain::step::{Conclusion, StepError};
use counterfoil_domain::workflow::advance::{Event, advance};
use counterfoil_effects::Finished;
use counterfoil_store::StoreError;
use counterfoil_store::container::{Closes, Containers};
use counterfoil_store::settle::{
    BlockVerdict, Blocking, HandBack, OwnEffect, OwnWrite, RetryLater, RetryVerdict, SettleVerdict,
    SettledState, SettledStep, Settlement,
};
use counterfoil_store::step::Claimed;
use counterfoil_store::waiting::WaitEnd;
use serde_json::Value;

use crate::Inner;
use crate::context::RunState;
use crate::execute::Done;

/// Tries at a transaction that lost its connection or its race.
const TRIES: u32 = 4;
/// Pause between them.
const PAUSE: Duration = Duration::from_millis(200);

/// Ends the execution as it concluded. Returns the step that this host goes on with.
pub(crate) async fn apply(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
    done: Done,
) -> Option<Claimed> {
    let Done { conclusion, finished, logs } = done;
    let Finished { writes, own, lose, .. } = finished;
    let is_container = state.plan.node(&step.place.node).is_some_and(|node| node.kind.is_container());
    let closes = is_container.then_some(Closes::Cancelling);
    match conclusion {
        Conclusion::Succeed(output) => {
            let settled = Ending { output: Ok(output), writes, own, logs, closes, waited: None };
            settle(inner, step, state, settled).await
        }
        Conclusion::Fail(error) => {
            let settled = Ending { output: Err(error), writes, own: vec![], logs, closes, waited: None };
            settle(inner, step, state, settled).await
        }
        Conclusion::Retry { delay_ms, error } => {
            let retry = RetryLater {
                fence: step.fence,
                run: step.run,
                writes,
                lose,
                delay: Duration::from_millis(delay_ms),
                error: error.to_json(),
                logs,
                next_attempt: true,
            };
            match with_tries(|| inner.store.retry_later(&retry)).await {
                Ok(RetryVerdict::Waiting) => {}
                Ok(RetryVerdict::Lost) => inner.guard.record_alone(retry.writes).await,
                Ok(RetryVerdict::Rerun) => rerun(inner, step, retry.writes).await,
                Err(error) => unwritten(inner, step, retry.writes, &error).await,
            }
            None
        }
        Conclusion::Block(error) => {
            block(
                inner,
                step,
                Blocking { fence: step.fence, run: step.run, writes, lose, error: error.to_json(), logs },
            )
            .await;
            None
        }
        Conclusion::HandBack { delay_ms, why } => {
            tracing::info!(step = %step.fence.step, why, "a step is handed back");
            inner.guard.record_alone(writes).await;
            wait(inner, step, vec![], delay_ms, &why, false).await;
            None
        }
        Conclusion::Lose { why } => {
            tracing::warn!(step = %step.fence.step, losses = step.losses, why, "a step has lost what ran it");
            wait(inner, step, writes, 0, &why, true).await;
            None
        }
        Conclusion::Wait { delay_ms } => {
            let why = "it waits for its turn within the rate of a connection";
            wait(inner, step, writes, delay_ms, why, false).await;
            None
        }
        Conclusion::Leave => {
            inner.guard.record_alone(writes).await;
            None
        }
    }
}

/// How an execution ends that settles its step.
pub(crate) struct Ending {
    pub(crate) output: Result<Value, StepError>,
    pub(crate) writes: Vec<OwnWrite>,
    /// Only a step that succeeds changes anything of our own.
    pub(crate) own: Vec<OwnEffect>,
    pub(crate) logs: Option<Value>,
    /// The step is a container.
    pub(crate) closes: Option<Closes>,
    /// It waited for something from outside.
    pub(crate) waited: Option<WaitEnd>,
}

impl Ending {
    pub(crate) fn of(output: Result<Value, StepError>) -> Self {
        Self { output, writes: vec![], own: vec![], logs: None, closes: None, waited: None }
    }

    pub(crate) fn waited(output: Result<Value, StepError>, end: WaitEnd) -> Self {
        Self { waited: Some(end), ..Self::of(output) }
    }

    pub(crate) fn closing(output: Result<Value, StepError>, closes: Closes) -> Self {
        Self { closes: Some(closes), ..Self::of(output) }
    }
}

/// Settles the step, and returns the one that this host goes on with.
pub(crate) async fn settle(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
    ending: Ending,
) -> Option<Claimed> {
    let settlement = settlement(inner, step, state, ending);
    settle_as(inner, step, state, settlement).await
}

/// Settles the step in a way that is told already.
pub(crate) async fn settle_as(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
    settlement: Settlement,
) -> Option<Claimed> {
    match with_tries(|| inner.store.settle(&settlement)).await {
        Ok(SettleVerdict::Settled { next }) => {
            remember(state, &settlement);
            next
        }
        Ok(SettleVerdict::Lost) => {
            tracing::info!(step = %step.fence.step, "a step was settled by nobody: its lease had been lost");
            inner.guard.record_alone(settlement.writes).await;
            None
        }
        Ok(SettleVerdict::Unanswered) => {
            let error =
                StepError::new(Code::Unknown, "an effect of this step has no recorded answer").to_json();
            let Settlement { fence, run, writes, logs, .. } = settlement;
            block(inner, step, Blocking { fence, run, writes, lose: vec![], error, logs }).await;
            None
        }
        Ok(SettleVerdict::Rerun) => {
            rerun(inner, step, settlement.writes).await;
            None
        }
        Err(error) if error.is_transient() => {
            unwritten(inner, step, settlement.writes, &error).await;
            None
        }
        Err(error) => refused(inner, step, state, settlement, &error).await,
    }
}

/// The database will never take this settlement: the step fails instead of being tried for ever.
async fn refused(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &RunState,
    settlement: Settlement,
    error: &StoreError,
) -> Option<Claimed> {
    tracing::error!(step = %step.fence.step, error = error as &dyn std::error::Error, "the end of a step cannot be stored");
    let failure = StepError::new(Code::OutputInvalid, "what the step ended with cannot be stored");
    let Containers { closes, waited, .. } = settlement.containers;
    let ending =
        Ending { output: Err(failure), writes: settlement.writes, own: vec![], logs: None, closes, waited };
    let failed = self::settlement(inner, step, state, ending);
    match with_tries(|| inner.store.settle(&failed)).await {
        Ok(_) => None,
        Err(error) => {
            unwritten(inner, step, failed.writes, &error).await;
            None
        }
    }
}

pub(crate) fn settlement(inner: &Inner, step: &Claimed, state: &RunState, ending: Ending) -> Settlement {
    let Ending { output, writes, own, logs, closes, waited } = ending;
    let (node, iteration) = (step.place.node.as_str(), step.place.iteration.as_slice());
    let happened = match &output {
        Ok(output) => Event::Succeeded { node, iteration, output },
        Err(error) => Event::Failed { node, iteration, error },
    };
    let scope = match &output {
        Ok(output) => state.scope_behind(&step.place, output),
        Err(_) => state.scope(&step.place),
    };
    let next = advance(&state.plan, &scope, happened);
    let (settled_state, output, error) = match output {
        Ok(output) => (SettledState::Succeeded, Some(output), None),
        Err(error) => (SettledState::Failed, None, Some(error.to_json())),
    };
    Settlement {
        fence: step.fence,
        run: step.run,
        lineage: step.place.lineage,
        writes,
        own,
        settled: SettledStep {
            step: step.fence.step,
            node: node.into(),
            iteration: iteration.into(),
            state: settled_state,
            output,
            error,
            choice: None,
        },
        logs,
        inline: next.settled.into_iter().map(|settled| SettledStep::inline(step.run, settled)).collect(),
        containers: Containers {
            join: next.join,
            undone: next.undone,
            closes,
            waited,
            is_child: state.context.depth > 0,
        },
        open: next.open.into_iter().map(Into::into).collect(),
        keep: (!inner.stopping.is_cancelled() && !inner.held.has_its_share(&step.queue()))
            .then_some((inner.config.host, inner.config.lease)),
        end: next.end.map(Into::into),
    }
}

/// What the next step of the chain sees, without reading it again.
fn remember(state: &mut RunState, settlement: &Settlement) {
    let succeeded = std::iter::once(&settlement.settled).chain(&settlement.inline);
    for step in succeeded {
        if let (SettledState::Succeeded, Some(output)) = (&step.state, &step.output) {
            let key = (step.node.clone(), step.iteration.clone());
            state.context.outputs.push((key.0, key.1, output.clone(), step.choice.clone()));
        }
    }
}

async fn block(inner: &Inner, step: &Claimed, blocking: Blocking) {
    match with_tries(|| inner.store.block(&blocking)).await {
        Ok(BlockVerdict::Blocked) => {
            tracing::warn!(run = %step.run, step = %step.fence.step, "a step is blocked: the outcome of an effect is unknown");
        }
        Ok(BlockVerdict::Resumed) => {
            tracing::info!(step = %step.fence.step, "what was unknown has been settled meanwhile: the step goes on");
        }
        Ok(BlockVerdict::Lost) => inner.guard.record_alone(blocking.writes).await,
        Ok(BlockVerdict::Rerun) => rerun(inner, step, blocking.writes).await,
        Err(error) => unwritten(inner, step, blocking.writes, &error).await,
    }
}

async fn wait(inner: &Inner, step: &Claimed, writes: Vec<OwnWrite>, delay_ms: u64, why: &str, lost: bool) {
    let why = Some(StepError::new(Code::Unavailable, why).to_json());
    let back = HandBack { fence: step.fence, writes, delay: Duration::from_millis(delay_ms), why, lost };
    match with_tries(|| inner.store.hand_back_with(&back)).await {
        Ok(RetryVerdict::Waiting) => {}
        Ok(RetryVerdict::Lost) => inner.guard.record_alone(back.writes).await,
        Ok(RetryVerdict::Rerun) => rerun(inner, step, back.writes).await,
        Err(error) => unwritten(inner, step, back.writes, &error).await,
    }
}

/// A receipt that was to be written exists already: what was answered is kept, and the step runs again from its journal.
async fn rerun(inner: &Inner, step: &Claimed, writes: Vec<OwnWrite>) {
    inner.guard.record_alone(writes).await;
    hand_back(inner, step, Duration::ZERO).await;
}

async fn hand_back(inner: &Inner, step: &Claimed, delay: Duration) {
    if let Err(error) = with_tries(|| inner.store.hand_back(&step.fence, delay)).await {
        unwritten(inner, step, vec![], &error).await;
    }
}

/// Nothing of the end could be written: the lease runs out and the journal goes on from what is durable.
async fn unwritten(inner: &Inner, step: &Claimed, writes: Vec<OwnWrite>, error: &StoreError) {
    tracing::error!(
        step = %step.fence.step, error = error as &dyn std::error::Error,
        "the end of an execution could not be written; the step is taken over when its lease runs out"
    );
    inner.guard.record_alone(writes).await;
}

/// Tries a transaction again when its failure may pass. Each is fenced, so that one whose COMMIT came through unseen is
/// not done twice.
pub(crate) async fn with_tries<T, F>(transaction: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for _ in 1..TRIES {
        match transaction().await {
            Err(error) if error.is_transient() => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
    transaction().await
}
