//! What comes next in a run.
//!
//! Given the plan, what steps have come to, and what just happened, [`advance`] tells which steps settle without being
//! run, which become open, and whether the run ends. It always tells one of them: a run is never left with nothing to do.
//! It decides on values alone, so that every host decides the same.

use serde_json::{Value, json};

use super::definition::StopOutcome;
use super::plan::{NodeKind, Plan, PlanBranch, PlanNode, Then, compiled};
use super::render::render;
use crate::code::Code;
use crate::expression::{Compiled, RenderError, Scope, Template, text};
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
    /// Steps that become open.
    pub open: Vec<OpenStep>,
    /// The run ends.
    pub end: Option<RunEnd>,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenStep {
    /// Path of its node.
    pub node: String,
    /// Indices of the map iterations around it.
    pub iteration: Vec<u32>,
    /// When it may be claimed.
    pub wait: Wait,
    /// The block version that it runs, if it runs one.
    pub block: Option<Digest>,
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

/// Tells what follows from `event`. `scope` has the outputs of the steps that succeeded before it.
///
/// The success of a switch is taken as recorded: its output names the branch, and no condition is asked again.
pub fn advance<'a>(plan: &'a Plan, scope: &Scope<'a>, event: Event<'a>) -> Advance {
    let mut walk = Walk { plan, scope: scope.clone(), iteration: vec![], settled: vec![] };
    match event {
        Event::Started => {
            let first = if plan.nodes().is_empty() { Then::End } else { Then::Node(0) };
            walk.follow(first, Value::Null)
        }
        Event::Failed { node, error, .. } => walk.fail(node, error.clone()),
        Event::Succeeded { node: path, iteration, output } => {
            walk.iteration = iteration.to_vec();
            let Some(position) = plan.nodes().iter().position(|node| node.path == path) else {
                let message = format!("the plan has no node `{path}`");
                return walk.fail(path, StepError::new(Code::Internal, &message));
            };
            walk.scope.add_step(path, output);
            let node = &plan.nodes()[position];
            let then = match &node.kind {
                NodeKind::Switch { branches } => walk.enter(branches, recorded_choice(output), node),
                _ => node.then,
            };
            walk.follow(then, output.clone())
        }
    }
}

struct Walk<'a> {
    plan: &'a Plan,
    scope: Scope<'a>,
    iteration: Vec<u32>,
    settled: Vec<SettledNode>,
}

impl<'a> Walk<'a> {
    /// Follows the plan until something becomes open, or the run ends. Every edge leads forward, so it does.
    fn follow(mut self, mut then: Then, mut output: Value) -> Advance {
        loop {
            let position = match then {
                Then::Node(position) => position,
                // A switch waits for one branch, and this was it.
                Then::Join(container) => {
                    then = self.plan.nodes()[container].then;
                    continue;
                }
                Then::End => return self.end(RunEnd::Succeeded { output }),
            };
            let node = &self.plan.nodes()[position];
            match &node.kind {
                NodeKind::Block { digest, .. } => return self.open(node, Wait::Ready, Some(*digest)),
                NodeKind::Http { .. } => return self.open(node, Wait::Ready, None),
                NodeKind::Delay { ms } => return self.open(node, Wait::Delay { ms: *ms }, None),
                NodeKind::Set { value } => match render(value, &self.scope) {
                    Ok(value) => {
                        output = value;
                        then = node.then;
                        self.succeed(node, output.clone(), None);
                    }
                    Err(error) => return self.refuse(node, &error),
                },
                NodeKind::Switch { branches } => match self.choose(branches) {
                    Ok(choice) => {
                        output = json!({ "branch": choice });
                        self.succeed(node, output.clone(), choice);
                        then = self.enter(branches, choice, node);
                    }
                    Err(error) => return self.refuse(node, &error),
                },
                NodeKind::Stop { outcome, message, output } => {
                    return self.stop(node, *outcome, message.as_ref(), output.as_ref());
                }
            }
        }
    }

    /// The first branch whose condition holds.
    fn choose(&self, branches: &[PlanBranch]) -> Result<Option<u32>, RenderError> {
        for (index, branch) in (0..).zip(branches) {
            let holds = match &branch.when {
                None => true,
                Some(when) => compiled(when).and_then(|when| when.holds(&self.scope)).map_err(|error| {
                    RenderError::Evaluation { pointer: format!("/switch/{index}/when"), error }
                })?,
            };
            if holds {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Skips the branches that were not taken, and leads into the one that was.
    fn enter(&mut self, branches: &[PlanBranch], choice: Option<u32>, node: &PlanNode) -> Then {
        let mut then = node.then;
        for (index, branch) in (0..).zip(branches) {
            if Some(index) == choice {
                if !branch.nodes.is_empty() {
                    then = Then::Node(branch.nodes.start);
                }
                continue;
            }
            for skipped in &self.plan.nodes()[branch.nodes.clone()] {
                self.settle(skipped, Outcome::Skipped);
            }
        }
        then
    }

    fn stop(
        mut self,
        node: &'a PlanNode,
        outcome: StopOutcome,
        message: Option<&Compiled<Template>>,
        output: Option<&Compiled<Template>>,
    ) -> Advance {
        let rendered = |template: Option<&Compiled<Template>>| {
            template.map(|template| render(template, &self.scope)).transpose()
        };
        let message =
            rendered(message).and_then(|message| message.map(|message| text(message, "message")).transpose());
        let (message, output) = match (message, rendered(output)) {
            (Ok(message), Ok(output)) => (message, output.unwrap_or(Value::Null)),
            (Err(error), _) | (_, Err(error)) => return self.refuse(node, &error),
        };
        self.succeed(node, output.clone(), None);
        match outcome {
            StopOutcome::Succeeded => self.end(RunEnd::Succeeded { output }),
            StopOutcome::Failed => {
                let message = message.unwrap_or_else(|| "the workflow stopped the run".to_owned());
                self.fail(&node.path, StepError::new(Code::Stopped, &message))
            }
        }
    }

    fn succeed(&mut self, node: &'a PlanNode, output: Value, choice: Option<u32>) {
        self.scope.add_computed(&node.path, output.clone());
        self.settle(node, Outcome::Succeeded { output, choice });
    }

    fn settle(&mut self, node: &PlanNode, outcome: Outcome) {
        self.settled.push(SettledNode {
            node: node.path.clone(),
            iteration: self.iteration.clone(),
            outcome,
        });
    }

    fn open(self, node: &PlanNode, wait: Wait, block: Option<Digest>) -> Advance {
        let step = OpenStep { node: node.path.clone(), iteration: self.iteration, wait, block };
        Advance { settled: self.settled, open: vec![step], end: None }
    }

    fn end(self, end: RunEnd) -> Advance {
        Advance { settled: self.settled, open: vec![], end: Some(end) }
    }

    fn fail(self, node: &str, error: StepError) -> Advance {
        self.end(RunEnd::Failed { node: node.to_owned(), error })
    }

    /// An expression of the node failed: so does the node, and the run.
    fn refuse(mut self, node: &PlanNode, error: &RenderError) -> Advance {
        let error = StepError::new(error.code(), &error.to_string());
        self.settle(node, Outcome::Failed(error.clone()));
        self.fail(&node.path, error)
    }
}

fn recorded_choice(output: &Value) -> Option<u32> {
    output.get("branch").and_then(Value::as_u64).and_then(|branch| u32::try_from(branch).ok())
}
