//! One step, rehearsed: the guard's decisions over a journal in memory, with a provider that is scripted. What decides is
//! what decides in production; only the provider, the clock and the deaths of the process are made up.

mod call;
mod compare;
mod end;
mod prepare;
mod provider;
pub mod scenario;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

pub use self::compare::{Difference, Rerun};
pub use self::provider::{Calls, Fault, Provider, Reply, Sent};

use self::compare::Told;
use crate::block::EffectGrant;
use crate::effect::{EffectRequest, Safety};
use crate::id::{EffectId, LeaseId, LineageId, Place, RunId, StepId, TenantId};
use crate::ports::StepEnd;
use crate::receipt::identity::guest_seed;
use crate::receipt::journal::Journal;
use crate::receipt::verification::UnknownReceipt;
use crate::receipt::{Receipt, ReceiptState};
use crate::step::Stop;

const TENANT: TenantId = TenantId(Uuid::from_u128(1));
const RUN: RunId = RunId(Uuid::from_u128(2));
const STEP: StepId = StepId(Uuid::from_u128(3));
const LINEAGE: LineageId = LineageId(Uuid::from_u128(2));

/// One step, in a world of its own.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    place: Place,
    grants: Vec<EffectGrant>,
    provider: Provider,
    journal: Journal,
    absence_known_at: BTreeMap<EffectId, DateTime<Utc>>,
    stored: BTreeMap<String, Vec<u8>>,
    emitted: Vec<Emitted>,
    started_at: DateTime<Utc>,
    now: DateTime<Utc>,
    attempt: u32,
    executions: u64,
    is_stopped: bool,
    execution: Execution,
    rerun: Option<Rerun>,
}

/// An event that the step emitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Emitted {
    /// Its type.
    pub event: String,
    /// The record that it is about.
    pub record: Option<String>,
    /// What it says.
    pub data: Value,
}

/// A receipt, in the words of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Written {
    /// The effect: its label, or `#` and its number among those without one.
    pub effect: String,
    /// `http`, `mail`, `emit`, `storage` or `worker`.
    pub kind: String,
    /// What may be done while its outcome is open.
    pub safety: Safety,
    /// Where it stands.
    pub state: ReceiptState,
    /// From 0; it grows when the effect is sent again.
    pub dispatch: u64,
    /// The attempt that wrote it, from 1.
    pub attempt: u32,
    /// By which the receiver recognises a repeat.
    pub idempotency_key: String,
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// With this output.
    Succeeded(Value),
    /// For good, with the block's own code or the host's.
    Failed {
        /// For programs.
        code: String,
        /// For people.
        message: String,
    },
    /// For now.
    Waiting {
        /// The wait before another attempt.
        delay_ms: u64,
    },
    /// An outcome is unknown.
    Blocked {
        /// Of which effect.
        reason: String,
    },
    /// The process died.
    Crashed,
    /// The step was let go with its work for a worker, who has said by now what came of it: it goes on in the same attempt.
    Queued,
    /// The scenario, or this machine, is at fault.
    Broken(String),
}

#[derive(Debug, Clone, Default)]
struct Execution {
    lease: u64,
    is_verification: bool,
    labels: BTreeSet<String>,
    ordinals: u64,
    told: Vec<Told>,
    changes: Vec<(EffectRequest, Option<Receipt>)>,
    changes_bytes: usize,
    halt: Option<Halt>,
    /// How the block itself ended.
    end: Option<StepEnd>,
}

/// Why an execution ends at a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Halt {
    Guard(Stop),
    Crashed,
    Broken(String),
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self::Guard(stop)
    }
}

