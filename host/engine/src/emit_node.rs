//! The `emit` node: an event that the workflow's author wrote, recorded with the end of its step.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, EffectCall, EffectFailure, EffectReply, EffectRequest};
use counterfoil_domain::ports::{EffectPort as _, StepEnd};
use counterfoil_domain::step::{Conclusion, RetryPolicy, StepError, conclude};
use counterfoil_domain::workflow::plan::RenderedEvent;
use counterfoil_store::step::Claimed;
use serde_json::Value;

use crate::Inner;
use crate::context::RunState;
use crate::execute::{Done, circumstances, execution_context};

/// Emits the node's one event, through the same guard as a block's.
pub(crate) async fn execute(inner: &Arc<Inner>, step: &Claimed, state: &RunState) -> Done {
    let rendered = match state.plan.render_event(&step.place.node, &state.scope(&step.place)) {
        Ok(rendered) => rendered,
        Err(error) => return Done::of(Conclusion::Fail(StepError::new(error.code(), &error.to_string()))),
    };
    inner.guard.begin(execution_context(step, state, None));
    let reply = inner.guard.perform(step.fence.lease, call(rendered)).await;
    let finished = inner.guard.finish(step.fence.lease).await;
    let conclusion = match (reply, finished.stop.clone()) {
        (_, stopped @ Some(_)) => {
            conclude(StepEnd::Stopped, stopped, circumstances(step, &RetryPolicy::NEVER))
        }
        (EffectReply::Answered(Answer::Emitted), None) => Conclusion::Succeed(Value::Null),
        (EffectReply::Failed(EffectFailure::Denied(why)), None) => {
            Conclusion::Fail(StepError::new(Code::Denied, &why))
        }
        (other, None) => {
            let message = format!("an emit effect came back as {other:?}");
            Conclusion::Fail(StepError::new(Code::Internal, &message))
        }
    };
    Done { conclusion, finished, logs: None }
}

fn call(RenderedEvent { event_type, record, data }: RenderedEvent) -> EffectCall {
    EffectCall {
        request: EffectRequest::Emit { event_type, record_id: record, data: data.to_string() },
        key: None,
        connection: None,
        safety: None,
        idempotency_key: None,
        timeout_ms: None,
        extra: vec![],
    }
}
