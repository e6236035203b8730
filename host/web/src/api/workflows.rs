//! Workflows: saving versions, activating one, pausing.

mod activate;
mod diff;
mod save;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{WorkflowId, WorkflowVersionId};
use counterfoil_domain::workflow::{DEFINITION_BYTES_MAX, is_name};
use counterfoil_store::workflow::{VersionFull, VersionRow, WorkflowRow, WorkflowView};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::diff::DiffParams;
pub(crate) use self::diff::WorkflowDiff;
use self::save::{Checked, Saved};
use super::runs::plan_of;
use super::share::WorkflowShare;
use crate::auth::{Author, Caller, Operator, Principal, Viewer};
use crate::extract::{Json, JsonBody, Named, Params, Raw};
use crate::list::{ListParams, Listed};
use crate::problem::{FieldError, Problem};
use crate::state::{App, Shared};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(save_version, show))
        .routes(routes!(activate))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(share))
        .routes(routes!(versions))
        .routes(routes!(compare))
        .routes(routes!(version))
}

/// A workflow in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Workflow {
    #[schema(value_type = String)]
    pub(crate) id: WorkflowId,
    pub(crate) name: String,
    /// It starts no runs while it is paused.
    pub(crate) paused: bool,
    /// Number of the version that new runs are of.
    pub(crate) active: Option<u32>,
    /// Number of the newest version.
    pub(crate) newest: u32,
}

/// A workflow with its versions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowDetail {
    #[serde(flatten)]
    pub(crate) workflow: Workflow,
    /// What it may have of a host's room.
    pub(crate) share: WorkflowShare,
    /// The newest first.
    pub(crate) versions: Vec<WorkflowVersion>,
}

/// A version in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowVersion {
    /// Its number, from 1.
    pub(crate) version: u32,
    #[schema(value_type = String)]
    pub(crate) version_id: WorkflowVersionId,
    pub(crate) created_at: DateTime<Utc>,
}

/// A version with its definition.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowSource {
    pub(crate) name: String,
    pub(crate) version: u32,
    #[schema(value_type = String)]
    pub(crate) version_id: WorkflowVersionId,
    /// The text that was sent.
    pub(crate) source: String,
    /// The same as JSON.
    pub(crate) definition: Value,
}

/// Which version to activate.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Activate {
    /// The newest if absent.
    version: Option<u32>,
    /// What it does otherwise than the active version to other systems is meant.
    #[serde(default)]
    accept: bool,
}

/// The version that new runs are of.
#[derive(Debug, Serialize, ToSchema)]
struct ActiveVersion {
    name: String,
    version: u32,
    #[schema(value_type = String)]
    version_id: WorkflowVersionId,
}

/// Whether a workflow starts runs.
#[derive(Debug, Serialize, ToSchema)]
struct Paused {
    name: String,
    paused: bool,
}

/// How to save.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct SaveParams {
    /// Check the definition, and store nothing.
    #[serde(default)]
    check: bool,
}

impl From<WorkflowRow> for Workflow {
    fn from(row: WorkflowRow) -> Self {
        let WorkflowRow { id, name, paused, active, newest } = row;
        Self { id, name, paused, active, newest }
    }
}

impl Workflow {
    /// Whether new runs are of this version.
    pub(crate) fn serves(&self, version: &WorkflowVersion) -> bool {
        self.active == Some(version.version)
    }
}

impl From<VersionRow> for WorkflowVersion {
    fn from(row: VersionRow) -> Self {
        Self { version: row.number, version_id: row.id, created_at: row.created_at }
    }
}

impl From<WorkflowView> for WorkflowDetail {
    fn from(view: WorkflowView) -> Self {
        let WorkflowView { id, name, paused, share, active, versions } = view;
        let newest = versions.first().map_or(0, |version| version.number);
        let versions = versions.into_iter().map(WorkflowVersion::from).collect();
        Self { workflow: Workflow { id, name, paused, active, newest }, share: share.into(), versions }
    }
}

impl From<VersionFull> for WorkflowSource {
    fn from(version: VersionFull) -> Self {
        let VersionFull {
            workflow_name: name, version: version_id, number: version, definition, source, ..
        } = version;
        Self { name, version, version_id, source, definition }
    }
}

