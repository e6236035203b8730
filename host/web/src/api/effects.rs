//! Effects: what was sent, what came of it, and what a person says of those whose outcome is unknown.

mod resolve;
mod view;

use std::sync::Arc;

use axum::extract::State;
use counterfoil_domain::id::{EffectId, RunId};
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_store::receipt::{EffectFilter, EffectRow};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use self::resolve::{AnswerGiven, ResolutionGiven, resolve as resolve_effect};
pub(crate) use self::view::{Effect, EffectDetail, Resolution, summary};

use crate::auth::{Caller, Operator, Viewer};
use crate::extract::{Json, JsonBody, Named, Params};
use crate::list::{ListParams, Listed};
use crate::problem::Problem;
use crate::state::{App, Shared};

use self::resolve::Resolved;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(resolve))
}

/// Which effects.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EffectParams {
    /// In this state only.
    #[param(value_type = Option<String>)]
    pub(crate) state: Option<ReceiptState>,
    /// Of this run only.
    #[param(value_type = Option<String>)]
    pub(crate) run: Option<RunId>,
    /// Rows to return at most, 1 to 200; 50 if absent.
    pub(crate) limit: Option<u32>,
    /// `next` of the page before.
    pub(crate) after: Option<String>,
}

/// List effects
///
/// Unknown ones oldest first, since somebody waits for them; all others by run, the newest first.
#[utoipa::path(get, path = "/v1/effects", tag = "effects", params(EffectParams),
    responses((status = 200, body = Listed<Effect>)), security(("key" = ["viewer"])))]
async fn list(
    State(app): Shared,
    caller: Caller<Viewer>,
    Params(params): Params<EffectParams>,
) -> Result<Json<Listed<Effect>>, Problem> {
    let EffectParams { state, run, limit, after } = params;
    effects(&app, &caller, EffectFilter { state, run }, ListParams { limit, after }).await.map(Json)
}

/// One page of effects.
pub(crate) async fn effects(
    app: &App,
    who: &crate::auth::Principal,
    filter: EffectFilter,
    params: ListParams,
) -> Result<Listed<Effect>, Problem> {
    let page = params.page()?;
    let limit = page.limit;
    let rows = app.store.effects(who.tenant, filter, page).await?;
    Ok(Listed::page(rows, limit, EffectRow::cursor, Effect::from))
}

/// Show an effect
#[utoipa::path(get, path = "/v1/effects/{id}", tag = "effects", params(("id" = String, Path)),
    responses((status = 200, body = EffectDetail)), security(("key" = ["viewer"])))]
async fn show(
    State(app): Shared,
    caller: Caller<Viewer>,
    Named(id): Named<EffectId>,
) -> Result<Json<EffectDetail>, Problem> {
    let receipt = app.store.receipt(caller.tenant, id).await?.ok_or_else(Problem::not_found)?;
    Ok(Json(EffectDetail::from(receipt)))
}

/// Say what became of an unknown effect
///
/// With evidence, which is kept. With `dry_run` nothing changes, and the answer says what would happen.
#[utoipa::path(post, path = "/v1/effects/{id}/resolve", tag = "effects", params(("id" = String, Path)),
    request_body = ResolutionGiven, responses((status = 200, body = Resolved)), security(("key" = ["operator"])))]
async fn resolve(
    State(app): Shared,
    caller: Caller<Operator>,
    Named(id): Named<EffectId>,
    body: JsonBody<ResolutionGiven>,
) -> Result<Json<Resolved>, Problem> {
    resolve_effect(&app, &caller, id, body.value).await.map(Json)
}
