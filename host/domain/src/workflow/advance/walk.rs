//! Follows the plan until something becomes open, or the run ends.

use serde_json::{Value, json};

use super::container::{Started, part_counts};
use super::{Advance, Join, OpenStep, Outcome, Part, PartError, RunEnd, SettledNode, Undone, Wait};
use crate::code::Code;
use crate::expression::{Compiled, RenderError, Scope, Template, text};
use crate::id::Digest;
use crate::step::StepError;
use crate::workflow::definition::StopOutcome;
use crate::workflow::plan::{Inside, NodeKind, Plan, PlanBranch, PlanNode, Then, compiled};
use crate::workflow::render::render;
use crate::workflow::time::moment_ms;

/// What is gathered on the way.
pub(super) struct Walk<'a> {
    pub(super) plan: &'a Plan,
    pub(super) settled: Vec<SettledNode>,
    pub(super) open: Vec<OpenStep>,
    undone: Vec<Undone>,
}

/// One line of steps that are gone through one after the other: what its next step sees, and in which iteration it is.
#[derive(Clone)]
pub(super) struct At<'a> {
    pub(super) scope: Scope<'a>,
    pub(super) iteration: Vec<u32>,
}

impl<'a> At<'a> {
    pub(super) fn new(scope: &Scope<'a>, iteration: &[u32]) -> Self {
        Self { scope: scope.clone(), iteration: iteration.to_vec() }
    }
}

/// How far a line of steps came.
#[derive(Debug)]
pub(super) enum Thread {
    /// A step of it is open.
    Open,
    /// It came to its end, with the output of its last step.
    Done(Value),
    /// A step of it failed.
    Failed(PartError),
    /// It ended the run.
    Ended(RunEnd),
}

