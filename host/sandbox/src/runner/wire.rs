//! What a host and a runner say to each other.
//!
//! A runner may have been taken over by a guest. So nothing that it says names anything but a ticket, which the host gave
//! to this runner for one question and forgets with its answer.

use counterfoil_domain::effect::{EffectCall, EffectReply};
use counterfoil_domain::id::{Digest, LeaseId};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{Refused, StepJob, StepReport, VerifyJob, VerifyReport};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::blocks::NotReady;
use crate::engine::Allocation;

/// The number of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Ticket(pub(super) u64);

impl Ticket {
    /// By what a runner knows an execution: it never learns the lease.
    pub(super) fn execution(self) -> LeaseId {
        LeaseId(Uuid::from_u128(u128::from(self.0)))
    }

    /// The inverse of [`Ticket::execution`].
    pub(super) fn of(execution: LeaseId) -> Option<Self> {
        u64::try_from(execution.0.as_u128()).ok().map(Self)
    }
}

/// What a runner is told first.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Where its instances get their memories and stacks from.
    pub(crate) allocation: Allocation,
    /// Steps that it runs at once.
    pub(crate) slots: u32,
    /// The most that any of them may use.
    pub(crate) limits: StepLimits,
}

/// What the host says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToRunner {
    Begin(Begin),
    /// Comes with the machine code, as a descriptor.
    Load(Ticket, Digest),
    Ask(Ticket, Box<Question>),
    /// The answer to [`FromRunner::Effect`].
    Reply(Ticket, EffectReply),
    /// The answer is not wanted any more: the question is given up wherever it stands, and [`FromRunner::Forgotten`] said.
    Forget(Ticket),
}

/// What a runner is asked of a block.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Question {
    Describe(Digest),
    Run(StepJob),
    Verify(VerifyJob),
}

impl Question {
    pub(super) fn component(&self) -> Digest {
        match self {
            Self::Describe(component) => *component,
            Self::Run(job) => job.component,
            Self::Verify(job) => job.component,
        }
    }
}

/// What a runner says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromRunner {
    /// Once, when it has begun.
    Ready,
    /// Once for each ticket.
    Said(Ticket, Said),
    /// The guest asks for an effect, and waits for the reply.
    Effect(Ticket, EffectCall),
    /// The question was given up, or had been answered by then.
    Forgotten(Ticket),
}

/// The answer to a [`Question`], or what came of the loading.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The machine code was never loaded here, or has made room for other.
    Absent,
    Loaded(Result<(), NotReady>),
    Described(Result<String, Refused>),
    Ran(StepReport),
    Verified(VerifyReport),
}
