//! Admits an event to a workflow: a run, or the reason why not.

use counterfoil_domain::code::Code;
use counterfoil_domain::expression::Scope;
use counterfoil_domain::id::RunId;
use counterfoil_domain::workflow::advance::{Event, about_run, advance};
use counterfoil_domain::workflow::definition::DedupMode;
use counterfoil_domain::workflow::plan::{Plan, PlanTrigger};
use counterfoil_store::admission::{Admission, Admitted, Refusal};
use counterfoil_store::event::{Binding, HeldEvent};
use counterfoil_store::run::Trigger;
use counterfoil_store::settle::SettledStep;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Inner;
use crate::context::LoadError;

/// Admits `event` to the workflow of these bindings, by the first of its triggers that fits; or returns the reason why not,
/// which is still to be kept. A redelivery finds what the first delivery did.
pub(crate) async fn event(
    inner: &Inner,
    event: &HeldEvent,
    bindings: &[Binding],
) -> Result<Option<Refusal>, LoadError> {
    let data = match (&event.data, bindings) {
        (Ok(data), _) => data,
        (Err(why), [first, ..]) => {
            let detail = format!("its data cannot be read: {why}");
            return Ok(Some(refusal(event, first, Code::OutputInvalid, detail)));
        }
        (Err(_), []) => return Ok(None),
    };
    let run = RunId(Uuid::now_v7());
    let seen = as_expressions_see_it(event, data);
    let mut refused = None;
    for binding in bindings {
        let plan = inner.plans.plan(event.tenant, binding.version, run).await?;
        let judged = match plan.triggers().get(binding.ordinal as usize) {
            Some(trigger) => judge(binding, trigger, &seen),
            None => Err((Code::RuleNotMatched, "the workflow has no such trigger any more".into())),
        };
        match judged {
            Ok((record, dedup)) => {
                let admission = admission(run, event, binding, &plan, (seen, data.clone()), record, dedup);
                return admit(inner, event, binding, &admission).await;
            }
            // The reason of the first trigger stands for all of them.
            Err(reason) => drop(refused.get_or_insert((binding, reason))),
        }
    }
    Ok(refused.map(|(binding, (code, detail))| refusal(event, binding, code, detail)))
}

async fn admit(
    inner: &Inner,
    event: &HeldEvent,
    binding: &Binding,
    admission: &Admission,
) -> Result<Option<Refusal>, LoadError> {
    match inner.store.admit(admission).await {
        Ok(Admitted::Refused { code, detail }) => {
            tracing::info!(event = %event.id, workflow = binding.workflow_name, %code, detail, "an event starts no run");
            Ok(None)
        }
        Ok(Admitted::Started(_) | Admitted::Begun { .. } | Admitted::Exists(_)) => Ok(None),
        Err(error) if error.is_transient() => Err(error.into()),
        // What the workflow made of the event will never fit: a refusal, rather than an event that is tried for ever.
        Err(error) => {
            tracing::error!(event = %event.id, error = &error as &dyn std::error::Error, "a run cannot be stored");
            let detail = "the event, or what the first steps came to, cannot be stored";
            Ok(Some(refusal(event, binding, Code::OutputInvalid, detail.into())))
        }
    }
}

/// The record and the mode that apply, or why there is no run.
fn judge(
    binding: &Binding,
    trigger: &PlanTrigger,
    event: &Value,
) -> Result<(Option<String>, DedupMode), (Code, String)> {
    if binding.paused {
        return Err((Code::WorkflowPaused, "the workflow is paused".into()));
    }
    let failed = |error: counterfoil_domain::expression::EvaluationError| (error.code(), error.to_string());
    if !trigger.holds(event).map_err(failed)? {
        return Err((Code::RuleNotMatched, "the trigger's condition does not hold".into()));
    }
    let record = trigger.record(event).map_err(failed)?;
    // A trigger that names no record speaks of the event's own.
    let record = record.or_else(|| match &trigger.record {
        Some(_) => None,
        None => event["record"].as_str().map(Into::into),
    });
    if record.is_none() && trigger.dedup != DedupMode::EveryTime {
        let asked = trigger.record.as_ref().map_or_else(
            || "it and the event name no record".to_owned(),
            |record| format!("its `record: {}` names none in this event", record.source()),
        );
        let detail = format!("the trigger is `{}`, and {asked}", trigger.dedup.name());
        return Err((Code::MissingRecordIdentity, detail));
    }
    Ok((record, trigger.dedup))
}

fn admission(
    run: RunId,
    event: &HeldEvent,
    binding: &Binding,
    plan: &Plan,
    (seen, input): (Value, Value),
    record: Option<String>,
    dedup: DedupMode,
) -> Admission {
    let about = about_run(run.0.into());
    let first = advance(plan, &Scope::new(&seen, &input, &about), Event::Started);
    Admission {
        tenant: event.tenant,
        run,
        workflow: binding.workflow,
        version: binding.version,
        start_key: format!("workflow_event:{}", event.id),
        trigger: Trigger::Event { event: event.id, ordinal: binding.ordinal },
        record,
        dedup,
        inline: first.settled.into_iter().map(|settled| SettledStep::inline(run, settled)).collect(),
        open: first.open.into_iter().map(Into::into).collect(),
        end: first.end.map(Into::into),
        event: seen,
        input,
    }
}

fn refusal(event: &HeldEvent, binding: &Binding, code: Code, detail: String) -> Refusal {
    let Binding { workflow, version, .. } = *binding;
    Refusal { tenant: event.tenant, event: event.id, workflow, version, code, detail }
}

fn as_expressions_see_it(event: &HeldEvent, data: &Value) -> Value {
    json!({
        "id": event.id,
        "type": event.event_type,
        "record": event.record,
        "data": data,
        "recorded_at": event.recorded_at,
    })
}
