//! The kinds of effect. A kind judges a call and prepares it; the guard decides whether it takes place, and then the kind
//! makes it. A new kind is a file here and an arm in [`prepare`].

mod http;

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::connection::Abilities;
use counterfoil_domain::effect::{EffectCall, EffectRequest, Safety};
use counterfoil_domain::limits::EFFECT_TIMEOUT_MS_MAX;
use counterfoil_domain::outbound::AddressPolicy;
use counterfoil_domain::ports::Faults;
use counterfoil_domain::receipt::RequestFacts;
use counterfoil_domain::receipt::answer::Exchanged;
use counterfoil_domain::receipt::request::Scope;
use counterfoil_domain::workflow::definition::{Invariant, InvariantScope};
use counterfoil_store::connection::Connection;

use crate::client::{Client, SendWindow};
use crate::execution::ExecutionContext;

/// A call, with what a kind judges it by.
pub(crate) struct Ask<'a> {
    pub(crate) context: &'a ExecutionContext,
    pub(crate) call: &'a EffectCall,
    /// The connection that the call names, if the tenant has one of that name.
    pub(crate) connection: Option<(Connection, Abilities)>,
    /// The idempotency key of a call that names none.
    pub(crate) default_key: String,
    pub(crate) policy: &'a AddressPolicy,
    /// Total time of a call that names none.
    pub(crate) timeout: Duration,
}

/// A call, judged and ready.
pub(crate) struct Prepared {
    /// What is kept of it, whether it may take place or not.
    pub(crate) facts: RequestFacts,
    /// How it is made, or why it may not be, in the words that the guest gets.
    pub(crate) exchange: Result<Box<dyn Exchange>, String>,
    /// What the connection declares of its receiver.
    pub(crate) abilities: Abilities,
    /// The longest that it takes: as long as that, its request may still arrive.
    pub(crate) total: Duration,
}

/// A call that may be made.
#[async_trait]
pub(crate) trait Exchange: Send + Sync {
    /// Makes it once. `facts` are those of its receipt, whose idempotency key may be that of an older dispatch.
    ///
    /// May be dropped at any await; whether anything had left is then not known.
    async fn exchange(&self, out: Outside<'_>, facts: &RequestFacts) -> Exchanged;
}

/// The way out for one call.
#[derive(Clone, Copy)]
pub(crate) struct Outside<'a> {
    pub(crate) client: &'a Client,
    /// Outside it no first byte may leave.
    pub(crate) window: &'a SendWindow,
    pub(crate) faults: &'a dyn Faults,
}

/// Judges a call by the block's grants, its connection and its form, and makes it ready.
///
/// # Errors
/// The kind is none that this host offers, in the words that the guest gets.
pub(crate) fn prepare(ask: Ask<'_>) -> Result<Prepared, String> {
    match &ask.call.request {
        EffectRequest::Http(request) => Ok(http::prepare(ask, request)),
        other => Err(format!("this host offers no effects of the kind `{}`", other.kind())),
    }
}

/// The invariant that guards effects of a kind; of several the widest.
pub(crate) fn guarding<'a>(invariants: &'a [Invariant], kind: &str) -> Option<&'a Invariant> {
    let width = |scope: InvariantScope| match scope {
        InvariantScope::Lineage => 0,
        InvariantScope::Workflow => 1,
        InvariantScope::Tenant => 2,
    };
    invariants
        .iter()
        .filter(|invariant| invariant.kind == kind && invariant.commit_guard)
        .max_by_key(|invariant| width(invariant.scope))
}

/// The scope within which an effect of a kind is told from others by its content.
fn scope(context: &ExecutionContext, kind: &str) -> Scope {
    match guarding(&context.invariants, kind).map_or(InvariantScope::Lineage, |invariant| invariant.scope) {
        InvariantScope::Lineage => Scope::Lineage(context.place.lineage),
        InvariantScope::Workflow => Scope::Workflow(context.workflow),
        InvariantScope::Tenant => Scope::Tenant(context.fence.tenant),
    }
}

/// The grants under which a block may make a call of this kind and safety: each allows what it declares, and reading.
/// None for a node of the workflow itself, whose author named the call.
fn grants<'a>(ask: &Ask<'a>, safety: Safety) -> Option<impl Iterator<Item = &'a EffectGrant> + use<'a>> {
    let kind = ask.call.request.kind();
    let grants = ask.context.grants.as_ref()?;
    Some(
        grants.iter().filter(move |grant| {
            grant.kind == kind && (grant.safety == safety || safety == Safety::ReadOnly)
        }),
    )
}

/// The total time of a call: what it asks for, within bounds.
fn total(ask: &Ask<'_>) -> Duration {
    /// A shorter one could end before the connection stands.
    const TIMEOUT_MS_MIN: u64 = 100;
    ask.call.timeout_ms.map_or(ask.timeout, |ms| {
        Duration::from_millis(u64::from(ms).clamp(TIMEOUT_MS_MIN, EFFECT_TIMEOUT_MS_MAX))
    })
}
