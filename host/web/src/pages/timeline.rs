//! The timeline of a run, and what a person may do to the run.

use askama::Template;
use axum::Form;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Redirect;
use counterfoil_domain::id::RunId;
use counterfoil_domain::key::Scope;
use serde::Deserialize;

use super::drawing::{Bar, Tick, effect_bar, folds, step_bars, ticks};
use super::{Chrome, Page, show};
use crate::api::effects::Effect;
use crate::api::runs::{cancel_run, resume_run, run_timeline};
use crate::api::timeline::{Entry, Timeline};
use crate::extract::{Named, Params};
use crate::list::ListParams;
use crate::problem::Problem;
use crate::session::{Visitor, check_origin};
use crate::state::Shared;

#[derive(Debug, Template)]
#[template(path = "timeline.html")]
pub(super) struct TimelinePage<'a> {
    chrome: Chrome,
    may_operate: bool,
    /// The run goes on by itself, so the page is loaded anew.
    refreshes: bool,
    /// Nothing comes before its steps.
    is_first: bool,
    timeline: &'a Timeline,
    rows: Vec<Row<'a>>,
    folds: Vec<Bar>,
    ticks: Vec<Tick>,
}

/// A step's row of the chart.
#[derive(Debug)]
struct Row<'a> {
    entry: &'a Entry,
    /// The node, and its iteration where it has one.
    name: String,
    anchor: String,
    state: &'static str,
    bars: Vec<Bar>,
    effects: Vec<(&'a Effect, Bar)>,
    /// All bars in words.
    told: String,
}

impl<'a> Row<'a> {
    fn new(timeline: &'a Timeline, entry: &'a Entry) -> Self {
        let bars = step_bars(timeline, entry);
        let effects = entry.effects.iter().map(|effect| (effect, effect_bar(timeline, effect))).collect();
        let mut name = entry.node.clone();
        for index in &entry.iteration {
            name.extend(["[", &index.to_string(), "]"]);
        }
        let told = bars.iter().map(|bar| bar.title.as_str()).collect::<Vec<_>>().join("; ");
        Self { entry, name, anchor: entry.step.to_string(), state: entry.state.name(), bars, effects, told }
    }
}

/// `GET /runs/{id}`
pub(super) async fn page(
    State(app): Shared,
    visitor: Visitor,
    Named(id): Named<RunId>,
    Params(params): Params<ListParams>,
) -> Result<axum::response::Response, Problem> {
    use axum::response::IntoResponse;
    let is_first = params.after.is_none();
    let timeline = run_timeline(&app, &visitor.principal, id, params).await?;
    let run = &timeline.run.run;
    let page = TimelinePage {
        chrome: Chrome::of(&visitor),
        may_operate: visitor.may(Scope::Operator),
        refreshes: !run.has_ended() && matches!(run.state, "pending" | "running"),
        is_first,
        rows: timeline.entries.iter().map(|entry| Row::new(&timeline, entry)).collect(),
        folds: folds(&timeline),
        ticks: ticks(&timeline),
        timeline: &timeline,
    };
    Ok(Page(page).into_response())
}

#[derive(Debug, Deserialize)]
pub(super) struct Act {
    #[serde(default)]
    form_token: String,
}

/// `POST /runs/{id}/cancel`
pub(super) async fn cancel(
    State(app): Shared,
    visitor: Visitor,
    headers: HeaderMap,
    Named(id): Named<RunId>,
    Form(act): Form<Act>,
) -> Result<Redirect, Problem> {
    allowed(&visitor, &headers, &act)?;
    cancel_run(&app, &visitor.principal, id).await?;
    Ok(Redirect::to(&format!("/runs/{id}")))
}

/// `POST /runs/{id}/resume`
pub(super) async fn resume(
    State(app): Shared,
    visitor: Visitor,
    headers: HeaderMap,
    Named(id): Named<RunId>,
    Form(act): Form<Act>,
) -> Result<Redirect, Problem> {
    allowed(&visitor, &headers, &act)?;
    resume_run(&app, &visitor.principal, id).await?;
    Ok(Redirect::to(&format!("/runs/{id}")))
}

fn allowed(visitor: &Visitor, headers: &HeaderMap, act: &Act) -> Result<(), Problem> {
    check_origin(headers)?;
    visitor.check_form(&act.form_token)?;
    visitor.principal.needs(Scope::Operator)
}
