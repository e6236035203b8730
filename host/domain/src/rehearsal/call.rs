//! What the block is told of a call.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::compare::Told;
use super::provider::{Fault, Line};
use super::{Halt, LINEAGE, RUN, Rehearsal, STEP, TENANT, is_open, prepare};
use crate::code::Code;
use crate::effect::{Answer, EffectCall, EffectFailure, EffectReply, EffectRequest, Safety, StorageRequest};
use crate::id::EffectId;
use crate::limits::{EFFECTS_PER_STEP_MAX, NAME_BYTES_MAX, OWN_CHANGES_BYTES_MAX, bounded_text};
use crate::outbound::judge_work;
use crate::receipt::answer::{AfterRefusal, Meaning, meaning};
use crate::receipt::identity::{EPOCH, Slot};
use crate::receipt::journal::{Asker, Call, Decision};
use crate::receipt::{Move, Receipt, Recorded, SlotKey, Standing};
use crate::step::Stop;
use crate::workflow::{NAME_LEN_MAX, is_name};

/// Of a host that says nothing else: the lease, and the margin for clocks and queues.
const ABSENCE_KNOWN_AFTER_MS: u64 = 15_000 + 5_000;
/// And the time of a call that names none.
const TIMEOUT_MS: u64 = 30_000;

struct Placed {
    slot: SlotKey,
    position: u32,
}

impl Rehearsal {
    /// What the block is told of a call.
    pub fn perform(&mut self, call: &EffectCall) -> EffectReply {
        if self.execution.halt.is_some() {
            return EffectReply::Stop;
        }
        match self.effect(call) {
            Ok(reply) => reply,
            Err(halt) => {
                self.execution.halt = Some(halt);
                EffectReply::Stop
            }
        }
    }

    fn effect(&mut self, call: &EffectCall) -> Result<EffectReply, Halt> {
        let placed = match self.placed(call) {
            Ok(placed) => placed,
            Err(limit) => return Ok(EffectReply::Failed(EffectFailure::Limit(limit))),
        };
        let own_key = self.slot(&placed.slot).receipt_id(0).to_string();
        let facts = prepare::facts(call, LINEAGE, own_key);
        let told = Told::new(&placed.slot, &facts, Line(&call.request).to_string());
        if let Some(rerun) = &mut self.rerun {
            rerun.compare(placed.position, &told).map_err(Halt::Broken)?;
        }
        self.execution.told.push(told);
        let receipt = Receipt {
            id: EffectId(Uuid::nil()),
            tenant: TENANT,
            run: RUN,
            step: STEP,
            place: self.place.clone(),
            slot: placed.slot,
            dispatch_number: 0,
            position: placed.position,
            attempt: self.attempt,
            request: facts,
            standing: Standing::Planned,
        };
        let reply = match form(call) {
            Err(message) => EffectReply::Failed(EffectFailure::Denied(message)),
            Ok(()) if self.execution.is_verification => self.look_up(call, &receipt)?,
            Ok(()) => self.decide(call, receipt)?,
        };
        if let Some(told) = self.execution.told.last_mut() {
            told.reply = Some(reply.clone());
        }
        Ok(reply)
    }

    /// Names the slot of the next call, or says which limit of the call itself it breaks.
    fn placed(&mut self, call: &EffectCall) -> Result<Placed, String> {
        let execution = &mut self.execution;
        let position = u32::try_from(execution.told.len()).unwrap_or(u32::MAX);
        if u64::from(position) >= EFFECTS_PER_STEP_MAX {
            return Err(format!("effect_limit: a step makes at most {EFFECTS_PER_STEP_MAX} effects"));
        }
        let label = call.key.as_ref().filter(|_| !execution.is_verification);
        let slot = match label {
            Some(label) if label.is_empty() || label.len() > NAME_BYTES_MAX || label.contains('\0') => {
                return Err(format!("slot_label: a key has 1 to {NAME_BYTES_MAX} bytes and no NUL"));
            }
            Some(label) if !execution.labels.insert(label.clone()) => {
                return Err(format!(
                    "slot_reused: the key `{label}` names another effect of this step already"
                ));
            }
            Some(label) => SlotKey::Label(label.clone()),
            None => {
                execution.ordinals += 1;
                SlotKey::Ordinal(execution.ordinals - 1)
            }
        };
        Ok(Placed { slot, position })
    }

