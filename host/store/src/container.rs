//! Containers: open steps that wait for the steps inside them.
//!
//! Everything here happens under the lock of the run, which whoever settles a step of it holds anyhow. So parts that end at
//! the same time on several hosts are counted one after the other, and the last of them makes the container due.

mod close;
mod go_on;
mod open;
mod part;
mod progress;
mod undo;

use counterfoil_domain::id::{LineageId, RunId};
use counterfoil_domain::workflow::advance::{Join, Part, PartStanding, PartStart, Undone};

pub(crate) use self::close::{close, forget};
pub(crate) use self::open::insert_containers;
pub(crate) use self::part::end_part;
pub(crate) use self::undo::undo;

use crate::settle::{NewStep, SettledStep};
use crate::step::Fence;
use crate::waiting::WaitEnd;

/// What the end of a step means for what is around it: the containers, the run that waits for its run, and whatever it waited
/// for itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Containers {
    /// The step was the last of a part of this container.
    pub join: Option<Join>,
    /// What is undone by it.
    pub undone: Vec<Undone>,
    /// The step is a container.
    pub closes: Option<Closes>,
    /// The step waited for something from outside.
    pub waited: Option<WaitEnd>,
    /// The run was started by a step of another, which may wait for its end.
    pub is_child: bool,
}

/// How a container is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closes {
    /// What is open inside it is cancelled.
    Cancelling,
    /// What is open inside it goes on.
    Leaving,
}

impl Containers {
    /// Whether there is nothing of the kind.
    pub(crate) fn is_nothing(&self) -> bool {
        self.join.is_none() && self.undone.is_empty() && self.closes.is_none() && self.waited.is_none()
    }
}

/// What begins in a container that goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct GoOn {
    /// The container's execution.
    pub fence: Fence,
    /// Its run.
    pub run: RunId,
    /// The run's lineage.
    pub lineage: LineageId,
    /// Steps that settle at once.
    pub inline: Vec<SettledStep>,
    /// Steps that become open.
    pub open: Vec<NewStep>,
    /// Parts that begin.
    pub parts: Vec<PartStart>,
    /// Those of them that have come to their end at once.
    pub done: Vec<Part>,
    /// Failures more that are tolerated.
    pub tolerates: i32,
    /// What is undone.
    pub undone: Vec<Undone>,
}

/// What came of a container that was to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoOnVerdict {
    /// It waits for its parts.
    Waiting,
    /// It is not this execution's any more. Nothing was written.
    Lost,
}

/// The name of how far a part is.
const fn state_name(standing: &PartStanding) -> &'static str {
    match standing {
        PartStanding::Waiting => "waiting",
        PartStanding::Running => "running",
        PartStanding::Done(Ok(_)) => "succeeded",
        PartStanding::Done(Err(_)) => "failed",
    }
}
