//! The world that the model checker explores: what is durable, what is under way, and what each host remembers.

use counterfoil_domain::receipt::ReceiptState;

/// Places that may hold work, each the only step of its lineage.
pub(crate) const PLACES: usize = 2;
/// Slots of a guest.
pub(crate) const SLOTS: usize = 3;
/// Dispatch numbers that have a name; no configuration follows a slot to the last of them.
pub(crate) const NUMBERS: usize = 5;

/// A receipt's name: what the domain hashes to its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) place: u8,
    pub(crate) slot: u8,
    pub(crate) number: u8,
}

/// What a guest is told of a call, and what is stored for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Said {
    /// The provider acted, and says so.
    Acted,
    /// Somebody outside says that it acted.
    Established,
    /// A read-only answer; two of them, so that it can change between two readings.
    Read(u8),
    /// 402.
    Refused,
    /// 429.
    Busy,
    NotSent,
    Denied,
    NoAnswer,
}

impl Said {
    /// Whether the guest sees an answer rather than a refusal.
    pub(crate) const fn is_answer(self) -> bool {
        matches!(self, Self::Acted | Self::Established | Self::Read(_))
    }
}

/// What a guest has been told, in the order of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Trace([Option<Said>; SLOTS]);

impl Trace {
    pub(crate) fn len(self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(crate) fn said(self) -> impl Iterator<Item = Said> {
        self.0.into_iter().flatten()
    }

    pub(crate) fn get(self, position: usize) -> Option<Said> {
        self.0.get(position).copied().flatten()
    }

    pub(crate) fn push(&mut self, said: Said) {
        let end = self.len();
        self.0[end] = Some(said);
    }
}

/// One execution's proof that it owns a step. The lowest that nobody mentions any more is given out, so that the space of
/// states stays finite.
pub(crate) type Lease = u8;

/// Where a receipt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stand {
    Dispatched(Lease),
    Committed(Said),
    Rejected(Said),
    Unknown,
    Verified(Said),
    Compensated,
    Abandoned,
}

impl Stand {
    pub(crate) const fn state(self) -> ReceiptState {
        match self {
            Self::Dispatched(_) => ReceiptState::Dispatched,
            Self::Committed(_) => ReceiptState::Committed,
            Self::Rejected(_) => ReceiptState::Rejected,
            Self::Unknown => ReceiptState::Unknown,
            Self::Verified(_) => ReceiptState::Verified,
            Self::Compensated => ReceiptState::Compensated,
            Self::Abandoned => ReceiptState::Abandoned,
        }
    }

    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Dispatched(_) | Self::Unknown)
    }
}

/// A row of the receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Row {
    pub(crate) id: Id,
    pub(crate) position: u8,
    pub(crate) attempt: u8,
    pub(crate) run: u8,
    /// The dispatch number whose receipt names the idempotency key.
    pub(crate) key: u8,
    pub(crate) stand: Stand,
    pub(crate) guarded: bool,
    pub(crate) released: bool,
    /// The database's clock has passed the moment from which the request can no longer arrive.
    pub(crate) absence_known: bool,
    /// Seen, not stored: what the guest had been told when it made the call.
    pub(crate) told: Trace,
    /// What a verifier found when it first asked; only a mutant keeps it.
    pub(crate) asked: Option<bool>,
}

/// What an open step waits for when nobody holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Wait {
    Ready,
    Retry,
    Blocked,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    Open {
        wait: Wait,
        lease: Option<Lease>,
        attempt: u8,
        losses: u8,
        /// A person settled what it was blocked on and asked that it wait.
        declined: bool,
    },
    Succeeded,
    Failed,
    Cancelled,
}

/// A place with its latest run; the run is unfinished as long as its step is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) run: u8,
    pub(crate) step: Step,
}

/// A request on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Wire {
    pub(crate) id: Id,
    pub(crate) key: u8,
    /// None until the provider has answered.
    pub(crate) answer: Option<Said>,
}

/// What the provider did under one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Book {
    pub(crate) executed: u8,
    pub(crate) undone: u8,
}

impl Book {
    /// Executions that stand.
    pub(crate) const fn net(self) -> u8 {
        self.executed - self.undone
    }
}