    fn slot<'a>(&'a self, key: &'a SlotKey) -> Slot<'a> {
        Slot { tenant: TENANT, epoch: EPOCH, place: &self.place, key }
    }

    fn decide(&mut self, call: &EffectCall, mut receipt: Receipt) -> Result<EffectReply, Halt> {
        let made = Call {
            slot: &receipt.slot,
            safety: receipt.request.safety,
            request_hash: &receipt.request.request_hash,
        };
        let asker = Asker { lease: self.lease(), attempt: self.attempt, run: RUN };
        let (number, lost, resend) = match self.journal.decide(made, asker, |_| true) {
            Decision::HandOver(recorded) => {
                if is_change(call) && matches!(recorded, Recorded::Answer(_)) {
                    self.execution.changes.push((call.request.clone(), None));
                }
                return Ok(recorded.into_reply());
            }
            Decision::Block { lost } => {
                self.lose(&lost);
                let reason = format!("the outcome of effect `{}` is unknown", receipt.slot);
                return Err(Stop::Blocked { reason }.into());
            }
            Decision::Diverged(what) => {
                let message = format!("effect `{}` diverged: {what}", receipt.slot);
                return Err(Stop::Failed { code: Code::Diverged, message }.into());
            }
            Decision::GoOn(_) => return Err(Halt::Broken("a receipt was left planned".into())),
            Decision::Dispatch { dispatch_number, lost, resend } => (dispatch_number, lost, resend),
        };
        self.lose(&lost);
        if resend && matches!(call.request, EffectRequest::Worker { .. }) {
            self.journal.may_queue_again(&receipt.slot, asker)?;
        }
        receipt.dispatch_number = number;
        receipt.id = self.slot(&receipt.slot).receipt_id(number);
        receipt.request.idempotency_key =
            self.journal.key(&receipt.slot, receipt.id, &receipt.request.idempotency_key);
        match prepare::judge(call, &self.grants) {
            Err(message) if resend => {
                return Err(Stop::Blocked { reason: format!("a re-send is refused: {message}") }.into());
            }
            Err(message) => {
                let recorded = Recorded::Failure(EffectFailure::Denied(message));
                self.journal.put(Receipt { standing: Standing::Rejected(recorded.clone()), ..receipt });
                return Ok(recorded.into_reply());
            }
            Ok(()) => {}
        }
        if is_change(call) {
            return Ok(self.change(call, receipt));
        }
        match &call.request {
            EffectRequest::Storage(StorageRequest::Get(key)) => self.get(key, receipt),
            EffectRequest::Worker { queue, input } => {
                let total = judge_work(call, queue, input).map_or(Duration::ZERO, |work| work.total());
                self.queue((call, queue), total, receipt)
            }
            _ => self.send(call, receipt),
        }
    }

    /// Puts work into a queue, and records what its worker said: the step was let go meanwhile, so that the block hears it
    /// when it is run again. A process that dies takes nothing with it.
    fn queue(
        &mut self,
        (call, queue): (&EffectCall, &str),
        total: Duration,
        receipt: Receipt,
    ) -> Result<EffectReply, Halt> {
        if let Some(rerun) = &self.rerun {
            return rerun.reply(receipt.position);
        }
        let taken = self.provider.take_work(&receipt.slot, (call, queue), &receipt.request);
        let (what, fault) = taken.map_err(|unscripted| Halt::Broken(unscripted.to_string()))?;
        let standing = match what {
            Move::Commit { recorded, .. } => {
                self.verify_siblings(&receipt.slot, receipt.id, &recorded);
                Standing::Committed(recorded)
            }
            Move::Reject { recorded, .. } => Standing::Rejected(recorded),
            Move::Lose { reason } => {
                let absence_known_at = self.now + Duration::from_millis(ABSENCE_KNOWN_AFTER_MS) + total;
                Standing::Unknown { reason, dispatched_at: self.now, absence_known_at }
            }
            other => return Err(Halt::Broken(format!("a worker said {other:?}"))),
        };
        self.journal.put(Receipt { standing, ..receipt });
        Err(if fault.is_some() { Halt::Crashed } else { Stop::Queued.into() })
    }

