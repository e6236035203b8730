//! One execution of a step, and of the steps of its run that this host keeps after it.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::block::{Descriptor, WantedLimits};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{Digest, TenantId};
use counterfoil_domain::limits::{HOST_LOSSES_MAX, PAYLOAD_BYTES_MAX, StepLimits};
use counterfoil_domain::ports::{StepJob, StepReport, Unprepared};
use counterfoil_domain::receipt::identity::guest_seed;
use counterfoil_domain::step::{Circumstances, Conclusion, RetryPolicy, StepError, conclude};
use counterfoil_domain::workflow::plan::NodeKind;
use counterfoil_effects::{ExecutionContext, Finished};
use counterfoil_store::run::RunContext;
use counterfoil_store::step::{Claimed, Fence};
use serde_json::Value;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::context::{KnownBlock, LoadError, RunState};
use crate::{Inner, child, container, emit_node, http_node, listen, settle, worker_node};

/// Pause before a step whose run could not be read is offered again.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(2);

/// What an execution came to, with everything that is to be written at its end.
pub(crate) struct Done {
    pub(crate) conclusion: Conclusion,
    pub(crate) finished: Finished,
    pub(crate) logs: Option<Value>,
}

impl Done {
    pub(crate) fn of(conclusion: Conclusion) -> Self {
        Self { conclusion, finished: Finished::default(), logs: None }
    }
}

/// Executes a claimed step of a run that is known or not, settles it, and goes on with the step that follows as long as
/// this host keeps it.
pub(crate) async fn run(
    inner: &Arc<Inner>,
    claimed: Claimed,
    mut known: Option<RunContext>,
    lost: CancellationToken,
) {
    let mut current = Some((claimed, lost));
    let mut state = None;
    while let Some((step, lost)) = current.take() {
        let _holding = Holding { inner, fence: step.fence };
        let next = one(inner, &step, &lost, known.take(), &mut state).await;
        // Held before the old lease is let go, so that a host that stops sees the chain.
        current = next.map(|next| {
            let lost = inner.held.add(next.fence, next.queue());
            (next, lost)
        });
    }
}

/// Lets a lease go when it is dropped: an execution that panics would hold its place, and be renewed, for ever.
struct Holding<'a> {
    inner: &'a Inner,
    fence: Fence,
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.inner.held.remove(&self.fence);
    }
}

async fn one(
    inner: &Arc<Inner>,
    step: &Claimed,
    lost: &CancellationToken,
    known: Option<RunContext>,
    state: &mut Option<RunState>,
) -> Option<Claimed> {
    if !worker_node::is_over(inner, step).await {
        return None;
    }
    if state.is_none() {
        match inner.plans.run(step, known).await {
            Ok(loaded) => *state = Some(loaded),
            Err(error) => {
                hand_back(inner, step, &error).await;
                return None;
            }
        }
    }
    let state = state.as_mut()?;
    let done = match inner.plans.item(step, state).await {
        Err(error) => Err(error),
        Ok(()) if step.losses <= HOST_LOSSES_MAX => match waits(inner, step, state).await {
            Ok(Some(next)) => return next,
            Ok(None) => execute(inner, step, state, lost).await,
            Err(error) => Err(error),
        },
        Ok(()) => execute(inner, step, state, lost).await,
    };
    inner.held.ends(&step.fence);
    match done {
        Ok(done) => settle::apply(inner, step, state, done).await,
        Err(error) => {
            hand_back(inner, step, &error).await;
            None
        }
    }
}

