//! Asks blocks what became of their effects whose outcome is unknown, before a person is asked.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_domain::id::LeaseId;
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{Unprepared, VerifyJob};
use counterfoil_domain::receipt::identity::guest_seed;
use counterfoil_domain::receipt::resolution::{Resolution, resolve};
use counterfoil_domain::receipt::verification::{Again, UnknownReceipt, conclude, is_over};
use counterfoil_domain::receipt::{Actor, Receipt};
use counterfoil_effects::ExecutionContext;
use counterfoil_store::StoreError;
use counterfoil_store::receipt::Resolved;
use counterfoil_store::step::Fence;
use counterfoil_store::verification::{AskRequest, HeldVerification};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::context::LoadError;
use crate::{Inner, execute};

/// Blocks asked at once: what is unknown is rare, and steps need the room more.
const ASKED_MAX: usize = 4;
/// Blocks of one tenant that are taken at one look, so that one whose provider is down leaves room for the others.
const ASKED_PER_TENANT_MAX: u32 = 2;
/// Whole asking, waiting for answers included: a few look-ups at a provider that is slow.
const WALL_MS_MAX: u64 = 30_000;
/// Time for an asking and all around it: when its host dies, others ask after that.
const HOLD: Duration = Duration::from_secs(45);

/// Asks until `stop`, and returns what is still being asked then.
pub(crate) async fn run(inner: Arc<Inner>, stop: CancellationToken) -> JoinSet<()> {
    let mut asking = JoinSet::new();
    while !stop.is_cancelled() {
        let room = ASKED_MAX.saturating_sub(asking.len());
        match hold(&inner, room).await {
            Ok(held) => {
                for held in held {
                    let inner = Arc::clone(&inner);
                    asking.spawn(async move { ask(&inner, &held).await });
                }
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "receipts that are to be verified could not be looked for");
            }
        }
        // No wake-up announces these, and they need none: the first of them is due a second after it was written.
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = asking.join_next() => heard(ended),
            () = tokio::time::sleep(inner.config.poll_every) => {}
        }
    }
    asking
}

/// Waits for what is still being asked.
pub(crate) async fn end(mut asking: JoinSet<()>) {
    while let Some(ended) = asking.join_next().await {
        heard(ended);
    }
}

fn heard(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        let error = &error as &dyn std::error::Error;
        tracing::error!(error, "an asking broke off; its hold runs out");
    }
}

async fn hold(inner: &Inner, room: usize) -> Result<Vec<HeldVerification>, StoreError> {
    if room == 0 {
        return Ok(vec![]);
    }
    let request = AskRequest {
        hold: HOLD,
        room: u32::try_from(room).unwrap_or(u32::MAX),
        per_tenant_max: ASKED_PER_TENANT_MAX,
        without: inner.preparations.unrunnable(),
    };
    inner.store.hold_verifications(&request).await
}

async fn ask(inner: &Inner, held: &HeldVerification) {
    let again = match question(inner, held).await {
        Ok(again) => again,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(receipt = %held.receipt, error, "a block could not be asked what became of its effect");
            Some(Again::hand_back("this host could not ask it now"))
        }
    };
    let Some(Again { next, said }) = again else { return };
    tracing::info!(receipt = %held.receipt, asked = held.asked, ?next, "the outcome of an effect is unknown still");
    if let Err(error) = inner.store.ask_again(held, next, &said).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(receipt = %held.receipt, error, "an asking could not be put off; its hold runs out");
    }
}

/// Asks, and resolves the receipt if the block knows. None if there is nothing to ask any more.
async fn question(inner: &Inner, held: &HeldVerification) -> Result<Option<Again>, LoadError> {
    if is_over(held.asked) {
        let again = Again::in_vain(held.asked, "its hosts were lost each time that they asked it");
        return Ok(Some(again));
    }
    let view = inner.store.receipt(held.tenant, held.receipt).await?;
    let Some(receipt) = view.map(|view| view.receipt) else { return Ok(None) };
    let Some(unknown) = UnknownReceipt::of(&receipt) else { return Ok(None) };
    let resolution = match put(inner, held, &receipt, unknown).await? {
        Ok(resolution) => resolution,
        Err(again) => return Ok(Some(again)),
    };
    // Judged at the time at which the asking began: that something was not there then does not say that it did not come
    // afterwards.
    let decide = |receipt: &Receipt, _now| resolve(receipt, resolution, Actor::Verifier, held.asked_at);
    let resolved = inner.store.resolve(held.tenant, held.receipt, decide, true, &Actor::Verifier).await?;
    Ok(match resolved {
        Resolved::Done { resumed, run } => {
            tracing::info!(receipt = %held.receipt, %run, resumed, "a block said what became of its effect");
            None
        }
        Resolved::NotFound => None,
        Resolved::Refused(why) => {
            let again = Again::refused(&why, held.asked);
            if again.is_none() {
                tracing::info!(receipt = %held.receipt, %why, "somebody else said first what became of an effect");
            }
            again
        }
    })
}

/// Puts the question to the block.
async fn put(
    inner: &Inner,
    held: &HeldVerification,
    receipt: &Receipt,
    unknown: UnknownReceipt,
) -> Result<Result<Resolution, Again>, LoadError> {
    let block = inner.plans.block(held.tenant, held.block, receipt.run).await?;
    match execute::ready(inner, held.tenant, held.block).await {
        Ok(()) => {}
        Err(Unprepared::Refused { message, .. }) => return Ok(Err(Again::in_vain(held.asked, message))),
        Err(Unprepared::Unavailable { message }) => return Ok(Err(Again::hand_back(message))),
    }
    let limits = execute::narrowed(inner, &block.descriptor, inner.store.tenant_limits(held.tenant).await?);
    let limits = StepLimits { wall_ms_max: limits.wall_ms_max.min(WALL_MS_MAX), ..limits };
    // No step's lease: this execution owns nothing, and nothing that it does is fenced.
    let lease = LeaseId(Uuid::now_v7());
    inner.guard.begin_verification(ExecutionContext {
        fence: Fence { tenant: held.tenant, step: receipt.step, lease },
        run: receipt.run,
        workflow: held.workflow,
        place: receipt.place.clone(),
        attempt: receipt.attempt,
        is_first: false,
        grants: Some(block.descriptor.effects.clone()),
        invariants: [].into(),
    });
    let job = VerifyJob {
        execution: lease,
        component: held.block,
        receipt: unknown,
        place: receipt.place.clone(),
        started_at_ms: u64::try_from(held.started_at.timestamp_millis()).unwrap_or(0),
        seed: guest_seed(held.tenant, &receipt.place),
        limits,
    };
    let report = inner.runner.verify(job).await;
    let stop = inner.guard.finish(lease).await.stop;
    Ok(conclude(receipt, report, stop, held.asked))
}