/// Save a version of a workflow
///
/// YAML or JSON. Everything that is wrong with it is listed, with its place. A definition that is the newest version
/// already makes no new one, unless a block that it uses has a newer version.
#[utoipa::path(put, path = "/v1/workflows/{name}", tag = "workflows", params(("name" = String, Path), SaveParams),
    request_body(content((String = "application/yaml"), (Object = "application/json")), description = "At most 256 KiB"),
    responses((status = 201, body = Saved), (status = 200, body = Saved, description = "Nothing has changed, or with `check`")),
    security(("key" = ["author"])))]
async fn save_version(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
    Params(params): Params<SaveParams>,
    Raw(body): Raw<{ DEFINITION_BYTES_MAX as u64 }>,
) -> Result<Response, Problem> {
    // To check takes no more than to read; to save does.
    if !params.check {
        caller.needs(counterfoil_domain::key::Scope::Author)?;
    }
    let source: Arc<str> =
        std::str::from_utf8(&body).map_err(|_| Problem::bad_field("", "a definition is UTF-8 text"))?.into();
    let held = save::compile(&app, &caller, &name, &source).await?;
    if params.check {
        return Ok(Json(Checked { name, valid: true, warnings: held.warnings }).into_response());
    }
    let saved = save::save(&app, &caller, &name, &source, held).await?;
    let status = if saved.unchanged { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(saved)).into_response())
}

/// Activate a version
///
/// New runs are of it from now on, and events that it names start them. Runs that have started keep theirs. A version that
/// differs from the active one in what it does to other systems is refused, with what is different, unless that is accepted.
#[utoipa::path(post, path = "/v1/workflows/{name}/activate", tag = "workflows", params(("name" = String, Path)),
    request_body = Activate, responses((status = 200, body = ActiveVersion)), security(("key" = ["author"])))]
async fn activate(
    State(app): Shared,
    caller: Caller<Author>,
    Named(name): Named<String>,
    body: JsonBody<Activate>,
) -> Result<Json<ActiveVersion>, Problem> {
    let Activate { version, accept } = body.value;
    let newest = find(&app, &caller, &name).await?.versions.first().map(|version| version.number);
    let number = version.or(newest).ok_or_else(Problem::not_found)?;
    activate::activate(&app, &caller, &name, number, accept).await.map(Json)
}

/// Compare two versions of a workflow
///
/// What is different, and which of it touches what the workflow does to other systems. Unless told otherwise, the newest
/// version is compared with the active one.
#[utoipa::path(get, path = "/v1/workflows/{name}/diff", tag = "workflows", params(("name" = String, Path), DiffParams),
    responses((status = 200, body = WorkflowDiff)), security(("key" = ["viewer"])))]
async fn compare(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
    Params(params): Params<DiffParams>,
) -> Result<Json<WorkflowDiff>, Problem> {
    let workflow = find(&app, &caller, &name).await?;
    let newest = workflow.versions.first().map(|version| version.number);
    let to = params.to.or(newest).ok_or_else(Problem::not_found)?;
    let from = params.from.or(workflow.active).ok_or_else(|| {
        Problem::new(Code::WorkflowNotActive, "no version is active; say which one to compare with")
    })?;
    compared(&app, &caller, &name, from, to).await.map(Json)
}

/// What tells a version of a workflow from another.
pub(crate) async fn compared(
    app: &App,
    who: &Principal,
    name: &str,
    from: u32,
    to: u32,
) -> Result<WorkflowDiff, Problem> {
    let old = plan_of(app, who, full_version(app, who, name, from).await?.plan).await?;
    let new = plan_of(app, who, full_version(app, who, name, to).await?.plan).await?;
    Ok(WorkflowDiff::new(name, from, to, diff::between(app, who, old, new).await?))
}

/// Pause a workflow
///
/// It starts no runs until it is resumed; those that have started go on.
#[utoipa::path(post, path = "/v1/workflows/{name}/pause", tag = "workflows", params(("name" = String, Path)),
    responses((status = 200, body = Paused)), security(("key" = ["operator"])))]
async fn pause(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(name): Named<String>,
) -> Result<Json<Paused>, Problem> {
    set_paused(&app, &caller, name, true).await
}

/// Resume a workflow
#[utoipa::path(post, path = "/v1/workflows/{name}/resume", tag = "workflows", params(("name" = String, Path)),
    responses((status = 200, body = Paused)), security(("key" = ["operator"])))]
async fn resume(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(name): Named<String>,
) -> Result<Json<Paused>, Problem> {
    set_paused(&app, &caller, name, false).await
}

