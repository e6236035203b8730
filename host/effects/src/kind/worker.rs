//! Effects of the kind `worker`: work that lies in a queue until a worker outside the host fetches it.

use std::time::Duration;

use counterfoil_domain::connection::Abilities;
use counterfoil_domain::effect::Safety;
use counterfoil_domain::limits::{
    NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, TASK_TIME_MS, TASK_TIME_MS_MAX, bounded_text, is_key_text, is_too_deep,
};
use counterfoil_domain::receipt::request::{Canonical, canonical_json, fingerprint, preview_body};
use counterfoil_domain::step::holds_nul;
use counterfoil_domain::workflow::is_name;
use serde_json::{Value, json};

use super::{Act, Ask, Prepared, Task, grants, scope};

/// The addition that says, in milliseconds, how long the work may lie in its queue.
pub(super) const CLAIM_WITHIN: &str = "claim-within-ms";

/// Judges work by the block's grants and its form.
pub(super) fn prepare(ask: Ask<'_>, queue: &str, text: &str) -> Prepared {
    let safety = ask.call.effective_safety();
    let input = input(text);
    let content = input.as_ref().map_or_else(|_| text.into(), canonical_json);
    let shown = bounded_text(queue, NAME_BYTES_MAX);
    let canonical = Canonical {
        kind: "worker",
        connection: ask.call.connection.as_deref(),
        destination: json!({ "queue": queue }),
        content: json!({ "input": fingerprint(content.as_bytes()) }),
        preview: json!({
            "summary": format!("work for the queue {shown}"),
            "queue": shown,
            "body": preview_body(text.as_bytes()),
            "body_bytes_len": text.len(),
        }),
    };
    let times = times(&ask);
    let total = times.as_ref().map_or(Duration::ZERO, |(claim_within, timeout)| *claim_within + *timeout);
    let act = judge(&ask, queue, safety).and(input).and_then(|input| {
        let (claim_within, timeout) = times?;
        Ok(Act::Queue(Task { queue: queue.to_owned(), input, claim_within, timeout }))
    });
    let key = ask.call.idempotency_key.clone().filter(|key| is_key_text(key)).unwrap_or(ask.default_key);
    let facts = canonical.facts(safety, key, scope(ask.context, "worker"));
    Prepared { facts, act, abilities: Abilities::default(), total }
}

fn judge(ask: &Ask<'_>, queue: &str, safety: Safety) -> Result<(), String> {
    let call = ask.call;
    if grants(ask, safety).is_some_and(|mut grants| grants.next().is_none()) {
        return Err("the block's descriptor declares no `worker` effect that allows it".into());
    }
    if call.connection.is_some() {
        return Err("work for a worker goes through no connection".into());
    }
    if safety == Safety::ReadOnly {
        return Err("work for a worker is at-most-once or idempotent".into());
    }
    if call.idempotency_key.as_ref().is_some_and(|key| !is_key_text(key)) {
        let rule = format!("an idempotency key has 1 to {NAME_BYTES_MAX} bytes, without control characters");
        return Err(rule);
    }
    if !is_name(queue) {
        return Err("the name of a queue is a small letter, then small letters, digits and `-`".into());
    }
    Ok(())
}

/// How long it may lie in its queue, and how long a worker may be at it.
fn times(ask: &Ask<'_>) -> Result<(Duration, Duration), String> {
    let mut within = TASK_TIME_MS;
    for (name, value) in &ask.call.extra {
        within = value.parse().map_err(|_| format!("`{name}` is a number of milliseconds"))?;
    }
    let timeout = ask.call.timeout_ms.map_or(TASK_TIME_MS, u64::from);
    match [within, timeout].into_iter().find(|ms| !(1..=TASK_TIME_MS_MAX).contains(ms)) {
        Some(ms) => Err(format!("{ms} ms is not between 1 and {TASK_TIME_MS_MAX}")),
        None => Ok((Duration::from_millis(within), Duration::from_millis(timeout))),
    }
}

fn input(text: &str) -> Result<Value, String> {
    if text.len() as u64 > PAYLOAD_BYTES_MAX {
        return Err(format!("the input has {} bytes; at most {PAYLOAD_BYTES_MAX} are passed", text.len()));
    }
    let input: Value =
        serde_json::from_str(text).map_err(|error| format!("the input of a worker is not JSON: {error}"))?;
    if holds_nul(&input) || is_too_deep(&input) {
        return Err("the input holds a NUL character, or is nested too deeply, and cannot be kept".into());
    }
    Ok(input)
}
