//! The model that stateright explores: one configuration, whole or with one protection missing.

use counterfoil_domain::effect::Safety;
use counterfoil_domain::receipt::resolution::{self, Outcome, Resolution};
use counterfoil_domain::receipt::{Actor, ReceiptState};
use stateright::{Model, Property};

use super::facts;
use super::guest::Guest;
use super::mutant::Mutant;
use super::properties;
use super::state::{
    Book, End, Execution, Host, Id, NUMBERS, PLACES, Phase, Place, SLOTS, Said, Stand, Step, Trace, Wait,
    Wire, World, Write,
};

/// What may happen in a model, and how often: each bound keeps the space finite, none guides it.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each says whether one thing may happen")]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    pub(crate) guest: Guest,
    pub(crate) places: usize,
    /// The effects of every place have the same content, and a guard watches it.
    pub(crate) guarded: bool,
    /// States in which a slot has a receipt with a higher number are not followed.
    pub(crate) numbers_max: u8,
    pub(crate) retries_max: u32,
    /// Host losses are counted, and a step with more than this many fails.
    pub(crate) losses_max: Option<u8>,
    pub(crate) crashes: u8,
    pub(crate) policy_changes: u8,
    pub(crate) cancels: u8,
    pub(crate) replays: u8,
    /// A guest may trap, or run into a limit, while a call is under way.
    pub(crate) traps: bool,
    /// An answer may be written alone while its step goes on.
    pub(crate) flushes: bool,
    /// The provider may say that it is busy.
    pub(crate) busy: bool,
    /// What a person may say.
    pub(crate) operator: &'static [Outcome],
    /// A person may decline that the step goes on.
    pub(crate) declines: bool,
    pub(crate) verifier: bool,
}

/// A configuration, whole or as a mutant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct House {
    pub(crate) config: Config,
    pub(crate) mutant: Option<Mutant>,
}

/// What came of a compare-and-swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swap {
    Moved,
    Lost(Option<ReceiptState>),
}

/// One step of one of those who act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A host takes a step that is due, or whose lease has run out, and reads its journal.
    Claim(usize, u8),
    Dispatch(usize),
    /// The COMMIT of a dispatch comes through, and its answer does not.
    DispatchUnseen(usize),
    /// The database cannot be reached for so long that the execution gives up.
    GiveUp(usize),
    FirstByte(usize),
    CannotConnect(usize),
    Read(usize, Said),
    /// The answer arrives.
    Receive(usize),
    /// No answer is waited for any longer.
    Lose(usize),
    /// The guest ends while its call is under way.
    Trap(usize),
    /// The answer arrives at a call whose execution has ended.
    ReceiveLate(usize),
    /// An answer is written before its step's next write.
    Flush(usize),
    Finish(usize),
    /// The COMMIT of an end comes through, and its answer does not: the next try finds the lease gone.
    FinishUnseen(usize),
    Crash(usize),
    /// A request reaches the provider.
    Arrive(usize, Said),
    /// From now on the request cannot arrive any more.
    AbsenceKnown(Id),
    /// A person says what they found at the provider, and whether the step goes on.
    Resolve(Id, Outcome, bool),
    /// A block's `verify` asks the provider.
    Verify(Id),
    Resume(u8),
    Cancel(u8),
    Replay(u8),
    ChangePolicy,
}

impl House {
    /// Whether this is the mutant that lacks `protection`.
    pub(crate) fn lacks(&self, protection: Mutant) -> bool {
        self.mutant == Some(protection)
    }

