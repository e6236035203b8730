//! The receipt becomes durable as dispatched, or nothing is sent.

use counterfoil_domain::code::Code;
use counterfoil_domain::id::EffectId;
use counterfoil_domain::outbound::Work;
use counterfoil_domain::ports::Site;
use counterfoil_domain::receipt::{Receipt, ReceiptState, Standing};
use counterfoil_domain::step::Stop;
use counterfoil_store::StoreError;
use counterfoil_store::receipt::{Dispatch, DispatchVerdict};
use counterfoil_store::worker::NewTask;

use super::{Inner, Judged, database, lost_host};
use crate::execution::Execution;
use crate::kind::{Act, Prepared, Task, guarding};

/// What came of a wish to dispatch.
pub(super) enum Dispatched {
    /// The receipt is durable.
    Done(Box<Receipt>),
    /// The journal has moved, and must be read again.
    Moved,
    /// The connection has changed, and the call must be judged again.
    ConnectionChanged,
}

impl Inner {
    async fn make_durable(
        &self,
        dispatch: &Dispatch<'_>,
        prepared: &Prepared,
    ) -> Result<DispatchVerdict, StoreError> {
        match &prepared.act {
            Ok(Act::Queue(Task { queue, work: Work { input, claim_within, timeout } })) => {
                let task = NewTask { queue, input, claim_within: *claim_within, timeout: *timeout };
                self.store.queue_task(dispatch, &task).await
            }
            _ if self.config.receipts => self.store.dispatch(dispatch).await,
            _ => Ok(DispatchVerdict::Dispatched { at: chrono::DateTime::UNIX_EPOCH }),
        }
    }

    /// Makes `receipt` durable as dispatched, or says what stands in the way.
    pub(super) async fn dispatch(
        &self,
        execution: &Execution,
        receipt: &Receipt,
        lost: &[EffectId],
        judged: &Judged,
    ) -> Result<Dispatched, Stop> {
        let prepared = &judged.prepared;
        let context = &execution.context;
        let (expected, lost_first) = {
            let progress = execution.progress();
            let journal = progress.journal.as_ref().ok_or(Stop::Rerun)?;
            let expected: Vec<(EffectId, ReceiptState)> =
                journal.slot(&receipt.slot).map(|known| (known.id, known.standing.state())).collect();
            let lost_first =
                lost.iter().filter_map(|id| lost_host(context.fence.tenant, *id)).collect::<Vec<_>>();
            (expected, lost_first)
        };
        let guard =
            guarding(&context.invariants, &receipt.request.kind).map(|invariant| invariant.id.as_str());
        let mut unwritten = execution.unwritten.lock().await;
        self.went_on(&mut execution.progress());
        let dispatch = Dispatch {
            fence: &context.fence,
            receipt,
            expected: &expected,
            lose: &lost_first,
            guard,
            connection_set_at: judged.connection_set_at,
            absence_known_after: self.config.lease + prepared.total + self.config.absence_margin,
            writes: &unwritten,
        };
        match self.make_durable(&dispatch, prepared).await {
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
                Ok(Dispatched::Done(Box::new(receipt)))
            }
            Ok(DispatchVerdict::Moved) => Ok(Dispatched::Moved),
            Ok(DispatchVerdict::ConnectionChanged) => Ok(Dispatched::ConnectionChanged),
            Ok(DispatchVerdict::Stale) => Err(Stop::Stale),
            Ok(DispatchVerdict::Rerun) => Err(Stop::Rerun),
            Ok(DispatchVerdict::Duplicate { held_by }) => Err(Stop::Failed {
                code: Code::Duplicate,
                message: format!("effect `{}` repeats what {held_by} guards", receipt.slot),
            }),
            // The COMMIT may have come through: the journal knows.
            Err(error) if error.is_transient() => Ok(Dispatched::Moved),
            Err(error) => Err(database(error)),
        }
    }
}
