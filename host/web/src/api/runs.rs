//! Runs: starting them, finding them, and what a person may do to one.

mod signal;
mod start;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, Utc};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{EventId, LineageId, RunId};
use counterfoil_domain::limits::{PAYLOAD_BYTES_MAX, is_key_text};
use counterfoil_domain::workflow::{Plan, is_name};
use counterfoil_store::receipt::{EffectFilter, Resumed};
use counterfoil_store::run::{Cancelled, RunFilter, RunRow, RunState, RunView, Trigger};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::signal::{SignalIn, SignalSent};
use self::start::RunIn;
use super::effects::{Effect, effects};
use super::timeline::{Timeline, timeline};
use crate::auth::{Caller, Operator, Principal, Starter, Viewer};
use crate::extract::{Json, JsonBody, Named, Params, Raw, map_from_json};
use crate::idempotency::Creating;
use crate::list::{ListParams, Listed};
use crate::problem::Problem;
use crate::state::{App, Shared};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(show_timeline))
        .routes(routes!(list_effects))
        .routes(routes!(cancel))
        .routes(routes!(resume))
        .routes(routes!(signal))
}

/// A run in a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Run {
    #[schema(value_type = String)]
    pub(crate) id: RunId,
    pub(crate) workflow: String,
    /// Number of the version that it is pinned to.
    pub(crate) version: u32,
    /// `pending`, `running`, `waiting`, `blocked`, `succeeded`, `failed` or `cancelled`.
    pub(crate) state: &'static str,
    /// The record that it is about.
    pub(crate) record: Option<String>,
    /// What started it: `api`, `event` or `run`.
    pub(crate) trigger: &'static str,
    /// The event that started it, if one did.
    #[schema(value_type = Option<String>)]
    pub(crate) event_id: Option<EventId>,
    pub(crate) admitted_at: DateTime<Utc>,
    pub(crate) ended_at: Option<DateTime<Utc>>,
}

impl From<RunRow> for Run {
    fn from(row: RunRow) -> Self {
        let (trigger, event_id) = match row.trigger {
            Trigger::Api => ("api", None),
            Trigger::Event { event, .. } => ("event", Some(event)),
            Trigger::Run { .. } => ("run", None),
        };
        Self {
            id: row.id,
            workflow: row.workflow_name,
            version: row.version,
            state: row.state.name(),
            record: row.record,
            trigger,
            event_id,
            admitted_at: row.admitted_at,
            ended_at: row.ended_at,
        }
    }
}

impl Run {
    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }
}

/// A run with its payloads.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunDetail {
    #[serde(flatten)]
    pub(crate) run: Run,
    /// The run and all its replays.
    #[schema(value_type = String)]
    pub(crate) lineage: LineageId,
    /// The event that started it.
    pub(crate) event: Value,
    pub(crate) input: Value,
    /// What came of it, if it succeeded.
    pub(crate) output: Option<Value>,
    /// Why it failed, if it did.
    pub(crate) error: Option<Value>,
}

impl From<RunView> for RunDetail {
    fn from(view: RunView) -> Self {
        let RunView { row, lineage, event, input, output, error } = view;
        Self { run: row.into(), lineage, event, input, output, error }
    }
}

/// What came of a wish to resume.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunResumed {
    /// Steps that go on.
    resumed: u32,
    /// Steps that stay blocked, since something of theirs is still unknown.
    blocked: u32,
}

/// Which runs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct RunParams {
    /// Of this workflow only.
    workflow: Option<String>,
    /// In this state only.
    state: Option<String>,
    /// About this record only.
    record: Option<String>,
    /// Rows to return at most, 1 to 200; 50 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

/// Start a run
///
/// Of the active version. A repeat with the same `Idempotency-Key` gets the run that the first one started.
#[utoipa::path(post, path = "/v1/workflows/{name}/runs", tag = "runs",
    params(("name" = String, Path), ("Idempotency-Key" = Option<String>, Header, description = "A repeat gets the first answer")),
    request_body = RunIn,
    responses((status = 201, body = Run), (status = 200, body = Run, description = "The key had started this run")),
    security(("key" = ["operator"])))]