    /// Receipts whose owner is gone become unknown.
    pub(super) fn lose(&mut self, lost: &[EffectId]) {
        for id in lost {
            let known_at = self.absence_known_at.get(id).copied().unwrap_or(self.now);
            self.journal.lose(*id, known_at);
        }
    }

    /// A change of our own data waits for the end of the step.
    fn change(&mut self, call: &EffectCall, receipt: Receipt) -> EffectReply {
        let bytes = match &call.request {
            EffectRequest::Storage(StorageRequest::Put(key, value)) => key.len() + value.len(),
            EffectRequest::Emit { data, .. } => data.len(),
            _ => 0,
        };
        if self.execution.changes_bytes + bytes > OWN_CHANGES_BYTES_MAX {
            return EffectReply::Failed(EffectFailure::Limit(format!(
                "effect_limit: the events and values of a step have at most {OWN_CHANGES_BYTES_MAX} bytes together"
            )));
        }
        self.execution.changes_bytes += bytes;
        let is_emit = matches!(call.request, EffectRequest::Emit { .. });
        let answer = if is_emit { Answer::Emitted } else { Answer::Stored(None) };
        let standing = Standing::Committed(Recorded::Answer(answer.clone()));
        self.execution.changes.push((call.request.clone(), Some(Receipt { standing, ..receipt })));
        EffectReply::Answered(answer)
    }

    fn get(&mut self, key: &str, receipt: Receipt) -> Result<EffectReply, Halt> {
        let written = self.execution.changes.iter().rev().find_map(|(request, _)| match request {
            EffectRequest::Storage(StorageRequest::Put(written, value)) if written == key => {
                Some(Some(value.clone()))
            }
            EffectRequest::Storage(StorageRequest::Delete(written)) if written == key => Some(None),
            _ => None,
        });
        if let Some(written) = written {
            return Ok(EffectReply::Answered(Answer::Stored(written)));
        }
        // A step that is run again for comparison must not see what it has changed since.
        if let Some(rerun) = &self.rerun {
            return rerun.reply(receipt.position);
        }
        let answer = Answer::Stored(self.stored.get(key).cloned());
        let standing = Standing::Committed(Recorded::Answer(answer.clone()));
        self.journal.put(Receipt { standing, ..receipt });
        Ok(EffectReply::Answered(answer))
    }

