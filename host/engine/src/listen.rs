//! The nodes that wait for a signal, an event or a person.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::code::Code;
use counterfoil_domain::expression::Scope;
use counterfoil_domain::id::ApprovalId;
use counterfoil_domain::step::StepError;
use counterfoil_domain::workflow::plan::{Listened, PlanApproval, PlanListen};
use counterfoil_store::step::Claimed;
use counterfoil_store::waiting::{ApprovalOutcome, Await, AwaitVerdict, Awaited, SignalRow, WaitEnd};
use serde_json::{Value, json};

use crate::Inner;
use crate::context::{LoadError, RunState};
use crate::settle::{Ending, settle, with_tries};

/// Executes a `listen`: it begins to wait, or takes what has come.
pub(crate) async fn listen(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
    (listen, has_branch): (&PlanListen, bool),
) -> Result<Option<Claimed>, LoadError> {
    let waiting = inner.store.waiting(step.fence.tenant, step.fence.step).await?;
    let (signals, is_over) = waiting.map_or((vec![], false), |waiting| (waiting.signals, waiting.is_over));
    let scope = state.scope(&step.place);
    let ending = if let Some(signal) = signals.iter().find(|signal| listen.takes(&scope, &shown(signal))) {
        let mut output = shown(signal);
        output["timed_out"] = false.into();
        Ending::waited(Ok(output), WaitEnd::Takes(signal.id))
    } else {
        let seen = i64::try_from(signals.len()).unwrap_or(i64::MAX);
        match awaited(listen, &scope) {
            _ if is_over => Ending::waited(timed_out(has_branch), WaitEnd::TimedOut { seen }),
            Ok(what) => {
                wait(inner, step, what, listen.timeout_ms, seen).await?;
                return Ok(None);
            }
            Err(error) => Ending::waited(Err(error), WaitEnd::Came),
        }
    };
    Ok(settle(inner, step, state, ending).await)
}

/// Executes an `approval`: it asks, or takes what was decided.
pub(crate) async fn approval(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
    (approval, has_branch): (&PlanApproval, bool),
) -> Result<Option<Claimed>, LoadError> {
    let (tenant, id) = (step.fence.tenant, step.fence.step);
    let waiting = inner.store.waiting(tenant, id).await?;
    let asked = inner.store.approval(tenant, ApprovalId(id.0)).await?;
    let ending = match (waiting, asked) {
        (Some(_), Some(asked)) if asked.decided_by.is_some() => {
            let output = json!({
                "approved": asked.outcome == Some(ApprovalOutcome::Approved),
                "by": asked.decided_by,
                "at": asked.decided_at,
                "answer": asked.answer,
                "timed_out": false,
            });
            Ending::waited(Ok(output), WaitEnd::Came)
        }
        (Some(waiting), Some(_)) if waiting.is_over => {
            Ending::waited(timed_out(has_branch), WaitEnd::Expired)
        }
        _ => match approval.render(&state.scope(&step.place)) {
            Ok((title, detail)) => {
                let node = step.place.node.clone();
                let what = Awaited::Approval { node, title, detail, form: approval.form.clone() };
                wait(inner, step, what, approval.deadline_ms, 0).await?;
                return Ok(None);
            }
            Err(error) => Ending::of(Err(StepError::new(error.code(), &error.to_string()))),
        },
    };
    Ok(settle(inner, step, state, ending).await)
}

async fn wait(
    inner: &Inner,
    step: &Claimed,
    what: Awaited,
    timeout_ms: Option<u64>,
    seen: i64,
) -> Result<(), LoadError> {
    let timeout = timeout_ms.map(Duration::from_millis);
    let wish = Await { fence: step.fence, run: step.run, what, timeout, seen };
    match with_tries(|| inner.store.wait_for(&wish)).await? {
        AwaitVerdict::Waiting => {}
        AwaitVerdict::Lost => tracing::info!(step = %step.fence.step, "a step waits elsewhere"),
    }
    Ok(())
}

fn awaited(listen: &PlanListen, scope: &Scope<'_>) -> Result<Awaited, StepError> {
    Ok(match &listen.what {
        Listened::Signal(name) => Awaited::Signal { name: name.clone() },
        Listened::Event(event_type) => {
            let record =
                listen.record(scope).map_err(|error| StepError::new(error.code(), &error.to_string()))?;
            Awaited::Event { event_type: event_type.clone(), record }
        }
    })
}

/// As expressions read it, and as the step hands it on.
fn shown(signal: &SignalRow) -> Value {
    json!({
        "name": signal.name,
        "record": signal.record,
        "data": signal.data,
        "received_at": signal.received_at,
    })
}

/// With a branch for it, that nothing came is an output like another.
fn timed_out(has_branch: bool) -> Result<Value, StepError> {
    if has_branch {
        return Ok(json!({ "timed_out": true }));
    }
    Err(StepError::new(Code::TimedOut, "what the step waited for did not come in time"))
}
