//! Receipts: the durable record of one dispatch of one slot, and every decision that is taken from it.

pub mod answer;
pub mod identity;
pub mod journal;
pub mod request;
pub mod resolution;
pub mod state;
pub mod task;
pub mod verification;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::answer::{Meaning, Recorded, StatusMeaning};
pub use self::identity::SlotKey;
pub use self::state::{Actor, IllegalMove, Move, ReceiptState, Transition};

use crate::effect::Safety;
use crate::id::{EffectId, LeaseId, Place, RunId, StepId, TenantId};

/// Why a dispatch is unknown whose host says nothing of it. Whoever finds it cannot tell the one from the other.
pub const UNRECORDED: &str =
    "its host recorded no answer: it was lost, or the database was away for longer than it waits";

/// A receipt, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its name, from the slot and the dispatch number.
    pub id: EffectId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The run that wrote it; its lineage is in `place`.
    pub run: RunId,
    /// The step that wrote it.
    pub step: StepId,
    /// Where in the work its slot is.
    pub place: Place,
    /// Which slot of the step.
    pub slot: SlotKey,
    /// 0 for the first dispatch of the slot.
    pub dispatch_number: u64,
    /// Place in the step's order of calls, from 0.
    pub position: u32,
    /// The attempt that wrote it.
    pub attempt: u32,
    /// The request that it stands for.
    pub request: RequestFacts,
    /// Where it stands.
    pub standing: Standing,
}

/// What is kept of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFacts {
    /// `http`, `emit`, ….
    pub kind: String,
    /// What may be done when the outcome is open.
    pub safety: Safety,
    /// The connection it goes through.
    pub connection: Option<String>,
    /// SHA-256 over kind, connection and destination.
    pub destination: [u8; 32],
    /// SHA-256 of the canonical request.
    pub request_hash: [u8; 32],
    /// Digest over scope, kind, destination and request: what an invariant guards.
    pub content_key: [u8; 16],
    /// The key by which the receiver recognises a repeat.
    pub idempotency_key: String,
    /// What a person may read of it.
    pub preview: serde_json::Value,
}

/// Where a receipt stands, with what is true only there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Decided, nothing durable beyond the intent.
    Planned,
    /// Durable, not sent.
    Prepared,
    /// Sent, or about to be; no answer yet.
    Dispatched {
        /// The execution that sends it.
        lease: LeaseId,
        /// When its row became durable, by the database's clock.
        at: DateTime<Utc>,
    },
    /// The receiver answered that it acted.
    Committed(Recorded),
    /// It is known that it did not take place.
    Rejected(Recorded),
    /// It may have taken place.
    Unknown {
        /// Why nobody knows.
        reason: String,
        /// When it was dispatched.
        dispatched_at: DateTime<Utc>,
        /// From when on the request can no longer arrive.
        absence_known_at: DateTime<Utc>,
    },
    /// It took place, as a verifier, a person or a sibling established.
    Verified(Recorded),
    /// It took place and was undone.
    Compensated,
    /// It did not take place, as somebody established.
    Abandoned,
}

impl Standing {
    /// The state without its data.
    pub const fn state(&self) -> ReceiptState {
        match self {
            Self::Planned => ReceiptState::Planned,
            Self::Prepared => ReceiptState::Prepared,
            Self::Dispatched { .. } => ReceiptState::Dispatched,
            Self::Committed(_) => ReceiptState::Committed,
            Self::Rejected(_) => ReceiptState::Rejected,
            Self::Unknown { .. } => ReceiptState::Unknown,
            Self::Verified(_) => ReceiptState::Verified,
            Self::Compensated => ReceiptState::Compensated,
            Self::Abandoned => ReceiptState::Abandoned,
        }
    }
}
