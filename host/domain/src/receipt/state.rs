//! The receipt's state machine. One match is the whole contract; the database repeats it as a compare-and-swap and checks.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::answer::Recorded;
use super::resolution::Resolution;
use crate::id::{EffectId, TenantId};

/// Where a receipt stands, without the data of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each state is described at `Standing`")]
pub enum ReceiptState {
    Planned,
    Prepared,
    Dispatched,
    Committed,
    Rejected,
    Unknown,
    Verified,
    Compensated,
    Abandoned,
}

impl ReceiptState {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Planned,
        Self::Prepared,
        Self::Dispatched,
        Self::Committed,
        Self::Rejected,
        Self::Unknown,
        Self::Verified,
        Self::Compensated,
        Self::Abandoned,
    ];

    /// The name in the database, in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Prepared => "prepared",
            Self::Dispatched => "dispatched",
            Self::Committed => "committed",
            Self::Rejected => "rejected",
            Self::Unknown => "unknown",
            Self::Verified => "verified",
            Self::Compensated => "compensated",
            Self::Abandoned => "abandoned",
        }
    }

    /// The inverse of [`ReceiptState::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether the effect may have taken place and is neither known not to have, nor undone.
    pub const fn may_have_happened(self) -> bool {
        matches!(self, Self::Dispatched | Self::Unknown | Self::Committed | Self::Verified)
    }
}

impl fmt::Display for ReceiptState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who moves a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// The execution that sent it, or the next claimer of its step.
    Host,
    /// A block's `verify`.
    Verifier,
    /// A person, by the name of their key.
    Person(String),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Verifier => f.write_str("verifier"),
            Self::Person(name) => write!(f, "person:{name}"),
        }
    }
}

/// What happens to a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// The receiver answered that it acted.
    Commit {
        /// What is handed over.
        recorded: Recorded,
        /// The receiver's own name for what it did.
        provider_receipt_id: Option<String>,
        /// What the answer meant, and by which declaration where one decided it.
        reason: String,
    },
    /// It is known that it did not take place.
    Reject {
        /// What is handed over.
        recorded: Recorded,
        /// What the answer meant, and by which declaration where one decided it.
        reason: String,
    },
    /// Nobody knows.
    Lose {
        /// Why not.
        reason: String,
    },
    /// Another receipt of the slot has the answer.
    VerifyBySibling {
        /// Which.
        sibling: EffectId,
        /// Its answer.
        recorded: Recorded,
    },
    /// Somebody outside established what happened.
    Resolve(Resolution),
    /// A compensating step undid it.
    Undo,
}

/// A move that the machine does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a receipt that is {from} cannot be {attempted}")]
pub struct IllegalMove {
    /// Where it stands.
    pub from: ReceiptState,
    /// What was tried.
    pub attempted: &'static str,
}

impl Move {
    /// The state after this move.
    ///
    /// # Errors
    /// [`IllegalMove`] if the machine has no such move.
    pub fn apply(&self, from: ReceiptState) -> Result<ReceiptState, IllegalMove> {
        use ReceiptState as S;
        let (to, attempted) = match (self, from) {
            (Self::Commit { .. }, S::Dispatched | S::Unknown) => return Ok(S::Committed),
            (Self::Reject { .. }, S::Planned | S::Prepared | S::Dispatched | S::Unknown) => {
                return Ok(S::Rejected);
            }
            (Self::Lose { .. }, S::Dispatched) => return Ok(S::Unknown),
            (Self::VerifyBySibling { .. }, S::Dispatched | S::Unknown) => return Ok(S::Verified),
            (Self::Resolve(resolution), S::Unknown) => return Ok(resolution.outcome.state()),
            (Self::Undo, S::Committed | S::Verified) => return Ok(S::Compensated),
            (Self::Commit { .. }, _) => (from, "committed"),
            (Self::Reject { .. }, _) => (from, "rejected"),
            (Self::Lose { .. }, _) => (from, "lost"),
            (Self::VerifyBySibling { .. }, _) => (from, "verified by a sibling"),
            (Self::Resolve(_), _) => (from, "resolved"),
            (Self::Undo, _) => (from, "compensated"),
        };
        Err(IllegalMove { from: to, attempted })
    }
}

