//! The timeline of a run: what each step did when, in the order of the plan, and an axis on which long silences are folded.
//!
//! Pure: rows in, entries out. `now` stands for the end of whatever has not ended.

mod axis;

use std::collections::HashMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::axis::{Axis, Segment};

use crate::id::{EffectId, StepId};
use crate::receipt::ReceiptState;

/// Where a step stands, as people and the API know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum StepState {
    Pending,
    Running,
    WaitingForDelay,
    WaitingForRetry,
    WaitingForSignal,
    WaitingForChild,
    WaitingForWorker,
    Blocked,
    Succeeded,
    Skipped,
    Failed,
    Cancelled,
}

impl StepState {
    /// The name in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::WaitingForDelay => "waiting_for_delay",
            Self::WaitingForRetry => "waiting_for_retry",
            Self::WaitingForSignal => "waiting_for_signal",
            Self::WaitingForChild => "waiting_for_child",
            Self::WaitingForWorker => "waiting_for_worker",
            Self::Blocked => "blocked",
            Self::Succeeded => "succeeded",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// What an open step in this state is doing now.
    const fn phase(self) -> Phase {
        match self {
            Self::Running => Phase::Running,
            Self::WaitingForRetry => Phase::Retrying,
            Self::Blocked => Phase::Blocked,
            Self::WaitingForDelay
            | Self::WaitingForSignal
            | Self::WaitingForChild
            | Self::WaitingForWorker => Phase::Waiting,
            Self::Pending | Self::Succeeded | Self::Skipped | Self::Failed | Self::Cancelled => Phase::Queued,
        }
    }
}

impl fmt::Display for StepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a step does during a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Due, and not claimed yet.
    Queued,
    /// A host executes it.
    Running,
    /// It waits on purpose: a delay, a signal, a person, a child run, a worker.
    Waiting,
    /// It waits for its next attempt.
    Retrying,
    /// An outcome is unknown.
    Blocked,
}

impl Phase {
    /// The name in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Blocked => "blocked",
        }
    }
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The step settled.
    Settled,
    /// It failed for now.
    Retry,
    /// Its host was lost.
    Lost,
    /// An outcome was unknown.
    Blocked,
    /// Its host gave it back unchanged.
    HandedBack,
    /// Its effect lies in a queue for a worker outside the host.
    Queued,
}

impl Ended {
    /// The name in the database, in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Retry => "retry",
            Self::Lost => "lost",
            Self::Blocked => "blocked",
            Self::HandedBack => "handed_back",
            Self::Queued => "queued",
        }
    }

    /// The inverse of [`Ended::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Settled, Self::Retry, Self::Lost, Self::Blocked, Self::HandedBack, Self::Queued]
            .into_iter()
            .find(|ended| ended.name() == name)
    }

    /// What the step does after an execution that ended so.
    const fn phase_after(self) -> Phase {
        match self {
            Self::Retry => Phase::Retrying,
            Self::Blocked => Phase::Blocked,
            Self::Queued => Phase::Waiting,
            Self::Settled | Self::Lost | Self::HandedBack => Phase::Queued,
        }
    }
}

/// What is known of a run.
#[derive(Debug, Clone)]
pub struct RunFacts {
    /// When it was admitted.
    pub admitted_at: DateTime<Utc>,
    /// When it ended, if it has.
    pub ended_at: Option<DateTime<Utc>>,
    /// The moment that the facts were read.
    pub now: DateTime<Utc>,
    /// Node names in the order of the plan.
    pub order: Vec<String>,
    /// Steps, in any order.
    pub steps: Vec<StepFacts>,
    /// Effects, in any order.
    pub effects: Vec<EffectFacts>,
}

/// What is known of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFacts {
    /// Which step.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Indices of the map iterations around it.
    pub iteration: Vec<u32>,
    /// Where it stands.
    pub state: StepState,
    /// The attempt that it is in, or settled in.
    pub attempt: u32,
    /// When it was opened.
    pub queued_at: DateTime<Utc>,
    /// Whether it waits on purpose.
    pub waits: Waits,
    /// When its latest execution began, if one ever did.
    pub started_at: Option<DateTime<Utc>>,
    /// When it settled.
    pub settled_at: Option<DateTime<Utc>>,
    /// Executions that ended without settling it, in any order.
    pub executions: Vec<Execution>,
}

/// Whether a step waits on purpose before it settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// It runs as soon as it can.
    Never,
    /// From when it was opened until it is due: a delay, and what holds other steps.
    FirstOfAll,
    /// A first execution, too short to be kept, begins to wait: for a signal, a person or a child run.
    OnceBegun,
}

/// An execution that ended without settling its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Of which attempt.
    pub attempt: u32,
    /// When it began.
    pub from: DateTime<Utc>,
    /// When that was seen.
    pub to: DateTime<Utc>,
    /// How it ended.
    pub ended: Ended,
}

/// What is known of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectFacts {
    /// Which effect.
    pub effect: EffectId,
    /// Whose.
    pub step: StepId,
    /// Where it stands.
    pub state: ReceiptState,
    /// Place in the step's order of calls.
    pub position: u32,
    /// Which dispatch of its slot.
    pub dispatch_number: u64,
    /// When it was dispatched, or else decided.
    pub from: DateTime<Utc>,
    /// When its answer was recorded; none while it is open.
    pub to: Option<DateTime<Utc>>,
}

/// The timeline of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// When the run was admitted.
    pub from: DateTime<Utc>,
    /// When it ended, or the moment of reading.
    pub to: DateTime<Utc>,
    /// One entry a step, in the order of the plan.
    pub entries: Vec<Entry>,
    /// Where moments fall on a picture.
    pub axis: Axis,
}

