//! What tenants, workflows and connections may have of a host, as requests name it.

use counterfoil_domain::fair_share::{Share, WEIGHT_MAX};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;

/// How much of a host's room a workflow may have.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkflowShare {
    /// How much of its tenant's room it gets, beside the tenant's other workflows that have work due.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    weight: u32,
    /// Steps in flight at most on each host; as many as there is room for if absent.
    #[schema(minimum = 1)]
    in_flight_max: Option<u32>,
}

const fn one() -> u32 {
    1
}

impl WorkflowShare {
    /// As the hosts use it.
    pub(crate) fn judge(self) -> Result<Share, Problem> {
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            return Err(Problem::bad_field("/weight", format!("a weight is from 1 to {WEIGHT_MAX}")));
        }
        self.in_flight_max.map_or(Ok(()), judge_cap)?;
        Ok(Share { weight: self.weight, in_flight_max: self.in_flight_max })
    }
}

impl From<Share> for WorkflowShare {
    fn from(Share { weight, in_flight_max }: Share) -> Self {
        Self { weight, in_flight_max }
    }
}

/// Refuses a cap that lets nothing run, or that no column holds.
pub(crate) fn judge_cap(most: u32) -> Result<(), Problem> {
    if most == 0 || i32::try_from(most).is_err() {
        return Err(Problem::bad_field("/in_flight_max", "at least 1, and less than 2^31"));
    }
    Ok(())
}
