//! What runs blocks for a host: this very process, or others that do nothing else.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{Refused, StepJob, StepReport, VerifyJob, VerifyReport};

use crate::blocks::NotReady;
use crate::machine_code::MachineCode;

/// Runs blocks. Whatever it is asked comes with the machine code, in case that it has none.
#[async_trait]
pub(crate) trait Executor: Send + Sync {
    /// Sees whether the code can be run, by running nothing of it.
    async fn load(&self, component: Digest, code: &Arc<MachineCode>) -> Result<(), NotReady>;

    /// What the block says of itself, not yet read.
    async fn describe(&self, component: Digest, code: &Arc<MachineCode>) -> Result<String, Refused>;

    async fn run(&self, code: &Arc<MachineCode>, job: StepJob) -> StepReport;

    async fn verify(&self, code: &Arc<MachineCode>, job: VerifyJob) -> VerifyReport;
}
