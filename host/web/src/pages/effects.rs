//! Effects: the list, one with its evidence, and the form in which a person says what became of it.

mod resolve;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use counterfoil_domain::id::EffectId;
use counterfoil_domain::key::Scope;
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_store::receipt::EffectFilter;
use serde::Deserialize;

pub(super) use self::resolve::resolve;
use self::resolve::{Given, ResolveForm};
use super::{Chrome, Page, show};
use crate::api::effects::{Effect, EffectDetail, effects};
use crate::extract::{Named, Params, blank_is_none};
use crate::list::{ListParams, Listed};
use crate::problem::Problem;
use crate::session::Visitor;
use crate::state::{App, Shared};

/// Unknown effects shown above a list of all.
const UNKNOWN_ROWS_MAX: u32 = 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    #[serde(deserialize_with = "blank_is_none")]
    state: Option<ReceiptState>,
    after: Option<String>,
}

#[derive(Debug, Template)]
#[template(path = "effects.html")]
pub(super) struct EffectsPage {
    chrome: Chrome,
    state: String,
    states: Vec<&'static str>,
    /// Above all others where the list is of all and begins.
    unknown: Vec<Effect>,
    effects: Vec<Effect>,
    next: Option<String>,
    next_path: String,
}

/// `GET /effects`
pub(super) async fn list(
    State(app): Shared,
    visitor: Visitor,
    Params(search): Params<Search>,
) -> Result<Page<EffectsPage>, Problem> {
    let state = search.state;
    let is_first_of_all = state.is_none() && search.after.is_none();
    let unknown = if is_first_of_all {
        let filter = EffectFilter { state: Some(ReceiptState::Unknown), run: None };
        let params = ListParams { limit: Some(UNKNOWN_ROWS_MAX), after: None };
        effects(&app, &visitor.principal, filter, params).await?.items
    } else {
        Vec::new()
    };
    let params = ListParams { limit: None, after: search.after };
    let Listed { items, next } =
        effects(&app, &visitor.principal, EffectFilter { state, run: None }, params).await?;
    let state = state.map_or("", ReceiptState::name);
    Ok(Page(EffectsPage {
        chrome: Chrome::of(&visitor),
        state: state.into(),
        states: ReceiptState::ALL.iter().map(|state| state.name()).collect(),
        unknown,
        effects: items,
        next,
        next_path: format!("/effects?state={state}&"),
    }))
}

#[derive(Debug, Template)]
#[template(path = "effect.html")]
struct EffectPage {
    chrome: Chrome,
    detail: EffectDetail,
    form: Option<ResolveForm>,
    /// Why nothing was changed, where there is no form to say it in.
    problem: Option<String>,
}

/// `GET /effects/{id}`
pub(super) async fn page(
    State(app): Shared,
    visitor: Visitor,
    Named(id): Named<EffectId>,
) -> Result<Response, Problem> {
    shown(&app, &visitor, id, Given::blank(), None).await
}

/// The page of an effect, with its form filled in.
async fn shown(
    app: &App,
    visitor: &Visitor,
    id: EffectId,
    given: Given,
    problem: Option<String>,
) -> Result<Response, Problem> {
    let receipt = app.store.receipt(visitor.principal.tenant, id).await?.ok_or_else(Problem::not_found)?;
    let detail = EffectDetail::from(receipt);
    let is_open = visitor.may(Scope::Operator) && !detail.resolutions.is_empty();
    let (form, problem) = if is_open {
        (Some(ResolveForm::new(&detail.resolutions, given, problem)), None)
    } else {
        (None, problem)
    };
    Ok(Page(EffectPage { chrome: Chrome::of(visitor), detail, form, problem }).into_response())
}
