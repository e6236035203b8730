//! Runs in lists, and one run with its payloads.
use counterfoil_domain::id::{RunId, TenantId, WorkflowId};

use super::{RunRow, RunState, RunView};
use crate::page::Page;
use crate::{Store, StoreError};

/// Which runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of this workflow only.
    pub workflow: Option<WorkflowId>,
    /// In this state only.
    pub state: Option<RunState>,
    /// About this record only.
    pub record: Option<String>,
}

impl Store {
    /// Runs, the newest first.
    pub async fn runs(
        &self,
        tenant: TenantId,
        filter: &RunFilter,
        page: Page,
    ) -> Result<Vec<RunRow>, StoreError> {
        todo!()
    }

    /// A run with its payloads.
    pub async fn run(&self, tenant: TenantId, id: RunId) -> Result<Option<RunView>, StoreError> {
        todo!()
    }
}
