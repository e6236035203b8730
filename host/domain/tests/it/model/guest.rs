//! What the guests do: a function of what they have been told, as every guest's behaviour is.

use counterfoil_domain::effect::Safety;

use super::state::{SLOTS, Said, Trace};

/// A block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Guest {
    /// Slot 0; if it is refused, slot 1 instead; then slot 2.
    Alternatives([Safety; SLOTS]),
    /// Slot 0; if it is refused, slot 1 instead.
    Fallback([Safety; 2]),
    /// Slot 0 reads; its answer chooses between slots 1 and 2.
    Choice,
    /// One call, with the safety of its place.
    Single([Safety; 2]),
}

/// What it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Call(u8),
    /// It returns.
    Output,
    /// It fails, and says that trying again is worth it.
    Transient,
}

impl Guest {
    pub(crate) fn next(self, trace: Trace) -> Next {
        let told: [Option<bool>; SLOTS] =
            std::array::from_fn(|position| trace.get(position).map(Said::is_answer));
        match (self, told) {
            (Self::Alternatives(_), [Some(true), None, _] | [Some(false), Some(true), None]) => Next::Call(2),
            (Self::Alternatives(_) | Self::Fallback(_), [Some(false), None, _]) => Next::Call(1),
            (Self::Choice, [Some(true), None, _]) => match trace.get(0) {
                Some(Said::Read(chosen)) => Next::Call(1 + chosen),
                _ => Next::Transient,
            },
            (_, [None, ..]) => Next::Call(0),
            (Self::Alternatives(_), [Some(true), Some(true), _] | [Some(false), Some(true), Some(true)])
            | (Self::Choice, [Some(true), Some(true), _])
            | (Self::Fallback(_), [Some(true), ..] | [_, Some(true), _])
            | (Self::Single(_), [Some(true), ..]) => Next::Output,
            _ => Next::Transient,
        }
    }

    pub(crate) fn safety(self, place: u8, slot: u8) -> Safety {
        match self {
            Self::Alternatives(safeties) => safeties[usize::from(slot)],
            Self::Fallback(safeties) => safeties[usize::from(slot)],
            Self::Choice if slot == 0 => Safety::ReadOnly,
            Self::Choice => Safety::AtMostOnce,
            Self::Single(safeties) => safeties[usize::from(place)],
        }
    }

    /// Slots of which at most one may act.
    pub(crate) const fn alternatives(self) -> Option<(usize, usize)> {
        match self {
            Self::Alternatives(_) | Self::Fallback(_) => Some((0, 1)),
            Self::Choice => Some((1, 2)),
            Self::Single(_) => None,
        }
    }
}