impl Rehearsal {
    /// A step that has not run, of a block with these grants.
    pub fn new(grants: Vec<EffectGrant>, provider: Provider, started_at: DateTime<Utc>) -> Self {
        Self {
            place: Place { lineage: LINEAGE, node: "step".into(), iteration: vec![] },
            grants,
            provider,
            journal: Journal::default(),
            absence_known_at: BTreeMap::new(),
            stored: BTreeMap::new(),
            emitted: vec![],
            started_at,
            now: started_at,
            attempt: 1,
            executions: 0,
            is_stopped: false,
            execution: Execution::default(),
            rerun: None,
        }
    }

    /// What is stored under a key before the step.
    pub fn store(&mut self, key: String, value: Vec<u8>) {
        self.stored.insert(key, value);
    }

    /// Lets time pass.
    pub fn advance(&mut self, ms: u64) {
        self.now += std::time::Duration::from_millis(ms);
    }

    /// Where in the work the step stands.
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// When it first started, in milliseconds since the Unix epoch.
    pub fn started_at_ms(&self) -> u64 {
        u64::try_from(self.started_at.timestamp_millis()).unwrap_or(0)
    }

    /// Of its random source.
    pub fn seed(&self) -> [u8; 32] {
        guest_seed(TENANT, &self.place)
    }

    /// Begins an execution of the block, and names it.
    pub fn begin(&mut self) -> LeaseId {
        self.executions += 1;
        self.execution = Execution { lease: self.executions, ..Execution::default() };
        self.lease()
    }

    /// Begins to ask the block what became of an effect: its calls change nothing, and leave nothing.
    pub fn begin_verification(&mut self) -> LeaseId {
        let lease = self.begin();
        self.execution.is_verification = true;
        lease
    }

    fn lease(&self) -> LeaseId {
        LeaseId(Uuid::from_u128(u128::from(self.execution.lease)))
    }

    fn with_state(&self, state: ReceiptState) -> impl DoubleEndedIterator<Item = &Receipt> {
        self.journal.receipts().iter().filter(move |receipt| receipt.standing.state() == state)
    }

    fn is_unknown(&self) -> bool {
        self.journal.receipts().iter().any(is_open)
    }

    /// Whether the step does not run: it is blocked, and an outcome is unknown still.
    pub fn is_blocked(&self) -> bool {
        self.is_stopped && self.is_unknown()
    }

    /// The newest unknown receipt of an effect, as its block is asked about it.
    pub fn unknown(&self, effect: &str) -> Option<UnknownReceipt> {
        self.newest_unknown(effect).and_then(UnknownReceipt::of)
    }

    fn newest_unknown(&self, effect: &str) -> Option<&Receipt> {
        self.with_state(ReceiptState::Unknown).rfind(|receipt| receipt.slot.to_string() == effect)
    }

    /// Every receipt, in call order.
    pub fn receipts(&self) -> Vec<Written> {
        let written = |receipt: &Receipt| Written {
            effect: receipt.slot.to_string(),
            kind: receipt.request.kind.clone(),
            safety: receipt.request.safety,
            state: receipt.standing.state(),
            dispatch: receipt.dispatch_number,
            attempt: receipt.attempt,
            idempotency_key: receipt.request.idempotency_key.clone(),
        };
        self.journal.receipts().iter().map(written).collect()
    }

    /// Which of the provider's answers for certain calls no call got, by their number among those, from 0.
    pub fn unused_answers(&self) -> impl Iterator<Item = usize> {
        self.provider.unused()
    }

    /// The calls, by number, at which something was to go wrong, and that the block did not make.
    pub fn spared_calls(&self) -> impl Iterator<Item = u32> {
        self.provider.spared()
    }

    /// Every call that the provider saw.
    pub fn sent(&self) -> &[Sent] {
        self.provider.sent()
    }

    /// The events that the step has emitted.
    pub fn emitted(&self) -> &[Emitted] {
        &self.emitted
    }

    /// What is stored, by key.
    pub const fn stored(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.stored
    }
}

fn is_open(receipt: &Receipt) -> bool {
    matches!(receipt.standing.state(), ReceiptState::Dispatched | ReceiptState::Unknown)
}
