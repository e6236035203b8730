//! What comes next in a run.
//!
//! Given the plan, what steps have come to, and what just happened, [`advance`] tells which steps settle without being
//! run, which become open, and whether the run ends. It always tells one of them: a run is never left with nothing to do.
//! It decides on values alone, so that every host decides the same.

mod container;
mod sight;
mod walk;

use serde_json::{Value, json};

pub use self::container::{Continuation, Joined, Progress, joined};
pub use self::sight::Outputs;
use self::walk::{At, Thread, Walk};
use super::plan::{NodeKind, Plan, Then};
use crate::code::Code;
use crate::expression::Scope;
use crate::id::{Digest, LineageId};
use crate::step::StepError;

/// What just happened in a run.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// It starts.
    Started,
    /// A step succeeded.
    Succeeded {
        /// Path of its node.
        node: &'a str,
        /// Indices of the map iterations around it.
        iteration: &'a [u32],
        /// What it came to.
        output: &'a Value,
    },
    /// A step failed for good.
    Failed {
        /// Path of its node.
        node: &'a str,
        /// Indices of the map iterations around it.
        iteration: &'a [u32],
        /// Why.
        error: &'a StepError,
    },
}

/// What follows. Steps that are not named in it, and never were, have not been reached.
#[derive(Debug, Clone, PartialEq)]
pub struct Advance {
    /// Steps that settle at once, in order: evaluated on the way, or on a branch that was not taken.
    pub settled: Vec<SettledNode>,
    /// Steps that become open. A container comes before what is inside it.
    pub open: Vec<OpenStep>,
    /// A part of an open container is done.
    pub join: Option<Join>,
    /// What has been undone.
    pub undone: Vec<Undone>,
    /// The run ends.
    pub end: Option<RunEnd>,
}

/// A part of an open container that is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Join {
    /// Path of the container's node.
    pub node: String,
    /// Indices of the map iterations around the container.
    pub iteration: Vec<u32>,
    /// What it came to.
    pub part: Part,
}

/// What a part of a container came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Which: a branch of a `parallel`, an item of a `map`; of a `try`, 0 is what it does and 1 what undoes it.
    pub index: u32,
    /// The output of its last step, or the error of the one that failed.
    pub result: Result<Value, PartError>,
    /// Whether it brings the container nearer to its success.
    pub counts: bool,
}

/// Why a part of a container failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartError {
    /// Path of the node that failed.
    pub node: String,
    /// Why.
    pub error: StepError,
}

/// Steps whose effects have been undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// Paths of their nodes.
    pub nodes: Vec<String>,
    /// Indices of the map iterations around all of them.
    pub iteration: Vec<u32>,
}

/// A step that settles without ever being open.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledNode {
    /// Path of its node.
    pub node: String,
    /// Indices of the map iterations around it.
    pub iteration: Vec<u32>,
    /// How it settles.
    pub outcome: Outcome,
}

/// How a step settles without being run.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was evaluated.
    Succeeded {
        /// What it came to.
        output: Value,
        /// The branch that a switch took, from 0; a replay takes it again. None was taken if there is none.
        choice: Option<u32>,
    },
    /// It stands on a branch that was not taken.
    Skipped,
    /// An expression in it failed.
    Failed(StepError),
}

/// A step that becomes open.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenStep {
    /// Path of its node.
    pub node: String,
    /// Indices of the map iterations around it.
    pub iteration: Vec<u32>,
    /// When it may be claimed.
    pub wait: Wait,
    /// The block version that it runs, if it runs one.
    pub block: Option<Digest>,
    /// What it holds, if it is a container.
    pub container: Option<Container>,
}

/// What a container holds when it becomes open.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Parts that have yet to succeed until it goes on.
    pub awaits: i32,
    /// Parts that may yet fail; below none, the container fails.
    pub tolerates: i32,
    /// Parts that may begin beside those that run, if any have yet to begin.
    pub room: i32,
    /// Its parts, in order.
    pub parts: Vec<PartStart>,
}

/// A part of a container that becomes open.
#[derive(Debug, Clone, PartialEq)]
pub struct PartStart {
    /// Which.
    pub index: u32,
    /// The item, of a `map`.
    pub item: Option<Value>,
    /// How far it is.
    pub standing: PartStanding,
}

/// How far a part of a container is.
#[derive(Debug, Clone, PartialEq)]
pub enum PartStanding {
    /// It has yet to begin.
    Waiting,
    /// It has steps open.
    Running,
    /// It is done.
    Done(Result<Value, PartError>),
}

/// When an open step may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// At once.
    Ready,
    /// When it has waited. To be claimed is to have waited.
    Delay {
        /// For how long, in milliseconds.
        ms: u64,
    },
    /// When the moment has come. To be claimed is to have waited.
    Until {
        /// The moment, in milliseconds since 1970.
        at_ms: i64,
    },
    /// When enough of what is inside it is done.
    Child,
}

/// How a run ends.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    /// With an output: that of `stop`, else of the step that ran last.
    Succeeded {
        /// The output.
        output: Value,
    },
    /// With an error.
    Failed {
        /// Path of the node at which it ended.
        node: String,
        /// Why.
        error: StepError,
    },
}

/// What expressions see as `run`: only what is the same in every replay of it.
pub fn about_run(lineage: LineageId) -> Value {
    json!({ "lineage": lineage })
}

/// Tells what follows from `event`. `scope` is what the step that it is about sees, without its own output.
///
/// The success of a switch is taken as recorded: its output names the branch, and no condition is asked again.
pub fn advance<'a>(plan: &'a Plan, scope: &Scope<'a>, event: Event<'a>) -> Advance {
    let mut walk = Walk::new(plan);
    let (path, iteration) = match event {
        Event::Started => {
            let first = if plan.nodes().is_empty() { Then::End } else { Then::Node(0) };
            let thread = walk.follow(first, Value::Null, &mut At::new(scope, &[]), None);
            return walk.end(thread, None, &[]);
        }
        Event::Succeeded { node, iteration, .. } | Event::Failed { node, iteration, .. } => (node, iteration),
    };
    let Some(position) = plan.position(path) else {
        let error = StepError::new(Code::Internal, &format!("the plan has no node `{path}`"));
        return walk.end(Thread::Failed(PartError { node: path.to_owned(), error }), None, &[]);
    };
    let home = plan.home(position);
    let thread = match event {
        Event::Started => Thread::Open,
        Event::Failed { error, .. } => {
            Thread::Failed(PartError { node: path.to_owned(), error: error.clone() })
        }
        Event::Succeeded { output, .. } => {
            let mut at = At::new(scope, iteration);
            at.scope.add_step(path, output);
            let then = match &plan.nodes()[position].kind {
                NodeKind::Switch { .. } => walk.enter(recorded_choice(output), position, iteration),
                NodeKind::Listen { .. } | NodeKind::Approval { .. } => {
                    let timed_out = output["timed_out"].as_bool().unwrap_or(false);
                    walk.enter(timed_out.then_some(0), position, iteration)
                }
                _ => walk.leave(position, iteration),
            };
            walk.follow(then, output.clone(), &mut at, home.map(|home| home.container))
        }
    };
    walk.end(thread, home, iteration)
}

fn recorded_choice(output: &Value) -> Option<u32> {
    output.get("branch").and_then(Value::as_u64).and_then(|branch| u32::try_from(branch).ok())
}
