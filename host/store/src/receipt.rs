//! Receipts: what was sent, what came of it, and every move between.

mod dispatch;
mod history;
mod list;
mod resolve;
mod row;
mod transition;

use std::time::Duration;

use chrono::{DateTime, Utc};
use counterfoil_domain::id::{EffectId, Place, RunId, TenantId};
use counterfoil_domain::receipt::resolution::Unresolvable;
use counterfoil_domain::receipt::{Receipt, ReceiptState, Transition};

pub(crate) use self::dispatch::{Flushed, Wanted, dispatch_in, flush_dispatches, keep_duplicate};
pub use self::list::{EffectFilter, EffectRow};
pub use self::resolve::Resumed;
pub(crate) use self::resolve::{find, slot};
pub(crate) use self::row::{AnswerColumns, ReceiptRow};
pub(crate) use self::transition::{apply, hold_slot, insert_answered, lose_all, lose_dispatched};

use crate::settle::OwnWrite;
use crate::step::Fence;
use crate::value;
use crate::verification::Verification;
use crate::{Store, StoreError};

/// A wish to send.
#[derive(Debug, Clone, Copy)]
pub struct Dispatch<'a> {
    /// The execution that sends.
    pub fence: &'a Fence,
    /// What it sends. Its standing is not looked at: it is inserted as dispatched under the fence's lease.
    pub receipt: &'a Receipt,
    /// The slot as the decision to send found it: every receipt of it, in order of dispatch.
    pub expected: &'a [(EffectId, ReceiptState)],
    /// Receipts of the slot whose owner is gone, which become unknown with it.
    pub lose: &'a [Transition],
    /// The invariant that allows the content once, if one does.
    pub guard: Option<&'a str>,
    /// When the connection was set that it was judged by; none if it goes through none.
    pub connection_set_at: Option<DateTime<Utc>>,
    /// Time after which the request can no longer arrive.
    pub absence_known_after: Duration,
    /// Earlier answers of this execution, which must be durable first.
    pub writes: &'a [OwnWrite],
}

/// What came of a wish to send. Unless it is dispatched, nothing was written but the evidence of a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchVerdict {
    /// The receipt is durable: send.
    Dispatched {
        /// When, by the database's clock.
        at: DateTime<Utc>,
    },
    /// The step is not this execution's any more, or its lease has run out.
    Stale,
    /// The slot is not as it was expected: read the journal and decide again.
    Moved,
    /// The connection has been changed or removed since the call was judged by it: judge it again.
    ConnectionChanged,
    /// Another receipt guards the same content.
    Duplicate {
        /// Which.
        held_by: EffectId,
    },
    /// A receipt that was to be written first exists already: run the step again.
    Rerun,
}

/// A receipt with what people want to know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptView {
    /// The receipt.
    pub receipt: Receipt,
    /// When its intent became durable.
    pub prepared_at: DateTime<Utc>,
    /// When it was sent, or was about to be.
    pub dispatched_at: Option<DateTime<Utc>>,
    /// When its own answer was recorded.
    pub answered_at: Option<DateTime<Utc>>,
    /// When somebody else established what became of it.
    pub resolved_at: Option<DateTime<Utc>>,
    /// From when on the request can no longer arrive.
    pub absence_known_at: Option<DateTime<Utc>>,
    /// What its answer, or the lack of one, was taken to mean; or the evidence of whoever resolved it.
    pub reason: Option<String>,
    /// The receiver's own name for what it did.
    pub provider_receipt_id: Option<String>,
    /// The workflow that it was sent for.
    pub workflow: String,
    /// The run that it was sent for has ended. False in a timeline.
    pub run_has_ended: bool,
    /// Its moves from the first that began or ended at unknown, oldest first. Empty in a timeline.
    pub history: Vec<HistoryEntry>,
    /// What its block was asked about it, while it is unknown and its block can be asked. None in a timeline.
    pub verification: Option<Verification>,
}

/// A move of a receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// When.
    pub at: DateTime<Utc>,
    /// Where it stood.
    pub from: ReceiptState,
    /// Where it went.
    pub to: ReceiptState,
    /// Who moved it.
    pub actor: String,
    /// How that was known.
    pub evidence: String,
}

/// What came of a resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// It is recorded.
    Done {
        /// A blocked step goes on with it.
        resumed: bool,
        /// The run that the receipt belongs to.
        run: RunId,
    },
    /// There is no such receipt.
    NotFound,
    /// Something stands against it.
    Refused(Unresolvable),
}

impl Store {
    /// The receipts of a place, every run of the lineage included.
    pub async fn journal(&self, tenant: TenantId, place: &Place) -> Result<Vec<Receipt>, StoreError> {
        let rows = sqlx::query_as!(
            ReceiptRow,
            "SELECT * FROM receipts WHERE tenant_id = $1 AND lineage = $2 AND node = $3 AND iteration = $4",
            tenant.0,
            place.lineage.0,
            place.node,
            &value::path_out(&place.iteration),
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(Receipt::try_from).collect()
    }
}