/// One step's row of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which step.
    pub step: StepId,
    /// Its node.
    pub node: String,
    /// Indices of the map iterations around it.
    pub iteration: Vec<u32>,
    /// Where it stands.
    pub state: StepState,
    /// What it did, one span after the other.
    pub spans: Vec<Span>,
    /// What left its sandbox, in call order.
    pub effects: Vec<EffectFacts>,
}

/// A stretch of time in which a step does one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Span {
    /// What it does.
    pub phase: Phase,
    /// The attempt that it is, or leads to.
    pub attempt: u32,
    /// Begin.
    pub from: DateTime<Utc>,
    /// End; none while it lasts.
    pub to: Option<DateTime<Utc>>,
    /// Its length in milliseconds, up to now while it lasts.
    pub ms: i64,
    /// For an execution: how it ended.
    pub ended: Option<Ended>,
}

/// Draws the timeline from the facts.
pub fn timeline(mut facts: RunFacts) -> Timeline {
    let now = facts.now.max(facts.admitted_at);
    let from = facts.admitted_at;
    let to = facts.ended_at.unwrap_or(now).max(from);
    let rank: HashMap<&str, usize> =
        facts.order.iter().enumerate().map(|(rank, node)| (node.as_str(), rank)).collect();
    facts.steps.sort_by(|a, b| {
        let key = |step: &StepFacts| rank.get(step.node.as_str()).copied().unwrap_or(usize::MAX);
        key(a).cmp(&key(b)).then_with(|| a.node.cmp(&b.node)).then_with(|| a.iteration.cmp(&b.iteration))
    });
    facts.effects.sort_by_key(|effect| (effect.position, effect.dispatch_number));
    let mut effects: HashMap<StepId, Vec<EffectFacts>> = HashMap::new();
    for effect in facts.effects {
        effects.entry(effect.step).or_default().push(effect);
    }
    let entries: Vec<Entry> = facts
        .steps
        .into_iter()
        .map(|step| Entry {
            step: step.step,
            spans: spans(&step, now),
            effects: effects.remove(&step.step).unwrap_or_default(),
            node: step.node,
            iteration: step.iteration,
            state: step.state,
        })
        .collect();
    let busy = entries
        .iter()
        .flat_map(|entry| &entry.spans)
        .filter(|span| matches!(span.phase, Phase::Queued | Phase::Running))
        .map(|span| (span.from, span.to.unwrap_or(now)));
    let axis = Axis::new(from, to, busy.collect());
    Timeline { from, to, entries, axis }
}

/// What a step did, from when it was opened. A stretch without length is left out, an execution never.
fn spans(step: &StepFacts, now: DateTime<Utc>) -> Vec<Span> {
    let mut spans = Spans { laid: Vec::new(), cursor: step.queued_at, now };
    let mut executions: Vec<&Execution> = step.executions.iter().collect();
    executions.sort_by_key(|execution| execution.from);
    // Where a first execution has begun to wait, little of the time before the last one was spent in a queue.
    let due = if step.waits == Waits::OnceBegun { Phase::Waiting } else { Phase::Queued };
    let mut between = if step.waits == Waits::Never { Phase::Queued } else { Phase::Waiting };
    for execution in executions {
        spans.idle(between, execution.attempt, Some(execution.from));
        spans.execution(execution.attempt, Some(execution.to), Some(execution.ended));
        between = match execution.ended.phase_after() {
            Phase::Queued => due,
            other => other,
        };
    }
    // An execution that ended without settling the step has told of its start already.
    let begun = step
        .started_at
        .filter(|started_at| step.executions.iter().all(|execution| *started_at > execution.from));
    let is_ended_by_others = step.waits == Waits::OnceBegun && step.state == StepState::Cancelled;
    match (begun, step.settled_at) {
        (Some(_), Some(settled_at)) if is_ended_by_others => {
            spans.idle(Phase::Waiting, step.attempt, Some(settled_at));
        }
        (Some(begun), Some(settled_at)) => {
            spans.idle(between, step.attempt, Some(begun));
            spans.execution(step.attempt, Some(settled_at), Some(Ended::Settled));
        }
        (Some(begun), None) if step.state == StepState::Running => {
            spans.idle(between, step.attempt, Some(begun));
            spans.execution(step.attempt, None, None);
        }
        (_, Some(settled_at)) => spans.idle(between, step.attempt, Some(settled_at)),
        (_, None) => spans.idle(step.state.phase(), step.attempt, None),
    }
    spans.laid
}

/// Spans laid end to end.
struct Spans {
    laid: Vec<Span>,
    cursor: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl Spans {
    fn idle(&mut self, phase: Phase, attempt: u32, to: Option<DateTime<Utc>>) {
        if to.is_none_or(|to| to > self.cursor) {
            self.push(phase, attempt, to, None);
        }
    }

    fn execution(&mut self, attempt: u32, to: Option<DateTime<Utc>>, ended: Option<Ended>) {
        self.push(Phase::Running, attempt, to, ended);
    }

    fn push(&mut self, phase: Phase, attempt: u32, to: Option<DateTime<Utc>>, ended: Option<Ended>) {
        let from = self.cursor;
        let to = to.map(|to| to.max(from));
        let until = to.unwrap_or(self.now).max(from);
        let ms = (until - from).num_milliseconds();
        self.laid.push(Span { phase, attempt, from, to, ms, ended });
        self.cursor = until;
    }
}

#[cfg(test)]
mod tests;
