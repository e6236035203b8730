//! The `worker` node: work for a worker outside the host, through the same guard as a block's effects; and what it came to.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{
    Answer, EffectCall, EffectFailure, EffectReply, EffectRequest, HttpResponse,
};
use counterfoil_domain::ports::{EffectPort as _, StepEnd};
use counterfoil_domain::step::{Circumstances, Conclusion, RetryPolicy, StepError, conclude, retry};
use counterfoil_domain::workflow::plan::RenderedTask;
use counterfoil_store::step::{Claimed, Wait};
use counterfoil_store::worker::TasksEnd;
use serde_json::Value;

use crate::Inner;
use crate::context::RunState;
use crate::execute::{Done, circumstances, execution_context};
use crate::settle::with_tries;

/// Whether what the step waited for is over: a worker's time, or what it said. If not, the step is let go again.
pub(crate) async fn is_over(inner: &Inner, step: &Claimed) -> bool {
    if step.wait != Wait::Worker {
        return true;
    }
    match with_tries(|| inner.store.end_tasks(&step.fence)).await {
        Ok(TasksEnd::Over) => true,
        Ok(TasksEnd::Waits | TasksEnd::Lost) => false,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(step = %step.fence.step, error, "a step cannot be looked after now; its lease runs out");
            false
        }
    }
}

/// Hands the node's work over, or takes what came of it.
pub(crate) async fn execute(inner: &Arc<Inner>, step: &Claimed, state: &RunState) -> Done {
    let rendered = match state.plan.render_task(&step.place.node, &state.scope(&step.place)) {
        Ok(rendered) => rendered,
        Err(error) => return Done::of(Conclusion::Fail(StepError::new(error.code(), &error.to_string()))),
    };
    inner.guard.begin(execution_context(step, state, None));
    let reply = inner.guard.perform(step.fence.lease, call(rendered)).await;
    let finished = inner.guard.finish(step.fence.lease).await;
    let policy = state.plan.retry(&step.place.node).unwrap_or(RetryPolicy::NEVER);
    let circumstances = circumstances(step, &policy);
    let conclusion = match finished.stop.clone() {
        stopped @ Some(_) => conclude(StepEnd::Stopped, stopped, circumstances),
        None => replied(reply, circumstances),
    };
    Done { conclusion, finished, logs: None }
}

fn call(rendered: RenderedTask) -> EffectCall {
    let RenderedTask { queue, input, safety, claim_within_ms, timeout_ms } = rendered;
    EffectCall {
        request: EffectRequest::Worker { queue, input: input.to_string() },
        key: None,
        connection: None,
        safety,
        idempotency_key: None,
        timeout_ms: u32::try_from(timeout_ms).ok(),
        extra: vec![("claim-within-ms".into(), claim_within_ms.to_string())],
    }
}

fn replied(reply: EffectReply, circumstances: Circumstances<'_>) -> Conclusion {
    let fail = |code, message: &str| Conclusion::Fail(StepError::new(code, message));
    match reply {
        EffectReply::Answered(Answer::Worker(output)) => Conclusion::Succeed(read(output)),
        EffectReply::Failed(EffectFailure::NotSent(message)) => {
            let error = StepError::new(Code::NotSent, &message);
            retry(error.clone(), None, circumstances).unwrap_or(Conclusion::Fail(error))
        }
        EffectReply::Failed(EffectFailure::Rejected(response)) => Conclusion::Fail(failure(&response)),
        EffectReply::Failed(EffectFailure::Denied(message)) => fail(Code::Denied, &message),
        EffectReply::Failed(EffectFailure::Limit(message)) => fail(Code::EffectLimit, &message),
        other => fail(Code::Internal, &format!("work for a worker came back as {other:?}")),
    }
}

/// A person who resolved the effect may have given what is no JSON.
fn read(output: String) -> Value {
    serde_json::from_str(&output).unwrap_or(Value::String(output))
}

/// What the worker said went wrong.
fn failure(response: &HttpResponse) -> StepError {
    let said: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let mut error =
        StepError::new(Code::WorkerFailed, said["message"].as_str().unwrap_or("the worker failed"));
    error.block_code = said["code"].as_str().map(str::to_owned);
    error
}