async fn start(
    State(app): Shared,
    starter: Starter,
    creating: Creating,
    body: JsonBody<RunIn>,
) -> Result<Response, Problem> {
    let tenant = starter.caller.tenant;
    let work = start::start(&app, starter, &creating, body.value);
    creating.once(&app, tenant, &body.bytes, work).await
}

/// List runs
///
/// The newest first.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(RunParams),
    responses((status = 200, body = Listed<Run>)), security(("key" = ["viewer"])))]
async fn list(
    State(app): Shared,
    caller: Caller<Viewer>,
    Params(params): Params<RunParams>,
) -> Result<Json<Listed<Run>>, Problem> {
    let RunParams { workflow, state, record, limit, after } = params;
    let state = state.as_deref().map(run_state).transpose()?;
    let wanted = Wanted { workflow, state, record };
    runs(&app, &caller, wanted, ListParams { limit, after }).await.map(Json)
}

/// The state of runs that somebody asks for.
pub(crate) fn run_state(name: &str) -> Result<RunState, Problem> {
    RunState::from_name(name).ok_or_else(|| {
        let known: Vec<String> = RunState::ALL.iter().map(|state| format!("`{}`", state.name())).collect();
        let known = known.join(", ");
        Problem::bad_request(format!("`state`: `{name}` is not a state of a run; write one of {known}"))
    })
}

/// Runs by the names that people use.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) workflow: Option<String>,
    pub(crate) state: Option<RunState>,
    pub(crate) record: Option<String>,
}

/// One page of runs.
pub(crate) async fn runs(
    app: &App,
    who: &Principal,
    wanted: Wanted,
    params: ListParams,
) -> Result<Listed<Run>, Problem> {
    let page = params.page()?;
    let limit = page.limit;
    if wanted.record.as_deref().is_some_and(|record| !is_key_text(record)) {
        return Ok(Listed::all(Vec::new()));
    }
    let workflow = match wanted.workflow {
        None => None,
        Some(name) if !is_name(&name) => return Ok(Listed::all(Vec::new())),
        Some(name) => match app.store.workflow(who.tenant, &name).await? {
            Some(workflow) => Some(workflow.id),
            None => return Ok(Listed::all(Vec::new())),
        },
    };
    let filter = RunFilter { workflow, state: wanted.state, record: wanted.record };
    let rows = app.store.runs(who.tenant, &filter, page).await?;
    Ok(Listed::page(rows, limit, RunRow::cursor, Run::from))
}

/// Show a run
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunDetail)), security(("key" = ["viewer"])))]
async fn show(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(id): Named<RunId>,
) -> Result<Json<RunDetail>, Problem> {
    find(&app, &caller, id).await.map(|run| Json(run.into()))
}

async fn find(app: &App, who: &Principal, id: RunId) -> Result<RunView, Problem> {
    app.store.run(who.tenant, id).await?.ok_or_else(Problem::not_found)
}

/// Show what a run did
///
/// One entry a step, in the order of the plan, with its executions, waits and effects. A step that settles between two pages is
/// on one of them.
#[utoipa::path(get, path = "/v1/runs/{id}/timeline", tag = "runs", params(("id" = String, Path), ListParams),
    responses((status = 200, body = Timeline)), security(("key" = ["viewer"])))]
async fn show_timeline(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(id): Named<RunId>,
    Params(params): Params<ListParams>,
) -> Result<Json<Timeline>, Problem> {
    run_timeline(&app, &caller, id, params).await.map(Json)
}

/// A page of the timeline of a run, as it is now.
pub(crate) async fn run_timeline(
    app: &App,
    who: &Principal,
    id: RunId,
    params: ListParams,
) -> Result<Timeline, Problem> {
    let page = params.page()?;
    let head = app.store.timeline_head(who.tenant, id).await?.ok_or_else(Problem::not_found)?;
    let plan = read_plan(&head.plan)?;
    let nodes: Vec<String> = plan.nodes().iter().map(|node| node.path.clone()).collect();
    let rows = app.store.timeline(who.tenant, head, &nodes, &page).await?;
    let now = app.store.ping().await?;
    Ok(timeline(rows, &plan, now))
}

