//! Workflows: the list, and one with its versions.

use askama::Template;
use axum::extract::State;
use serde::Deserialize;

use super::{Chrome, Page, show};
use crate::api::workflows::{
    Workflow, WorkflowDetail, WorkflowDiff, WorkflowSource, WorkflowVersion, compared, find, full_version,
    workflows,
};
use crate::extract::{Named, Params};
use crate::list::{ListParams, Listed};
use crate::problem::Problem;
use crate::session::Visitor;
use crate::state::Shared;

#[derive(Debug, Template)]
#[template(path = "workflows.html")]
pub(super) struct WorkflowsPage {
    chrome: Chrome,
    workflows: Vec<Workflow>,
    next: Option<String>,
}

/// `GET /workflows`
pub(super) async fn list(
    State(app): Shared,
    visitor: Visitor,
    Params(params): Params<ListParams>,
) -> Result<Page<WorkflowsPage>, Problem> {
    let Listed { items, next } = workflows(&app, &visitor.principal, params).await?;
    Ok(Page(WorkflowsPage { chrome: Chrome::of(&visitor), workflows: items, next }))
}

#[derive(Debug, Template)]
#[template(path = "workflow.html")]
pub(super) struct WorkflowPage {
    chrome: Chrome,
    workflow: Workflow,
    versions: Vec<WorkflowVersion>,
    shown: WorkflowSource,
    /// What tells it from another version; none if it is the only one.
    diff: Option<WorkflowDiff>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Which {
    /// The active one, else the newest, if absent.
    version: Option<u32>,
    /// With which that one is compared: the active one, if absent, or the one before the active one.
    from: Option<u32>,
}

/// `GET /workflows/{name}`
pub(super) async fn page(
    State(app): Shared,
    visitor: Visitor,
    Named(name): Named<String>,
    Params(which): Params<Which>,
) -> Result<Page<WorkflowPage>, Problem> {
    let WorkflowDetail { workflow, versions, .. } = find(&app, &visitor.principal, &name).await?.into();
    let number = which.version.or(workflow.active).unwrap_or(workflow.newest);
    let shown = full_version(&app, &visitor.principal, &name, number).await?.into();
    let before = versions.iter().map(|version| version.version).filter(|version| *version < number).max();
    let from = which.from.or(workflow.active.filter(|active| *active != number)).or(before);
    let diff = match from {
        Some(from) => Some(compared(&app, &visitor.principal, &name, from, number).await?),
        None => None,
    };
    Ok(Page(WorkflowPage { chrome: Chrome::of(&visitor), workflow, versions, shown, diff }))
}