/// What a host has still to write of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Write {
    Answer { id: Id, said: Said },
    Sibling { id: Id, from: ReceiptState, of: Id, said: Said },
    Unsent(Row),
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    Output,
    Transient,
    Trapped,
    HostLost,
    Blocked,
    Resend,
    Diverged,
    Duplicate,
    Stale,
    Rerun,
    Database,
}

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// About to make a receipt durable; `lost` are the dispatch numbers of its slot that become unknown with it.
    Dispatch {
        number: u8,
        lost: u8,
    },
    /// The receipt is durable, as far as this host knows.
    Send {
        id: Id,
        key: u8,
        window_open: bool,
    },
    /// The first byte is written.
    Await {
        id: Id,
    },
    /// A read-only call.
    Read {
        number: u8,
    },
    Ended(End),
}

/// One execution of a step, in the memory of its host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Execution {
    pub(crate) place: u8,
    pub(crate) run: u8,
    pub(crate) attempt: u8,
    pub(crate) lease: Lease,
    pub(crate) trace: Trace,
    /// As it was read, with what this execution has done since.
    pub(crate) journal: Vec<Row>,
    pub(crate) unwritten: Vec<Write>,
    pub(crate) lose: Vec<Id>,
    pub(crate) phase: Phase,
}

/// A host. It may be frozen at any point: nothing obliges it to move.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Host {
    pub(crate) execution: Option<Box<Execution>>,
    /// A call whose execution has ended.
    pub(crate) late: Option<Id>,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) rows: Vec<Row>,
    pub(crate) places: Vec<Place>,
    pub(crate) hosts: [Host; 2],
    pub(crate) wires: Vec<Wire>,
    pub(crate) books: [[[Book; NUMBERS]; SLOTS]; PLACES],
    /// The policy refuses the first slot since somebody changed it.
    pub(crate) denies: bool,
    pub(crate) crashes_left: u8,
    pub(crate) policy_changes_left: u8,
    pub(crate) cancels_left: u8,
    pub(crate) replays_left: u8,
    /// Seen, not stored: something durable contradicts what an earlier call had been told.
    pub(crate) contradicted: bool,
    /// Seen, not stored: a slot was dispatched although it had an answer.
    pub(crate) sent_after_answer: bool,
}

impl World {
    pub(crate) fn row(&self, id: Id) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    pub(crate) fn row_mut(&mut self, id: Id) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.id == id)
    }

    pub(crate) fn insert(&mut self, row: Row) {
        self.rows.push(row);
        self.rows.sort_unstable();
    }

    pub(crate) fn at(&self, place: u8) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.id.place == place)
    }

    pub(crate) fn slot(&self, id: Id) -> impl Iterator<Item = &Row> {
        self.at(id.place).filter(move |row| row.id.slot == id.slot)
    }

    pub(crate) fn place(&self, place: u8) -> &Place {
        &self.places[usize::from(place)]
    }

    pub(crate) fn step_mut(&mut self, place: u8) -> &mut Step {
        &mut self.places[usize::from(place)].step
    }

    pub(crate) fn is_held(&self, place: u8, by: Lease) -> bool {
        matches!(self.place(place).step, Step::Open { lease: Some(lease), .. } if lease == by)
    }

    pub(crate) fn book(&self, id: Id, key: u8) -> Book {
        self.books[usize::from(id.place)][usize::from(id.slot)][usize::from(key)]
    }

    pub(crate) fn book_mut(&mut self, id: Id, key: u8) -> &mut Book {
        &mut self.books[usize::from(id.place)][usize::from(id.slot)][usize::from(key)]
    }

    /// Executions of a slot that stand, under whatever key.
    pub(crate) fn net(&self, place: usize, slot: usize) -> u8 {
        self.books[place][slot].iter().map(|book| book.net()).sum()
    }

    /// The lowest lease that nothing mentions.
    pub(crate) fn free_lease(&self) -> Lease {
        let is_used = |lease: Lease| {
            self.rows.iter().any(|row| row.stand == Stand::Dispatched(lease))
                || self
                    .places
                    .iter()
                    .any(|place| matches!(place.step, Step::Open { lease: Some(held), .. } if held == lease))
                || self.hosts.iter().flat_map(|host| &host.execution).any(|held| held.lease == lease)
        };
        (0..Lease::MAX).find(|lease| !is_used(*lease)).unwrap_or(Lease::MAX)
    }
}
