//! The guard: the one door out. It decides from the journal, makes the receipt durable, makes the call, and records what
//! the answer means. A call whose execution is gone still records its own answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{EffectCall, EffectFailure, EffectReply, EffectRequest, Safety};
use counterfoil_domain::id::{EffectId, LeaseId};
use counterfoil_domain::ports::{EffectPort, Faults, Site};
use counterfoil_domain::receipt::answer::{AfterRefusal, Exchanged, Meaning, meaning, provider_receipt_id};
use counterfoil_domain::receipt::identity::{EPOCH, Slot};
use counterfoil_domain::receipt::journal::{Call, Decision, Journal};
use counterfoil_domain::receipt::{
    Actor, Move, Receipt, ReceiptState, Recorded, RequestFacts, SlotKey, Standing, Transition,
};
use counterfoil_domain::step::Stop;
use counterfoil_store::receipt::{Dispatch, DispatchVerdict};
use counterfoil_store::settle::{OwnWrite, Swap};
use counterfoil_store::{Store, StoreError};

use crate::client::{Client, SendWindow};
use crate::execution::{Execution, ExecutionContext, Executions, Finished, Placed};
use crate::http::{self, Prepared};

/// How the guard works.
#[derive(Debug, Clone)]
pub struct GuardConfig {
    /// How long a lease lasts. The send window is shorter.
    pub lease: Duration,
    /// Total time of an effect that names none.
    pub timeout: Duration,
    /// How long an answer may wait for its step's end before it is written alone. Zero writes each at once.
    pub answer_wait: Duration,
    /// Clock differences, scheduling, and the kernel's own queues: added before an absence counts as known.
    pub absence_margin: Duration,
    /// Off only to prove that the crash tests notice: no receipt is written before the call.
    pub receipts: bool,
}

/// A journal that keeps moving between decision and dispatch is read anew this often.
const DECISIONS_MAX: u32 = 8;

/// The one door out of every sandbox of this process.
pub struct Guard {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) client: Client,
    pub(crate) config: GuardConfig,
    faults: Arc<dyn Faults>,
    executions: Executions,
}

impl Guard {
    /// A guard that records in `store` and calls through `client`.
    pub fn new(store: Store, client: Client, config: GuardConfig, faults: Arc<dyn Faults>) -> Self {
        Self { inner: Arc::new(Inner { store, client, config, faults, executions: Executions::default() }) }
    }

    /// Opens the door for an execution, until [`Guard::finish`].
    pub fn begin(&self, context: ExecutionContext) {
        self.inner.executions.insert(context);
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
        Finished { writes, lose: std::mem::take(&mut progress.lose), stop: progress.stop.take() }
    }

    /// Writes answers that no step's end took with it, lease or no lease.
    pub async fn record_alone(&self, writes: Vec<OwnWrite>) {
        self.inner.record_alone(writes).await;
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
}

enum Begun {
    Reply(EffectReply),
    Send(Box<Sendable>),
    /// Refused by a check that needs no network.
    Denied {
        number: u64,
        message: String,
    },
    ReadOnly {
        number: u64,
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
        let placed = match execution.progress().place(&call) {
            Ok(placed) => placed,
            Err(limit) => return Ok(EffectReply::Failed(EffectFailure::Limit(limit))),
        };
        if let Some((name, _)) = call.extra.first() {
            let message = format!("this host does not know the extra `{name}`");
            return Ok(EffectReply::Failed(EffectFailure::Denied(message)));
        }
        let EffectRequest::Http(request) = &call.request else {
            let message = format!("this host offers no effects of the kind `{}`", call.request.kind());
            return Ok(EffectReply::Failed(EffectFailure::Denied(message)));
        };
        self.faults.reach(Site::BeforePrepare);
        let prepared = self.prepare(execution, &call, request, &placed.slot).await?;
        match self.begin(execution, &placed, &prepared).await? {
            Begun::Reply(reply) => Ok(reply),
            Begun::Denied { number, message } => {
                let recorded = Recorded::Failure(EffectFailure::Denied(message));
                self.journal_unsent(
                    execution,
                    &placed,
                    &prepared,
                    number,
                    Standing::Rejected(recorded.clone()),
                )
                .await;
                Ok(recorded.into_reply())
            }
            Begun::ReadOnly { number } => self.read(execution, &placed, &prepared, number).await,
            Begun::Send(sendable) => self.send(execution, *sendable, &prepared).await,
        }
    }

