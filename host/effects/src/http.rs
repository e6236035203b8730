//! Effects of the kind `http`: from what a block asked for to what goes on the wire, and back.

use std::time::Duration;

use bytes::Bytes;
use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::connection::Abilities;
use counterfoil_domain::effect::{EffectCall, HttpRequest, HttpResponse, Safety};
use counterfoil_domain::limits::{EFFECT_TIMEOUT_MS_MAX, NAME_BYTES_MAX, REQUEST_BODY_BYTES_MAX};
use counterfoil_domain::outbound::{AddressPolicy, Destination, Reach, Refusal, judge_headers, judge_method};
use counterfoil_domain::receipt::RequestFacts;
use counterfoil_domain::receipt::answer::Exchanged;
use counterfoil_domain::receipt::request::{Scope, http_facts};
use counterfoil_domain::workflow::definition::{Invariant, InvariantScope};
use counterfoil_store::connection::Connection;

use crate::client::{Budget, Exchange, NotSent, NotSentKind, WireRequest};
use crate::execution::ExecutionContext;

/// An HTTP effect, judged and ready.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// What goes on the wire, or why nothing may, in the words that the guest gets.
    pub(crate) wire: Result<Wire, String>,
    pub(crate) facts: RequestFacts,
    pub(crate) abilities: Abilities,
    pub(crate) budget: Budget,
}

/// A request without what the host injects.
#[derive(Debug)]
pub(crate) struct Wire {
    method: String,
    destination: Destination,
    headers: Vec<(String, String)>,
    body: Bytes,
}

/// Shortest total time that a block may ask for; a shorter one could end before the connection stands.
const TIMEOUT_MS_MIN: u64 = 100;

/// Judges a call by the block's grants, the connection and the form of the request.
pub(crate) fn prepare(
    context: &ExecutionContext,
    call: &EffectCall,
    request: &HttpRequest,
    through: Option<(Connection, Abilities)>,
    default_key: String,
    policy: &AddressPolicy,
    timeout: Duration,
) -> Prepared {
    let safety = call.effective_safety();
    let (request, header_key) = without_key_header(request);
    let (connection, abilities) = through.unzip();
    let abilities = abilities.unwrap_or_default();
    let destination = destination(context, call, safety, &request, connection.as_ref(), policy);
    let shown = destination.as_ref().map_or_else(|_| request.url.clone(), |it| it.url().to_string());
    let key = call.idempotency_key.clone().or(header_key);
    let wire = destination.and_then(|destination| wire(destination, &request)).and_then(|wire| match &key {
        Some(key)
            if key.is_empty()
                || key.len() > NAME_BYTES_MAX
                || !key.bytes().all(|b| matches!(b, b' '..=b'~')) =>
        {
            Err(format!("an idempotency key is 1 to {NAME_BYTES_MAX} visible ASCII characters"))
        }
        _ => Ok(wire),
    });
    let scope = scope(context);
    // What is refused may hold anything; the receipt keeps what can be kept.
    let key = key.filter(|_| wire.is_ok()).unwrap_or(default_key);
    let facts = http_facts(&request, &shown, call.connection.as_deref(), safety, key, scope);
    let total = call.timeout_ms.map_or(timeout, |ms| {
        Duration::from_millis(u64::from(ms).clamp(TIMEOUT_MS_MIN, EFFECT_TIMEOUT_MS_MAX))
    });
    let budget =
        Budget { total_ms_max: u64::try_from(total.as_millis()).unwrap_or(u64::MAX), ..Budget::DEFAULT };
    Prepared { wire, facts, abilities, budget }
}

/// An idempotency key that an unaware client put into a header moves to where the host keeps it.
fn without_key_header(request: &HttpRequest) -> (HttpRequest, Option<String>) {
    let mut request = request.clone();
    let mut key = None;
    request.headers.retain(|(name, value)| {
        let is_key = name.eq_ignore_ascii_case("idempotency-key");
        if is_key {
            key = Some(value.clone());
        }
        !is_key
    });
    (request, key)
}

fn destination(
    context: &ExecutionContext,
    call: &EffectCall,
    safety: Safety,
    request: &HttpRequest,
    connection: Option<&Connection>,
    policy: &AddressPolicy,
) -> Result<Destination, String> {
    let reach = match (&call.connection, connection) {
        (Some(name), None) => return Err(format!("there is no connection `{name}`")),
        (Some(name), Some(connection)) => {
            granted(context, safety, |grant| grant.connections.contains(name)).map_err(|()| {
                format!("the block's descriptor declares no {} effect on `{name}`", safety.name())
            })?;
            Reach::of_connection(&connection.base_url, &connection.allowed_hosts, policy)
        }
        (None, _) => match &context.grants {
            // The workflow's author wrote the URL; the address policy still judges it.
            None => return Destination::parse(&request.url, policy).map_err(refused),
            Some(grants) => {
                let hosts: Vec<&String> = grants
                    .iter()
                    .filter(|grant| allows(grant, safety))
                    .flat_map(|grant| &grant.hosts)
                    .collect();
                Reach::of_grant(&hosts)
            }
        },
    };
    reach.and_then(|reach| reach.destination(&request.url, policy)).map_err(refused)
}

