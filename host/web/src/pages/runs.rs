//! The list of runs, and the box that finds any of them.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use counterfoil_domain::id::{EffectId, EventId, RunId};
use counterfoil_store::run::RunState;
use serde::Deserialize;

use super::{Chrome, Page, show};
use crate::api::runs::{Run, Wanted, run_state, runs};
use crate::extract::Params;
use crate::list::{ListParams, Listed};
use crate::problem::Problem;
use crate::session::Visitor;
use crate::state::{App, Shared};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    q: String,
    workflow: String,
    state: String,
    after: Option<String>,
}

#[derive(Debug, Template)]
#[template(path = "runs.html")]
struct RunsPage {
    chrome: Chrome,
    q: String,
    workflow: String,
    state: String,
    states: Vec<&'static str>,
    runs: Vec<Run>,
    next: Option<String>,
    next_path: String,
}

/// `GET /runs`
pub(super) async fn page(
    State(app): Shared,
    visitor: Visitor,
    Params(search): Params<Search>,
) -> Result<Response, Problem> {
    let q = search.q.trim().to_owned();
    if let Some(place) = by_id(&app, &visitor, &q).await? {
        return Ok(Redirect::to(&place).into_response());
    }
    let wanted = Wanted {
        workflow: Some(search.workflow.trim().to_owned()).filter(|name| !name.is_empty()),
        state: Some(search.state.as_str()).filter(|name| !name.is_empty()).map(run_state).transpose()?,
        record: Some(q.clone()).filter(|record| !record.is_empty()),
    };
    let params = ListParams { limit: None, after: search.after };
    let Listed { items, next } = runs(&app, &visitor.principal, wanted, params).await?;
    let encoded =
        |text: &str| askama::filters::urlencode(text).map(|text| text.to_string()).unwrap_or_default();
    let next_path = format!(
        "/runs?q={}&workflow={}&state={}&",
        encoded(&q),
        encoded(&search.workflow),
        encoded(&search.state)
    );
    let page = RunsPage {
        chrome: Chrome::of(&visitor),
        q,
        workflow: search.workflow,
        state: search.state,
        states: RunState::ALL.iter().map(|state| state.name()).collect(),
        runs: items,
        next,
        next_path,
    };
    Ok(Page(page).into_response())
}

/// Where the thing with this id is shown, if there is one.
async fn by_id(app: &App, visitor: &Visitor, text: &str) -> Result<Option<String>, Problem> {
    let tenant = visitor.principal.tenant;
    // A UUID may be the id of any of them.
    if let Ok(id) = text.parse::<RunId>()
        && app.store.run_row(tenant, id).await?.is_some()
    {
        return Ok(Some(format!("/runs/{id}")));
    }
    if let Ok(id) = text.parse::<EffectId>()
        && app.store.receipt(tenant, id).await?.is_some()
    {
        return Ok(Some(format!("/effects/{id}")));
    }
    if let Ok(id) = text.parse::<EventId>()
        && app.store.event(tenant, id).await?.is_some()
    {
        return Ok(Some(format!("/events/{id}")));
    }
    Ok(None)
}