async fn set_paused(app: &App, who: &Principal, name: String, paused: bool) -> Result<Json<Paused>, Problem> {
    if !is_name(&name) || !app.store.set_paused(who.tenant, &name, paused).await? {
        return Err(Problem::not_found());
    }
    let action = if paused { "workflow.pause" } else { "workflow.resume" };
    app.store.record_audit(who.tenant, &who.actor(), action, None, &json!({ "workflow": name })).await?;
    Ok(Json(Paused { name, paused }))
}

/// Set a workflow's share
///
/// How much of its tenant's room on each host it gets beside the tenant's other workflows, and how many of its steps may be
/// in flight there. Hosts know of it within a second.
#[utoipa::path(put, path = "/v1/workflows/{name}/share", tag = "workflows", params(("name" = String, Path)),
    request_body = WorkflowShare, responses((status = 200, body = WorkflowShare)), security(("key" = ["operator"])))]
async fn share(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(name): Named<String>,
    body: JsonBody<WorkflowShare>,
) -> Result<Json<WorkflowShare>, Problem> {
    let share = body.value.judge()?;
    let is_set =
        is_name(&name) && app.store.set_workflow_share(caller.tenant, &name, share, &caller.actor()).await?;
    if is_set { Ok(Json(share.into())) } else { Err(Problem::not_found()) }
}

/// List workflows
///
/// By name.
#[utoipa::path(get, path = "/v1/workflows", tag = "workflows", params(ListParams),
    responses((status = 200, body = Listed<Workflow>)), security(("key" = ["viewer"])))]
async fn list(
    State(app): Shared,
    caller: Caller<Viewer>,
    Params(params): Params<ListParams>,
) -> Result<Json<Listed<Workflow>>, Problem> {
    workflows(&app, &caller, params).await.map(Json)
}

/// One page of workflows.
pub(crate) async fn workflows(
    app: &App,
    who: &Principal,
    params: ListParams,
) -> Result<Listed<Workflow>, Problem> {
    let page = params.page()?;
    let limit = page.limit;
    let rows = app.store.workflows(who.tenant, page).await?;
    Ok(Listed::page(rows, limit, WorkflowRow::cursor, Workflow::from))
}

/// Show a workflow
#[utoipa::path(get, path = "/v1/workflows/{name}", tag = "workflows", params(("name" = String, Path)),
    responses((status = 200, body = WorkflowDetail)), security(("key" = ["viewer"])))]
async fn show(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
) -> Result<Json<WorkflowDetail>, Problem> {
    find(&app, &caller, &name).await.map(|workflow| Json(workflow.into()))
}

/// List a workflow's versions
///
/// The newest first.
#[utoipa::path(get, path = "/v1/workflows/{name}/versions", tag = "workflows", params(("name" = String, Path)),
    responses((status = 200, body = Listed<WorkflowVersion>)), security(("key" = ["viewer"])))]
async fn versions(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(name): Named<String>,
) -> Result<Json<Listed<WorkflowVersion>>, Problem> {
    let workflow = WorkflowDetail::from(find(&app, &caller, &name).await?);
    Ok(Json(Listed::all(workflow.versions)))
}

/// Show a version's definition
#[utoipa::path(get, path = "/v1/workflows/{name}/versions/{number}", tag = "workflows",
    params(("name" = String, Path), ("number" = u32, Path)),
    responses((status = 200, body = WorkflowSource)), security(("key" = ["viewer"])))]
async fn version(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named((name, number)): Named<(String, u32)>,
) -> Result<Json<WorkflowSource>, Problem> {
    full_version(&app, &caller, &name, number).await.map(|version| Json(version.into()))
}

/// A workflow by its name.
pub(crate) async fn find(app: &App, who: &Principal, name: &str) -> Result<WorkflowView, Problem> {
    let found = if is_name(name) { app.store.workflow(who.tenant, name).await? } else { None };
    found.ok_or_else(Problem::not_found)
}

/// A version of a workflow by its number.
pub(crate) async fn full_version(
    app: &App,
    who: &Principal,
    name: &str,
    number: u32,
) -> Result<VersionFull, Problem> {
    // Numbers are kept signed; a larger one names no version.
    let found = if is_name(name) && i32::try_from(number).is_ok() {
        app.store.version_number(who.tenant, name, number).await?
    } else {
        None
    };
    if let Some(version) = found {
        return Ok(version);
    }
    let newest = find(app, who, name).await?.versions.first().map_or(0, |version| version.number);
    let detail = format!("there is no version {number} of workflow `{name}`: its newest is {newest}");
    let error = FieldError::new(Code::NotFound, "", detail.clone());
    Err(Problem::new(Code::NotFound, detail).with_errors(vec![error]))
}
