//! The database as the rooms use it: each function is one transaction, and what it refuses it leaves as it was.

use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::{Receipt, ReceiptState, Transition, resolution};
use counterfoil_domain::step::Conclusion;

use super::facts;
use super::house::{House, Swap};
use super::mutant::Mutant;
use super::state::{Execution, Id, Lease, Phase, Row, Stand, Step, Wait, World, Write};

/// What came of a wish to dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Dispatched,
    Moved,
    Stale,
    Rerun,
    Duplicate,
}

/// Why the end of an execution was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unended {
    Lost,
    Unanswered,
    Rerun,
}

impl World {
    /// The compare-and-swap on a receipt.
    fn apply(&mut self, house: &House, transition: &Transition) -> Swap {
        let id = facts::id(transition.receipt());
        let Some(row) = self.row_mut(id) else { return Swap::Lost(None) };
        let found = row.stand.state();
        if found != transition.from() && !house.lacks(Mutant::SwapExpectsFrom) {
            return Swap::Lost(Some(found));
        }
        row.stand = facts::stand_after(transition);
        row.absence_known = false;
        if !transition.to().may_have_happened() {
            self.release(id);
        }
        Swap::Moved
    }

    /// Lets the slot's content be sent again, once nothing of the slot may have happened.
    fn release(&mut self, id: Id) {
        if self.slot(id).any(|row| row.stand.state().may_have_happened()) {
            return;
        }
        for row in self.rows.iter_mut().filter(|row| (row.id.place, row.id.slot) == (id.place, id.slot)) {
            row.released = row.guarded;
        }
    }

    /// One write of the execution that owns the step.
    fn write(&mut self, house: &House, own: &Write) -> Result<(), Unended> {
        let transition = match *own {
            Write::Unsent(row) if self.row(row.id).is_some() => return Err(Unended::Rerun),
            Write::Unsent(row) => {
                self.insert(row);
                return Ok(());
            }
            Write::Answer { id, said } => facts::answer(id, ReceiptState::Dispatched, said),
            Write::Sibling { id, from, of, said } => facts::by_sibling(id, from, of, said),
        };
        let Some(transition) = transition else { return Err(Unended::Lost) };
        match self.apply(house, &transition) {
            Swap::Moved => Ok(()),
            Swap::Lost(found) if found == Some(transition.to()) => Ok(()),
            Swap::Lost(_) if matches!(own, Write::Sibling { .. }) => Ok(()),
            Swap::Lost(_) => Err(Unended::Lost),
        }
    }

    /// Makes a receipt durable as dispatched, fenced on the lease, with the slot as the decision found it.
    pub(crate) fn dispatch(&mut self, house: &House, by: &Execution, row: Row, lost: &[Id]) -> Verdict {
        if !house.lacks(Mutant::DispatchFence) && !self.is_held(by.place, by.lease) {
            return Verdict::Stale;
        }
        let before = self.rows.clone();
        let verdict = self.dispatch_held(house, by, row, lost);
        if verdict != Verdict::Dispatched {
            self.rows = before;
        }
        verdict
    }

    fn dispatch_held(&mut self, house: &House, by: &Execution, mut row: Row, lost: &[Id]) -> Verdict {
        if !house.lacks(Mutant::AnswersBeforeDispatch) {
            for own in &by.unwritten {
                match self.write(house, own) {
                    Ok(()) => {}
                    Err(Unended::Rerun) => return Verdict::Rerun,
                    Err(_) => return Verdict::Moved,
                }
            }
        }
        for lost in lost.iter().filter_map(|id| facts::lose(*id)) {
            if self.apply(house, &lost) != Swap::Moved {
                return Verdict::Moved;
            }
        }
        // A second receipt of a slot's first number has the same id, so that there is nothing to look at before.
        let is_first = row.id.number == 0 && lost.is_empty() && by.unwritten.is_empty();
        let rechecks = !is_first && !house.lacks(Mutant::Recheck);
        if rechecks && !self.is_slot_as_seen(by, row.id, lost) {
            return Verdict::Moved;
        }
        if self.row(row.id).is_some() {
            let is_named_at_random = [Mutant::Identity, Mutant::JournalAndIdentity, Mutant::LineageShared];
            if !is_named_at_random.iter().any(|mutant| house.lacks(*mutant)) {
                return Verdict::Moved;
            }
            // Named at random, so that it meets nothing.
            while self.row(row.id).is_some() {
                row.id.number += 1;
            }
        }
        let guards = house.config.guarded && !self.slot(row.id).any(|older| older.guarded && !older.released);
        if guards
            && !house.lacks(Mutant::GuardIndex)
            && self.rows.iter().any(|row| row.guarded && !row.released)
        {
            return Verdict::Duplicate;
        }
        self.contradicted |= !self.agrees(house, by);
        let is_answered =
            self.slot(row.id).any(|row| matches!(row.stand, Stand::Committed(_) | Stand::Verified(_)));
        self.sent_after_answer |= is_answered;
        self.insert(Row { guarded: guards, ..row });
        Verdict::Dispatched
    }

