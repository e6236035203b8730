//! What an execution knows of its step's journal.

use counterfoil_domain::id::EffectId;
use counterfoil_domain::receipt::Receipt;
use counterfoil_domain::receipt::journal::Journal;
use counterfoil_domain::step::Stop;
use counterfoil_store::settle::OwnWrite;

use super::{Inner, database, lost_host};
use crate::execution::Execution;

impl Inner {
    pub(super) fn recorded_receipt(execution: &Execution, id: EffectId) -> Option<Receipt> {
        let progress = execution.progress();
        progress.journal.as_ref()?.receipts().iter().find(|receipt| receipt.id == id).cloned()
    }

    /// Receipts whose owner is gone become unknown with the end of this execution.
    pub(super) fn lose(execution: &Execution, lost: &[EffectId]) {
        let tenant = execution.context.fence.tenant;
        execution.progress().lose.extend(lost.iter().filter_map(|id| lost_host(tenant, *id)));
    }

    /// Reads the journal, at the first effect or again.
    pub(super) async fn load_journal(&self, execution: &Execution, again: bool) -> Result<(), Stop> {
        if !again && execution.progress().journal.is_some() {
            return Ok(());
        }
        let context = &execution.context;
        // An empty journal need not be read: whoever dispatches on it is told if it is not.
        let receipts = if context.is_first && !again {
            vec![]
        } else {
            self.store.journal(context.fence.tenant, &context.place).await.map_err(database)?
        };
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