fn granted(
    context: &ExecutionContext,
    safety: Safety,
    names: impl Fn(&EffectGrant) -> bool,
) -> Result<(), ()> {
    match &context.grants {
        None => Ok(()),
        Some(grants) if grants.iter().any(|grant| allows(grant, safety) && names(grant)) => Ok(()),
        Some(_) => Err(()),
    }
}

/// A grant allows what it declares, and reading.
fn allows(grant: &EffectGrant, safety: Safety) -> bool {
    grant.kind == "http" && (grant.safety == safety || safety == Safety::ReadOnly)
}

/// One text for every refusal by address, so that nothing can be scanned through it; the operator's reason is logged.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
fn refused(refusal: Refusal) -> String {
    tracing::info!(%refusal, "an effect is refused");
    Refusal::GUEST_TEXT.into()
}

fn wire(destination: Destination, request: &HttpRequest) -> Result<Wire, String> {
    judge_method(&request.method).map_err(|refusal| refusal.to_string())?;
    judge_headers(&request.headers).map_err(|refusal| refusal.to_string())?;
    if request.body.len() as u64 > REQUEST_BODY_BYTES_MAX {
        return Err(format!(
            "the body has {} bytes; at most {REQUEST_BODY_BYTES_MAX} are sent",
            request.body.len()
        ));
    }
    let body = Bytes::copy_from_slice(&request.body);
    Ok(Wire { method: request.method.clone(), destination, headers: request.headers.clone(), body })
}

impl Wire {
    /// The request as it is sent, with the key by which the receiver recognises a repeat.
    pub(crate) fn with_key(&self, facts: &RequestFacts, abilities: &Abilities) -> WireRequest {
        let mut headers = self.headers.clone();
        if facts.safety != Safety::ReadOnly {
            headers.push((abilities.idempotency_header().into(), facts.idempotency_key.clone()));
        }
        WireRequest {
            method: self.method.clone(),
            destination: self.destination.clone(),
            headers,
            body: self.body.clone(),
        }
    }
}

/// What the client saw, in the words of the table.
pub(crate) fn exchanged(exchange: Exchange, abilities: &Abilities) -> Exchanged {
    match exchange {
        Exchange::NotSent(reason) => {
            tracing::info!(%reason, "nothing of an effect was sent");
            let denied = reason.kind == NotSentKind::Refused;
            let message = if denied { Refusal::GUEST_TEXT } else { NotSent::GUEST_TEXT };
            Exchanged::NotSent { denied, message: message.into() }
        }
        Exchange::Answered(response) => {
            let headers = kept(response.headers, abilities.receipt_id_header.as_deref());
            Exchanged::Answered(HttpResponse { headers, ..response })
        }
        Exchange::Lost(lost) => Exchanged::Lost { reason: lost.to_string() },
    }
}

/// Header fields that a receipt keeps: what a block may act on, and nothing that is a credential.
const KEPT_HEADERS: [&str; 10] = [
    "content-type",
    "content-language",
    "etag",
    "last-modified",
    "link",
    "location",
    "retry-after",
    "x-request-id",
    "request-id",
    "content-encoding",
];

fn kept(headers: Vec<(String, String)>, declared: Option<&str>) -> Vec<(String, String)> {
    headers
        .into_iter()
        .filter(|(name, value)| {
            let name = name.to_ascii_lowercase();
            let wanted = KEPT_HEADERS.contains(&name.as_str())
                || name.contains("ratelimit")
                || declared.is_some_and(|declared| name.eq_ignore_ascii_case(declared));
            wanted && !value.contains('\0')
        })
        .collect()
}

/// The invariant that guards an effect of this kind; of several the widest.
pub(crate) fn guarding(invariants: &[Invariant]) -> Option<&Invariant> {
    let width = |scope: InvariantScope| match scope {
        InvariantScope::Lineage => 0,
        InvariantScope::Workflow => 1,
        InvariantScope::Tenant => 2,
    };
    invariants
        .iter()
        .filter(|invariant| invariant.kind == "http" && invariant.commit_guard)
        .max_by_key(|invariant| width(invariant.scope))
}

fn scope(context: &ExecutionContext) -> Scope {
    match guarding(&context.invariants).map_or(InvariantScope::Lineage, |invariant| invariant.scope) {
        InvariantScope::Lineage => Scope::Lineage(context.place.lineage),
        InvariantScope::Workflow => Scope::Workflow(context.workflow),
        InvariantScope::Tenant => Scope::Tenant(context.fence.tenant),
    }
}
