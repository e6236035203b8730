//! The guard: the one door out. It decides from the journal, makes the receipt durable, makes the call, and records what
//! the answer means. A call whose execution is gone still records its own answer.

mod alone;
mod answer;
mod connection;
mod dispatch;
mod journal;
mod judge;
mod patience;
mod place;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{Answer, EffectCall, EffectFailure, EffectReply, Safety};
use counterfoil_domain::id::{EffectId, LeaseId};
use counterfoil_domain::limits::bounded_text;
use counterfoil_domain::ports::{EffectPort, Faults, Site};
use counterfoil_domain::receipt::identity::{EPOCH, Slot};
use counterfoil_domain::receipt::journal::{Call, Decision};
use counterfoil_domain::receipt::{
    Actor, Move, Receipt, ReceiptState, Recorded, SlotKey, Standing, Transition, UNRECORDED,
};
use counterfoil_domain::step::Stop;
use counterfoil_domain::workflow::{NAME_LEN_MAX, is_name};
use counterfoil_store::settle::Change;
use counterfoil_store::{Store, StoreError};

pub(crate) use self::connection::Known;
use self::connection::{By, Connections, Limits};
use self::dispatch::Dispatched;
use self::judge::Judged;
use self::patience::Patience;
use self::place::{Place, Places};
use crate::client::{Client, SendWindow};
use crate::execution::{Execution, ExecutionContext, Executions, Finished, Placed, Purpose};
use crate::kind::{Act, Prepared};
use crate::secrets::Secrets;

/// How the guard works.
#[derive(Debug, Clone)]
pub struct GuardConfig {
    /// How long a lease lasts. The send window is shorter.
    pub lease: Duration,
    /// Total time of an effect that names none.
    pub timeout: Duration,
    /// How long an answer may wait for its step's end before it is written alone; on a host whose steps usually take longer
    /// to come to it, up to 256 times as long. Zero writes each at once.
    pub answer_wait: Duration,
    /// How long an answer that no step's end has taken with it is tried to be written, before it is lost.
    pub record_for: Duration,
    /// Clock differences, scheduling, and the kernel's own queues: added before an absence counts as known.
    pub absence_margin: Duration,
    /// Off only to prove that the crash tests notice: no receipt is written before the call.
    pub receipts: bool,
}

/// A journal that keeps moving between decision and dispatch is read anew this often.
const DECISIONS_MAX: u32 = 8;
/// A connection that keeps changing between judgement and dispatch is read anew this often.
const JUDGEMENTS_MAX: u32 = 8;

/// The one door out of every sandbox of this process.
pub struct Guard {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) client: Client,
    secrets: Secrets,
    pub(crate) config: GuardConfig,
    faults: Arc<dyn Faults>,
    executions: Executions,
    places: Places,
    patience: Patience,
    connections: Connections,
}

impl Guard {
    /// A guard that records in `store`, calls through `client`, and adds what `secrets` opens.
    pub fn new(
        store: Store,
        client: Client,
        secrets: Secrets,
        config: GuardConfig,
        faults: Arc<dyn Faults>,
    ) -> Self {
        let executions = Executions::default();
        let places = Places::default();
        let patience = Patience::new(config.answer_wait);
        let connections = Connections::default();
        let inner =
            Inner { store, client, secrets, config, faults, executions, places, patience, connections };
        Self { inner: Arc::new(inner) }
    }

    /// Opens the door for an execution, until [`Guard::finish`].
    pub fn begin(&self, context: ExecutionContext) {
        self.inner.executions.insert(context, Purpose::Step);
    }

    /// Opens the door for a block that is asked what became of an effect, until [`Guard::finish`]: for calls that change
    /// nothing, made afresh each time and journaled nowhere. The lease is no step's; it only names the execution.
    pub fn begin_verification(&self, context: ExecutionContext) {
        self.inner.executions.insert(context, Purpose::Verification);
    }

    /// Closes the door for an execution and hands over what belongs with the end of its step. A call that is still under
    /// way records its own answer later.
    pub async fn finish(&self, lease: LeaseId) -> Finished {
        let Some(execution) = self.inner.executions.remove(lease) else {
            return Finished::default();
        };
        let writes = {
            let mut unwritten = execution.unwritten.lock().await;
            execution.progress().finished = true;
            std::mem::take(&mut *unwritten)
        };
        let mut progress = execution.progress();
        self.inner.went_on(&mut progress);
        let own = progress.take_changes();
        Finished { writes, own, lose: std::mem::take(&mut progress.lose), stop: progress.stop.take() }
    }
}

#[async_trait]
impl EffectPort for Guard {
    async fn perform(&self, execution: LeaseId, call: EffectCall) -> EffectReply {
        let Some(execution) = self.inner.executions.get(execution) else {
            return EffectReply::Stop;
        };
        // In a task of its own: when the sandbox is dropped in the middle, the answer is still recorded.
        let inner = Arc::clone(&self.inner);
        let task = tokio::spawn(async move { inner.perform(&execution, call).await });
        task.await.unwrap_or(EffectReply::Stop)
    }
}