    /// The slot as the decision found it, with what this transaction has moved since.
    fn is_slot_as_seen(&self, by: &Execution, slot: Id, lost: &[Id]) -> bool {
        let seen = by.journal.iter().filter(|row| row.id.slot == slot.slot).map(|row| {
            let is_lost = lost.contains(&row.id) && row.stand.state() == ReceiptState::Dispatched;
            (row.id, if is_lost { ReceiptState::Unknown } else { row.stand.state() })
        });
        self.slot(slot).map(|row| (row.id, row.stand.state())).eq(seen)
    }

    /// Whether this execution was told what every effect rests on that may have happened.
    fn agrees(&self, house: &House, by: &Execution) -> bool {
        let rests = |row: &&Row| {
            row.stand.state().may_have_happened()
                && house.config.guest.safety(row.id.place, row.id.slot) != Safety::ReadOnly
        };
        self.at(by.place).filter(rests).all(|row| {
            let same_before = row.told.said().zip(by.trace.said()).all(|(then, now)| then == now);
            let same_here = match (row.stand, by.trace.get(row.position.into())) {
                (Stand::Committed(said) | Stand::Verified(said), Some(told)) => told == said,
                _ => true,
            };
            same_before && same_here
        })
    }

    /// Ends an execution as it concluded. What it refuses, it leaves as it was.
    pub(crate) fn end(
        &mut self,
        house: &House,
        by: &Execution,
        conclusion: &Conclusion,
    ) -> Result<(), Unended> {
        let before = (self.rows.clone(), self.places.clone(), self.contradicted);
        let ended = self.end_held(house, by, conclusion);
        if ended.is_err() {
            (self.rows, self.places, self.contradicted) = before;
        }
        ended
    }

    fn end_held(&mut self, house: &House, by: &Execution, conclusion: &Conclusion) -> Result<(), Unended> {
        if !house.lacks(Mutant::EndFence) && !self.is_held(by.place, by.lease) {
            return Err(Unended::Lost);
        }
        if !matches!(conclusion, Conclusion::HandBack { .. } | Conclusion::Leave) {
            by.unwritten.iter().try_for_each(|own| self.write(house, own))?;
        }
        match conclusion {
            Conclusion::Succeed(_) | Conclusion::Fail(_) => {
                let is_closed = !self.at(by.place).any(|row| row.stand.is_open());
                if !is_closed && !house.lacks(Mutant::SettleLooks) {
                    return Err(Unended::Unanswered);
                }
                let is_told = matches!(by.phase, Phase::Ended(super::state::End::Output));
                self.contradicted |= is_told && !self.agrees(house, by);
                let succeeded = matches!(conclusion, Conclusion::Succeed(_));
                *self.step_mut(by.place) = if succeeded { Step::Succeeded } else { Step::Failed };
            }
            Conclusion::Retry { .. } => {
                self.lose(house, &by.lose);
                self.leave(by.place, Some(Wait::Retry), true);
            }
            Conclusion::Block(_) => {
                self.lose(house, &by.lose);
                self.block(house, by.place);
            }
            Conclusion::HandBack { .. } | Conclusion::Lose { .. } | Conclusion::Wait { .. } => {
                self.leave(by.place, None, false);
            }
            Conclusion::Leave => return Err(Unended::Lost),
        }
        Ok(())
    }

    fn lose(&mut self, house: &House, lost: &[Id]) {
        for transition in lost.iter().filter_map(|id| facts::lose(*id)) {
            self.apply(house, &transition);
        }
    }

    /// Moves what is dispatched of a place to unknown: nobody is left to record an answer, but whoever sent it.
    fn lose_dispatched(&mut self, house: &House, place: u8) {
        let dispatched = |row: &&Row| row.stand.state() == ReceiptState::Dispatched;
        let lost: Vec<Id> = self.at(place).filter(dispatched).map(|row| row.id).collect();
        self.lose(house, &lost);
    }

    /// Blocks a step on what is unknown of it, if anything still is.
    fn block(&mut self, house: &House, place: u8) {
        self.lose_dispatched(house, place);
        let is_unknown = self.at(place).any(|row| row.stand == Stand::Unknown);
        let blocks = is_unknown || house.lacks(Mutant::BlockLooks);
        self.leave(place, Some(if blocks { Wait::Blocked } else { Wait::Ready }), false);
    }