/// Executes a step that waits for others, or inside which others are. None if it is none of these; else the step that this host
/// goes on with.
async fn waits(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &mut RunState,
) -> Result<Option<Option<Claimed>>, LoadError> {
    let plan = Arc::clone(&state.plan);
    let Some(node) = plan.node(&step.place.node) else { return Ok(None) };
    Ok(Some(match &node.kind {
        kind if kind.is_container() => container::execute(inner, step, state).await?,
        NodeKind::Listen { listen, on_timeout } => {
            listen::listen(inner, step, state, (listen, on_timeout.is_some())).await?
        }
        NodeKind::Approval { approval, on_timeout } => {
            listen::approval(inner, step, state, (approval, on_timeout.is_some())).await?
        }
        NodeKind::Workflow { workflow, wait, .. } => {
            child::execute(inner, step, state, (workflow, *wait)).await?
        }
        _ => return Ok(None),
    }))
}

async fn hand_back(inner: &Inner, step: &Claimed, error: &LoadError) {
    tracing::error!(
        run = %step.run, step = %step.fence.step,
        error = error as &dyn std::error::Error,
        "a step cannot be executed here and is handed back"
    );
    if let Err(error) = inner.store.hand_back(&step.fence, UNREADABLE_PAUSE).await {
        tracing::warn!(step = %step.fence.step, error = &error as &dyn std::error::Error, "a step could not be handed back; its lease runs out");
    }
}

async fn execute(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &RunState,
    lost: &CancellationToken,
) -> Result<Done, LoadError> {
    if step.losses > HOST_LOSSES_MAX {
        let message = format!("what ran this step was lost {} times in a row", step.losses);
        return Ok(Done::of(Conclusion::Fail(StepError::new(Code::HostLost, &message))));
    }
    let Some(node) = state.plan.node(&step.place.node) else {
        let message = format!("the plan has no node `{}`", step.place.node);
        return Ok(Done::of(Conclusion::Fail(StepError::new(Code::Internal, &message))));
    };
    match &node.kind {
        NodeKind::Delay { .. } | NodeKind::Until { .. } => {
            // A delay is claimed when it is due: to have it is to have served it.
            Ok(Done::of(Conclusion::Succeed(Value::Null)))
        }
        NodeKind::Block { digest, .. } => block(inner, step, state, *digest, lost).await,
        NodeKind::Http { .. } => Ok(http_node::execute(inner, step, state, lost).await),
        NodeKind::Emit { .. } => Ok(emit_node::execute(inner, step, state).await),
        NodeKind::Worker { .. } => Ok(worker_node::execute(inner, step, state).await),
        _ => {
            let message = "a node that is evaluated inline was claimed";
            Ok(Done::of(Conclusion::Fail(StepError::new(Code::Internal, message))))
        }
    }
}

async fn block(
    inner: &Arc<Inner>,
    step: &Claimed,
    state: &RunState,
    component: Digest,
    lost: &CancellationToken,
) -> Result<Done, LoadError> {
    let block = inner.plans.block(step.fence.tenant, component, step.run).await?;
    let input = match input(inner, step, state, &block).await {
        Ok(input) => input,
        Err(error) => return Ok(Done::of(Conclusion::Fail(error))),
    };
    match ready(inner, step.fence.tenant, component).await {
        Ok(()) => {}
        Err(Unprepared::Refused { code, message }) => {
            return Ok(Done::of(Conclusion::Fail(StepError::new(code, &message))));
        }
        Err(Unprepared::Unavailable { message }) => {
            return Ok(Done::of(Conclusion::HandBack { delay_ms: 0, why: message }));
        }
    }
    inner.guard.begin(execution_context(step, state, Some(&block.descriptor)));
    let job = job(step, component, input, narrowed(inner, &block.descriptor, state.context.limits));
    let report = tokio::select! {
        report = inner.runner.run(job) => Some(report),
        () = lost.cancelled() => None,
    };
    let finished = inner.guard.finish(step.fence.lease).await;
    let Some(report) = report else {
        return Ok(Done { conclusion: Conclusion::Leave, finished, logs: None });
    };
    let logs = logs(&report);
    let retry = state.plan.retry(&step.place.node).unwrap_or(RetryPolicy::NEVER);
    let conclusion = conclude(report.end, finished.stop.clone(), circumstances(step, &retry));
    Ok(Done { conclusion, finished, logs })
}

