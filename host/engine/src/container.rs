//! Containers, once parts of them are done: they go on, or are over.

use std::sync::Arc;

use counterfoil_domain::workflow::advance::{Continuation, Joined, RunEnd, SettledNode, joined};
use counterfoil_store::container::{Closes, Containers, GoOn, GoOnVerdict};
use counterfoil_store::settle::{SettledState, SettledStep, Settlement};
use counterfoil_store::step::Claimed;

use crate::Inner;
use crate::context::{LoadError, RunState};
use crate::settle::{Ending, settle, settle_as, with_tries};

/// Executes a container that is due. Returns the step that this host goes on with.
pub(crate) async fn execute(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
) -> Result<Option<Claimed>, LoadError> {
    let missing = LoadError::Missing { what: "a container", run: step.run };
    let progress = inner.store.progress(step.fence.tenant, step.fence.step).await?.ok_or(missing)?;
    // Read afterwards, so that what has been counted is seen.
    state.context = inner.plans.run_context(step).await?;
    let place = (step.place.node.as_str(), step.place.iteration.as_slice());
    let next = joined(&state.plan, &state.scope(&step.place), place, &progress);
    Ok(match next {
        Joined::Over { result, leaves } => {
            let closes = if leaves { Closes::Leaving } else { Closes::Cancelling };
            settle(inner, step, state, Ending::closing(result, closes)).await
        }
        Joined::Continues(more) => {
            go_on(inner, step, state, more).await?;
            None
        }
        Joined::Ended { settled, end } => {
            let settlement = ended(step, state.context.depth > 0, settled, end);
            settle_as(inner, step, state, settlement).await
        }
    })
}

async fn go_on(inner: &Inner, step: &Claimed, state: &RunState, more: Continuation) -> Result<(), LoadError> {
    let done = more.parts.iter().filter_map(|part| part.done(&state.plan, &step.place.node)).collect();
    let more = GoOn {
        fence: step.fence,
        run: step.run,
        lineage: step.place.lineage,
        inline: more.settled.into_iter().map(|settled| SettledStep::inline(step.run, settled)).collect(),
        open: more.open.into_iter().map(Into::into).collect(),
        parts: more.parts,
        done,
        tolerates: more.tolerates,
        undone: more.undone,
    };
    match with_tries(|| inner.store.go_on(&more)).await? {
        GoOnVerdict::Waiting => {}
        GoOnVerdict::Lost => tracing::info!(step = %step.fence.step, "a container went on elsewhere"),
    }
    Ok(())
}

/// A step inside ended the run, and the container with it.
fn ended(step: &Claimed, is_child: bool, settled: Vec<SettledNode>, end: RunEnd) -> Settlement {
    let inline = settled.into_iter().map(|settled| SettledStep::inline(step.run, settled)).collect();
    let closes = Some(Closes::Cancelling);
    Settlement {
        fence: step.fence,
        run: step.run,
        lineage: step.place.lineage,
        writes: vec![],
        own: vec![],
        settled: SettledStep {
            step: step.fence.step,
            node: step.place.node.clone(),
            iteration: step.place.iteration.clone(),
            state: SettledState::Cancelled,
            output: None,
            error: None,
            choice: None,
        },
        logs: None,
        inline,
        containers: Containers { closes, is_child, ..Containers::default() },
        open: vec![],
        keep: None,
        end: Some(end.into()),
    }
}
