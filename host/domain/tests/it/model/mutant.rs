//! Protections that a mutant lacks, one each.

/// The protection that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A host writes no first byte after its window.
    SendWindow,
    /// An absence is not established while the request may still arrive.
    AbsenceWait,
    /// The dispatching transaction looks at the slot again.
    Recheck,
    /// A dispatch needs the step's lease.
    DispatchFence,
    /// The end of an execution needs the step's lease.
    EndFence,
    /// What the journal says goes before what the policy says now.
    JournalBeforeChecks,
    /// A verifier asks the provider each time.
    VerifyAsksAfresh,
    /// A re-send's refusal is kept from the guest while an older dispatch is unknown.
    RefusalHidden,
    /// A new attempt is told the refusals before what may have happened.
    FallbackKept,
    /// A late answer lets the step go on.
    LateAnswerResumes,
    /// A receipt is durable before the call.
    Receipt,
    /// A receipt moves from where it was expected, or not at all.
    SwapExpectsFrom,
    /// The unique index over guarded content.
    GuardIndex,
    /// A call is answered from the journal.
    Journal,
    /// A dispatch is named by its slot and number, and the name is unique.
    Identity,
    /// Both of these.
    JournalAndIdentity,
    /// A step does not settle while a receipt of it is open.
    SettleLooks,
    /// Cancelling moves what is dispatched to unknown.
    CancelLoses,
    /// A step is blocked only if something of it is still unknown.
    BlockLooks,
    /// An execution whose answer was written alone notices that another one is stored.
    FlushLooks,
    /// The answer to one dispatch settles the others of its slot.
    SiblingsVerified,
    /// The undoing of one dispatch settles the others of its slot.
    SiblingsCompensated,
    /// An answer is durable before the next dispatch.
    AnswersBeforeDispatch,
    /// A replay shares slots and receipts with the run that it replays.
    LineageShared,
    /// What was undone is done anew under another key.
    FreshKey,
}
