//! The `workflow` node: a run of another workflow, and its end.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::code::Code;
use counterfoil_domain::expression::Scope;
use counterfoil_domain::id::{RunId, child_lineage};
use counterfoil_domain::limits::CHILD_DEPTH_MAX;
use counterfoil_domain::step::StepError;
use counterfoil_domain::workflow::advance::{Event, about_run, advance};
use counterfoil_store::run::RunState as RunStanding;
use counterfoil_store::settle::SettledStep;
use counterfoil_store::step::Claimed;
use counterfoil_store::waiting::{ChildAdmission, ChildRun, ChildVerdict, WaitEnd};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Inner;
use crate::context::{LoadError, RunState};
use crate::settle::{Ending, settle, with_tries};

/// Pause before a workflow that is paused is asked for again.
const PAUSED_PAUSE: Duration = Duration::from_secs(5);

/// Executes a `workflow`: it starts the run, or takes its end.
pub(crate) async fn execute(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
    (workflow, waits): (&str, bool),
) -> Result<Option<Claimed>, LoadError> {
    let ending = match inner.store.child(step.fence.tenant, step.fence.step).await? {
        Some(child) if !waits => Ending::waited(Ok(json!({ "run": child.run })), WaitEnd::Came),
        Some(child) => {
            let Some(result) = ended(child) else {
                said(step, with_tries(|| inner.store.wait_for_child(&step.fence)).await?);
                return Ok(None);
            };
            Ending::waited(result, WaitEnd::Came)
        }
        None => match admission(inner, step, state, workflow, waits).await? {
            Ok(child) => {
                said(step, with_tries(|| inner.store.start_child(&child)).await?);
                return Ok(None);
            }
            Err(Refused::Paused) => {
                inner.store.hand_back(&step.fence, PAUSED_PAUSE).await?;
                return Ok(None);
            }
            Err(Refused::Fails(error)) => Ending::of(Err(error)),
        },
    };
    Ok(settle(inner, step, state, ending).await)
}

fn said(step: &Claimed, verdict: ChildVerdict) {
    if verdict == ChildVerdict::Lost {
        tracing::info!(step = %step.fence.step, "a step waits for its run elsewhere");
    }
}

/// Why no run is started.
enum Refused {
    /// For now.
    Paused,
    Fails(StepError),
}

async fn admission(
    inner: &Inner,
    step: &Claimed,
    state: &RunState,
    workflow: &str,
    waits: bool,
) -> Result<Result<ChildAdmission, Refused>, LoadError> {
    let fails = |code, message: &str| Ok(Err(Refused::Fails(StepError::new(code, message))));
    let depth = state.context.depth + 1;
    if depth > CHILD_DEPTH_MAX {
        let message = format!("runs start runs at most {CHILD_DEPTH_MAX} deep");
        return fails(Code::WorkflowTooDeep, &message);
    }
    let tenant = step.fence.tenant;
    let active = match inner.store.active(tenant, workflow).await? {
        Some(active) if active.paused => return Ok(Err(Refused::Paused)),
        Some(active) => active,
        None => return fails(Code::WorkflowNotActive, &format!("no version of `{workflow}` is active")),
    };
    let input = match state.plan.render_input(&step.place.node, &state.scope(&step.place)) {
        Ok(input) => input,
        Err(error) => return fails(error.code(), &error.to_string()),
    };
    let run = RunId(Uuid::now_v7());
    let plan = inner.plans.plan(tenant, active.version, run).await?;
    let lineage = child_lineage(&step.place);
    let about = about_run(lineage);
    let first = advance(&plan, &Scope::new(&Value::Null, &input, &about), Event::Started);
    Ok(Ok(ChildAdmission {
        fence: step.fence,
        parent: step.run,
        waits,
        run,
        lineage,
        workflow: active.workflow,
        version: active.version,
        depth,
        inline: first.settled.into_iter().map(|settled| SettledStep::inline(run, settled)).collect(),
        open: first.open.into_iter().map(Into::into).collect(),
        end: first.end.map(Into::into),
        input,
    }))
}

/// What the end of a run means for the step that waited for it; none if it has not ended.
fn ended(child: ChildRun) -> Option<Result<Value, StepError>> {
    let ChildRun { run, ended, output, error } = child;
    let failed = |how: String| Some(Err(StepError::new(Code::ChildFailed, &format!("{run} {how}"))));
    match ended? {
        RunStanding::Succeeded => Some(Ok(output.unwrap_or(Value::Null))),
        RunStanding::Cancelled => failed("was cancelled".into()),
        _ => {
            let error = error.unwrap_or_default();
            let told = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
            failed(format!("failed at `{}`: {} ({})", told("node"), told("message"), told("code")))
        }
    }
}

/// Cancels the runs whose parents were cancelled, until `stop`.
pub(crate) async fn cancel(inner: Arc<Inner>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match inner.store.cancel_due().await {
            // One that is cancelled may have had some of its own.
            Ok(cancelled) if cancelled > 0 => continue,
            Ok(_) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "runs whose parents were cancelled could not be cancelled");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            // No wake-up announces these: they are rare, and a look at every wake-up would be many.
            () = tokio::time::sleep(inner.config.poll_every) => {}
        }
    }
}