/// A receipt that is durable as dispatched, and may be sent.
struct Sendable {
    receipt: Receipt,
    window: SendWindow,
    /// Among the calls that its connection may have under way; until the answer is there.
    place: Option<Place>,
}

enum Begun {
    /// The connection may be another one by now.
    JudgeAgain,
    Reply(EffectReply),
    Send(Box<Sendable>),
    /// Refused by a check that needs no network.
    Denied {
        number: u64,
        message: String,
    },
    ReadOnly {
        number: u64,
        place: Option<Place>,
    },
}

impl Inner {
    async fn perform(self: &Arc<Self>, execution: &Arc<Execution>, call: EffectCall) -> EffectReply {
        if execution.progress().stop.is_some() {
            return EffectReply::Stop;
        }
        match self.effect(execution, call).await {
            Ok(reply) => reply,
            Err(stop) => {
                tracing::info!(step = %execution.context.fence.step, ?stop, "an execution stops at an effect");
                execution.progress().stop.get_or_insert(stop);
                EffectReply::Stop
            }
        }
    }

    async fn effect(
        self: &Arc<Self>,
        execution: &Arc<Execution>,
        call: EffectCall,
    ) -> Result<EffectReply, Stop> {
        let is_verification = execution.purpose == Purpose::Verification;
        let call = if is_verification { EffectCall { key: None, ..call } } else { call };
        let placed = match execution.progress().place(&call) {
            Ok(placed) => placed,
            Err(limit) => return Ok(EffectReply::Failed(EffectFailure::Limit(limit))),
        };
        if let Some((name, _)) = call.extra.iter().find(|(name, _)| !call.request.knows(name)) {
            let message = format!("this host does not know the extra `{name}`");
            return Ok(EffectReply::Failed(EffectFailure::Denied(message)));
        }
        if let Some(name) = call.connection.as_deref().filter(|name| !is_name(name)) {
            let message = format!("`{}` is no name of a connection", bounded_text(name, NAME_LEN_MAX));
            return Ok(EffectReply::Failed(EffectFailure::Denied(message)));
        }
        self.faults.reach(Site::BeforePrepare);
        // What is not dispatched is judged by the connection that is there now.
        let is_look = is_verification || call.effective_safety() == Safety::ReadOnly;
        let mut by = if is_look { By::Now } else { By::Last };
        for _ in 0..JUDGEMENTS_MAX {
            if let Some(reply) = self.judged_by(by, execution, &placed, &call).await? {
                return Ok(reply);
            }
            by = By::Now;
        }
        Err(Stop::Database { message: "the connection of this call keeps changing".into() })
    }

    /// Decides from the journal and, where something is to be sent, makes the receipt durable first.
    async fn begin(
        &self,
        execution: &Execution,
        placed: &Placed,
        judged: &Judged,
        mut limits: Limits<'_>,
    ) -> Result<Begun, Stop> {
        let prepared = &judged.prepared;
        let mut place = None;
        self.load_journal(execution, false).await?;
        // Opened before the first dispatch statement, so that a COMMIT whose answer was lost cannot stretch it.
        let window = SendWindow::open(self.config.lease * 4 / 5);
        for _ in 0..DECISIONS_MAX {
            let decision = Self::decide(execution, placed, prepared)?;
            let is_plain = matches!(decision, Decision::Dispatch { resend: false, .. });
            if judged.by == By::Last && !(is_plain && prepared.is_sent()) {
                return Ok(Begun::JudgeAgain);
            }
            let (number, lost, resend) = match decision {
                Decision::HandOver(recorded) => {
                    Self::done_before(execution, prepared, &recorded);
                    return Ok(Begun::Reply(recorded.into_reply()));
                }
                // It became durable together with its place in the queue, and the step was let go with it.
                Decision::GoOn(_) if prepared.is_queued() => return Err(Stop::Queued),
                Decision::GoOn(id) => {
                    let receipt = Self::recorded_receipt(execution, id).ok_or(Stop::Rerun)?;
                    execution.progress().begun.insert(id);
                    return Ok(Begun::Send(Box::new(Sendable { receipt, window, place })));
                }
                Decision::Block { lost } => {
                    Self::lose(execution, &lost);
                    return Err(Stop::Blocked {
                        reason: format!("the outcome of effect `{}` is unknown", placed.slot),
                    });
                }
                Decision::Diverged(what) => {
                    let message = format!("effect `{}` diverged: {what}", placed.slot);
                    return Err(Stop::Failed { code: Code::Diverged, message });
                }
                Decision::Dispatch { dispatch_number, lost, resend } => (dispatch_number, lost, resend),
            };
            if resend && prepared.is_queued() {
                execution.may_queue_again(&placed.slot)?;
            }
            if let Some(begun) = Self::without_a_call(execution, placed, prepared, number, resend, &lost)? {
                return Ok(begun);
            }
            place = self.take_room_and_place(execution, &mut limits).await?.or(place);
            if prepared.facts.safety == Safety::ReadOnly {
                return Ok(Begun::ReadOnly { number, place });
            }
            let receipt = Self::receipt(execution, placed, prepared, number);
            match self.dispatch(execution, &receipt, &lost, judged).await? {
                Dispatched::Done(receipt) => {
                    self.faults.reach(Site::AfterDispatch);
                    if prepared.is_queued() {
                        return Err(Stop::Queued);
                    }
                    return Ok(Begun::Send(Box::new(Sendable { receipt: *receipt, window, place })));
                }
                Dispatched::Moved => self.load_journal(execution, true).await?,
                Dispatched::ConnectionChanged => return Ok(Begun::JudgeAgain),
            }
        }
        Err(Stop::Database { message: "the journal of this step keeps moving".into() })
    }