    fn host_actions(&self, world: &World, nth: usize, actions: &mut Vec<Action>) {
        let host = &world.hosts[nth];
        if host.late.is_some_and(|late| answer_of(world, late).is_some()) {
            actions.push(Action::ReceiveLate(nth));
        }
        let Some(execution) = &host.execution else {
            let free = |place: &u8| match world.place(*place).step {
                Step::Open { wait, lease, .. } => wait != Wait::Blocked || lease.is_some(),
                _ => false,
            };
            actions.extend((0..world.places.len() as u8).filter(free).map(|place| Action::Claim(nth, place)));
            return;
        };
        match execution.phase {
            Phase::Dispatch { .. } => {
                actions.extend([Action::Dispatch(nth), Action::DispatchUnseen(nth), Action::GiveUp(nth)]);
            }
            Phase::Send { window_open, .. } => {
                actions.push(Action::CannotConnect(nth));
                if window_open {
                    actions.push(Action::FirstByte(nth));
                }
            }
            Phase::Await { id } => {
                actions.push(Action::Lose(nth));
                if answer_of(world, id).is_some() {
                    actions.push(Action::Receive(nth));
                }
                if self.config.traps && host.late.is_none() {
                    actions.push(Action::Trap(nth));
                }
            }
            Phase::Read { .. } => {
                for said in [Said::Read(0), Said::Read(1), Said::NoAnswer] {
                    actions.push(Action::Read(nth, said));
                }
            }
            Phase::Ended(_) => actions.extend([Action::Finish(nth), Action::FinishUnseen(nth)]),
        }
        let answers = |own: &Write| matches!(own, Write::Answer { .. } | Write::Sibling { .. });
        let may_flush = !execution.unwritten.is_empty() && execution.unwritten.iter().all(answers);
        if self.config.flushes && may_flush && !self.lacks(Mutant::AnswersBeforeDispatch) {
            actions.push(Action::Flush(nth));
        }
        if world.crashes_left > 0 {
            actions.push(Action::Crash(nth));
        }
    }

    /// What the provider may do with a request. One that recognises keys acts once under each.
    fn fates(&self, world: &World, wire: Wire) -> Vec<Said> {
        let is_idempotent = self.config.guest.safety(wire.id.place, wire.id.slot) == Safety::Idempotent;
        if is_idempotent && world.book(wire.id, wire.key).executed > 0 {
            return vec![Said::Acted];
        }
        let mut fates = vec![Said::Acted, Said::Refused];
        if self.config.busy {
            fates.push(Said::Busy);
        }
        fates
    }

    fn outside_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for row in world.rows.iter().filter(|row| row.stand == Stand::Unknown) {
            if !row.absence_known {
                actions.push(Action::AbsenceKnown(row.id));
            }
            let took_place = world.book(row.id, row.key).net() > 0;
            for outcome in self.config.operator {
                // A person who looks at the provider's books and says what they show.
                if took_place != (*outcome == Outcome::Abandoned) {
                    actions.push(Action::Resolve(row.id, *outcome, true));
                    if self.config.declines {
                        actions.push(Action::Resolve(row.id, *outcome, false));
                    }
                }
            }
            if self.config.verifier {
                actions.push(Action::Verify(row.id));
            }
        }
        for place in 0..world.places.len() as u8 {
            match world.place(place).step {
                Step::Open { wait, lease, declined, .. } => {
                    if declined && wait == Wait::Blocked && lease.is_none() {
                        actions.push(Action::Resume(place));
                    }
                    if world.cancels_left > 0 {
                        actions.push(Action::Cancel(place));
                    }
                }
                Step::Failed | Step::Cancelled if world.replays_left > 0 => {
                    actions.push(Action::Replay(place));
                }
                _ => {}
            }
        }
        if world.policy_changes_left > 0 {
            actions.push(Action::ChangePolicy);
        }
    }
}

/// The provider's answer to a request, if it is there.
fn answer_of(world: &World, id: Id) -> Option<Said> {
    world.wires.iter().find(|wire| wire.id == id)?.answer
}