    fn leave(&mut self, place: u8, waits: Option<Wait>, next_attempt: bool) {
        if let Step::Open { wait, lease, attempt, losses, declined } = self.step_mut(place) {
            *wait = waits.unwrap_or(*wait);
            *lease = None;
            *attempt += u8::from(next_attempt);
            *declined = false;
            if waits.is_some() {
                *losses = 0;
            }
        }
    }

    /// Records answers alone, lease or no lease, and lets the step go on that was blocked on them.
    pub(crate) fn record_alone(&mut self, house: &House, writes: &[Write]) {
        for own in writes {
            let Write::Answer { id, said } = *own else { continue };
            for from in [ReceiptState::Dispatched, ReceiptState::Unknown] {
                let Some(answer) = facts::answer(id, from, said) else { continue };
                let siblings = self.siblings(house, &answer).unwrap_or_default();
                if self.apply(house, &answer) != Swap::Moved {
                    continue;
                }
                for sibling in siblings {
                    self.apply(house, &sibling);
                }
                if !house.lacks(Mutant::LateAnswerResumes) {
                    self.resume(id.place);
                }
                break;
            }
        }
    }

    /// Whether what was written is what is stored.
    pub(crate) fn holds(&self, writes: &[Write]) -> bool {
        writes.iter().all(|own| match *own {
            Write::Answer { id, said } => self.row(id).is_some_and(|row| match row.stand {
                Stand::Committed(stored) | Stand::Verified(stored) | Stand::Rejected(stored) => {
                    stored == said
                }
                _ => false,
            }),
            Write::Sibling { .. } | Write::Unsent(_) => true,
        })
    }

    /// The receipts of a slot, as the domain sees them.
    fn receipts(&self, house: &House, id: Id) -> Vec<Receipt> {
        self.slot(id).map(|row| facts::receipt(row, house.config.guest.safety(id.place, id.slot))).collect()
    }

    /// What follows for the other receipts of the slot. None if that stands against it.
    fn siblings(&self, house: &House, end: &Transition) -> Option<Vec<Transition>> {
        let is_undone = end.to() == ReceiptState::Compensated;
        let lacking = if is_undone { Mutant::SiblingsCompensated } else { Mutant::SiblingsVerified };
        if house.lacks(lacking) {
            return Some(vec![]);
        }
        let slot = self.receipts(house, facts::id(end.receipt()));
        resolution::siblings(end, &slot, facts::now()).ok()
    }

    /// Resolves a receipt, with everything that follows. False if it was refused.
    pub(crate) fn resolve(&mut self, house: &House, transition: &Transition, resumes: bool) -> bool {
        let Some(siblings) = self.siblings(house, transition) else { return false };
        if self.apply(house, transition) != Swap::Moved {
            return false;
        }
        for sibling in siblings {
            self.apply(house, &sibling);
        }
        let place = facts::id(transition.receipt()).place;
        if resumes {
            self.resume(place);
        } else if let Step::Open { wait: Wait::Blocked, declined, .. } = self.step_mut(place) {
            *declined = true;
        }
        true
    }

    /// Lets a blocked step go on, in the same attempt, unless something of it is still open.
    pub(crate) fn resume(&mut self, place: u8) {
        let is_open = self.at(place).any(|row| row.stand.is_open());
        if let Step::Open { wait: wait @ Wait::Blocked, declined, .. } = self.step_mut(place)
            && !is_open
        {
            (*wait, *declined) = (Wait::Ready, false);
        }
    }

    pub(crate) fn cancel(&mut self, house: &House, place: u8) {
        if !house.lacks(Mutant::CancelLoses) {
            self.lose_dispatched(house, place);
        }
        *self.step_mut(place) = Step::Cancelled;
    }

    /// A new run of the same lineage.
    pub(crate) fn replay(&mut self, place: u8) {
        self.places[usize::from(place)].run += 1;
        *self.step_mut(place) = Step::NEW;
    }

    /// Gives the step to an execution, whoever held it before.
    pub(crate) fn claim(&mut self, house: &House, place: u8) -> Option<(Lease, u8, u8)> {
        let free = self.free_lease();
        let Step::Open { wait, lease, attempt, losses, .. } = self.step_mut(place) else { return None };
        if *wait == Wait::Blocked && lease.is_none() {
            return None;
        }
        if lease.is_some() && house.config.losses_max.is_some() {
            *losses = (*losses + 1).min(house.config.losses_max.unwrap_or(0) + 1);
        }
        *lease = Some(free);
        Some((free, *attempt, *losses))
    }
}

impl Step {
    pub(crate) const NEW: Self =
        Self::Open { wait: Wait::Ready, lease: None, attempt: 1, losses: 0, declined: false };
}
