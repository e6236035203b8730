//! Work that lay in a queue and may have been done: what is sent again waits as any other re-send does.

use counterfoil_domain::effect::EffectFailure;
use counterfoil_domain::receipt::{Recorded, SlotKey, Standing};
use counterfoil_domain::step::Stop;

use crate::execution::Execution;

/// Its answer came while the step waited, so that the attempt which sent it ends only here: another one sends it again.
pub(super) fn check_attempt(execution: &Execution, slot: &SlotKey) -> Result<(), Stop> {
    let progress = execution.progress();
    let journal = progress.journal.as_ref().ok_or(Stop::Rerun)?;
    let Some(newest) = journal.newest_of_attempt(slot, execution.asker()) else { return Ok(()) };
    let reason = format!("the outcome of effect `{slot}` is unknown");
    Err(match &newest.standing {
        Standing::Rejected(Recorded::Failure(EffectFailure::Rejected(_))) => {
            Stop::Blocked { reason: format!("{reason}, and a re-send is refused") }
        }
        _ => Stop::Resend { reason, retry_after_ms: None },
    })
}