impl Model for House {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let config = &self.config;
        vec![World {
            rows: vec![],
            places: vec![Place { run: 0, step: Step::NEW }; config.places],
            hosts: [Host::default(), Host::default()],
            wires: vec![],
            books: [[[Book::default(); NUMBERS]; SLOTS]; PLACES],
            denies: false,
            crashes_left: config.crashes,
            policy_changes_left: config.policy_changes,
            cancels_left: config.cancels,
            replays_left: config.replays,
            contradicted: false,
            sent_after_answer: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for nth in 0..world.hosts.len() {
            self.host_actions(world, nth, actions);
        }
        for (nth, wire) in world.wires.iter().enumerate().filter(|(_, wire)| wire.answer.is_none()) {
            actions.extend(self.fates(world, *wire).into_iter().map(|said| Action::Arrive(nth, said)));
        }
        self.outside_actions(world, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Arrive(nth, said) => world.arrive(self, nth, said),
            Action::AbsenceKnown(id) => world.time_passes(self, id),
            Action::Resolve(id, outcome, resumes) => {
                world.judge(self, id, outcome, Actor::Person("operator".into()), resumes);
            }
            Action::Verify(id) => world.verify(self, id),
            Action::Resume(place) => world.resume(place),
            Action::Cancel(place) => {
                world.cancels_left -= 1;
                world.cancel(self, place);
            }
            Action::Replay(place) => {
                world.replays_left -= 1;
                world.replay(place);
            }
            Action::ChangePolicy => {
                world.policy_changes_left -= 1;
                world.denies = true;
            }
            Action::Claim(nth, place) => world.take(self, nth, place),
            other => world.host_acts(self, other),
        }
        // The two hosts are alike, so that which is which makes no difference.
        world.hosts.sort_unstable();
        world.wires.sort_unstable();
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.rows.iter().all(|row| row.id.number <= self.config.numbers_max)
    }
}

impl World {
    fn take(&mut self, house: &House, nth: usize, place: u8) {
        let Some((lease, attempt, losses)) = self.claim(house, place) else { return };
        let mut execution = Execution {
            place,
            run: self.place(place).run,
            attempt,
            lease,
            trace: Trace::default(),
            journal: vec![],
            unwritten: vec![],
            lose: vec![],
            phase: Phase::Ended(End::HostLost),
        };
        if house.config.losses_max.is_none_or(|max| losses <= max) {
            execution.load(house, self);
            execution.proceed(house, self.denies);
        }
        self.hosts[nth].execution = Some(Box::new(execution));
    }

    /// A request reaches the provider, which acts on it or refuses it. Its answer waits for whoever waits for it.
    fn arrive(&mut self, house: &House, nth: usize, said: Said) {
        let Wire { id, key, .. } = self.wires[nth];
        let awaits = self.hosts.iter().any(|host| {
            let phase = host.execution.as_ref().map(|execution| execution.phase);
            phase == Some(Phase::Await { id }) || host.late == Some(id)
        });
        let recognises = house.config.guest.safety(id.place, id.slot) == Safety::Idempotent;
        let is_repeat = recognises && self.book(id, key).executed > 0;
        if said == Said::Acted && !is_repeat {
            self.book_mut(id, key).executed += 1;
        }
        if awaits {
            self.wires[nth].answer = Some(said);
        } else {
            self.wires.remove(nth);
        }
    }

    /// So much time that the request cannot arrive: whoever was about to send it finds its window closed.
    fn time_passes(&mut self, house: &House, id: Id) {
        if let Some(row) = self.row_mut(id) {
            row.absence_known = true;
        }
        self.wires.retain(|wire| wire.id != id || wire.answer.is_some());
        if house.lacks(Mutant::SendWindow) {
            return;
        }
        for execution in self.hosts.iter_mut().flat_map(|host| &mut host.execution) {
            if let Phase::Send { id: sends, window_open, .. } = &mut execution.phase
                && *sends == id
            {
                *window_open = false;
            }
        }
    }

    /// Somebody outside says what happened, and the domain says whether that can be known.
    fn judge(&mut self, house: &House, id: Id, outcome: Outcome, by: Actor, resumes: bool) {
        let Some(mut row) = self.row(id).copied() else { return };
        row.absence_known |= house.lacks(Mutant::AbsenceWait);
        let resolution = Resolution {
            outcome,
            evidence: "the provider's books".into(),
            recorded: outcome.needs_answer().then(|| facts::recorded(Said::Established)),
            provider_receipt_id: None,
        };
        let receipt = facts::receipt(&row, house.config.guest.safety(id.place, id.slot));
        let Ok(transition) = resolution::resolve(&receipt, resolution, by, facts::now()) else { return };
        if self.resolve(house, &transition, resumes) && outcome == Outcome::Compensated {
            self.book_mut(id, row.key).undone += 1;
        }
    }

    fn verify(&mut self, house: &House, id: Id) {
        let Some(row) = self.row(id).copied() else { return };
        let mut took_place = self.book(id, row.key).net() > 0;
        if house.lacks(Mutant::VerifyAsksAfresh) {
            took_place = row.asked.unwrap_or(took_place);
            if let Some(row) = self.row_mut(id) {
                row.asked = Some(took_place);
            }
        }
        let outcome = if took_place { Outcome::Verified } else { Outcome::Abandoned };
        self.judge(house, id, outcome, Actor::Verifier, true);
    }
}
