//! The seams between rooms. What crosses one is owned and serialisable, with no callbacks and no handles, so that
//! the other side may be another process.

use async_trait::async_trait;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::block::Descriptor;
use crate::code::Code;
use crate::connection::{SealedSecret, SecretName};
use crate::effect::{EffectCall, EffectReply};
use crate::id::{Digest, LeaseId, Place, TenantId};
use crate::limits::StepLimits;
use crate::receipt::verification::{UnknownReceipt, Verdict};
use crate::schema::Fault;

/// The only door out of a sandbox. Implemented by the guard, called by the sandbox.
#[async_trait]
pub trait EffectPort: Send + Sync {
    /// Performs one effect for the execution that holds `execution`, or hands over what was recorded of it.
    /// An execution makes one call at a time.
    async fn perform(&self, execution: LeaseId, call: EffectCall) -> EffectReply;
}

/// Runs one block within its bounds. Implemented by the sandbox, called by the engine.
#[async_trait]
pub trait StepRunner: Send + Sync {
    /// Whether `component` can be run without compiling it first.
    async fn is_ready(&self, component: Digest) -> bool;

    /// Makes `component` ready: compiles `bytes`, or loads what was compiled before.
    ///
    /// # Errors
    /// [`Unprepared::Refused`] if no host will ever run it, [`Unprepared::Unavailable`] if this one cannot now.
    async fn prepare(&self, component: Digest, bytes: Vec<u8>) -> Result<(), Unprepared>;

    /// Runs the block once. Always returns within the job's wall limit.
    async fn run(&self, job: StepJob) -> StepReport;

    /// Asks the block what became of an effect that it sent. Always returns within the job's wall limit.
    async fn verify(&self, job: VerifyJob) -> VerifyReport;
}

/// Why a component could not be made ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unprepared {
    /// The component itself is at fault.
    #[error("the component is refused: {message}")]
    Refused {
        /// Which rule.
        code: Code,
        /// In words.
        message: String,
    },
    /// This host is at fault; another may do better.
    #[error("this host cannot prepare the component now: {message}")]
    Unavailable {
        /// In words, for the operator.
        message: String,
    },
}

/// One execution of a block step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepJob {
    /// Names this execution at the effect port.
    pub execution: LeaseId,
    /// Which component.
    pub component: Digest,
    /// UTF-8 JSON.
    pub input: String,
    /// What the guest may know about where it is.
    pub place: Place,
    /// When this step first started in its lineage, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Seed of the guest's random source: a function of the place alone.
    pub seed: [u8; 32],
    /// Bounds of this execution.
    pub limits: StepLimits,
    /// How often in a row the process was lost that ran this step: one that may bring down others runs alone.
    pub losses: u32,
}

/// What one execution came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// How it ended.
    pub end: StepEnd,
    /// What the guest logged, in order, bounded.
    pub logs: Vec<LogLine>,
    /// Lines were dropped at the limit.
    pub logs_truncated: bool,
    /// Guest CPU used, in milliseconds, to the precision of an epoch tick.
    pub cpu_ms: u64,
    /// Most linear memory and table bytes held at once.
    pub memory_bytes_peak: u64,
}

impl StepReport {
    /// Of an execution of which nothing is known but how it ended.
    pub const fn nothing(end: StepEnd) -> Self {
        Self { end, logs: Vec::new(), logs_truncated: false, cpu_ms: 0, memory_bytes_peak: 0 }
    }
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepEnd {
    /// The block's output: UTF-8 JSON, not yet checked.
    Output(String),
    /// The block's own failure.
    Failed {
        /// `Some` where the block said that trying again is worth it: the earliest delay in milliseconds, 0 if it named none.
        retry_after_ms: Option<u64>,
        /// The block's code, bounded and escaped.
        code: String,
        /// The block's message, bounded and escaped.
        message: String,
    },
    /// A trap, or a limit: permanent.
    Trapped {
        /// Which limit, or `guest_trap`.
        code: Code,
        /// Bounded and escaped, with at most 20 frames.
        message: String,
    },
    /// The effect port answered [`EffectReply::Stop`] and the sandbox was dropped.
    Stopped,
    /// This host could not run it now; nothing of it ran.
    Unavailable {
        /// For the operator.
        message: String,
    },
    /// What ran it is gone, and the host is not; an effect that it had asked for has come to its end.
    Lost {
        /// For the operator.
        message: String,
    },
}

/// One question to a block: what became of an effect that it sent?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyJob {
    /// Names this execution at the effect port.
    pub execution: LeaseId,
    /// Which component.
    pub component: Digest,
    /// What it is asked about.
    pub receipt: UnknownReceipt,
    /// Where the step is that sent it.
    pub place: Place,
    /// When that step first started in its lineage, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Seed of the guest's random source: that step's own, so that what was drawn there can be drawn again.
    pub seed: [u8; 32],
    /// Bounds of this execution.
    pub limits: StepLimits,
}

