//! Reads what `describe` returned, or what a manifest says.

use counterfoil_domain::block::{Descriptor, EffectGrant};
use counterfoil_domain::code::Code;
use counterfoil_domain::limits::NAME_BYTES_MAX;
use counterfoil_domain::ports::Refused;
use serde_json::Value;

use crate::refusal::{refused, shown};

/// The kinds of effect that the contract knows.
const KINDS: [&str; 6] = ["http", "emit", "storage", "mail", "model", "worker"];

/// # Errors
/// `descriptor_invalid` with the place of what cannot be read, or with everything that makes no sense.
pub(crate) fn parse(text: &[u8], source: &str) -> Result<Descriptor, Refused> {
    let descriptor: Descriptor = serde_json::from_slice(text).map_err(|error| {
        refused(
            Code::DescriptorInvalid,
            format!("{source} is not a descriptor: {}", shown(&error.to_string())),
        )
    })?;
    let details = problems(&descriptor);
    if details.is_empty() {
        return Ok(descriptor);
    }
    let message = format!("the descriptor makes no sense: {}", details.join("; "));
    Err(Refused { details, ..refused(Code::DescriptorInvalid, message) })
}

fn problems(descriptor: &Descriptor) -> Vec<String> {
    let mut problems = Vec::new();
    if descriptor.name.is_empty() || descriptor.name.len() > NAME_BYTES_MAX {
        problems.push(format!("`name` must have 1 to {NAME_BYTES_MAX} bytes"));
    }
    for (field, schema) in [("input", &descriptor.input), ("output", &descriptor.output)] {
        if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
            problems.push(format!("`{field}` must be a JSON Schema: an object, or true or false"));
        }
    }
    for (index, grant) in descriptor.effects.iter().enumerate() {
        let at = format!("`effects[{index}]`");
        let EffectGrant { kind, connections, hosts, .. } = grant;
        if !KINDS.contains(&kind.as_str()) {
            problems.push(format!(
                "{at} has the unknown kind `{}`; known are {}",
                shown(kind),
                KINDS.join(", ")
            ));
        }
        if connections.iter().chain(hosts).any(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
            problems.push(format!(
                "{at} names a connection or host that is empty or over {NAME_BYTES_MAX} bytes"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_reads_and_its_defaults_are_filled_in() {
        let descriptor = parse(br#"{"name":"hello","input":{},"output":true}"#, "it").expect("valid");
        assert_eq!((descriptor.name.as_str(), descriptor.credits, descriptor.effects.len()), ("hello", 0, 0));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let grant = |grant: &str| format!(r#"{{"name":"a","input":{{}},"output":{{}},"effects":[{grant}]}}"#);
        for (text, reason) in [
            ("", "EOF"),
            ("not json", "line 1 column"),
            (r#"{"name":"a","input":{}}"#, "missing field `output`"),
            (r#"{"name":"a","input":{},"output":{},"extra":1}"#, "unknown field `extra`"),
            (r#"{"name":"","input":{},"output":{}}"#, "`name` must have"),
            (r#"{"name":"a","input":[],"output":{}}"#, "`input` must be a JSON Schema"),
            (&grant(r#"{"kind":"telnet","safety":"read-only"}"#), "unknown kind `telnet`"),
            (&grant(r#"{"kind":"http","safety":"twice"}"#), "unknown variant `twice`"),
            (&grant(r#"{"kind":"http","safety":"read-only","hosts":[""]}"#), "`effects[0]` names"),
        ] {
            let refused = parse(text.as_bytes(), "it").expect_err(text);
            assert_eq!(refused.code, Code::DescriptorInvalid);
            assert!(refused.message.contains(reason), "{refused}");
        }
    }
}
