//! What a block may know about where it runs: nothing that differs when a step is run again.

use std::time::{Duration, SystemTime};

use crate::host;

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The finest detail.
    Trace,
    /// For the block's author.
    Debug,
    /// The ordinary course.
    Info,
    /// Unexpected, and dealt with.
    Warn,
    /// Why the step failed.
    Error,
}

/// Where in the work a step stands: the same in every attempt and in every replay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The run and all its replays.
    pub lineage: String,
    /// The step's name in the workflow.
    pub node: String,
    /// Indices of the map iterations around the step, outermost first.
    pub iteration: Vec<u32>,
}

/// Where this step stands.
pub fn place() -> Place {
    host::place()
}

/// When this step first started in its lineage. There is no other clock.
pub fn started_at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(host::started_at_ms())
}

/// Random bytes: the same each time this step is run again.
pub fn random(len: u32) -> Vec<u8> {
    host::random(len)
}

/// Writes a line into the step's log.
pub fn log(level: Level, message: impl AsRef<str>) {
    host::log(level, message.as_ref());
}
