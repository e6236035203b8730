//! Effects of the kind `http`: from what a block asked for to what goes on the wire, and back.

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_domain::connection::Abilities;
use counterfoil_domain::effect::{HttpRequest, Safety};
use counterfoil_domain::limits::{NAME_BYTES_MAX, REQUEST_BODY_BYTES_MAX};
use counterfoil_domain::outbound::{Destination, Reach, Refusal, judge_headers, judge_method};
use counterfoil_domain::receipt::RequestFacts;
use counterfoil_domain::receipt::answer::Exchanged;
use counterfoil_domain::receipt::request::http_facts;

use super::{Act, Ask, Exchange, Outside, Prepared, grants, scope, total};
use crate::client::{self, Budget, NotSent, NotSentKind, WireRequest};
use crate::guard::Known;
use crate::secrets::Opened;

/// A request that may be sent, without what the host injects.
#[derive(Debug)]
struct Wire {
    method: String,
    destination: Destination,
    headers: Vec<(String, String)>,
    body: Bytes,
    abilities: Abilities,
    secrets: Opened,
    budget: Budget,
}

/// Judges a call by the block's grants, the connection and the form of the request.
pub(super) fn prepare(ask: Ask<'_>, request: &HttpRequest) -> Prepared {
    let safety = ask.call.effective_safety();
    let (request, header_key) = without_key_header(request);
    let destination = destination(&ask, safety, &request);
    let shown = destination.as_ref().map_or_else(|_| request.url.clone(), |it| it.url().to_string());
    let total = total(&ask);
    let scope = scope(ask.context, "http");
    let abilities = ask.connection.map(|known| known.abilities.clone()).unwrap_or_default();
    let key = ask.call.idempotency_key.clone().or(header_key);
    let wire = destination.and_then(|destination| {
        let total_ms_max = u64::try_from(total.as_millis()).unwrap_or(u64::MAX);
        let budget = Budget { total_ms_max, ..Budget::DEFAULT };
        judge_secrets(&ask.secrets, &request, &abilities)?;
        let wire = wire(destination, &request, abilities.clone(), ask.secrets, budget)?;
        key.as_deref().map_or(Ok(()), judge_key).map(|()| wire)
    });
    // What is refused may hold anything; the receipt keeps what can be kept.
    let key = key.filter(|_| wire.is_ok()).unwrap_or(ask.default_key);
    let facts = http_facts(&request, &shown, ask.call.connection.as_deref(), safety, key, scope);
    Prepared { facts, act: wire.map(|wire| Act::Exchange(Box::new(wire))), abilities, total }
}

fn judge_key(key: &str) -> Result<(), String> {
    let fits =
        (1..=NAME_BYTES_MAX).contains(&key.len()) && key.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if fits {
        Ok(())
    } else {
        Err(format!("an idempotency key is 1 to {NAME_BYTES_MAX} visible ASCII characters"))
    }
}

/// The connection's own headers are its alone: of two with one name, receivers disagree which counts.
fn judge_secrets(secrets: &Opened, request: &HttpRequest, abilities: &Abilities) -> Result<(), String> {
    // Gateways that hand fields on as variables cannot tell `X_Token` from `X-Token`.
    let plain = |name: &str| name.to_ascii_lowercase().replace('_', "-");
    let own: Vec<String> = secrets.headers().iter().map(|(name, _)| plain(name)).collect();
    let given = request.headers.iter().map(|(name, _)| name.as_str());
    match given.chain([abilities.idempotency_header()]).find(|name| own.contains(&plain(name))) {
        Some(name) => Err(format!("the connection sets the header `{name}` itself")),
        None => Ok(()),
    }
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

fn destination(ask: &Ask<'_>, safety: Safety, request: &HttpRequest) -> Result<Destination, String> {
    let (grants, policy) = (grants(ask, safety), ask.policy);
    let reach = match (&ask.call.connection, ask.connection) {
        (Some(name), None) => return Err(format!("there is no connection `{name}`")),
        (Some(name), Some(Known { connection, .. })) => {
            if grants.is_some_and(|mut grants| !grants.any(|grant| grant.connections.contains(name))) {
                let safety = safety.name();
                return Err(format!("the block's descriptor declares no {safety} effect on `{name}`"));
            }
            Reach::of_connection(&connection.base_url, &connection.allowed_hosts, policy)
        }
        (None, _) => match grants {
            // The workflow's author wrote the URL; the address policy still judges it.
            None => return Destination::parse(&request.url, policy).map_err(refused),
            Some(grants) => Reach::of_grant(&grants.flat_map(|grant| &grant.hosts).collect::<Vec<_>>()),
        },
    };
    reach.and_then(|reach| reach.destination(&request.url, policy)).map_err(refused)
}

/// One text for every refusal by address, so that nothing can be scanned through it; the operator's reason is logged.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
fn refused(refusal: Refusal) -> String {
    tracing::info!(%refusal, "an effect is refused");
    Refusal::GUEST_TEXT.into()
}

fn wire(
    destination: Destination,
    request: &HttpRequest,
    abilities: Abilities,
    secrets: Opened,
    budget: Budget,
) -> Result<Wire, String> {
    judge_method(&request.method).map_err(|refusal| refusal.to_string())?;
    judge_headers(&request.headers).map_err(|refusal| refusal.to_string())?;
    if request.body.len() as u64 > REQUEST_BODY_BYTES_MAX {
        return Err(format!(
            "the body has {} bytes; at most {REQUEST_BODY_BYTES_MAX} are sent",
            request.body.len()
        ));
    }
    let body = Bytes::copy_from_slice(&request.body);
    let (method, headers) = (request.method.clone(), request.headers.clone());
    Ok(Wire { method, destination, headers, body, abilities, secrets, budget })
}

#[async_trait]
impl Exchange for Wire {
    async fn exchange(&self, out: Outside<'_>, facts: &RequestFacts) -> Exchanged {
        let request = self.with_key(facts);
        let exchange = out.client.exchange(request, &self.budget, out.window, out.faults).await;
        exchanged(exchange, &self.abilities, &self.secrets)
    }
}

impl Wire {
    /// The request as it is sent, with the key by which the receiver recognises a repeat.
    fn with_key(&self, facts: &RequestFacts) -> WireRequest {
        let mut headers = self.headers.clone();
        if facts.safety != Safety::ReadOnly {
            headers.push((self.abilities.idempotency_header().into(), facts.idempotency_key.clone()));
        }
        WireRequest {
            method: self.method.clone(),
            destination: self.destination.clone(),
            headers,
            secret_headers: self.secrets.headers().to_vec(),
            body: self.body.clone(),
        }
    }
}

/// What the client saw, in the words of the table, and without what the receiver repeats of the secrets it was sent.
fn exchanged(exchange: client::Exchange, abilities: &Abilities, secrets: &Opened) -> Exchanged {
    match exchange {
        client::Exchange::NotSent(reason) => {
            tracing::info!(%reason, "nothing of an effect was sent");
            let denied = reason.kind == NotSentKind::Refused;
            let message = if denied { Refusal::GUEST_TEXT } else { NotSent::GUEST_TEXT };
            Exchanged::NotSent { denied, message: message.into() }
        }
        client::Exchange::Answered(response) => {
            let mut response = response.kept(abilities.receipt_id_header.as_deref());
            for (_, value) in &mut response.headers {
                *value = secrets.without(std::mem::take(value));
            }
            secrets.hide(&mut response.body, response.truncated);
            Exchanged::Answered(response)
        }
        client::Exchange::Lost(lost) => Exchanged::Lost { reason: lost.to_string() },
    }
}
