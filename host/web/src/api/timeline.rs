//! The timeline of a run: the entries of `domain::timeline`, with what each step took and gave.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{Digest, StepId};
use counterfoil_domain::receipt::ReceiptState;
use counterfoil_domain::timeline::{
    self, Axis, EffectFacts, Execution, RunFacts, Span, StepFacts, StepState, Waits,
};
use counterfoil_domain::workflow::plan::{NodeKind, Plan};
use counterfoil_store::audit::AuditRow;
use counterfoil_store::receipt::ReceiptView;
use counterfoil_store::settle::SettledState;
use counterfoil_store::step::Wait;
use counterfoil_store::timeline::{AttemptRow, OpenRow, SettledRow, TimelineHead, TimelineRows};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::effects::Effect;
use super::runs::RunDetail;

/// A run, step by step.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Timeline {
    pub(crate) run: RunDetail,
    /// The moment of reading, by the database's clock.
    pub(crate) now: DateTime<Utc>,
    /// From admission to the end, or to now.
    pub(crate) duration_ms: i64,
    /// One entry a step that the run has reached, in the order of the plan.
    pub(crate) entries: Vec<Entry>,
    /// Where the entries go on; null at their end.
    pub(crate) next: Option<String>,
    /// Long silences, in which none of these runs or is due.
    pub(crate) gaps: Vec<Gap>,
    /// What people did to the run.
    pub(crate) audit: Vec<Audited>,
    #[serde(skip)]
    pub(crate) axis: Axis,
}

/// One step.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Entry {
    #[schema(value_type = String)]
    pub(crate) step: StepId,
    /// Step names from the outermost in, joined by `/`.
    pub(crate) node: String,
    /// Indices of the map iterations around it.
    pub(crate) iteration: Vec<u32>,
    /// `block`, `http`, `delay`, `switch`, `parallel`, `map`, `try`, `emit`, `listen`, `approval`, `workflow`,
    /// `set` or `stop`.
    pub(crate) kind: String,
    /// The block that it runs.
    pub(crate) block: Option<String>,
    /// The block's version.
    #[schema(value_type = Option<String>)]
    pub(crate) digest: Option<Digest>,
    #[schema(value_type = String)]
    pub(crate) state: StepState,
    pub(crate) attempt: u32,
    /// Hosts lost in a row while they ran it.
    pub(crate) losses: u32,
    pub(crate) queued_at: DateTime<Utc>,
    /// When its latest execution began.
    pub(crate) started_at: Option<DateTime<Utc>>,
    /// When it settled.
    pub(crate) ended_at: Option<DateTime<Utc>>,
    /// When it is due, where it waits for a time.
    pub(crate) due_at: Option<DateTime<Utc>>,
    /// The branch that it chose.
    pub(crate) choice: Option<String>,
    pub(crate) output: Option<Value>,
    /// Why it failed, or why its latest execution did not settle it.
    pub(crate) error: Option<Value>,
    /// What the block logged in its latest execution.
    pub(crate) logs: Option<Value>,
    /// What it did, one span after the other.
    #[schema(value_type = Vec<SpanShown>)]
    pub(crate) spans: Vec<Span>,
    /// What left its sandbox, in call order.
    pub(crate) effects: Vec<Effect>,
}

/// A stretch of time in which a step does one thing.
#[derive(Debug, ToSchema)]
#[schema(as = Span)]
#[expect(dead_code, reason = "describes the domain's span")]
pub(crate) struct SpanShown {
    /// `queued`, `running`, `waiting`, `retrying` or `blocked`.
    phase: String,
    /// The attempt that it is, or leads to.
    attempt: u32,
    from: DateTime<Utc>,
    /// Null while it lasts.
    to: Option<DateTime<Utc>>,
    /// Its length, up to now while it lasts.
    ms: i64,
    /// For an execution: `settled`, `retry`, `lost`, `blocked` or `handed_back`.
    ended: Option<String>,
}

/// A silence.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Gap {
    pub(crate) from: DateTime<Utc>,
    pub(crate) to: DateTime<Utc>,
    pub(crate) ms: i64,
}

/// What somebody did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Audited {
    pub(crate) at: DateTime<Utc>,
    pub(crate) actor: String,
    /// What, as `noun.verb`.
    pub(crate) action: String,
    pub(crate) detail: Value,
}

