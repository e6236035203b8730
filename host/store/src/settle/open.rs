//! Steps that are open from now on, as arrays: one a column, so that one statement writes however many there are.

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{RunId, step_id};
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use super::NewStep;
use crate::value;

/// Steps that are open from now on.
#[derive(Debug, Default)]
pub(crate) struct OpenArrays {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) nodes: Vec<String>,
    pub(crate) iterations: Vec<String>,
    pub(crate) waits: Vec<String>,
    pub(crate) delays: Vec<PgInterval>,
    pub(crate) untils: Vec<Option<DateTime<Utc>>>,
    pub(crate) blocks: Vec<Option<Vec<u8>>>,
}

impl OpenArrays {
    pub(crate) fn new(run: RunId, steps: &[NewStep]) -> Self {
        let mut arrays = Self::default();
        arrays.extend(run, steps);
        arrays
    }

    /// Adds steps of another run, or of the same.
    pub(crate) fn extend(&mut self, run: RunId, steps: &[NewStep]) {
        for step in steps {
            self.ids.push(step_id(run, &step.node, &step.iteration).0);
            self.nodes.push(step.node.clone());
            self.iterations.push(value::path_text(&step.iteration));
            self.waits.push(step.wait.name().into());
            self.delays.push(value::interval(step.delay));
            self.untils.push(step.until);
            self.blocks.push(step.block.map(|digest| digest.0.to_vec()));
        }
    }

    pub(crate) fn count(&self) -> i32 {
        i32::try_from(self.ids.len()).unwrap_or(i32::MAX)
    }
}
