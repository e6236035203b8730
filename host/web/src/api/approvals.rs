//! Approvals: what runs ask people, and what people decide, once.

use std::sync::Arc;

use axum::extract::State;
use chrono::{DateTime, Utc};
use counterfoil_domain::code::Code;
use counterfoil_domain::id::{ApprovalId, RunId};
use counterfoil_domain::schema::{Fault, Schema};
use counterfoil_store::waiting::{ApprovalRow, Decided};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::events::check_payload;
use crate::auth::{Caller, Operator, Principal, Viewer};
use crate::extract::{Json, JsonBody, Named, Params};
use crate::list::{ListParams, Listed};
use crate::problem::{FieldError, Problem};
use crate::state::{App, Shared};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show, decide))
}

/// A question to a person.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Approval {
    #[schema(value_type = String)]
    pub(crate) id: ApprovalId,
    /// The run that asks.
    #[schema(value_type = String)]
    pub(crate) run: RunId,
    pub(crate) workflow: String,
    /// Step names from the outermost in, joined by `/`.
    pub(crate) node: String,
    /// What is asked.
    pub(crate) title: String,
    /// What there is to know about it.
    pub(crate) detail: Value,
    /// JSON Schema of `answer`; null if nothing is to be filled in.
    pub(crate) form: Option<Value>,
    pub(crate) asked_at: DateTime<Utc>,
    pub(crate) deadline: Option<DateTime<Utc>>,
    /// `approved`, `rejected`, `expired` or `cancelled`; null while it is open.
    pub(crate) outcome: Option<&'static str>,
    pub(crate) decided_at: Option<DateTime<Utc>>,
    /// Who decided.
    pub(crate) decided_by: Option<String>,
    /// What was filled in.
    pub(crate) answer: Option<Value>,
}

impl From<ApprovalRow> for Approval {
    fn from(row: ApprovalRow) -> Self {
        Self {
            id: row.id,
            run: row.run,
            workflow: row.workflow,
            node: row.node,
            title: row.title,
            detail: row.detail,
            form: row.form,
            asked_at: row.asked_at,
            deadline: row.deadline,
            outcome: row.outcome.map(counterfoil_store::waiting::ApprovalOutcome::name),
            decided_at: row.decided_at,
            decided_by: row.decided_by,
            answer: row.answer,
        }
    }
}

/// Which approvals.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// `open` for those that nobody has decided; all if absent.
    state: Option<String>,
    /// Rows to return at most, 1 to 200; 50 if absent.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

/// A decision.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decision {
    /// Yes or no.
    pub(crate) approved: bool,
    /// What the form asks for.
    pub(crate) answer: Option<Value>,
}

/// List approvals
///
/// The oldest first.
#[utoipa::path(get, path = "/v1/approvals", tag = "approvals", params(Wanted),
    responses((status = 200, body = Listed<Approval>)), security(("key" = ["viewer"])))]
async fn list(
    State(app): Shared,
    caller: Caller<Viewer>,
    Params(Wanted { state, limit, after }): Params<Wanted>,
) -> Result<Json<Listed<Approval>>, Problem> {
    let only_open = match state.as_deref() {
        None | Some("") => false,
        Some("open") => true,
        Some(_) => return Err(Problem::bad_request("`state` is `open`, or absent")),
    };
    approvals(&app, &caller, only_open, ListParams { limit, after }).await.map(Json)
}

/// One page of them.
pub(crate) async fn approvals(
    app: &App,
    who: &Principal,
    only_open: bool,
    params: ListParams,
) -> Result<Listed<Approval>, Problem> {
    let page = params.page()?;
    let limit = page.limit;
    let rows = app.store.approvals(who.tenant, only_open, page).await?;
    Ok(Listed::page(rows, limit, ApprovalRow::cursor, Approval::from))
}

/// Show an approval
#[utoipa::path(get, path = "/v1/approvals/{id}", tag = "approvals", params(("id" = String, Path)),
    responses((status = 200, body = Approval)), security(("key" = ["viewer"])))]
async fn show(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(id): Named<ApprovalId>,
) -> Result<Json<Approval>, Problem> {
    find(&app, &caller, id).await.map(Json)
}

pub(crate) async fn find(app: &App, who: &Principal, id: ApprovalId) -> Result<Approval, Problem> {
    Ok(app.store.approval(who.tenant, id).await?.ok_or_else(Problem::not_found)?.into())
}

/// Decide an approval
///
/// Once: the first decision holds. Who decided and when is kept with it.
#[utoipa::path(post, path = "/v1/approvals/{id}", tag = "approvals", params(("id" = String, Path)),
    request_body = Decision, responses((status = 200, body = Approval)), security(("key" = ["operator"])))]
async fn decide(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(id): Named<ApprovalId>,
    body: JsonBody<Decision>,
) -> Result<Json<Approval>, Problem> {
    decide_as(&app, &caller, id, body.value).await.map(Json)
}

/// Decides, if nobody has, and if what was filled in is what the form asks for.
pub(crate) async fn decide_as(
    app: &App,
    who: &Principal,
    id: ApprovalId,
    decision: Decision,
) -> Result<Approval, Problem> {
    let asked = find(app, who, id).await?;
    let Decision { approved, answer } = decision;
    if let Some(answer) = &answer {
        check_payload(answer, "/answer")?;
    }
    // What is refused needs no form.
    if let (Some(form), true, None) = (asked.form, approved, asked.outcome) {
        let answer = answer.clone();
        app.aside.compute(who.tenant, move || check_answer(&form, answer.as_ref())).await??;
    }
    match app.store.decide(who.tenant, id, approved, answer.as_ref(), &who.actor()).await? {
        Decided::Done(row) => Ok(row.into()),
        Decided::AlreadyDecided(row) => {
            let outcome = Approval::from(row).outcome.unwrap_or("open");
            Err(Problem::new(Code::AlreadyDecided, format!("it was {outcome} before")))
        }
        Decided::NotFound => Err(Problem::not_found()),
    }
}

fn check_answer(form: &Value, answer: Option<&Value>) -> Result<(), Problem> {
    let form = Schema::new(form).map_err(|unusable| {
        tracing::error!(%unusable, "the form of an approval cannot be used");
        Problem::new(Code::Internal, "the form of this approval cannot be used")
    })?;
    let faults = form
        .faults(answer.unwrap_or(&Value::Null))
        .map_err(|costly| Problem::bad_field("/answer", costly.to_string()))?;
    if faults.is_empty() {
        return Ok(());
    }
    let errors = faults
        .into_iter()
        .map(|Fault { place, why }| FieldError::new(Code::Form, format!("/answer{place}"), why));
    Err(Problem::bad_request("the answer is not what the form asks for").with_errors(errors.collect()))
}
