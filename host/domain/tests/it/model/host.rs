//! A host, as the guard and the engine behave: what it decides, it asks the domain.

use std::collections::BTreeMap;

use counterfoil_domain::code::Code;
use counterfoil_domain::effect::Safety;
use counterfoil_domain::ports::StepEnd;
use counterfoil_domain::receipt::answer::{AfterRefusal, Meaning, StatusMeanings, meaning};
use counterfoil_domain::receipt::journal::{Asker, Call, Decision, Journal};
use counterfoil_domain::step::{Circumstances, Conclusion, Delays, RetryPolicy, StepError, Stop, conclude};

use super::database::{Unended, Verdict};
use super::facts;
use super::guest::Next;
use super::house::House;
use super::mutant::Mutant;
use super::state::{End, Execution, Id, Phase, Row, Said, Stand, Trace, World, Write};

impl Execution {
    /// The slot that the guest waits at.
    fn slot(&self, house: &House) -> Option<u8> {
        match house.config.guest.next(self.trace) {
            Next::Call(slot) => Some(slot),
            Next::Output | Next::Transient => None,
        }
    }

    fn id(&self, slot: u8, number: u8) -> Id {
        Id { place: self.place, slot, number }
    }

    fn put(&mut self, row: Row) {
        self.journal.retain(|known| known.id != row.id);
        self.journal.push(Row { told: Trace::default(), absence_known: false, ..row });
        self.journal.sort_unstable_by_key(|row| row.id);
    }

    fn stand(&mut self, id: Id, stand: Stand) {
        for row in self.journal.iter_mut().filter(|row| row.id == id) {
            row.stand = stand;
        }
    }

    /// Reads the journal. What is answered and not yet written is as good as recorded for this execution.
    pub(crate) fn load(&mut self, house: &House, world: &World) {
        let known = std::mem::take(&mut self.journal);
        if house.lacks(Mutant::Journal) || house.lacks(Mutant::JournalAndIdentity) {
            return;
        }
        for row in world.at(self.place) {
            if row.run == self.run || !house.lacks(Mutant::LineageShared) {
                self.put(*row);
            }
        }
        for own in self.unwritten.clone() {
            let id = match own {
                Write::Answer { id, .. } | Write::Sibling { id, .. } => id,
                Write::Unsent(row) => row.id,
            };
            if let Some(row) = known.iter().find(|row| row.id == id) {
                self.put(*row);
            }
        }
    }

    /// The domain's view of what was read.
    fn journal(&self, house: &House, slot: u8) -> Journal {
        let forgets = house.lacks(Mutant::FallbackKept);
        let rows = self.journal.iter().filter(|row| !forgets || row.id.slot == slot);
        let receipt = |row: &Row| facts::receipt(row, house.config.guest.safety(row.id.place, row.id.slot));
        Journal::new(rows.map(receipt).collect())
    }

    fn decide(&self, house: &House, slot: u8) -> Decision {
        let key = facts::slot_key(slot);
        let call = Call {
            slot: &key,
            safety: house.config.guest.safety(self.place, slot),
            request_hash: &[slot; 32],
        };
        let asker = Asker {
            lease: facts::lease(self.lease),
            attempt: self.attempt.into(),
            run: facts::run(self.place, self.run),
        };
        // A guest of the model calls each slot once, and then waits for its answer.
        self.journal(house, slot).decide(call, asker, |_| false)
    }

    /// The receipt of the call that the guest waits at.
    fn row(&self, slot: u8, number: u8, key: u8, stand: Stand) -> Row {
        Row {
            id: self.id(slot, number),
            position: self.trace.len() as u8,
            attempt: self.attempt,
            run: self.run,
            key,
            stand,
            guarded: false,
            released: false,
            absence_known: false,
            told: self.trace,
            asked: None,
        }
    }

    /// The key that the next dispatch of a slot is sent under.
    fn key(&self, house: &House, slot: u8, number: u8) -> u8 {
        if house.lacks(Mutant::FreshKey) {
            return 0;
        }
        let journal = self.journal(house, slot);
        let own = facts::effect_id(self.id(slot, 0)).to_string();
        let next = facts::effect_id(self.id(slot, number));
        let key = journal.key(&facts::slot_key(slot), next, &own);
        (0..=number)
            .find(|named| facts::effect_id(self.id(slot, *named)).to_string() == key)
            .unwrap_or(number)
    }

