//! Containers: what they begin with, and what follows when parts of them are done.

use serde_json::{Value, json};

use super::walk::{At, Thread, Walk, failure};
use super::{
    Container, OpenStep, Part, PartError, PartStanding, PartStart, RunEnd, SettledNode, Undone, Wait,
};
use crate::code::Code;
use crate::expression::Scope;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::step::StepError;
use crate::workflow::MAP_ITEMS_MAX;
use crate::workflow::definition::{ItemFailure, Losers, TryFailure};
use crate::workflow::plan::{NodeKind, Plan, PlanStage, Then};
use crate::workflow::render::render;

/// How far an open container is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Parts that have yet to succeed until it goes on.
    pub awaits: i32,
    /// Parts that may yet fail.
    pub tolerates: i32,
    /// Parts that may begin beside those that run.
    pub room: i32,
    /// The first of the items that have yet to begin.
    pub waiting: Vec<(u32, Value)>,
    /// What the parts came to that are done, in their order. Needed only once the container is over.
    pub done: Vec<(u32, Result<Value, PartError>)>,
}

impl Progress {
    /// Whether nothing more has to be waited for.
    pub const fn is_over(&self) -> bool {
        self.awaits <= 0 || self.tolerates < 0
    }
}

/// What follows when parts of a container are done.
#[derive(Debug, Clone, PartialEq)]
pub enum Joined {
    /// It is over.
    Over {
        /// What it came to.
        result: Result<Value, StepError>,
        /// What it still has open goes on without it.
        leaves: bool,
    },
    /// More of it begins.
    Continues(Continuation),
    /// One of its steps ended the run.
    Ended {
        /// Steps that settle on the way.
        settled: Vec<SettledNode>,
        /// How the run ends.
        end: RunEnd,
    },
}

/// What begins in a container that goes on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Continuation {
    /// Steps that settle at once, in order.
    pub settled: Vec<SettledNode>,
    /// Steps that become open.
    pub open: Vec<OpenStep>,
    /// Parts that begin, or have come to their end at once.
    pub parts: Vec<PartStart>,
    /// Failures more that are tolerated.
    pub tolerates: i32,
    /// What has been undone.
    pub undone: Vec<Undone>,
}

/// What came of starting a container.
pub(super) enum Started {
    Open,
    Done(Result<Value, StepError>),
    Ended(RunEnd),
}

/// Tells what follows when the container at `node` has come so far. `scope` is what its own step sees.
pub fn joined<'a>(
    plan: &'a Plan,
    scope: &Scope<'a>,
    (node, iteration): (&str, &[u32]),
    progress: &Progress,
) -> Joined {
    let Some(position) = plan.position(node) else {
        let error = StepError::new(Code::Internal, &format!("the plan has no node `{node}`"));
        return Joined::Over { result: Err(error), leaves: false };
    };
    let mut walk = Walk::new(plan);
    let at = At::new(scope, iteration);
    match &plan.nodes()[position].kind {
        NodeKind::Map { .. } if !progress.is_over() => {
            let room = usize::try_from(progress.room).unwrap_or(0);
            let waiting = progress.waiting.iter().take(room);
            match walk.items(position, &at, waiting.map(|(index, item)| (*index, item.clone()))) {
                Ok(parts) => walk.continues(parts, 0),
                Err(end) => Joined::Ended { settled: walk.settled, end },
            }
        }
        NodeKind::Try { stages, .. } if progress.tolerates < 0 => match undoing(plan, stages, &progress.done)
        {
            None => over(&plan.nodes()[position].kind, progress),
            Some(first) => walk.undo(position, first, at),
        },
        kind => over(kind, progress),
    }
}

impl<'a> Walk<'a> {
    fn continues(self, parts: Vec<PartStart>, tolerates: i32) -> Joined {
        let advance = self.end(Thread::Open, None, &[]);
        let super::Advance { settled, open, undone, .. } = advance;
        Joined::Continues(Continuation { settled, open, parts, tolerates, undone })
    }

    /// Begins to undo at a node.
    fn undo(mut self, position: usize, first: usize, mut at: At<'a>) -> Joined {
        match self.follow(Then::Node(first), Value::Null, &mut at, Some(position)) {
            Thread::Ended(end) => Joined::Ended { settled: self.settled, end },
            thread => self.continues(vec![part(1, None, thread)], 1),
        }
    }