impl<'a> Walk<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        Self { plan, settled: vec![], open: vec![], undone: vec![] }
    }

    /// What follows in all, once a line that stands in `home` has come so far.
    pub(super) fn end(mut self, thread: Thread, home: Option<Inside>, iteration: &[u32]) -> Advance {
        let (mut join, mut end) = (None, None);
        match (thread, home) {
            (Thread::Open, _) => {}
            (Thread::Ended(ended), _) => end = Some(ended),
            (Thread::Done(output), None) => end = Some(RunEnd::Succeeded { output }),
            (Thread::Failed(PartError { node, error }), None) => end = Some(RunEnd::Failed { node, error }),
            (Thread::Done(output), Some(home)) => join = Some(self.join(home, iteration, Ok(output))),
            (Thread::Failed(error), Some(home)) => join = Some(self.join(home, iteration, Err(error))),
        }
        if end.is_some() {
            // What was about to become open beside the step that ended the run never does.
            self.open.clear();
        }
        Advance { settled: self.settled, open: self.open, join, undone: self.undone, end }
    }

    fn join(&self, home: Inside, iteration: &[u32], result: Result<Value, PartError>) -> Join {
        let container = &self.plan.nodes()[home.container];
        let (iteration, index) = match (&container.kind, iteration.split_last()) {
            (NodeKind::Map { .. }, Some((index, around))) => (around, *index),
            (NodeKind::Try { stages, .. }, _) => (iteration, u32::from(home.part >= stages.len())),
            _ => (iteration, u32::try_from(home.part).unwrap_or(u32::MAX)),
        };
        let counts = part_counts(&container.kind, result.is_ok());
        let part = Part { index, result, counts };
        Join { node: container.path.clone(), iteration: iteration.to_vec(), part }
    }

    /// Follows a line until a step of it is open, or it ends: at the end of the part of `home` in which it is, if it is in
    /// one. Every edge leads forward, so it does.
    pub(super) fn follow(
        &mut self,
        mut then: Then,
        mut output: Value,
        at: &mut At<'a>,
        home: Option<usize>,
    ) -> Thread {
        loop {
            let position = match then {
                Then::Node(position) => position,
                Then::Join(container) if Some(container) == home => return Thread::Done(output),
                // A switch waits for one branch, and this was it.
                Then::Join(container) => {
                    then = self.leave(container, &at.iteration);
                    continue;
                }
                Then::End => return Thread::Done(output),
            };
            let node = &self.plan.nodes()[position];
            let done = match &node.kind {
                NodeKind::Block { digest, .. } => return self.open(node, at, Wait::Ready, Some(*digest)),
                NodeKind::Http { .. }
                | NodeKind::Emit { .. }
                | NodeKind::Listen { .. }
                | NodeKind::Approval { .. }
                | NodeKind::Workflow { .. }
                | NodeKind::Worker { .. } => return self.open(node, at, Wait::Ready, None),
                NodeKind::Delay { ms } => return self.open(node, at, Wait::Delay { ms: *ms }, None),
                NodeKind::Until { until, zone } => match until_ms(until, zone.as_deref(), &at.scope) {
                    Ok(at_ms) => return self.open(node, at, Wait::Until { at_ms }, None),
                    Err(error) => Err(error),
                },
                NodeKind::Set { value } => render(value, &at.scope).map_err(|error| failure(&error)),
                NodeKind::Switch { branches } => match choose(branches, &at.scope) {
                    Ok(choice) => {
                        output = json!({ "branch": choice });
                        self.succeed(node, at, output.clone(), choice);
                        then = self.enter(choice, position, &at.iteration);
                        continue;
                    }
                    Err(error) => Err(failure(&error)),
                },
                NodeKind::Stop { outcome, message, output } => {
                    return self.stop(node, at, *outcome, message.as_ref(), output.as_ref());
                }
                NodeKind::Parallel { .. } | NodeKind::Map { .. } | NodeKind::Try { .. } => {
                    match self.start(position, at) {
                        Started::Open => return Thread::Open,
                        Started::Ended(end) => return Thread::Ended(end),
                        Started::Done(done) => done,
                    }
                }
            };
            match done {
                Ok(done) => {
                    output = done;
                    self.succeed(node, at, output.clone(), None);
                    then = self.leave(position, &at.iteration);
                }
                Err(error) => return self.refuse(node, at, error),
            }
        }
    }

    /// Where it goes on behind a node that is done. Behind the last one that undoes a stage, the stage is undone.
    pub(super) fn leave(&mut self, position: usize, iteration: &[u32]) -> Then {
        let then = self.plan.nodes()[position].then;
        let Some(inside) = self.plan.shape().around(position) else { return then };
        if let NodeKind::Try { stages, .. } = &self.plan.nodes()[inside.container].kind {
            let undoes = stages.iter().find(|stage| stage.undo.contains(&position));
            let goes_on = |stage: &&_| matches!(then, Then::Node(next) if undo_of(stage).contains(&next));
            if let Some(stage) = undoes.filter(|stage| !goes_on(stage)) {
                let nodes = &self.plan.nodes()[stage.nodes.clone()];
                let nodes = nodes.iter().map(|node| node.path.clone()).collect();
                self.undone.push(Undone { nodes, iteration: iteration.to_vec() });
            }
        }
        then
    }

    /// Skips the branches that were not taken, and leads into the one that was.
    pub(super) fn enter(&mut self, choice: Option<u32>, position: usize, iteration: &[u32]) -> Then {
        let mut into = None;
        for (index, nodes) in (0..).zip(self.plan.nodes()[position].kind.parts()) {
            if Some(index) == choice {
                into = (!nodes.is_empty()).then_some(Then::Node(nodes.start));
                continue;
            }
            for skipped in &self.plan.nodes()[nodes.clone()] {
                self.settle(skipped, iteration, Outcome::Skipped);
            }
        }
        into.unwrap_or_else(|| self.leave(position, iteration))
    }

    fn stop(
        &mut self,
        node: &'a PlanNode,
        at: &mut At<'a>,
        outcome: StopOutcome,
        message: Option<&Compiled<Template>>,
        output: Option<&Compiled<Template>>,
    ) -> Thread {
        let rendered = |template: Option<&Compiled<Template>>| {
            template.map(|template| render(template, &at.scope)).transpose()
        };
        let message =
            rendered(message).and_then(|message| message.map(|message| text(message, "message")).transpose());
        let (message, output) = match (message, rendered(output)) {
            (Ok(message), Ok(output)) => (message, output.unwrap_or(Value::Null)),
            (Err(error), _) | (_, Err(error)) => return self.refuse(node, at, failure(&error)),
        };
        self.succeed(node, at, output.clone(), None);
        Thread::Ended(match outcome {
            StopOutcome::Succeeded => RunEnd::Succeeded { output },
            StopOutcome::Failed => {
                let message = message.unwrap_or_else(|| "the workflow stopped the run".to_owned());
                RunEnd::Failed { node: node.path.clone(), error: StepError::new(Code::Stopped, &message) }
            }
        })
    }

    fn succeed(&mut self, node: &'a PlanNode, at: &mut At<'a>, output: Value, choice: Option<u32>) {
        at.scope.add_computed(&node.path, output.clone());
        self.settle(node, &at.iteration, Outcome::Succeeded { output, choice });
    }

    fn settle(&mut self, node: &PlanNode, iteration: &[u32], outcome: Outcome) {
        let settled = SettledNode { node: node.path.clone(), iteration: iteration.to_vec(), outcome };
        self.settled.push(settled);
    }

    fn open(&mut self, node: &PlanNode, at: &At<'a>, wait: Wait, block: Option<Digest>) -> Thread {
        let (node, iteration) = (node.path.clone(), at.iteration.clone());
        self.open.push(OpenStep { node, iteration, wait, block, container: None });
        Thread::Open
    }

    /// The node fails without having been open.
    fn refuse(&mut self, node: &PlanNode, at: &At<'a>, error: StepError) -> Thread {
        self.settle(node, &at.iteration, Outcome::Failed(error.clone()));
        Thread::Failed(PartError { node: node.path.clone(), error })
    }
}

/// The first branch whose condition holds.
fn choose(branches: &[PlanBranch], scope: &Scope<'_>) -> Result<Option<u32>, RenderError> {
    for (index, branch) in (0..).zip(branches) {
        let holds = match &branch.when {
            None => true,
            Some(when) => compiled(when).and_then(|when| when.holds(scope)).map_err(|error| {
                RenderError::Evaluation { pointer: format!("/switch/{index}/when"), error }
            })?,
        };
        if holds {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn until_ms(until: &Compiled<Template>, zone: Option<&str>, scope: &Scope<'_>) -> Result<i64, StepError> {
    let until =
        render(until, scope).and_then(|until| text(until, "until")).map_err(|error| failure(&error))?;
    moment_ms(&until, zone).map_err(|error| StepError::new(Code::ExpressionFailed, &error.to_string()))
}

pub(super) fn failure(error: &RenderError) -> StepError {
    StepError::new(error.code(), &error.to_string())
}

fn undo_of(stage: &crate::workflow::plan::PlanStage) -> &std::ops::Range<usize> {
    &stage.undo
}