    async fn prepare(
        &self,
        execution: &Execution,
        call: &EffectCall,
        request: &counterfoil_domain::effect::HttpRequest,
        slot: &SlotKey,
    ) -> Result<Prepared, Stop> {
        let context = &execution.context;
        let connection = match &call.connection {
            Some(name) => self.store.connection(context.fence.tenant, name).await.map_err(database)?,
            None => None,
        };
        let through = connection
            .map(|connection| match serde_json::from_value(connection.abilities.clone()) {
                Ok(abilities) => Ok((connection, abilities)),
                Err(error) => Err(Stop::Database {
                    message: format!(
                        "the abilities of connection `{}` cannot be read: {error}",
                        connection.name
                    ),
                }),
            })
            .transpose()?;
        let default_key = slot_of(context, slot).receipt_id(0).to_string();
        Ok(http::prepare(
            context,
            call,
            request,
            through,
            default_key,
            self.client.policy(),
            self.config.timeout,
        ))
    }

    /// Decides from the journal and, where something is to be sent, makes the receipt durable first.
    async fn begin(
        &self,
        execution: &Execution,
        placed: &Placed,
        prepared: &Prepared,
    ) -> Result<Begun, Stop> {
        self.load_journal(execution, false).await?;
        // Opened before the first dispatch statement, so that a COMMIT whose answer was lost cannot stretch it.
        let window = SendWindow::open(self.config.lease * 4 / 5);
        for _ in 0..DECISIONS_MAX {
            let decision = {
                let progress = execution.progress();
                let journal = progress.journal.as_ref().ok_or(Stop::Rerun)?;
                let call = Call {
                    slot: &placed.slot,
                    safety: prepared.facts.safety,
                    request_hash: &prepared.facts.request_hash,
                };
                journal.decide(call, execution.asker(), |id| progress.begun.contains(&id))
            };
            let (number, lost, resend) = match decision {
                Decision::HandOver(recorded) => return Ok(Begun::Reply(recorded.into_reply())),
                Decision::GoOn(id) => {
                    let receipt = self.recorded_receipt(execution, id).ok_or(Stop::Rerun)?;
                    execution.progress().begun.insert(id);
                    return Ok(Begun::Send(Box::new(Sendable { receipt, window })));
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
            if let Err(message) = &prepared.wire {
                if resend {
                    Self::lose(execution, &lost);
                    return Err(Stop::Blocked { reason: format!("a re-send is refused: {message}") });
                }
                return Ok(Begun::Denied { number, message: message.clone() });
            }
            if prepared.facts.safety == Safety::ReadOnly {
                return Ok(Begun::ReadOnly { number });
            }
            let receipt = self.receipt(execution, placed, prepared, number);
            match self.dispatch(execution, &receipt, &lost).await? {
                Some(receipt) => {
                    self.faults.reach(Site::AfterDispatch);
                    return Ok(Begun::Send(Box::new(Sendable { receipt, window })));
                }
                None => self.load_journal(execution, true).await?,
            }
        }
        Err(Stop::Database { message: "the journal of this step keeps moving".into() })
    }

    /// Makes `receipt` durable as dispatched. `None`: the journal has moved and must be read again.
    async fn dispatch(
        &self,
        execution: &Execution,
        receipt: &Receipt,
        lost: &[EffectId],
    ) -> Result<Option<Receipt>, Stop> {
        let context = &execution.context;
        let (expected, lose) = {
            let progress = execution.progress();
            let journal = progress.journal.as_ref().ok_or(Stop::Rerun)?;
            let expected: Vec<(EffectId, ReceiptState)> =
                journal.slot(&receipt.slot).map(|known| (known.id, known.standing.state())).collect();
            let lose = lost.iter().filter_map(|id| lost_host(context.fence.tenant, *id)).collect::<Vec<_>>();
            (expected, lose)
        };
        let guard = http::guarding(&context.invariants).map(|invariant| invariant.id.as_str());
        let mut unwritten = execution.unwritten.lock().await;
        let dispatch = Dispatch {
            fence: &context.fence,
            receipt,
            expected: &expected,
            lose: &lose,
            guard,
            absence_known_after: self.config.lease + self.config.timeout + self.config.absence_margin,
            writes: &unwritten,
        };
        let verdict = if self.config.receipts {
            self.store.dispatch(&dispatch).await
        } else {
            Ok(DispatchVerdict::Dispatched { at: chrono::DateTime::UNIX_EPOCH })
        };
        match verdict {
            Ok(DispatchVerdict::Dispatched { at }) => {
                let had_answers = !unwritten.is_empty();
                if self.config.receipts {
                    unwritten.clear();
                }
                drop(unwritten);
                if had_answers {
                    self.faults.reach(Site::AfterAnswerRecorded);
                }
                let mut receipt = receipt.clone();
                receipt.standing = Standing::Dispatched { lease: context.fence.lease, at };
                let mut progress = execution.progress();
                progress.begun.insert(receipt.id);
                if let Some(journal) = &mut progress.journal {
                    for id in lost {
                        journal.lose(*id, at);
                    }
                    journal.put(receipt.clone());
                }
                Ok(Some(receipt))
            }
            Ok(DispatchVerdict::Moved) => Ok(None),
            Ok(DispatchVerdict::Stale) => Err(Stop::Stale),
            Ok(DispatchVerdict::Rerun) => Err(Stop::Rerun),
            Ok(DispatchVerdict::Duplicate { held_by }) => Err(Stop::Failed {
                code: Code::Duplicate,
                message: format!("effect `{}` repeats what {held_by} guards", receipt.slot),
            }),
            // The COMMIT may have come through: the journal knows.
            Err(error) if error.is_transient() => Ok(None),
            Err(error) => Err(database(error)),
        }
    }

    /// Makes the call of a dispatched receipt, and records what its answer means.
    async fn send(
        self: &Arc<Self>,
        execution: &Arc<Execution>,
        sendable: Sendable,
        prepared: &Prepared,
    ) -> Result<EffectReply, Stop> {
        let Sendable { receipt, window } = sendable;
        let exchanged = self.exchange(prepared, &receipt.request, &window).await;
        self.faults.reach(Site::BeforeAnswerRecorded);
        let older_unknown = {
            let progress = execution.progress();
            progress
                .journal
                .as_ref()
                .is_some_and(|journal| journal.is_open_besides(&receipt.slot, receipt.id))
        };
        let provider_id = match &exchanged {
            Exchanged::Answered(response) => {
                provider_receipt_id(response, prepared.abilities.receipt_id_header.as_deref())
            }
            _ => None,
        };
        match meaning(exchanged, receipt.request.safety, &prepared.abilities.statuses, older_unknown) {
            Meaning::Committed { recorded, reason } => {
                let what =
                    Move::Commit { recorded: recorded.clone(), provider_receipt_id: provider_id, reason };
                self.answered(execution, &receipt, what, Standing::Committed(recorded.clone())).await?;
                Ok(recorded.into_reply())
            }
            Meaning::Rejected { recorded, reason, then } => {
                let what = Move::Reject { recorded: recorded.clone(), reason: reason.clone() };
                self.answered(execution, &receipt, what, Standing::Rejected(recorded.clone())).await?;
                match then {
                    AfterRefusal::HandOver => Ok(recorded.into_reply()),
                    AfterRefusal::Wait { retry_after_ms } => Err(Stop::Resend { reason, retry_after_ms }),
                    AfterRefusal::Block => Err(Stop::Blocked { reason }),
                }
            }
            Meaning::Unknown { reason, resend, retry_after_ms } => {
                let what = Move::Lose { reason: reason.clone() };
                if let Ok(lost) = transition(&receipt, ReceiptState::Dispatched, what) {
                    execution.progress().lose.push(lost);
                }
                Err(if resend { Stop::Resend { reason, retry_after_ms } } else { Stop::Blocked { reason } })
            }
        }
    }

    /// Keeps an answer until the next write of this step, or writes it alone if the step has ended.
    async fn answered(
        self: &Arc<Self>,
        execution: &Arc<Execution>,
        receipt: &Receipt,
        what: Move,
        standing: Standing,
    ) -> Result<(), Stop> {
        let mut writes = vec![];
        let siblings = match &what {
            Move::Commit { recorded, .. } => self.siblings(execution, receipt, recorded),
            _ => vec![],
        };
        let own = transition(receipt, ReceiptState::Dispatched, what).map_err(|_| Stop::Rerun)?;
        writes.push(OwnWrite::Answer(own));
        writes.extend(siblings.into_iter().map(OwnWrite::Answer));
        {
            let mut progress = execution.progress();
            if let Some(journal) = &mut progress.journal {
                journal.put(Receipt { standing, ..receipt.clone() });
            }
        }
        let mut unwritten = execution.unwritten.lock().await;
        let finished = execution.progress().finished;
        if !self.config.receipts {
            return Ok(());
        }
        if finished || self.config.answer_wait.is_zero() {
            drop(unwritten);
            self.record_alone(writes).await;
            self.faults.reach(Site::AfterAnswerRecorded);
            return Ok(());
        }
        unwritten.extend(writes);
        drop(unwritten);
        self.flush_later(execution);
        Ok(())
    }

    /// An answer whose step goes on computing is written alone after a while.
    fn flush_later(self: &Arc<Self>, execution: &Arc<Execution>) {
        let (inner, execution) = (Arc::clone(self), Arc::downgrade(execution));
        tokio::spawn(async move {
            tokio::time::sleep(inner.config.answer_wait).await;
            let Some(execution) = execution.upgrade() else { return };
            let mut unwritten = execution.unwritten.lock().await;
            let only_answers = unwritten.iter().all(|write| matches!(write, OwnWrite::Answer(_)));
            if only_answers && !unwritten.is_empty() {
                let writes = std::mem::take(&mut *unwritten);
                inner.record_alone(writes).await;
                inner.faults.reach(Site::AfterAnswerRecorded);
            }
        });
    }

    /// Every other open dispatch of the slot is verified by this one's answer.
    fn siblings(&self, execution: &Execution, receipt: &Receipt, recorded: &Recorded) -> Vec<Transition> {
        let progress = execution.progress();
        let Some(journal) = &progress.journal else { return vec![] };
        journal
            .slot(&receipt.slot)
            .filter(|other| other.id != receipt.id)
            .filter_map(|other| {
                let what = Move::VerifyBySibling { sibling: receipt.id, recorded: recorded.clone() };
                transition(other, other.standing.state(), what).ok()
            })
            .collect()
    }

    pub(crate) async fn record_alone(&self, writes: Vec<OwnWrite>) {
        let transitions: Vec<Transition> = writes
            .into_iter()
            .filter_map(|write| match write {
                OwnWrite::Answer(transition) => Some(transition),
                // A read-only answer belongs to its step alone.
                OwnWrite::ReadOnly(_) => None,
            })
            .collect();
        let Some(first) = transitions.first() else { return };
        let receipt = first.receipt();
        for again in [true, false] {
            match self.store.record_answer(&transitions).await {
                Ok(Swap::Moved) => return,
                Ok(Swap::Lost { found: Some(ReceiptState::Unknown) }) if again => {
                    let late = transitions.iter().filter_map(from_unknown).collect::<Vec<_>>();
                    match self.store.record_answer(&late).await {
                        Ok(swap) => tracing::info!(%receipt, ?swap, "a late answer is recorded"),
                        Err(error) => {
                            tracing::error!(%receipt, error = &error as &dyn std::error::Error, "an answer is lost")
                        }
                    }
                    return;
                }
                Ok(Swap::Lost { found }) => {
                    tracing::info!(%receipt, ?found, "an answer came after its receipt was settled");
                    return;
                }
                Err(error) if again && error.is_transient() => {}
                Err(error) => {
                    tracing::error!(%receipt, error = &error as &dyn std::error::Error, "an answer could not be recorded; its receipt becomes unknown");
                    return;
                }
            }
        }
    }

    async fn read(
        self: &Arc<Self>,
        execution: &Execution,
        placed: &Placed,
        prepared: &Prepared,
        number: u64,
    ) -> Result<EffectReply, Stop> {
        let window = SendWindow::open(self.config.lease * 4 / 5);
        let exchanged = self.exchange(prepared, &prepared.facts, &window).await;
        let (standing, recorded) =
            match meaning(exchanged, Safety::ReadOnly, &prepared.abilities.statuses, false) {
                Meaning::Committed { recorded, .. } => (Standing::Committed(recorded.clone()), recorded),
                Meaning::Rejected { recorded, .. } => (Standing::Rejected(recorded.clone()), recorded),
                Meaning::Unknown { reason, .. } => return Err(Stop::Database { message: reason }),
            };
        self.faults.reach(Site::BeforeAnswerRecorded);
        self.journal_unsent(execution, placed, prepared, number, standing).await;
        Ok(recorded.into_reply())
    }

    /// Journals what has no dispatched receipt: a read-only answer, or a refusal before anything was sent.
    async fn journal_unsent(
        &self,
        execution: &Execution,
        placed: &Placed,
        prepared: &Prepared,
        number: u64,
        standing: Standing,
    ) {
        let receipt = Receipt { standing, ..self.receipt(execution, placed, prepared, number) };
        if let Some(journal) = &mut execution.progress().journal {
            journal.put(receipt.clone());
        }
        execution.unwritten.lock().await.push(OwnWrite::ReadOnly(receipt));
    }

    async fn exchange(&self, prepared: &Prepared, facts: &RequestFacts, window: &SendWindow) -> Exchanged {
        match &prepared.wire {
            Ok(wire) => {
                let request = wire.with_key(facts, &prepared.abilities);
                let exchange = self.client.exchange(request, &prepared.budget, window, &*self.faults).await;
                http::exchanged(exchange, &prepared.abilities)
            }
            Err(message) => Exchanged::NotSent { denied: true, message: message.clone() },
        }
    }

    fn receipt(&self, execution: &Execution, placed: &Placed, prepared: &Prepared, number: u64) -> Receipt {
        let context = &execution.context;
        let mut request = prepared.facts.clone();
        let progress = execution.progress();
        // A re-send goes under the key that the slot was first sent with.
        if let Some(first) = progress.journal.as_ref().and_then(|journal| journal.first_key(&placed.slot)) {
            first.clone_into(&mut request.idempotency_key);
        }
        Receipt {
            id: slot_of(context, &placed.slot).receipt_id(number),
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

    fn recorded_receipt(&self, execution: &Execution, id: EffectId) -> Option<Receipt> {
        let progress = execution.progress();
        progress.journal.as_ref()?.receipts().iter().find(|receipt| receipt.id == id).cloned()
    }

    /// Receipts whose owner is gone become unknown with the end of this execution.
    fn lose(execution: &Execution, lost: &[EffectId]) {
        let tenant = execution.context.fence.tenant;
        execution.progress().lose.extend(lost.iter().filter_map(|id| lost_host(tenant, *id)));
    }

    async fn load_journal(&self, execution: &Execution, again: bool) -> Result<(), Stop> {
        if !again && execution.progress().journal.is_some() {
            return Ok(());
        }
        let context = &execution.context;
        let receipts = self.store.journal(context.fence.tenant, &context.place).await.map_err(database)?;
        let mut journal = Journal::new(receipts);
        // What is answered and not yet written is as good as recorded for this execution.
        let unwritten = execution.unwritten.lock().await;
        let mut progress = execution.progress();
        if let Some(known) = &progress.journal {
            for write in unwritten.iter() {
                let id = match write {
                    OwnWrite::Answer(transition) => transition.receipt(),
                    OwnWrite::ReadOnly(receipt) => receipt.id,
                };
                if let Some(receipt) = known.receipts().iter().find(|receipt| receipt.id == id) {
                    journal.put(receipt.clone());
                }
            }
        }
        progress.journal = Some(journal);
        Ok(())
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
    let what = Move::Lose { reason: "its host was lost before an answer was recorded".into() };
    Transition::new(tenant, id, ReceiptState::Dispatched, Actor::Host, what).ok()
}

/// The same answer, arriving after its receipt was declared unknown.
fn from_unknown(transition: &Transition) -> Option<Transition> {
    let (tenant, receipt) = (transition.tenant(), transition.receipt());
    Transition::new(tenant, receipt, ReceiptState::Unknown, Actor::Host, transition.what().clone()).ok()
}

fn database(error: StoreError) -> Stop {
    tracing::warn!(error = &error as &dyn std::error::Error, "the guard could not use the database");
    Stop::Database { message: error.to_string() }
}