    /// Goes on until something needs the database or the network.
    pub(crate) fn proceed(&mut self, house: &House, denies: bool) {
        loop {
            let slot = match house.config.guest.next(self.trace) {
                Next::Call(slot) => slot,
                Next::Output => return self.phase = Phase::Ended(End::Output),
                Next::Transient => return self.phase = Phase::Ended(End::Transient),
            };
            let is_denied = denies && slot == 0;
            if is_denied && house.lacks(Mutant::JournalBeforeChecks) {
                self.trace.push(Said::Denied);
                continue;
            }
            match self.decide(house, slot) {
                Decision::HandOver(recorded) => self.trace.push(facts::said(&recorded)),
                Decision::GoOn(id) => {
                    let id = facts::id(id);
                    let key = self.journal.iter().find(|row| row.id == id).map_or(0, |row| row.key);
                    return self.phase = Phase::Send { id, key, window_open: true };
                }
                Decision::Block { lost } => {
                    self.lose.extend(lost.into_iter().map(facts::id));
                    return self.phase = Phase::Ended(End::Blocked);
                }
                Decision::Diverged(_) => return self.phase = Phase::Ended(End::Diverged),
                Decision::Dispatch { dispatch_number, lost, resend } => {
                    let number = dispatch_number as u8;
                    let lost: Vec<Id> = lost.into_iter().map(facts::id).collect();
                    if is_denied && resend {
                        self.lose.extend(lost);
                        return self.phase = Phase::Ended(End::Blocked);
                    }
                    if is_denied {
                        self.unsent(house, number, Stand::Rejected(Said::Denied), Said::Denied);
                        continue;
                    }
                    let lost = lost.iter().fold(0, |bits, id| bits | 1 << id.number);
                    return self.phase = match house.config.guest.safety(self.place, slot) {
                        Safety::ReadOnly => Phase::Read { number },
                        Safety::AtMostOnce | Safety::Idempotent => Phase::Dispatch { number, lost },
                    };
                }
            }
        }
    }

    /// Journals what has no dispatched receipt.
    fn unsent(&mut self, house: &House, number: u8, stand: Stand, said: Said) {
        let Some(slot) = self.slot(house) else { return };
        let row = self.row(slot, number, 0, stand);
        self.put(row);
        self.unwritten.push(Write::Unsent(row));
        self.trace.push(said);
    }

    /// Makes the receipt durable, or learns why not. `unseen`: the COMMIT came through, and its answer did not.
    pub(crate) fn dispatch(&mut self, house: &House, world: &mut World, unseen: bool) {
        let Phase::Dispatch { number, lost } = self.phase else { return };
        let Some(slot) = self.slot(house) else { return };
        let lost: Vec<Id> =
            (0..number).filter(|other| lost & 1 << other != 0).map(|other| self.id(slot, other)).collect();
        let row = self.row(slot, number, self.key(house, slot, number), Stand::Dispatched(self.lease));
        let verdict = if house.lacks(Mutant::Receipt) {
            Verdict::Dispatched
        } else {
            world.dispatch(house, self, row, &lost)
        };
        match verdict {
            Verdict::Dispatched if unseen => self.reload(house, world),
            Verdict::Dispatched => {
                if !house.lacks(Mutant::AnswersBeforeDispatch) {
                    self.unwritten.clear();
                }
                for id in lost {
                    self.stand(id, Stand::Unknown);
                }
                self.put(row);
                self.phase = Phase::Send { id: row.id, key: row.key, window_open: true };
            }
            Verdict::Moved => self.reload(house, world),
            Verdict::Stale => self.phase = Phase::Ended(End::Stale),
            Verdict::Rerun => self.phase = Phase::Ended(End::Rerun),
            Verdict::Duplicate => self.phase = Phase::Ended(End::Duplicate),
        }
    }

    fn reload(&mut self, house: &House, world: &World) {
        self.load(house, world);
        self.proceed(house, world.denies);
    }

    /// What the exchange of the call that is under way meant.
    pub(crate) fn learn(&mut self, house: &House, world: &World, id: Id, said: Said) {
        let journal = self.journal(house, id.slot);
        let older_unknown = journal.is_open_besides(&facts::slot_key(id.slot), facts::effect_id(id));
        let older_unknown = older_unknown && !house.lacks(Mutant::RefusalHidden);
        let safety = house.config.guest.safety(id.place, id.slot);
        match meaning(facts::exchanged(said), safety, &no_declarations(), older_unknown) {
            Meaning::Committed { .. } => {
                self.answered(id, said);
                self.proceed(house, world.denies);
            }
            Meaning::Rejected { then, .. } => {
                self.answered(id, said);
                match then {
                    AfterRefusal::HandOver => self.proceed(house, world.denies),
                    AfterRefusal::Wait { .. } => self.phase = Phase::Ended(End::Resend),
                    AfterRefusal::Block => self.phase = Phase::Ended(End::Blocked),
                }
            }
            Meaning::Unknown { resend, .. } => {
                self.lose.push(id);
                self.phase = Phase::Ended(if resend { End::Resend } else { End::Blocked });
            }
        }
    }

