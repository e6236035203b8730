//! Workflows: from the text that an author writes to the plan that the engine follows.
//!
//! [`Authored::read`] takes the text, [`Authored::compile`] checks all of it against the blocks that exist and makes a
//! [`Version`]: its canonical form, whose hash is its identity, and its [`Plan`]. The engine knows only the plan:
//! [`advance`] says what comes next, [`Plan::render_input`] what a step is given.

pub mod advance;
mod advise;
mod compile;
mod cycle;
mod decode;
pub mod definition;
pub mod diff;
mod duration;
pub mod plan;
mod problem;
mod render;
mod scalars;
pub(crate) mod source;
pub mod time;

pub use self::advance::advance;
pub use self::advise::Surroundings;
pub use self::compile::{Authored, Version};
pub use self::cycle::{Links, cycle_message};
pub use self::definition::schema;
pub use self::duration::{Duration, InvalidDuration};
pub use self::plan::Plan;
pub use self::problem::Problem;

/// Text of a definition, and its canonical form: a page of steps is 2 KiB.
pub const DEFINITION_BYTES_MAX: usize = 256 << 10;
/// Steps of a workflow, nested ones included: larger ones want to be several workflows.
pub const STEPS_MAX: usize = 500;
/// Expressions in the values of a workflow: compiling one takes 50 microseconds.
pub const EXPRESSIONS_MAX: usize = 2_000;
/// Lists of steps within lists of steps: checking and compiling recurse over them.
pub const STEPS_DEPTH_MAX: usize = 16;
/// Triggers of a workflow, and invariants of one: each is checked on every event, or every dispatch.
pub const RULES_MAX: usize = 32;
/// Branches of one switch: their conditions are evaluated in one go.
pub const BRANCHES_MAX: usize = 64;
/// Items of one `map`: more of them want a run each.
pub const MAP_ITEMS_MAX: usize = 1_000;
/// Items of one `map` that are worked on at once: a run is one of many.
pub const MAP_CONCURRENCY_MAX: u32 = 100;
/// Names of workflows, steps, blocks, connections and invariants: they are parts of keys, paths and URLs.
pub const NAME_LEN_MAX: usize = 64;
/// Problems that are listed: more of them do not help the author.
pub const PROBLEMS_MAX: usize = 100;

/// Whether `name` may be the name of a workflow, step, block, connection or invariant: `[a-z][a-z0-9-]*`.
pub fn is_name(name: &str) -> bool {
    name.len() <= NAME_LEN_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|sign| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == '-')
}

#[cfg(test)]
mod tests;
