//! Everything that a run's timeline is drawn from.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{HostId, LeaseId, RunId, StepId, TenantId};
use counterfoil_domain::timeline::Ended;
use serde_json::Value;

use crate::audit::AuditRow;
use crate::receipt::ReceiptView;
use crate::run::RunView;
use crate::settle::SettledState;
use crate::step::Wait;
use crate::{Store, StoreError};

/// A run's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineRows {
    /// The run.
    pub run: RunView,
    /// The compiled plan of its version.
    pub plan: Value,
    /// Steps that have settled, in that order.
    pub settled: Vec<SettledRow>,
    /// Steps that have not.
    pub open: Vec<OpenRow>,
    /// Executions that did not settle their step, in order.
    pub attempts: Vec<AttemptRow>,
    /// Receipts that the run wrote, without history, in order of call.
    pub effects: Vec<ReceiptView>,
    /// What operators did to it, in order.
    pub audit: Vec<AuditRow>,
}

/// A step that has settled.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledRow {
    /// Which one.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// How it ended.
    pub state: SettledState,
    /// In which attempt.
    pub attempt: u32,
    /// Hosts lost in a row before it ended.
    pub losses: u32,
    /// What came of it.
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<Value>,
    /// The branch that it chose.
    pub choice: Option<String>,
    /// What the guest logged in its last execution.
    pub logs: Option<Value>,
    /// When it became part of the run.
    pub queued_at: DateTime<Utc>,
    /// When its last execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub settled_at: DateTime<Utc>,
}

/// A step that has not settled.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenRow {
    /// Which one.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Its iteration path.
    pub iteration: Vec<u32>,
    /// In which attempt it is.
    pub attempt: u32,
    /// What it waits for, or waited for before it was claimed.
    pub wait: Wait,
    /// Hosts lost in a row.
    pub losses: u32,
    /// When it is due, or its lease runs out; none if only a person or an answer can move it.
    pub due_at: Option<DateTime<Utc>>,
    /// The execution that holds it.
    pub lease: Option<LeaseId>,
    /// The host that does.
    pub host: Option<HostId>,
    /// When it became part of the run.
    pub queued_at: DateTime<Utc>,
    /// When any execution of it first began.
    pub first_started_at: Option<DateTime<Utc>>,
    /// When its last execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// Why its last execution did not settle it.
    pub error: Option<Value>,
}

/// An execution that did not settle its step.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    /// Which step.
    pub step: StepId,
    /// Which execution.
    pub lease: LeaseId,
    /// In which attempt.
    pub attempt: u32,
    /// On which host.
    pub host: HostId,
    /// When it began.
    pub started_at: DateTime<Utc>,
    /// When it ended, or was found lost.
    pub ended_at: DateTime<Utc>,
    /// How.
    pub ended: Ended,
    /// Why.
    pub error: Option<Value>,
    /// What the guest logged.
    pub logs: Option<Value>,
}

impl Store {
    /// Everything that a run's timeline is drawn from.
    pub async fn timeline(&self, tenant: TenantId, run: RunId) -> Result<Option<TimelineRows>, StoreError> {
        todo!()
    }
}
