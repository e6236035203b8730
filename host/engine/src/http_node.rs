//! The `http` node: a call that the workflow's author wrote, through the same guard as a block's.

use std::sync::Arc;

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{
    Answer, EffectCall, EffectFailure, EffectReply, EffectRequest, HttpRequest, HttpResponse,
};
use counterfoil_domain::ports::{EffectPort as _, StepEnd};
use counterfoil_domain::receipt::answer::retry_after_ms;
use counterfoil_domain::step::{Circumstances, Conclusion, RetryPolicy, StepError, conclude, retry};
use counterfoil_domain::workflow::plan::RenderedHttp;
use counterfoil_effects::Finished;
use counterfoil_store::step::Claimed;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::Inner;
use crate::context::RunState;
use crate::execute::{Done, circumstances, execution_context};

/// Makes the node's one call.
pub(crate) async fn execute(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &RunState,
    lost: &CancellationToken,
) -> Done {
    let rendered = match state.plan.render_http(&step.place.node, &state.scope(&step.place)) {
        Ok(rendered) => rendered,
        Err(error) => {
            let error = StepError::new(error.code(), &error.to_string());
            return Done { conclusion: Conclusion::Fail(error), finished: Finished::default(), logs: None };
        }
    };
    inner.guard.begin(execution_context(step, state, None));
    let reply = tokio::select! {
        reply = inner.guard.perform(step.fence.lease, call(rendered)) => Some(reply),
        () = lost.cancelled() => None,
    };
    let finished = inner.guard.finish(step.fence.lease).await;
    let retry = state.plan.retry(&step.place.node).unwrap_or(RetryPolicy::NEVER);
    let circumstances = circumstances(step, &retry);
    let conclusion = match (reply, finished.stop.clone()) {
        (None, _) => Conclusion::Leave,
        (Some(_), stopped @ Some(_)) => conclude(StepEnd::Stopped, stopped, circumstances),
        (Some(reply), None) => replied(reply, circumstances),
    };
    Done { conclusion, finished, logs: None }
}

fn call(rendered: RenderedHttp) -> EffectCall {
    let RenderedHttp { method, url, headers, body, connection, safety, idempotency_key, timeout_ms } =
        rendered;
    EffectCall {
        request: EffectRequest::Http(HttpRequest { method, url, headers, body }),
        key: None,
        connection,
        safety,
        idempotency_key,
        timeout_ms,
        extra: vec![],
    }
}

fn replied(reply: EffectReply, circumstances: Circumstances<'_>) -> Conclusion {
    let failed = |error: StepError, after_ms: Option<Option<u64>>| match after_ms {
        Some(after_ms) => retry(error.clone(), after_ms, circumstances).unwrap_or(Conclusion::Fail(error)),
        None => Conclusion::Fail(error),
    };
    match reply {
        EffectReply::Answered(Answer::Http(response)) => Conclusion::Succeed(output(&response)),
        EffectReply::Failed(EffectFailure::Rejected(response)) => {
            let message = format!("the provider answered with status {}", response.status);
            let error = StepError::new(Code::HttpStatus, &message);
            failed(error, is_transient(response.status).then(|| retry_after_ms(&response.headers)))
        }
        EffectReply::Failed(EffectFailure::NotSent(message) | EffectFailure::NoAnswer(message)) => {
            failed(StepError::new(Code::NotSent, &message), Some(None))
        }
        EffectReply::Failed(EffectFailure::Denied(message)) => {
            failed(StepError::new(Code::Denied, &message), None)
        }
        EffectReply::Failed(EffectFailure::ResponseTooLarge(response)) => {
            let message = format!("the answer (status {}) is larger than can be kept", response.status);
            failed(StepError::new(Code::OutputTooLarge, &message), None)
        }
        EffectReply::Failed(EffectFailure::Limit(message)) => {
            failed(StepError::new(Code::EffectLimit, &message), None)
        }
        other @ (EffectReply::Answered(_) | EffectReply::Stop) => {
            let message = format!("an http effect came back as {other:?}");
            failed(StepError::new(Code::Internal, &message), None)
        }
    }
}

/// Known not to have been applied, and worth trying again.
fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

/// The node's output: status, headers by lower-case name, and the body as JSON where it is JSON, else as text.
fn output(response: &HttpResponse) -> Value {
    let headers: serde_json::Map<String, Value> = response
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), Value::String(value.clone())))
        .collect();
    let body = serde_json::from_slice::<Value>(&response.body)
        .ok()
        .filter(|body| !counterfoil_domain::step::holds_nul(body))
        .unwrap_or_else(|| Value::String(String::from_utf8_lossy(&response.body).replace('\0', "\u{fffd}")));
    json!({ "status": response.status, "headers": headers, "body": body })
}