    fn answered(&mut self, id: Id, said: Said) {
        self.unwritten.push(Write::Answer { id, said });
        if said.is_answer() {
            let open = self
                .journal
                .iter()
                .filter(|row| row.id.slot == id.slot && row.id != id && row.stand.is_open());
            let siblings =
                open.map(|row| Write::Sibling { id: row.id, from: row.stand.state(), of: id, said });
            self.unwritten.extend(siblings.collect::<Vec<_>>());
        }
        self.stand(id, if said.is_answer() { Stand::Committed(said) } else { Stand::Rejected(said) });
        self.trace.push(said);
    }

    /// Answers a read-only call.
    pub(crate) fn read(&mut self, house: &House, world: &World, said: Said) {
        let Phase::Read { number } = self.phase else { return };
        match meaning(facts::exchanged(said), Safety::ReadOnly, &no_declarations(), false) {
            Meaning::Committed { recorded, .. } => {
                let said = facts::said(&recorded);
                self.unsent(house, number, Stand::Committed(said), said);
                self.proceed(house, world.denies);
            }
            Meaning::Rejected { recorded, .. } => {
                let said = facts::said(&recorded);
                self.unsent(house, number, Stand::Rejected(said), said);
                self.proceed(house, world.denies);
            }
            Meaning::Unknown { .. } => self.phase = Phase::Ended(End::Database),
        }
    }

    /// Ends the execution in the database. Whatever is refused, its answers are recorded alone.
    pub(crate) fn finish(&self, house: &House, world: &mut World) {
        let Phase::Ended(end) = self.phase else { return };
        if house.lacks(Mutant::Receipt) && !self.unwritten.is_empty() {
            return Self { unwritten: vec![], ..self.clone() }.finish(house, world);
        }
        let conclusion = self.conclusion(house, end);
        if matches!(conclusion, Conclusion::HandBack { .. } | Conclusion::Leave) {
            world.record_alone(house, &self.unwritten);
        }
        match world.end(house, self, &conclusion) {
            Ok(()) => {}
            Err(Unended::Lost) => world.record_alone(house, &self.unwritten),
            Err(Unended::Unanswered) => {
                let block = Conclusion::Block(StepError::new(Code::Unknown, ""));
                let blocking = Self { lose: vec![], ..self.clone() };
                if world.end(house, &blocking, &block).is_err() {
                    world.record_alone(house, &self.unwritten);
                }
            }
            Err(Unended::Rerun) => {
                world.record_alone(house, &self.unwritten);
                let hand_back = Conclusion::HandBack { delay_ms: 0, why: String::new() };
                // Refused only if the lease is gone, and then there is nothing to hand back.
                let _is_gone = world.end(house, self, &hand_back);
            }
        }
    }

    fn conclusion(&self, house: &House, end: End) -> Conclusion {
        let reason = String::new();
        let failed = |code| Some(Stop::Failed { code, message: String::new() });
        let (end, stop) = match end {
            End::Output => (StepEnd::Output("null".into()), None),
            End::Transient => {
                let code = "busy".to_owned();
                (StepEnd::Failed { retry_after_ms: Some(0), code, message: String::new() }, None)
            }
            End::Trapped => (StepEnd::Trapped { code: Code::GuestTrap, message: String::new() }, None),
            End::HostLost => return Conclusion::Fail(StepError::new(Code::HostLost, "")),
            End::Blocked => (StepEnd::Stopped, Some(Stop::Blocked { reason })),
            End::Resend => (StepEnd::Stopped, Some(Stop::Resend { reason, retry_after_ms: None })),
            End::Diverged => (StepEnd::Stopped, failed(Code::Diverged)),
            End::Duplicate => (StepEnd::Stopped, failed(Code::Duplicate)),
            End::Stale => (StepEnd::Stopped, Some(Stop::Stale)),
            End::Rerun => (StepEnd::Stopped, Some(Stop::Rerun)),
            End::Database => (StepEnd::Stopped, Some(Stop::Database { message: String::new() })),
        };
        let retry = RetryPolicy { retries_max: house.config.retries_max, delays: Delays::Listed(vec![]) };
        let run = facts::run(self.place, self.run);
        let circumstances = Circumstances { run, node: "n", attempt: self.attempt.into(), retry: &retry };
        conclude(end, stop, circumstances)
    }
}

fn no_declarations() -> StatusMeanings {
    BTreeMap::new()
}