    /// Starts the container at `position`: its parts go as far as they can at once.
    pub(super) fn start(&mut self, position: usize, at: &mut At<'a>) -> Started {
        let node = &self.plan.nodes()[position];
        // A container comes before what is inside it.
        let place = self.open.len();
        let (parts, awaits, tolerates) = match &node.kind {
            NodeKind::Parallel { branches, needed, .. } => {
                let total = u32::try_from(branches.len()).unwrap_or(u32::MAX);
                (self.branches(position, at), *needed, total.saturating_sub(*needed))
            }
            NodeKind::Map { items, concurrency, .. } => {
                let items = match render(items, &at.scope) {
                    Ok(items) => list(items),
                    Err(error) => Err(failure(&error)),
                };
                let items = match items {
                    Ok(items) => items,
                    Err(error) => return Started::Done(Err(error)),
                };
                let total = u32::try_from(items.len()).unwrap_or(u32::MAX);
                (self.first_items(position, at, items, *concurrency as usize), total, 0)
            }
            NodeKind::Try { stages, .. } => return self.attempt(position, stages, at),
            _ => (Ok(vec![]), 0, 0),
        };
        let parts = match parts {
            Ok(parts) => parts,
            Err(end) => return Started::Ended(end),
        };
        let container = Container::counted(&node.kind, awaits, tolerates, parts);
        self.settle_or_open(position, place, at, container)
    }

    /// What is over at once never becomes open.
    fn settle_or_open(
        &mut self,
        position: usize,
        place: usize,
        at: &mut At<'a>,
        container: Container,
    ) -> Started {
        let node = &self.plan.nodes()[position];
        let is_busy = container.parts.iter().any(|part| part.standing == PartStanding::Running);
        let progress = container.progress();
        if !is_busy
            && progress.is_over()
            && !matches!(node.kind, NodeKind::Try { .. } if progress.tolerates < 0)
        {
            let Joined::Over { result, .. } = over(&node.kind, &progress) else { return Started::Open };
            return Started::Done(result);
        }
        // What can go on at once is claimed at once.
        let is_due = progress.is_over() || !is_busy;
        let wait = if is_due { Wait::Ready } else { Wait::Child };
        let (node, iteration) = (node.path.clone(), at.iteration.clone());
        let step = OpenStep { node, iteration, wait, block: None, container: Some(container) };
        self.open.insert(place, step);
        Started::Open
    }

    fn branches(&mut self, position: usize, at: &mut At<'a>) -> Result<Vec<PartStart>, RunEnd> {
        let (mut parts, mut seen) = (vec![], vec![]);
        for (index, range) in (0..).zip(self.plan.nodes()[position].kind.parts()) {
            let mut branch = at.clone();
            let first = if range.is_empty() { Then::Join(position) } else { Then::Node(range.start) };
            match self.follow(first, Value::Null, &mut branch, Some(position)) {
                Thread::Ended(end) => return Err(end),
                thread => parts.push(part(index, None, thread)),
            }
            seen.push(branch.scope);
        }
        for (part, scope) in parts.iter().zip(seen) {
            if matches!(part.standing, PartStanding::Done(Ok(_))) {
                at.scope.merge(scope);
            }
        }
        Ok(parts)
    }

    fn first_items(
        &mut self,
        position: usize,
        at: &At<'a>,
        items: Vec<Value>,
        room: usize,
    ) -> Result<Vec<PartStart>, RunEnd> {
        let mut items = (0..).zip(items);
        let mut parts = self.items(position, at, items.by_ref().take(room))?;
        parts.extend(items.map(|(index, item)| PartStart {
            index,
            item: Some(item),
            standing: PartStanding::Waiting,
        }));
        Ok(parts)
    }

    fn items(
        &mut self,
        position: usize,
        at: &At<'a>,
        items: impl Iterator<Item = (u32, Value)>,
    ) -> Result<Vec<PartStart>, RunEnd> {
        let mut parts = vec![];
        for (index, item) in items {
            let mut at = at.clone();
            at.iteration.push(index);
            at.scope.set_item(index, item.clone());
            match self.follow(Then::Node(position + 1), Value::Null, &mut at, Some(position)) {
                Thread::Ended(end) => return Err(end),
                thread => parts.push(part(index, Some(item), thread)),
            }
        }
        Ok(parts)
    }

    fn attempt(&mut self, position: usize, stages: &[PlanStage], at: &mut At<'a>) -> Started {
        let place = self.open.len();
        let first = stages.iter().find(|stage| !stage.nodes.is_empty());
        let then = first.map_or(Then::Join(position), |stage| Then::Node(stage.nodes.start));
        let thread = match self.follow(then, Value::Null, at, Some(position)) {
            Thread::Ended(end) => return Started::Ended(end),
            thread => thread,
        };
        let kind = &self.plan.nodes()[position].kind;
        let container = Container::counted(kind, 1, 0, vec![part(0, None, thread)]);
        self.settle_or_open(position, place, at, container)
    }
}

impl Container {
    /// With the parts that are done taken into account.
    fn counted(kind: &NodeKind, awaits: u32, tolerates: u32, parts: Vec<PartStart>) -> Self {
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let (mut awaits, mut tolerates) = (number(awaits), number(tolerates));
        let mut room = match kind {
            NodeKind::Map { concurrency, .. } => number(*concurrency),
            _ => 0,
        };
        for part in &parts {
            match &part.standing {
                PartStanding::Waiting => {}
                PartStanding::Running => room -= 1,
                PartStanding::Done(result) if part_counts(kind, result.is_ok()) => awaits -= 1,
                PartStanding::Done(_) => tolerates -= 1,
            }
        }
        Self { awaits, tolerates, room, parts }
    }

