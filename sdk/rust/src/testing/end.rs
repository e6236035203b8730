//! How an execution of a step ended.

use std::any::Any;
use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;

/// The code of a block that panicked.
pub(super) const TRAP: &str = "guest_trap";

/// How an execution ended, or a step.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// With this output.
    Succeeded(Value),
    /// For good. The code is the block's own, or `guest_trap` after a panic, or `diverged`.
    Failed {
        /// For programs.
        code: String,
        /// For people.
        message: String,
    },
    /// For now: another attempt follows.
    Waiting {
        /// For programs.
        code: String,
        /// For people.
        message: String,
        /// The wait before it.
        delay: Duration,
    },
    /// An outcome is unknown: somebody must say what happened.
    Blocked {
        /// Of which effect, and why.
        reason: String,
    },
    /// The process died.
    Crashed,
}

impl End {
    /// The output.
    ///
    /// # Panics
    ///
    /// When it ended otherwise.
    #[track_caller]
    pub fn output(self) -> Value {
        match self {
            Self::Succeeded(output) => output,
            other => panic!("the step did not succeed: {other:?}"),
        }
    }

    /// The code of a failure, for good or for now.
    ///
    /// # Panics
    ///
    /// When it ended otherwise.
    #[track_caller]
    pub fn failure_code(self) -> String {
        match self {
            Self::Failed { code, .. } | Self::Waiting { code, .. } => code,
            other => panic!("the step did not fail: {other:?}"),
        }
    }

    /// Whether somebody must say what happened.
    pub fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    pub(super) fn of(failure: &Failure) -> Self {
        let (code, message) = (failure.code().to_owned(), failure.message().to_owned());
        if failure.is_transient() {
            Self::Waiting { code, message, delay: failure.retry_after().unwrap_or_default() }
        } else {
            Self::Failed { code, message }
        }
    }

    pub(super) fn trap(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Failed { code: TRAP.into(), message: text.unwrap_or_else(|| "it panicked".into()) }
    }
}
