//! The call itself, and what its answer means: recorded with the next write of its step, or alone.

use std::sync::Arc;
use std::time::Instant;

use counterfoil_domain::effect::{EffectFailure, EffectReply, Safety};
use counterfoil_domain::ports::Site;
use counterfoil_domain::receipt::answer::{AfterRefusal, Exchanged, Meaning, meaning, provider_receipt_id};
use counterfoil_domain::receipt::{
    Move, Receipt, ReceiptState, Recorded, RequestFacts, Standing, Transition,
};
use counterfoil_domain::step::Stop;
use counterfoil_store::settle::OwnWrite;

use super::connection::Limits;
use super::{Inner, Sendable, database, transition};
use crate::client::SendWindow;
use crate::execution::{Execution, Placed};
use crate::kind::{Act, Outside, Prepared};

impl Inner {
    /// Makes the call of a dispatched receipt, and records what its answer means.
    pub(super) async fn send(
        self: &Arc<Self>,
        execution: &Arc<Execution>,
        sendable: Sendable,
        prepared: &Prepared,
    ) -> Result<EffectReply, Stop> {
        let Sendable { receipt, window, place } = sendable;
        let exchanged = self.exchange(prepared, &receipt.request, &window).await;
        drop(place);
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
    pub(super) async fn answered(
        self: &Arc<Self>,
        execution: &Arc<Execution>,
        receipt: &Receipt,
        what: Move,
        standing: Standing,
    ) -> Result<(), Stop> {
        let mut writes = vec![];
        let siblings = match &what {
            Move::Commit { recorded, .. } => Self::siblings(execution, receipt, recorded),
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
            let alone = self.record_alone(writes, None).await;
            self.faults.reach(Site::AfterAnswerRecorded);
            unwritten.extend(alone.unwritten);
            // Something else is recorded: that is what the step must hear, from its journal.
            return if alone.stand { Ok(()) } else { Err(Stop::Rerun) };
        }
        unwritten.extend(writes);
        drop(unwritten);
        execution.progress().answered_at = Some(Instant::now());
        self.flush_later(execution);
        Ok(())
    }

    /// An answer whose step goes on computing is written alone after a while.
    pub(super) fn flush_later(self: &Arc<Self>, execution: &Arc<Execution>) {
        let (inner, execution) = (Arc::clone(self), Arc::downgrade(execution));
        tokio::spawn(async move {
            tokio::time::sleep(inner.patience.wait()).await;
            let Some(execution) = execution.upgrade() else { return };
            let mut unwritten = execution.unwritten.lock().await;
            // A read-only answer belongs to its step, and waits for it.
            let writes = std::mem::take(&mut *unwritten).into_iter();
            let (answers, own): (Vec<_>, Vec<_>) =
                writes.partition(|write| matches!(write, OwnWrite::Answer(_)));
            *unwritten = own;
            if !answers.is_empty() {
                let alone = inner.record_alone(answers, None).await;
                inner.faults.reach(Site::AfterAnswerRecorded);
                unwritten.extend(alone.unwritten);
                if !alone.stand {
                    execution.progress().stop.get_or_insert(Stop::Rerun);
                }
            }
        });
    }

    /// Every other open dispatch of the slot is verified by this one's answer.
    fn siblings(execution: &Execution, receipt: &Receipt, recorded: &Recorded) -> Vec<Transition> {
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

    /// Carries out what changes nothing, and journals what came of it.
    pub(super) async fn read(
        self: &Arc<Self>,
        execution: &Execution,
        placed: &Placed,
        prepared: &Prepared,
        number: u64,
    ) -> Result<EffectReply, Stop> {
        let (standing, recorded) = self.look(prepared).await?;
        self.faults.reach(Site::BeforeAnswerRecorded);
        self.journal_unsent(execution, placed, prepared, number, standing).await;
        Ok(recorded.into_reply())
    }

    /// Carries out a call of a block that is asked what became of an effect; nothing is kept of it.
    pub(super) async fn look_up(
        &self,
        execution: &Execution,
        prepared: &Prepared,
        mut limits: Limits<'_>,
    ) -> Result<EffectReply, Stop> {
        if prepared.facts.safety != Safety::ReadOnly {
            let message = "a block that is asked what became of an effect may look, and change nothing";
            return Ok(EffectReply::Failed(EffectFailure::Denied(message.into())));
        }
        let mut place = None;
        if matches!(prepared.act, Ok(Act::Exchange(_))) {
            place = self.take_place(execution, &mut limits)?;
            if let Some(connection) = limits.rate {
                self.wait_for_room(execution, connection).await?;
            }
        }
        let (_, recorded) = self.look(prepared).await?;
        drop(place);
        Ok(recorded.into_reply())
    }

    /// Carries out what changes nothing: where its receipt stands then, and what the guest gets.
    async fn look(&self, prepared: &Prepared) -> Result<(Standing, Recorded), Stop> {
        if let Ok(Act::Read(read)) = &prepared.act {
            let recorded = Recorded::Answer(read.read(&self.store).await.map_err(database)?);
            return Ok((Standing::Committed(recorded.clone()), recorded));
        }
        let window = SendWindow::open(self.config.lease * 4 / 5);
        let exchanged = self.exchange(prepared, &prepared.facts, &window).await;
        match meaning(exchanged, Safety::ReadOnly, &prepared.abilities.statuses, false) {
            Meaning::Committed { recorded, .. } => Ok((Standing::Committed(recorded.clone()), recorded)),
            Meaning::Rejected { recorded, .. } => Ok((Standing::Rejected(recorded.clone()), recorded)),
            Meaning::Unknown { reason, .. } => Err(Stop::Database { message: reason }),
        }
    }

    /// Journals what has no dispatched receipt: a read-only answer, or a refusal before anything was sent.
    pub(super) async fn journal_unsent(
        &self,
        execution: &Execution,
        placed: &Placed,
        prepared: &Prepared,
        number: u64,
        standing: Standing,
    ) {
        let receipt = Receipt { standing, ..Self::receipt(execution, placed, prepared, number) };
        if let Some(journal) = &mut execution.progress().journal {
            journal.put(receipt.clone());
        }
        execution.unwritten.lock().await.push(OwnWrite::ReadOnly(receipt));
    }

    pub(super) async fn exchange(
        &self,
        prepared: &Prepared,
        facts: &RequestFacts,
        window: &SendWindow,
    ) -> Exchanged {
        match &prepared.act {
            Ok(Act::Exchange(exchange)) => {
                let out = Outside { client: &self.client, window, faults: &*self.faults };
                exchange.exchange(out, facts).await
            }
            Err(message) => Exchanged::NotSent { denied: true, message: message.clone() },
            Ok(Act::Change { .. } | Act::Read(_) | Act::Known(_) | Act::Queue(_)) => {
                let message = "the slot is that of a call which is to be sent".into();
                Exchanged::NotSent { denied: true, message }
            }
        }
    }
}