/// Reads the plan of a version.
pub(super) fn read_plan(plan: &Value) -> Result<Plan, Problem> {
    Plan::deserialize(plan).map_err(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "a stored plan cannot be read");
        Problem::new(Code::Internal, "the workflow's plan cannot be read by this host")
    })
}

/// Reads the plan of a version, aside.
pub(super) async fn plan_of(app: &App, who: &Principal, plan: Value) -> Result<Arc<Plan>, Problem> {
    app.aside.compute(who.tenant, move || read_plan(&plan).map(Arc::new)).await?
}

/// List a run's effects
///
/// The newest first.
#[utoipa::path(get, path = "/v1/runs/{id}/effects", tag = "runs", params(("id" = String, Path), ListParams),
    responses((status = 200, body = Listed<Effect>)), security(("key" = ["viewer"])))]
async fn list_effects(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(id): Named<RunId>,
    Params(params): Params<ListParams>,
) -> Result<Json<Listed<Effect>>, Problem> {
    find(&app, &caller, id).await?;
    let filter = EffectFilter { run: Some(id), state: None };
    effects(&app, &caller, filter, params).await.map(Json)
}

/// Cancel a run
///
/// Its open steps are settled as cancelled. What they sent keeps its receipt, and can still be resolved.
#[utoipa::path(post, path = "/v1/runs/{id}/cancel", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = Run)), security(("key" = ["operator"])))]
async fn cancel(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(id): Named<RunId>,
) -> Result<Json<Run>, Problem> {
    cancel_run(&app, &caller, id).await?;
    find(&app, &caller, id).await.map(|run| Json(run.row.into()))
}

/// Cancels a run, if it has not ended.
pub(crate) async fn cancel_run(app: &App, who: &Principal, id: RunId) -> Result<(), Problem> {
    match app.store.cancel_run(who.tenant, id, &who.actor()).await? {
        Cancelled::Done => Ok(()),
        Cancelled::AlreadyEnded => Err(Problem::new(Code::Conflict, "the run has ended")),
        Cancelled::NotFound => Err(Problem::not_found()),
    }
}

/// Send a signal to a run
///
/// It is kept until a `listen` of the run takes it: one that comes first is not lost.
#[utoipa::path(post, path = "/v1/runs/{id}/signals/{name}", tag = "runs",
    params(("id" = String, Path), ("name" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat gets the first answer")),
    request_body = SignalIn, responses((status = 202, body = SignalSent)), security(("key" = ["operator"])))]
async fn signal(
    State(app): Shared,
    caller: Caller<Operator>,
    creating: Creating,
    Named((id, name)): Named<(RunId, String)>,
    Raw(body): Raw<PAYLOAD_BYTES_MAX>,
) -> Result<Response, Problem> {
    let signal = if body.is_empty() { SignalIn::default() } else { map_from_json(&body)? };
    let work = signal::send(&app, &caller, &creating, (id, &name), signal);
    creating.once(&app, caller.tenant, &body, work).await
}

/// Resume a run
///
/// Every blocked step none of whose effects is unknown goes on, in the same attempt.
#[utoipa::path(post, path = "/v1/runs/{id}/resume", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunResumed)), security(("key" = ["operator"])))]
async fn resume(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(id): Named<RunId>,
) -> Result<Json<RunResumed>, Problem> {
    resume_run(&app, &caller, id).await.map(Json)
}

/// Resumes what of a run can be resumed.
pub(crate) async fn resume_run(app: &App, who: &Principal, id: RunId) -> Result<RunResumed, Problem> {
    match app.store.resume(who.tenant, id, &who.actor()).await? {
        Resumed::Done { resumed, blocked } => Ok(RunResumed { resumed, blocked }),
        Resumed::NotFound => Err(Problem::not_found()),
    }
}
