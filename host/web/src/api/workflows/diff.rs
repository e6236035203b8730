//! What tells two versions of a workflow apart.

use std::collections::BTreeSet;
use std::sync::Arc;

use counterfoil_domain::block::Descriptor;
use counterfoil_domain::id::Digest;
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
use counterfoil_domain::workflow::Plan;
use counterfoil_domain::workflow::diff::{Change, Diff, FieldChange, Grants, diff};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::api::runs::plan_of;
use crate::auth::Principal;
use crate::problem::Problem;
use crate::state::App;

/// What tells two versions of a workflow apart.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowDiff {
    name: String,
    /// Number of the version that is compared with.
    pub(crate) from: u32,
    /// Number of the version that is compared.
    pub(crate) to: u32,
    /// Some of it touches what the workflow does to other systems.
    pub(crate) touches_side_effects: bool,
    pub(crate) changes: Vec<WorkflowChange>,
}

/// One thing that is different.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowChange {
    /// `step`, `trigger` or `invariant`.
    pub(crate) subject: &'static str,
    /// The path of a step, the event of a trigger, the id of an invariant.
    pub(crate) name: String,
    /// `added`, `removed`, `moved` or `changed`.
    pub(crate) how: &'static str,
    /// What of it, where it was changed.
    pub(crate) fields: Vec<WorkflowFieldChange>,
    /// Why it touches side effects; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) risk: Option<String>,
}

/// A part of something that is different.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowFieldChange {
    pub(crate) field: String,
    /// Null if it was not there.
    pub(crate) from: Value,
    /// Null if it is not there any more.
    pub(crate) to: Value,
}

/// Which versions to compare.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffParams {
    /// Number of the version to compare with; the active one if absent.
    pub(super) from: Option<u32>,
    /// Number of the version to compare; the newest one if absent.
    pub(super) to: Option<u32>,
}

impl WorkflowDiff {
    pub(super) fn new(name: &str, from: u32, to: u32, diff: Diff) -> Self {
        let touches_side_effects = diff.risky().next().is_some();
        let changes = diff.changes.into_iter().map(WorkflowChange::from).collect();
        Self { name: name.into(), from, to, touches_side_effects, changes }
    }
}

impl From<Change> for WorkflowChange {
    fn from(change: Change) -> Self {
        let Change { subject, name, how, fields, risk } = change;
        let field = |FieldChange { field, from, to }| WorkflowFieldChange { field, from, to };
        Self {
            subject: subject.name(),
            name,
            how: how.name(),
            fields: fields.into_iter().map(field).collect(),
            risk,
        }
    }
}

/// A change as a list of problems has it.
pub(super) fn told(change: &Change) -> String {
    bounded_text(&change.to_string(), ERROR_TEXT_BYTES_MAX)
}

/// Compares a plan with an older one, by what the blocks of both may do.
pub(super) async fn between(
    app: &App,
    who: &Principal,
    old: Arc<Plan>,
    new: Arc<Plan>,
) -> Result<Diff, Problem> {
    let digests: BTreeSet<Digest> = old.blocks().chain(new.blocks()).collect();
    let digests: Vec<Digest> = digests.into_iter().collect();
    let described = app.store.descriptors(who.tenant, &digests).await?;
    let compare = move || {
        // What cannot be read is not known, and counts as the worst.
        let effects = |descriptor| Some(serde_json::from_value::<Descriptor>(descriptor).ok()?.effects);
        let grants: Grants = described
            .into_iter()
            .filter_map(|(digest, descriptor)| Some((digest, effects(descriptor)?)))
            .collect();
        diff(&old, &new, &grants)
    };
    app.aside.compute(who.tenant, compare).await
}

/// The number of the active version of a workflow, and what is different from it.
pub(super) async fn active_diff(
    app: &App,
    who: &Principal,
    name: &str,
    plan: &Arc<Plan>,
) -> Result<Option<(u32, Diff)>, Problem> {
    let Some(active) = app.store.active(who.tenant, name).await? else { return Ok(None) };
    let old = plan_of(app, who, active.plan).await?;
    Ok(Some((active.number, between(app, who, old, Arc::clone(plan)).await?)))
}