/// The step's input, if it is what the block takes.
async fn input(
    inner: &Inner,
    step: &Claimed,
    state: &RunState,
    block: &Arc<KnownBlock>,
) -> Result<String, StepError> {
    let (value, text) = rendered_input(step, state)?;
    let Some(schema) = &block.input else { return Ok(text) };
    let judged = if schema.is_cheap(&value) {
        schema.judge_input(&value)
    } else {
        let _turn = inner.costly_checks.acquire().await;
        let block = Arc::clone(block);
        // Nobody who is served meanwhile waits for it.
        let judging = move || block.input.as_ref().map_or(Ok(()), |schema| schema.judge_input(&value));
        let unjudged = |panic: JoinError| StepError::new(Code::Internal, &panic.to_string());
        tokio::task::spawn_blocking(judging).await.map_err(unjudged)?
    };
    judged.map(|()| text).map_err(|why| StepError::new(Code::InputInvalid, &why))
}

fn rendered_input(step: &Claimed, state: &RunState) -> Result<(Value, String), StepError> {
    let input = state
        .plan
        .render_input(&step.place.node, &state.scope(&step.place))
        .map_err(|error| StepError::new(error.code(), &error.to_string()))?;
    let text = input.to_string();
    if text.len() as u64 > PAYLOAD_BYTES_MAX {
        let message = format!("the input has {} bytes; at most {PAYLOAD_BYTES_MAX} are passed", text.len());
        return Err(StepError::new(Code::InputTooLarge, &message));
    }
    Ok((input, text))
}

/// Whether the block can be run here now; where it is not ready, it is made so while no step of it is held.
pub(crate) async fn ready(inner: &Inner, tenant: TenantId, component: Digest) -> Result<(), Unprepared> {
    if inner.runner.is_ready(component).await {
        return Ok(());
    }
    Err(inner.preparations.ask(tenant, component))
}

/// What the guard must know of this execution.
pub(crate) fn execution_context(
    step: &Claimed,
    state: &RunState,
    descriptor: Option<&Descriptor>,
) -> ExecutionContext {
    ExecutionContext {
        fence: step.fence,
        run: step.run,
        workflow: state.context.workflow,
        place: step.place.clone(),
        attempt: step.attempt,
        is_first: step.is_first_of_lineage(),
        grants: descriptor.map(|descriptor| descriptor.effects.clone()),
        invariants: state.plan.invariants().into(),
    }
}

/// What a block may use: the least of what it asks for, what its tenant has, and what the operator grants.
pub(crate) fn narrowed(inner: &Inner, descriptor: &Descriptor, tenant: WantedLimits) -> StepLimits {
    descriptor.limits.narrow(tenant.narrow(inner.config.limits))
}

fn job(step: &Claimed, component: Digest, input: String, limits: StepLimits) -> StepJob {
    StepJob {
        execution: step.fence.lease,
        component,
        input,
        place: step.place.clone(),
        started_at_ms: u64::try_from(step.first_started_at.timestamp_millis()).unwrap_or(0),
        seed: guest_seed(step.fence.tenant, &step.place),
        limits,
        losses: step.losses,
    }
}

/// What the conclusion depends on besides how the execution ended.
pub(crate) fn circumstances<'a>(step: &'a Claimed, retry: &'a RetryPolicy) -> Circumstances<'a> {
    Circumstances { run: step.run, node: &step.place.node, attempt: step.attempt, retry }
}

fn logs(report: &StepReport) -> Option<Value> {
    if report.logs.is_empty() && !report.logs_truncated {
        return None;
    }
    let lines: Vec<Value> = report
        .logs
        .iter()
        .map(|line| serde_json::json!({ "level": line.level, "message": line.message.replace('\0', "\u{fffd}") }))
        .collect();
    Some(serde_json::json!({ "lines": lines, "truncated": report.logs_truncated }))
}
