//! The codes that a person can meet. Each has its page of advice, `docs/advice/<code>.md`, held there by `tidy`.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A stable name for one kind of error or refusal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code { $($(#[$doc])* #[serde(rename = $text)] $name,)* }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in JSON, logs and the database.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The inverse of [`Code::name`].
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.name() == name)
            }
        }

        impl fmt::Display for Code {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

codes! {
    // What an effect may come to.
    /// Policy, grant or address refused an effect; nothing was sent.
    Denied = "denied",
    /// Nothing of an effect left: names, connection or TLS failed, or the send window had closed.
    NotSent = "not_sent",
    /// The receiver refused an effect.
    Rejected = "rejected",
    /// An effect was sent and its outcome is not known.
    Unknown = "unknown",
    /// A label was used twice in one execution.
    SlotReused = "slot_reused",
    /// More effects than a step may make.
    EffectLimit = "effect_limit",
    /// A re-run asked for something else than what its receipts say.
    Diverged = "diverged",
    /// Another receipt guards the same content.
    Duplicate = "duplicate",
    /// An owner acted that had lost its lease.
    Stale = "stale",

    // How a step may fail.
    /// The block reported a failure of its own.
    BlockFailed = "block_failed",
    /// The block trapped.
    GuestTrap = "guest_trap",
    /// The block ended its program in place of answering.
    GuestExit = "guest_exit",
    /// Linear memory or tables at their limit.
    MemoryLimit = "memory_limit",
    /// Guest CPU at its limit.
    CpuLimit = "cpu_limit",
    /// The step took longer than it may.
    WallLimit = "wall_limit",
    /// The call stack at its limit.
    StackLimit = "stack_limit",
    /// The output is larger than it may be.
    OutputTooLarge = "output_too_large",
    /// The output is not JSON, or holds what the database cannot keep.
    OutputInvalid = "output_invalid",
    /// The input, once rendered, is larger than it may be.
    InputTooLarge = "input_too_large",
    /// The input is not what the block says that it takes.
    InputInvalid = "input_invalid",
    /// Too many hosts were lost while they ran this step.
    HostLost = "host_lost",
    /// An expression could not be evaluated.
    ExpressionFailed = "expression_failed",
    /// An expression would cost more than it may.
    ExpressionTooCostly = "expression_too_costly",
    /// What a step waited for did not come in time.
    TimedOut = "timed_out",
    /// The run that a step had started failed, or was cancelled.
    ChildFailed = "child_failed",
    /// Runs would start runs deeper than they may.
    WorkflowTooDeep = "workflow_too_deep",
    /// The workflow stopped the run with a failure.
    Stopped = "stopped",
    /// A worker outside the host failed, and nothing of its work took place.
    WorkerFailed = "worker_failed",
    /// The effect was answered, and what was answered is a failure for an `http` node.
    HttpStatus = "http_status",

    // Uploads.
    /// Not a component, or one that the validator refuses.
    ComponentInvalid = "component_invalid",
    /// Imports that the host does not offer.
    ImportUnknown = "import_unknown",
    /// Exports that the host needs are missing.
    ExportMissing = "export_missing",
    /// Larger, deeper or more numerous than a component may be.
    ComponentTooLarge = "component_too_large",
    /// Compiling took more than it may.
    CompileBudgetExceeded = "compile_budget_exceeded",
    /// A program that cannot describe itself came without a manifest.
    ManifestMissing = "manifest_missing",
    /// A block that describes itself came with a manifest as well.
    ManifestNeedless = "manifest_needless",
    /// What `describe` returned, or the manifest, is not a descriptor, or contradicts itself.
    DescriptorInvalid = "descriptor_invalid",

    // Definitions.
    /// A workflow definition has problems.
    DefinitionInvalid = "definition_invalid",
    // What may be wrong in one place of a definition; an input that a block does not take is `input_invalid`.
    /// The text is neither YAML nor JSON.
    Syntax = "syntax",
    /// A field is missing, is not known here, or has the wrong type or form.
    Schema = "schema",
    /// A number, size or depth out of its bounds.
    Limit = "limit",
    /// A number that JSON does not carry exactly.
    NumberInexact = "number_inexact",
    /// A name that is not of the form of names.
    NameInvalid = "name_invalid",
    /// A name that is taken.
    NameTaken = "name_taken",
    /// A kind of node that does not exist.
    NodeUnknown = "node_unknown",
    /// A block that does not exist.
    BlockUnknown = "block_unknown",
    /// An expression that cannot be saved.
    ExpressionInvalid = "expression_invalid",
    /// An expression reads a step that does not exist, or has not run by then.
    StepNotReadable = "step_not_readable",
    /// A workflow of which no version is active.
    WorkflowUnknown = "workflow_unknown",
    /// A connection that does not exist.
    ConnectionUnknown = "connection_unknown",
    /// The workflow would start itself again.
    Cycle = "cycle",
    /// Steps that can never be reached.
    Unreachable = "unreachable",

    // What a version may be refused for.
    /// A workflow has no active version.
    WorkflowNotActive = "workflow_not_active",
    /// A version does other things to other systems than the active one, and nobody said that it is meant to.
    SideEffectsChanged = "side_effects_changed",

    // Refusals of intake.
    /// The trigger's condition did not hold.
    RuleNotMatched = "rule_not_matched",
    /// A run for the record is unfinished, and the trigger allows one.
    AlreadyRunning = "already_running",
    /// The record has had its run, and the trigger allows one.
    DuplicateTrigger = "duplicate_trigger",
    /// The trigger needs a record and the event names none.
    MissingRecordIdentity = "missing_record_identity",
    /// The workflow is paused.
    WorkflowPaused = "workflow_paused",

    // The API.
    /// The request cannot be read.
    BadRequest = "bad_request",
    /// No key, or one that does not hold.
    Unauthenticated = "unauthenticated",
    /// The key's scope does not allow it.
    Forbidden = "forbidden",
    /// Nothing by that name or id for this tenant.
    NotFound = "not_found",
    /// An answer is not what its form asks for.
    Form = "form",
    /// The question is not asked any more.
    AlreadyDecided = "already_decided",
    /// The run has ended.
    RunEnded = "run_ended",
    /// More waits for the run already than it may keep.
    SignalLimit = "signal_limit",
    /// A task is not the caller's: another worker, or none, has taken it.
    TaskNotOwned = "task_not_owned",
    /// What became of a task is settled, or its time is over.
    TaskOver = "task_over",
    /// What exists is in the way.
    Conflict = "conflict",
    /// What serves, or is under way, names the connection.
    ConnectionInUse = "connection_in_use",
    /// The body is larger than it may be.
    TooLarge = "too_large",
    /// The same idempotency key came with another request.
    IdempotencyKeyReused = "idempotency_key_reused",
    /// An event of this id was recorded before, and says something else.
    EventIdReused = "event_id_reused",
    /// The first request with this idempotency key is still running.
    IdempotencyKeyBusy = "idempotency_key_busy",
    /// Only an unknown receipt can be resolved.
    NotUnknown = "not_unknown",
    /// The request may still arrive, so its absence cannot be known yet.
    TooEarly = "too_early",
    /// The database cannot be reached, or something failed that should not.
    Internal = "internal",
    /// The host cannot serve now.
    Unavailable = "unavailable",
    /// This host has no key to seal secrets with.
    SecretKeyMissing = "secret_key_missing",
}
