//! The kinds of effect. A kind judges a call and prepares it; the guard decides whether it takes place, and then the kind
//! makes it. A new kind is a file here and an arm in [`prepare`].

mod emit;
mod http;
mod mail;
mod storage;
mod worker;

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::connection::Abilities;
use counterfoil_domain::effect::{Answer, EffectCall, EffectRequest, Safety};
use counterfoil_domain::limits::EFFECT_TIMEOUT_MS_MAX;
use counterfoil_domain::outbound::{AddressPolicy, Work};
use counterfoil_domain::ports::Faults;
use counterfoil_domain::receipt::RequestFacts;
use counterfoil_domain::receipt::answer::Exchanged;
use counterfoil_domain::receipt::request::{Canonical, Scope};
use counterfoil_domain::workflow::definition::{Invariant, InvariantScope};
use counterfoil_store::settle::Change;
use counterfoil_store::{Store, StoreError};

use crate::client::{Client, SendWindow};
use crate::execution::ExecutionContext;
use crate::guard::Known;
use crate::secrets::Opened;

/// A call, with what a kind judges it by.
pub(crate) struct Ask<'a> {
    pub(crate) context: &'a ExecutionContext,
    pub(crate) call: &'a EffectCall,
    /// The connection that the call names, if the tenant has one of that name.
    pub(crate) connection: Option<&'a Known>,
    /// The connection's secrets. They leave with the call itself and stand nowhere else.
    pub(crate) secrets: Opened,
    /// The idempotency key of a call that names none.
    pub(crate) default_key: String,
    pub(crate) policy: &'a AddressPolicy,
    /// Total time of a call that names none.
    pub(crate) timeout: Duration,
    /// What this execution has changed of our own database before, in order.
    pub(crate) changes: &'a [Change],
}

/// A call, judged and ready.
pub(crate) struct Prepared {
    /// What is kept of it, whether it may take place or not.
    pub(crate) facts: RequestFacts,
    /// How it takes place, or why it may not, in the words that the guest gets.
    pub(crate) act: Result<Act, String>,
    /// What the connection declares of its receiver.
    pub(crate) abilities: Abilities,
    /// The longest that it takes: as long as that, its request may still arrive.
    pub(crate) total: Duration,
}

impl Prepared {
    /// Whether it leaves, once its receipt is durable.
    pub(crate) fn is_sent(&self) -> bool {
        self.facts.safety != Safety::ReadOnly && matches!(self.act, Ok(Act::Exchange(_)))
    }

    /// Whether it waits for a worker.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.act, Ok(Act::Queue(_)))
    }
}

/// How a call takes place.
pub(crate) enum Act {
    /// At somebody else's.
    Exchange(Box<dyn Exchange>),
    /// In our own database, when the step has succeeded.
    Change {
        change: Change,
        /// What the guest gets at once.
        answer: Answer,
    },
    /// At a worker's, who fetches it.
    Queue(Task),
    /// By a look at our own database.
    Read(Box<dyn Read>),
    /// Not at all: it follows from what the step has done before, so that nothing of it need be kept.
    Known(Answer),
}

/// Work that lies in a queue until a worker fetches it.
pub(crate) struct Task {
    pub(crate) queue: String,
    pub(crate) work: Work,
}

/// A look at our own database.
#[async_trait]
pub(crate) trait Read: Send + Sync {
    async fn read(&self, store: &Store) -> Result<Answer, StoreError>;
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
        EffectRequest::Emit { event_type, record_id, data } => {
            Ok(emit::prepare(ask, emit::Event { name: event_type, record: record_id.as_deref(), data }))
        }
        EffectRequest::Storage(request) => Ok(storage::prepare(ask, request)),
        EffectRequest::Mail(message) => Ok(mail::prepare(ask, message)),
        EffectRequest::Worker { queue, input } => Ok(worker::prepare(ask, queue, input)),
        EffectRequest::Model(_) => {
            Err(format!("this host offers no effects of the kind `{}`", ask.call.request.kind()))
        }
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

/// Judges what a call on our own database says beside its request: there is nobody to repeat it to, and nothing to go
/// through. Any grant of the kind allows reading, and any but a read-only one allows writing.
fn judge_own(ask: &Ask<'_>, safety: Safety) -> Result<(), String> {
    let (call, kind) = (ask.call, ask.call.request.kind());
    let allows = |grant: &EffectGrant| {
        grant.kind == kind && (safety == Safety::ReadOnly || grant.safety != Safety::ReadOnly)
    };
    if ask.context.grants.as_ref().is_some_and(|grants| !grants.iter().any(allows)) {
        return Err(format!("the block's descriptor declares no `{kind}` effect that allows it"));
    }
    if call.connection.is_some() {
        return Err(format!("an effect of the kind `{kind}` goes through no connection"));
    }
    if call.safety.is_some_and(|declared| declared != safety) {
        return Err(format!(
            "this effect of the kind `{kind}` is {}, whatever a block declares",
            safety.name()
        ));
    }
    if call.idempotency_key.is_some() {
        return Err(format!(
            "an effect of the kind `{kind}` is never repeated, and takes no idempotency key"
        ));
    }
    Ok(())
}

/// A call on our own database, judged.
fn own_prepared(
    ask: Ask<'_>,
    canonical: Canonical<'_>,
    safety: Safety,
    act: Result<Act, String>,
) -> Prepared {
    let scope = scope(ask.context, canonical.kind);
    let facts = canonical.facts(safety, ask.default_key, scope);
    Prepared { facts, act, abilities: Abilities::default(), total: Duration::ZERO }
}

/// The total time of a call: what it asks for, within bounds.
fn total(ask: &Ask<'_>) -> Duration {
    /// A shorter one could end before the connection stands.
    const TIMEOUT_MS_MIN: u64 = 100;
    ask.call.timeout_ms.map_or(ask.timeout, |ms| {
        Duration::from_millis(u64::from(ms).clamp(TIMEOUT_MS_MIN, EFFECT_TIMEOUT_MS_MAX))
    })
}