/// One legal move of one receipt. Only this module can make one, so an illegal one cannot be written down; the store
/// swaps `from` for `to` and a lost swap says what was found instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    tenant: TenantId,
    receipt: EffectId,
    from: ReceiptState,
    to: ReceiptState,
    by: Actor,
    what: Move,
}

impl Transition {
    /// Plans a move from where the receipt was seen to stand.
    ///
    /// # Errors
    /// [`IllegalMove`] if the machine has no such move.
    pub fn new(
        tenant: TenantId,
        receipt: EffectId,
        from: ReceiptState,
        by: Actor,
        what: Move,
    ) -> Result<Self, IllegalMove> {
        let to = what.apply(from)?;
        Ok(Self { tenant, receipt, from, to, by, what })
    }

    /// Whose receipt.
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }
    /// Which receipt.
    pub const fn receipt(&self) -> EffectId {
        self.receipt
    }
    /// The state that the swap expects.
    pub const fn from(&self) -> ReceiptState {
        self.from
    }
    /// The state after it.
    pub const fn to(&self) -> ReceiptState {
        self.to
    }
    /// Who moves it.
    pub const fn by(&self) -> &Actor {
        &self.by
    }
    /// What happens.
    pub const fn what(&self) -> &Move {
        &self.what
    }
    /// What is stored as the answer by this move.
    pub const fn recorded(&self) -> Option<&Recorded> {
        match &self.what {
            Move::Commit { recorded, .. }
            | Move::Reject { recorded, .. }
            | Move::VerifyBySibling { recorded, .. } => Some(recorded),
            Move::Resolve(resolution) => resolution.recorded.as_ref(),
            Move::Lose { .. } | Move::Undo => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::effect::Answer;
    use crate::receipt::resolution::Outcome;

    fn moves() -> Vec<(&'static str, Move)> {
        let recorded = Recorded::Answer(Answer::Emitted);
        let resolve = |outcome| {
            Move::Resolve(Resolution {
                outcome,
                evidence: "seen".into(),
                recorded: None,
                provider_receipt_id: None,
            })
        };
        vec![
            (
                "commit",
                Move::Commit { recorded: recorded.clone(), provider_receipt_id: None, reason: String::new() },
            ),
            ("reject", Move::Reject { recorded: recorded.clone(), reason: String::new() }),
            ("lose", Move::Lose { reason: String::new() }),
            ("sibling", Move::VerifyBySibling { sibling: EffectId(uuid::Uuid::nil()), recorded }),
            ("resolve committed", resolve(Outcome::Committed)),
            ("resolve verified", resolve(Outcome::Verified)),
            ("resolve compensated", resolve(Outcome::Compensated)),
            ("resolve abandoned", resolve(Outcome::Abandoned)),
            ("undo", Move::Undo),
        ]
    }

    /// The whole machine: every move tried from every state.
    #[test]
    fn the_machine_has_these_moves_and_no_others() {
        let mut table = String::new();
        for from in ReceiptState::ALL {
            let legal: Vec<String> = moves()
                .iter()
                .filter_map(|(name, what)| Some(format!("{name} -> {}", what.apply(from).ok()?)))
                .collect();
            writeln!(table, "{from}: {}", legal.join(", ")).expect("a string takes it");
        }
        insta::assert_snapshot!(table, @r"
        planned: reject -> rejected
        prepared: reject -> rejected
        dispatched: commit -> committed, reject -> rejected, lose -> unknown, sibling -> verified
        committed: undo -> compensated
        rejected: 
        unknown: commit -> committed, reject -> rejected, sibling -> verified, resolve committed -> committed, resolve verified -> verified, resolve compensated -> compensated, resolve abandoned -> abandoned
        verified: undo -> compensated
        compensated: 
        abandoned: 
        ");
    }
}
