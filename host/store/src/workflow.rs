//! Workflows: every save is an immutable version; the active one serves new runs.

mod read;
mod save;

use chrono::{DateTime, Utc};
use counterfoil_domain::fair_share::Share;
use counterfoil_domain::id::{WorkflowId, WorkflowVersionId};
use serde_json::Value;

/// A version to save.
#[derive(Debug, Clone, PartialEq)]
pub struct NewVersion {
    /// Id of the workflow, if the name is new.
    pub workflow: WorkflowId,
    /// Id of the version, if it is one.
    pub version: WorkflowVersionId,
    /// Hash over the definition and what it pins.
    pub definition_hash: [u8; 32],
    /// The definition.
    pub definition: Value,
    /// As its author wrote it.
    pub source: String,
    /// The compiled plan.
    pub plan: Value,
    /// Types of the events that its steps wait for.
    pub listened: Vec<String>,
}

/// What came of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The version that the definition is now.
    pub version: WorkflowVersionId,
    /// Its number, from 1.
    pub number: u32,
    /// The newest version was this already.
    pub unchanged: bool,
}

/// A wish to activate a version.
#[derive(Debug, Clone, Copy, Default)]
pub struct Activation<'a> {
    /// Which version; the newest if none is named.
    pub number: Option<u32>,
    /// The event types that may start it, one for each of its triggers, in order.
    pub triggers: &'a [String],
    /// The tenant's active versions, in the order of [`Store::active_plans`](crate::Store::active_plans), as they were when
    /// the wish was judged; none if it was not.
    pub seen: Option<&'a [(WorkflowId, WorkflowVersionId)]>,
    /// What of it touches side effects and was accepted, in words.
    pub accepted: &'a [String],
}

/// What came of a wish to activate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activated {
    /// There is no such workflow, or no such version of it.
    NotFound,
    /// Other versions are active than those that were seen: judge again.
    Moved,
    /// New runs are of this version.
    Active {
        /// The workflow.
        workflow: WorkflowId,
        /// The version.
        version: WorkflowVersionId,
        /// Its number.
        number: u32,
    },
}

/// A workflow in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowRow {
    /// Its id.
    pub id: WorkflowId,
    /// Its name.
    pub name: String,
    /// It is paused.
    pub paused: bool,
    /// Number of the active version.
    pub active: Option<u32>,
    /// Number of the newest version.
    pub newest: u32,
}

impl WorkflowRow {
    /// Where a list goes on after this row.
    pub fn cursor(&self) -> String {
        self.name.clone()
    }
}

/// A workflow with its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowView {
    /// Its id.
    pub id: WorkflowId,
    /// Its name.
    pub name: String,
    /// It is paused.
    pub paused: bool,
    /// What it may have of its tenant's room.
    pub share: Share,
    /// Number of the active version.
    pub active: Option<u32>,
    /// Its versions, the newest first.
    pub versions: Vec<VersionRow>,
}

/// A version in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRow {
    /// Its id.
    pub id: WorkflowVersionId,
    /// Its number, from 1.
    pub number: u32,
    /// Hash over the definition and what it pins.
    pub definition_hash: [u8; 32],
    /// When it was saved.
    pub created_at: DateTime<Utc>,
}

/// A version with its contents.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionFull {
    /// The workflow.
    pub workflow: WorkflowId,
    /// Its name.
    pub workflow_name: String,
    /// The version's id.
    pub version: WorkflowVersionId,
    /// Its number, from 1.
    pub number: u32,
    /// The definition.
    pub definition: Value,
    /// As its author wrote it.
    pub source: String,
    /// The compiled plan.
    pub plan: Value,
}

/// A version that serves new runs, or one that is under way.
#[derive(Debug, Clone, PartialEq)]
pub struct ActivePlan {
    /// The workflow.
    pub workflow: WorkflowId,
    /// Its name.
    pub name: String,
    /// The version.
    pub version: WorkflowVersionId,
    /// Its number.
    pub number: u32,
    /// The compiled plan.
    pub plan: Value,
}

/// What a new run of a workflow is pinned to.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveVersion {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The active version.
    pub version: WorkflowVersionId,
    /// Its number.
    pub number: u32,
    /// The compiled plan.
    pub plan: Value,
    /// The workflow is paused.
    pub paused: bool,
}