    fn progress(&self) -> Progress {
        let done = self.parts.iter().filter_map(|part| match &part.standing {
            PartStanding::Done(result) => Some((part.index, result.clone())),
            _ => None,
        });
        Progress {
            awaits: self.awaits,
            tolerates: self.tolerates,
            done: done.collect(),
            ..Progress::default()
        }
    }
}

impl PartStart {
    /// As the container counts it, if it is done.
    pub fn done(&self, plan: &Plan, container: &str) -> Option<Part> {
        let PartStanding::Done(result) = &self.standing else { return None };
        let counts = plan.node(container).is_some_and(|node| part_counts(&node.kind, result.is_ok()));
        Some(Part { index: self.index, result: result.clone(), counts })
    }
}

/// Whether a part that ended so brings its container nearer to its success.
pub(super) fn part_counts(kind: &NodeKind, succeeded: bool) -> bool {
    succeeded || matches!(kind, NodeKind::Map { on_failure: ItemFailure::Skip, .. })
}

fn part(index: u32, item: Option<Value>, thread: Thread) -> PartStart {
    let standing = match thread {
        Thread::Done(output) => PartStanding::Done(Ok(output)),
        Thread::Failed(error) => PartStanding::Done(Err(error)),
        Thread::Open | Thread::Ended(_) => PartStanding::Running,
    };
    PartStart { index, item, standing }
}

fn list(items: Value) -> Result<Vec<Value>, StepError> {
    match items {
        Value::Array(items) if items.len() <= MAP_ITEMS_MAX => Ok(items),
        Value::Array(items) => {
            let message = format!("a map has at most {MAP_ITEMS_MAX} items, here are {}", items.len());
            Err(StepError::new(Code::InputTooLarge, &message))
        }
        _ => Err(StepError::new(Code::ExpressionFailed, "the items of a map are a list")),
    }
}

/// Where undoing begins, if it has not begun and there is anything to undo.
fn undoing(plan: &Plan, stages: &[PlanStage], done: &[(u32, Result<Value, PartError>)]) -> Option<usize> {
    let [(0, Err(failed))] = done else { return None };
    let failed = plan.position(&failed.node)?;
    let before = stages.iter().take_while(|stage| stage.nodes.end <= failed).collect::<Vec<_>>();
    before.iter().rev().find(|stage| !stage.undo.is_empty()).map(|stage| stage.undo.start)
}

/// What a container came to that is over.
fn over(kind: &NodeKind, progress: &Progress) -> Joined {
    let Progress { tolerates, done, .. } = progress;
    let first_error = done.iter().find_map(|(_, result)| result.as_ref().err());
    let (result, leaves) = match kind {
        NodeKind::Try { on_failure, .. } => (tried(*on_failure, done), false),
        _ if *tolerates < 0 => (Err(told(first_error)), false),
        NodeKind::Parallel { losers, .. } => {
            let of = |wanted: bool| -> Vec<u32> {
                done.iter().filter(|(_, result)| result.is_ok() == wanted).map(|(index, _)| *index).collect()
            };
            (Ok(json!({ "succeeded": of(true), "failed": of(false) })), *losers == Losers::Leave)
        }
        _ => {
            let results = done.iter().map(|(_, result)| result.as_ref().ok().cloned().unwrap_or_default());
            (Ok(results.collect()), false)
        }
    };
    Joined::Over { result: result.and_then(fitting), leaves }
}

fn tried(on_failure: TryFailure, done: &[(u32, Result<Value, PartError>)]) -> Result<Value, StepError> {
    match done {
        [(_, Ok(output))] => Ok(output.clone()),
        [_, (_, Err(undoing))] => {
            let mut error = told(Some(undoing));
            error.message = format!("while undoing: {}", error.message);
            Err(error)
        }
        [(_, Err(failed)), ..] if on_failure == TryFailure::Continue => {
            let PartError { node, error } = failed;
            Ok(json!({ "failed": { "node": node, "code": error.code, "message": error.message } }))
        }
        [(_, Err(failed)), ..] => Err(told(Some(failed))),
        _ => Err(told(None)),
    }
}

/// The error of a container: that of the step in it which failed first, and which one that was.
fn told(failed: Option<&PartError>) -> StepError {
    match failed {
        Some(PartError { node, error }) => {
            let mut told = StepError::new(error.code, &format!("{node}: {}", error.message));
            told.block_code.clone_from(&error.block_code);
            told
        }
        None => StepError::new(Code::Internal, "a container ended without its parts"),
    }
}

fn fitting(output: Value) -> Result<Value, StepError> {
    let bytes = output.to_string().len();
    if bytes as u64 > PAYLOAD_BYTES_MAX {
        let message =
            format!("the results have {bytes} bytes together; at most {PAYLOAD_BYTES_MAX} are kept");
        return Err(StepError::new(Code::OutputTooLarge, &message));
    }
    Ok(output)
}