impl From<AuditRow> for Audited {
    fn from(row: AuditRow) -> Self {
        let AuditRow { at, actor, action, detail, .. } = row;
        Self { at, actor, action, detail }
    }
}

/// What an entry shows beside the drawing.
struct Facts {
    drawn: StepFacts,
    /// Its first execution is under way.
    is_first: bool,
    losses: u32,
    due_at: Option<DateTime<Utc>>,
    choice: Option<String>,
    output: Option<Value>,
    error: Option<Value>,
    logs: Option<Value>,
}

/// The timeline of a run whose rows were read at `now`, pinned to `plan`.
pub(crate) fn timeline(rows: TimelineRows, plan: &Plan, now: DateTime<Utc>) -> Timeline {
    let TimelineRows { head: TimelineHead { run, .. }, settled, open, attempts, effects, audit, next } = rows;
    let kinds: HashMap<&str, &NodeKind> =
        plan.nodes().iter().map(|node| (node.path.as_str(), &node.kind)).collect();
    let mut executions: HashMap<StepId, Vec<Execution>> = HashMap::new();
    for AttemptRow { step, attempt, started_at, ended_at, ended, .. } in attempts {
        executions.entry(step).or_default().push(Execution {
            attempt,
            from: started_at,
            to: ended_at,
            ended,
        });
    }
    let mut steps: HashMap<StepId, Facts> = settled
        .into_iter()
        .map(Facts::from)
        .chain(open.into_iter().map(Facts::from))
        .map(|facts| (facts.drawn.step, facts))
        .collect();
    for facts in steps.values_mut() {
        facts.drawn.executions = executions.remove(&facts.drawn.step).unwrap_or_default();
        let waits = kinds.get(facts.drawn.node.as_str()).map_or(Waits::Never, |kind| waits(kind));
        let has_begun = waits != Waits::OnceBegun || !facts.is_first;
        facts.drawn.waits = if has_begun { waits } else { Waits::Never };
    }
    let drawn = timeline::timeline(RunFacts {
        admitted_at: run.row.admitted_at,
        ended_at: run.row.ended_at,
        now,
        order: plan.nodes().iter().map(|node| node.path.clone()).collect(),
        steps: steps.values().map(|facts| facts.drawn.clone()).collect(),
        effects: effects.iter().map(effect_facts).collect(),
    });
    let mut effects: HashMap<_, Effect> =
        effects.iter().map(|view| (view.receipt.id, Effect::from(view))).collect();
    let entries = drawn
        .entries
        .into_iter()
        .filter_map(|entry| {
            let facts = steps.remove(&entry.step)?;
            let effects = entry.effects.iter().filter_map(|effect| effects.remove(&effect.effect)).collect();
            let kind = kinds.get(entry.node.as_str()).copied();
            Some(facts.entry(kind, entry.spans, effects))
        })
        .collect();
    let gap = |from, to: DateTime<Utc>| Gap { from, to, ms: (to - from).num_milliseconds() };
    let gaps =
        drawn.axis.segments().iter().filter(|segment| segment.folded).map(|s| gap(s.from, s.to)).collect();
    Timeline {
        run: run.into(),
        now,
        duration_ms: (drawn.to - drawn.from).num_milliseconds(),
        entries,
        next,
        gaps,
        audit: audit.into_iter().map(Audited::from).collect(),
        axis: drawn.axis,
    }
}

fn effect_facts(view: &ReceiptView) -> EffectFacts {
    let receipt = &view.receipt;
    let state = receipt.standing.state();
    let from = view.dispatched_at.unwrap_or(view.prepared_at);
    let is_open = matches!(
        state,
        ReceiptState::Planned | ReceiptState::Prepared | ReceiptState::Dispatched | ReceiptState::Unknown
    );
    EffectFacts {
        effect: receipt.id,
        step: receipt.step,
        state,
        position: receipt.position,
        dispatch_number: receipt.dispatch_number,
        from,
        to: (!is_open).then(|| view.answered_at.or(view.resolved_at).unwrap_or(from)),
    }
}