    /// What the journal says of a call.
    fn decide(execution: &Execution, placed: &Placed, prepared: &Prepared) -> Result<Decision, Stop> {
        let progress = execution.progress();
        let journal = progress.journal.as_ref().ok_or(Stop::Rerun)?;
        let facts = &prepared.facts;
        let call = Call { slot: &placed.slot, safety: facts.safety, request_hash: &facts.request_hash };
        Ok(journal.decide(call, execution.asker(), |id| progress.begun.contains(&id)))
    }

    /// What becomes of a dispatch that needs no call, or may not make one.
    fn without_a_call(
        execution: &Execution,
        placed: &Placed,
        prepared: &Prepared,
        number: u64,
        resend: bool,
        lost: &[EffectId],
    ) -> Result<Option<Begun>, Stop> {
        match &prepared.act {
            Err(message) if resend => {
                Self::lose(execution, lost);
                Err(Stop::Blocked { reason: format!("a re-send is refused: {message}") })
            }
            Err(message) => Ok(Some(Begun::Denied { number, message: message.clone() })),
            Ok(Act::Known(answer)) => Ok(Some(Begun::Reply(EffectReply::Answered(answer.clone())))),
            Ok(Act::Change { change, answer }) => {
                let receipt = Self::receipt(execution, placed, prepared, number);
                Ok(Some(Begun::Reply(Self::change(execution, receipt, change, answer))))
            }
            Ok(Act::Read(_) | Act::Exchange(_) | Act::Queue(_)) => Ok(None),
        }
    }

    fn receipt(execution: &Execution, placed: &Placed, prepared: &Prepared, number: u64) -> Receipt {
        let context = &execution.context;
        let id = slot_of(context, &placed.slot).receipt_id(number);
        let mut request = prepared.facts.clone();
        if let Some(journal) = &execution.progress().journal {
            request.idempotency_key = journal.key(&placed.slot, id, &request.idempotency_key);
        }
        Receipt {
            id,
            tenant: context.fence.tenant,
            run: context.run,
            step: context.fence.step,
            place: context.place.clone(),
            slot: placed.slot.clone(),
            dispatch_number: number,
            position: placed.position,
            attempt: context.attempt,
            request,
            standing: Standing::Planned,
        }
    }

    /// Keeps a change of our own database for the end of the step.
    fn change(execution: &Execution, receipt: Receipt, change: &Change, answer: &Answer) -> EffectReply {
        let standing = Standing::Committed(Recorded::Answer(answer.clone()));
        match execution.progress().change(change.clone(), Receipt { standing, ..receipt }) {
            Ok(()) => EffectReply::Answered(answer.clone()),
            Err(limit) => EffectReply::Failed(EffectFailure::Limit(limit)),
        }
    }

    /// What an earlier execution changed of our own database, the step's own reads find again as they did then.
    fn done_before(execution: &Execution, prepared: &Prepared, recorded: &Recorded) {
        if let (Ok(Act::Change { change, .. }), Recorded::Answer(_)) = (&prepared.act, recorded) {
            execution.progress().changed_before(change.clone());
        }
    }
}

fn slot_of<'a>(context: &'a ExecutionContext, key: &'a SlotKey) -> Slot<'a> {
    Slot { tenant: context.fence.tenant, epoch: EPOCH, place: &context.place, key }
}

fn transition(
    receipt: &Receipt,
    from: ReceiptState,
    what: Move,
) -> Result<Transition, counterfoil_domain::receipt::IllegalMove> {
    Transition::new(receipt.tenant, receipt.id, from, Actor::Host, what)
}

fn lost_host(tenant: counterfoil_domain::id::TenantId, id: EffectId) -> Option<Transition> {
    let what = Move::Lose { reason: UNRECORDED.into() };
    Transition::new(tenant, id, ReceiptState::Dispatched, Actor::Host, what).ok()
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
fn database(error: StoreError) -> Stop {
    tracing::warn!(error = &error as &dyn std::error::Error, "the guard could not use the database");
    if error.is_transient() {
        Stop::Database { message: error.to_string() }
    } else {
        // Trying again would meet the same refusal, for ever.
        Stop::Failed { code: Code::Internal, message: "the receipt of an effect cannot be stored".into() }
    }
}