    /// Makes the call, and records what its answer means.
    fn send(&mut self, call: &EffectCall, receipt: Receipt) -> Result<EffectReply, Halt> {
        if let Some(rerun) = &self.rerun {
            return rerun.reply(receipt.position);
        }
        let taken = self.provider.take(&receipt.slot, call, &receipt.request);
        let (exchanged, fault) = taken.map_err(|unscripted| Halt::Broken(unscripted.to_string()))?;
        let safety = receipt.request.safety;
        let asked = call.timeout_ms.map_or(TIMEOUT_MS, |ms| u64::from(ms).clamp(100, 120_000));
        let known_at = self.now + Duration::from_millis(ABSENCE_KNOWN_AFTER_MS + asked);
        self.absence_known_at.insert(receipt.id, known_at);
        if fault == Some(Fault::CrashBefore) {
            // A read leaves nothing until it is answered.
            if safety != Safety::ReadOnly {
                let standing = Standing::Dispatched { lease: self.lease(), at: self.now };
                self.journal.put(Receipt { standing, ..receipt });
            }
            return Err(Halt::Crashed);
        }
        let older_unknown = self.journal.is_open_besides(&receipt.slot, receipt.id);
        let slot = receipt.slot.clone();
        let (standing, reply) = match meaning(exchanged, safety, &BTreeMap::new(), older_unknown) {
            Meaning::Committed { recorded, .. } => {
                (Standing::Committed(recorded.clone()), Ok(recorded.into_reply()))
            }
            Meaning::Rejected { recorded, reason, then } => {
                let reply = match then {
                    AfterRefusal::HandOver => Ok(recorded.clone().into_reply()),
                    AfterRefusal::Wait { retry_after_ms } => Err(Stop::Resend { reason, retry_after_ms }),
                    AfterRefusal::Block => Err(Stop::Blocked { reason }),
                };
                (Standing::Rejected(recorded), reply)
            }
            Meaning::Unknown { reason, resend, retry_after_ms } => {
                let standing = Standing::Unknown {
                    reason: reason.clone(),
                    dispatched_at: self.now,
                    absence_known_at: known_at,
                };
                let stop =
                    if resend { Stop::Resend { reason, retry_after_ms } } else { Stop::Blocked { reason } };
                (standing, Err(stop))
            }
        };
        if let Standing::Committed(recorded) = &standing {
            self.verify_siblings(&slot, receipt.id, recorded);
        }
        self.journal.put(Receipt { standing, ..receipt });
        match fault {
            Some(Fault::CrashAfter) => Err(Halt::Crashed),
            _ => reply.map_err(Halt::Guard),
        }
    }

    fn verify_siblings(&mut self, slot: &SlotKey, but: EffectId, recorded: &Recorded) {
        let open: Vec<Receipt> =
            self.journal.slot(slot).filter(|other| other.id != but && is_open(other)).cloned().collect();
        for sibling in open {
            self.journal.put(Receipt { standing: Standing::Verified(recorded.clone()), ..sibling });
        }
    }

    /// A call of a block that is asked what became of an effect.
    fn look_up(&mut self, call: &EffectCall, receipt: &Receipt) -> Result<EffectReply, Halt> {
        let denied = |message: String| Ok(EffectReply::Failed(EffectFailure::Denied(message)));
        if receipt.request.safety != Safety::ReadOnly {
            return denied(
                "a block that is asked what became of an effect may look, and change nothing".into(),
            );
        }
        if let Err(message) = prepare::judge(call, &self.grants) {
            return denied(message);
        }
        if let EffectRequest::Storage(StorageRequest::Get(key)) = &call.request {
            return Ok(EffectReply::Answered(Answer::Stored(self.stored.get(key).cloned())));
        }
        let taken = self.provider.take(&receipt.slot, call, &receipt.request);
        let (exchanged, _) = taken.map_err(|unscripted| Halt::Broken(unscripted.to_string()))?;
        match meaning(exchanged, Safety::ReadOnly, &BTreeMap::new(), false) {
            Meaning::Committed { recorded, .. } | Meaning::Rejected { recorded, .. } => {
                Ok(recorded.into_reply())
            }
            Meaning::Unknown { reason, .. } => Err(Halt::Broken(reason)),
        }
    }
}

/// What is refused before there is a receipt.
fn form(call: &EffectCall) -> Result<(), String> {
    if let Some((name, _)) = call.extra.iter().find(|(name, _)| !call.request.knows(name)) {
        return Err(format!("this host does not know the extra `{name}`"));
    }
    match &call.connection {
        Some(name) if !is_name(name) => {
            Err(format!("`{}` is no name of a connection", bounded_text(name, NAME_LEN_MAX)))
        }
        _ => Ok(()),
    }
}

fn is_change(call: &EffectCall) -> bool {
    match &call.request {
        EffectRequest::Emit { .. } => true,
        EffectRequest::Storage(request) => !matches!(request, StorageRequest::Get(_)),
        _ => false,
    }
}