impl From<SettledRow> for Facts {
    fn from(row: SettledRow) -> Self {
        let state = match row.state {
            SettledState::Succeeded => StepState::Succeeded,
            SettledState::Skipped => StepState::Skipped,
            SettledState::Failed => StepState::Failed,
            SettledState::Cancelled => StepState::Cancelled,
        };
        Self {
            drawn: StepFacts {
                step: row.step,
                node: row.node,
                iteration: row.iteration,
                state,
                attempt: row.attempt,
                queued_at: row.queued_at,
                waits: Waits::Never,
                started_at: row.started_at,
                settled_at: Some(row.settled_at),
                executions: Vec::new(),
            },
            is_first: false,
            losses: row.losses,
            due_at: None,
            choice: row.choice,
            output: row.output,
            error: row.error,
            logs: row.logs,
        }
    }
}

impl From<OpenRow> for Facts {
    fn from(row: OpenRow) -> Self {
        let state = match (row.lease, row.wait) {
            (Some(_), _) => StepState::Running,
            (None, Wait::Ready) => StepState::Pending,
            (None, Wait::Delay) => StepState::WaitingForDelay,
            (None, Wait::Retry) => StepState::WaitingForRetry,
            (None, Wait::Signal) => StepState::WaitingForSignal,
            (None, Wait::Child) => StepState::WaitingForChild,
            (None, Wait::Worker) => StepState::WaitingForWorker,
            (None, Wait::Blocked) => StepState::Blocked,
        };
        let waits_for_a_time = matches!(state, StepState::WaitingForDelay | StepState::WaitingForRetry);
        Self {
            drawn: StepFacts {
                step: row.step,
                node: row.node,
                iteration: row.iteration,
                state,
                attempt: row.attempt,
                queued_at: row.queued_at,
                waits: Waits::Never,
                started_at: row.started_at,
                settled_at: None,
                executions: Vec::new(),
            },
            is_first: row.lease.is_some() && row.first_started_at == row.started_at,
            losses: row.losses,
            due_at: row.due_at.filter(|_| waits_for_a_time),
            choice: None,
            output: None,
            error: row.error,
            logs: None,
        }
    }
}

impl Facts {
    fn entry(self, kind: Option<&NodeKind>, spans: Vec<Span>, effects: Vec<Effect>) -> Entry {
        let drawn = self.drawn;
        let (block, digest) = match kind {
            Some(NodeKind::Block { block, digest, .. }) => (Some(block.clone()), Some(*digest)),
            _ => (None, None),
        };
        Entry {
            step: drawn.step,
            node: drawn.node,
            iteration: drawn.iteration,
            kind: kind.map_or("unknown", kind_name).into(),
            block,
            digest,
            state: drawn.state,
            attempt: drawn.attempt,
            losses: self.losses,
            queued_at: drawn.queued_at,
            started_at: drawn.started_at,
            ended_at: drawn.settled_at,
            due_at: self.due_at,
            choice: self.choice,
            output: self.output,
            error: self.error,
            logs: self.logs,
            spans,
            effects,
        }
    }
}

/// Whether a step of this kind waits on purpose.
fn waits(kind: &NodeKind) -> Waits {
    match kind {
        NodeKind::Delay { .. } | NodeKind::Until { .. } => Waits::FirstOfAll,
        NodeKind::Listen { .. } | NodeKind::Approval { .. } | NodeKind::Workflow { wait: true, .. } => {
            Waits::OnceBegun
        }
        kind if kind.is_container() => Waits::FirstOfAll,
        _ => Waits::Never,
    }
}

const fn kind_name(kind: &NodeKind) -> &'static str {
    match kind {
        NodeKind::Block { .. } => "block",
        NodeKind::Http { .. } => "http",
        NodeKind::Delay { .. } | NodeKind::Until { .. } => "delay",
        NodeKind::Parallel { .. } => "parallel",
        NodeKind::Map { .. } => "map",
        NodeKind::Try { .. } => "try",
        NodeKind::Emit { .. } => "emit",
        NodeKind::Listen { .. } => "listen",
        NodeKind::Approval { .. } => "approval",
        NodeKind::Workflow { .. } => "workflow",
        NodeKind::Worker { .. } => "worker",
        NodeKind::Switch { .. } => "switch",
        NodeKind::Set { .. } => "set",
        NodeKind::Stop { .. } => "stop",
    }
}
