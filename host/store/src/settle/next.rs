//! What the plan says comes next, in the form in which it is stored.

use std::sync::LazyLock;
use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{RunId, step_id};
use counterfoil_domain::workflow::advance::{self, OpenStep, Outcome, SettledNode};

use super::{NewStep, RunEnd, RunEndState, SettledState, SettledStep};
use crate::step::Wait;

/// The moments that every column can hold.
static MOMENT_MIN: LazyLock<DateTime<Utc>> = LazyLock::new(|| DateTime::UNIX_EPOCH);
static MOMENT_MAX: LazyLock<DateTime<Utc>> =
    LazyLock::new(|| DateTime::from_timestamp(253_402_300_799, 0).unwrap_or(DateTime::<Utc>::MAX_UTC));

impl SettledStep {
    /// A step of `run` that settles without ever having been open.
    pub fn inline(run: RunId, settled: SettledNode) -> Self {
        let SettledNode { node, iteration, outcome } = settled;
        let (state, output, error, choice) = match outcome {
            Outcome::Succeeded { output, choice } => (SettledState::Succeeded, Some(output), None, choice),
            Outcome::Skipped => (SettledState::Skipped, None, None, None),
            Outcome::Failed(error) => (SettledState::Failed, None, Some(error.to_json()), None),
        };
        let step = step_id(run, &node, &iteration);
        Self { step, node, iteration, state, output, error, choice: choice.map(|choice| choice.to_string()) }
    }
}

impl From<OpenStep> for NewStep {
    fn from(step: OpenStep) -> Self {
        let OpenStep { node, iteration, wait, block, container } = step;
        let (wait, delay, until) = match wait {
            advance::Wait::Ready => (Wait::Ready, Duration::ZERO, None),
            advance::Wait::Delay { ms } => (Wait::Delay, Duration::from_millis(ms), None),
            // What is beyond the calendar is never.
            advance::Wait::Until { at_ms } => {
                let at = DateTime::from_timestamp_millis(at_ms).unwrap_or(DateTime::<Utc>::MAX_UTC);
                (Wait::Delay, Duration::ZERO, Some(at.clamp(*MOMENT_MIN, *MOMENT_MAX)))
            }
            advance::Wait::Child => (Wait::Child, Duration::ZERO, None),
        };
        Self { node, iteration, wait, delay, until, block, container }
    }
}

impl From<advance::RunEnd> for RunEnd {
    fn from(end: advance::RunEnd) -> Self {
        match end {
            advance::RunEnd::Succeeded { output } => {
                Self { state: RunEndState::Succeeded, output: Some(output), error: None }
            }
            advance::RunEnd::Failed { node, error } => {
                let mut error = error.to_json();
                error["node"] = node.into();
                Self { state: RunEndState::Failed, output: None, error: Some(error) }
            }
        }
    }
}
