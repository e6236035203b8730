//! Effects of the kind `emit`: an event for the tenant's own outbox, recorded with the step, exactly once.

use counterfoil_domain::effect::{Answer, Safety};
use counterfoil_domain::limits::{EMIT_DATA_BYTES_MAX, NAME_BYTES_MAX, bounded_text, is_key_text};
use counterfoil_domain::receipt::request::{Canonical, canonical_json, fingerprint, preview_body};
use counterfoil_domain::step::holds_nul;
use counterfoil_store::settle::Change;
use serde_json::{Value, json};

use super::{Act, Ask, Prepared, judge_own, own_prepared};

/// An event as the block gave it.
#[derive(Clone, Copy)]
pub(super) struct Event<'a> {
    /// Its type, dotted.
    pub(super) name: &'a str,
    pub(super) record: Option<&'a str>,
    /// JSON, if the block keeps to the contract.
    pub(super) data: &'a str,
}

/// Judges an event by the block's grants and the rules that events from outside keep to.
pub(super) fn prepare(ask: Ask<'_>, event: Event<'_>) -> Prepared {
    let data = data(event.data);
    // What is no JSON is refused, and told from other refusals by its bytes.
    let content = data.as_ref().map_or_else(|_| event.data.into(), canonical_json);
    let shown = |text: &str| bounded_text(text, NAME_BYTES_MAX);
    let canonical = Canonical {
        kind: "emit",
        connection: ask.call.connection.as_deref(),
        destination: json!({ "event_type": event.name }),
        content: json!({ "record_id": event.record, "data": fingerprint(content.as_bytes()) }),
        preview: json!({
            "summary": format!("emit {}", shown(event.name)),
            "type": shown(event.name),
            "record": event.record.map(shown),
            "body": preview_body(event.data.as_bytes()),
        }),
    };
    let act = judge_own(&ask, Safety::AtMostOnce).and_then(|()| judge(event)).and(data).map(|data| {
        let change =
            Change::Emit { event_type: event.name.into(), record: event.record.map(Into::into), data };
        Act::Change { change, answer: Answer::Emitted }
    });
    own_prepared(ask, canonical, Safety::AtMostOnce, act)
}

fn judge(event: Event<'_>) -> Result<(), String> {
    let rule = format!("has 1 to {NAME_BYTES_MAX} bytes, without control characters");
    if !is_key_text(event.name) {
        return Err(format!("the type of an event {rule}"));
    }
    if event.record.is_some_and(|record| !is_key_text(record)) {
        return Err(format!("the record of an event {rule}"));
    }
    Ok(())
}

fn data(text: &str) -> Result<Value, String> {
    if text.len() > EMIT_DATA_BYTES_MAX {
        return Err(format!(
            "the data of an event has {} bytes; at most {EMIT_DATA_BYTES_MAX} are kept",
            text.len()
        ));
    }
    let data: Value =
        serde_json::from_str(text).map_err(|error| format!("the data of an event is not JSON: {error}"))?;
    if holds_nul(&data) {
        return Err("the data of an event holds a NUL character, which cannot be kept".into());
    }
    Ok(data)
}