/// What one question came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// How it ended.
    pub end: VerifyEnd,
    /// What the guest logged, in order, bounded.
    pub logs: Vec<LogLine>,
}

impl VerifyReport {
    /// Of a question of which nothing is known but how it ended.
    pub const fn nothing(end: VerifyEnd) -> Self {
        Self { end, logs: Vec::new() }
    }
}

/// How a question ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyEnd {
    /// The block's answer, not yet judged.
    Said(Verdict),
    /// A trap, or a limit.
    Trapped {
        /// Which limit, or `guest_trap`.
        code: Code,
        /// Bounded and escaped, with at most 20 frames.
        message: String,
    },
    /// The effect port answered [`EffectReply::Stop`] and the sandbox was dropped.
    Stopped,
    /// This host could not ask now; nothing of the block ran.
    Unavailable {
        /// For the operator.
        message: String,
    },
}

/// One line that a guest logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// `trace`, `debug`, `info`, `warn` or `error`.
    pub level: LogLevel,
    /// Bounded and escaped.
    pub message: String,
}

/// Level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// Checks an upload. Implemented by the sandbox, called by the web.
#[async_trait]
pub trait ComponentInspector: Send + Sync {
    /// Scans, compiles and describes a component.
    ///
    /// # Errors
    /// [`Refused`] with the rule that it broke.
    async fn inspect(&self, bytes: Vec<u8>) -> Result<Inspection, Refused>;
}

/// What an upload turned out to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// Name of the block version.
    pub digest: Digest,
    /// Size of the component in bytes.
    pub bytes_len: u64,
    /// Interfaces imported, with versions.
    pub imports: Vec<String>,
    /// Interfaces exported, with versions.
    pub exports: Vec<String>,
    /// What the block says of itself.
    pub descriptor: Descriptor,
    /// Time to compile, in milliseconds.
    pub compile_ms: u64,
}

/// What a block exports that can be asked what became of its effects.
pub const RECONCILE_INTERFACE: &str = "counterfoil:block/reconcile@0.1.0";

impl Inspection {
    /// Whether the block can be asked what became of its effects.
    pub fn verifies(&self) -> bool {
        self.exports.iter().any(|export| export == RECONCILE_INTERFACE)
    }
}

/// Why an upload is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Which rule.
    pub code: Code,
    /// In words.
    pub message: String,
    /// One entry per offending item: each unknown import, for instance, or each fault of a manifest with its place in it.
    pub details: Vec<Fault>,
}

/// Seals the secrets of connections: what is sealed, only the door out can open. Implemented by effects, called by the
/// web.
///
/// A secret is the one thing that crosses a port and cannot be serialised: it is to be written nowhere.
#[async_trait]
pub trait SecretSealer: Send + Sync {
    /// Seals each secret to its place.
    ///
    /// # Errors
    /// [`NoSecretKey`]: this host has nothing to seal with.
    async fn seal(
        &self,
        tenant: TenantId,
        connection: &str,
        secrets: Vec<(SecretName, SecretString)>,
    ) -> Result<Vec<SealedSecret>, NoSecretKey>;
}

/// Why secrets could not be sealed; for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct NoSecretKey {
    /// In words, with what to do.
    pub message: String,
}

/// Points at which a test may kill the process. Idle in production.
pub trait Faults: Send + Sync {
    /// Called when the work reaches `site`. May not return.
    fn reach(&self, site: Site);
}

/// No faults.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn reach(&self, _site: Site) {}
}

macro_rules! sites {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A named point in the effect path.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Site { $($(#[$doc])* $name,)* }

        impl Site {
            /// Every site, in the order in which a step passes them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name by which a test arms it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The inverse of [`Site::name`].
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|site| site.name() == name)
            }
        }
    };
}

sites! {
    /// Before the statement that claims steps, or that admits a run with its first step claimed.
    BeforeClaim = "before-claim",
    /// Steps are claimed, none has begun.
    AfterClaim = "after-claim",
    /// The guest asked for an effect; nothing is durable.
    BeforePrepare = "before-prepare",
    /// The receipt is durable as dispatched; nothing is sent.
    AfterDispatch = "after-dispatch",
    /// Connected; no byte of the request is written.
    AfterConnect = "after-connect",
    /// The first byte of the request is written.
    AfterFirstByte = "after-first-byte",
    /// The last byte of the request is written.
    AfterLastByte = "after-last-byte",
    /// The answer's head has arrived, its body has not.
    MidAnswer = "mid-answer",
    /// The answer is complete, and not durable.
    BeforeAnswerRecorded = "before-answer-recorded",
    /// The answer is durable, before its step settles.
    AfterAnswerRecorded = "after-answer-recorded",
    /// Inside the settling transaction, before its COMMIT.
    InSettle = "in-settle",
    /// The step has settled.
    AfterSettle = "after-settle",
}
