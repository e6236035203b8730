//! Reads what `describe` returned, or what a manifest says.

use counterfoil_domain::block::{Descriptor, EffectGrant};
use counterfoil_domain::code::Code;
use counterfoil_domain::limits::{CPU_TICK_MS, NAME_BYTES_MAX};
use counterfoil_domain::outbound::Reach;
use counterfoil_domain::ports::Refused;
use counterfoil_domain::schema::Schema;
use counterfoil_domain::wording;
use counterfoil_domain::workflow::{NAME_LEN_MAX, is_name};

use crate::refusal::{refused, shown};

/// The kinds of effect that the contract knows.
const KINDS: [&str; 6] = ["http", "emit", "storage", "mail", "model", "worker"];

/// # Errors
/// `descriptor_invalid` with the place of what cannot be read, or with everything that makes no sense.
pub(crate) fn parse(text: &[u8], source: &str) -> Result<Descriptor, Refused> {
    let mut document = serde_json::Deserializer::from_slice(text);
    let read = serde_path_to_error::deserialize(&mut document).map_err(|error| {
        let (path, why) = (error.path().to_string(), wording::told(&error.into_inner().to_string()));
        // `?` is what broke off before it had a name.
        if matches!(&*path, "." | "?") { why } else { format!("`{}`: {why}", shown(&path)) }
    });
    let read = read.and_then(|read| document.end().map(|()| read).map_err(|error| error.to_string()));
    let descriptor: Descriptor = read.map_err(|why| {
        refused(Code::DescriptorInvalid, format!("{source} is not a descriptor: {}", shown(&why)))
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
        if let Err(unusable) = Schema::new(schema) {
            let place = format!("{field}{}", unusable.place);
            problems.push(format!("`{place}` is no JSON Schema that can be used: {}", unusable.why));
        }
    }
    if descriptor.limits.cpu_ms_max.is_some_and(|cpu_ms_max| cpu_ms_max < CPU_TICK_MS) {
        problems.push(format!("`limits/cpu_ms_max` is less than {CPU_TICK_MS}, in which CPU is counted"));
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
        // What no connection is called, and no host, would be granted in vain.
        for name in connections.iter().filter(|name| !is_name(name)) {
            problems.push(format!(
                "{at} names the connection `{}`: a small letter comes first, then small letters, digits and `-`, \
                 {NAME_LEN_MAX} at most",
                shown(name)
            ));
        }
        if let Err(refusal) = Reach::of_grant(hosts) {
            problems.push(format!("{at}: {}", shown(&refusal.to_string())));
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
            ("{ \"name\": \"a\",", "descriptor: EOF while parsing"),
            ("not json", "line 1 column"),
            (r#"{"name":"a","input":{}}"#, "`output` is missing"),
            (
                r#"{"name":"a","input":{},"output":{},"extra":1}"#,
                "there is no `extra` here; what there is: `name`",
            ),
            (r#"{"name":"","input":{},"output":{}}"#, "`name` must have"),
            (r#"{"name":"a","input":[],"output":{}}"#, "`input` is no JSON Schema"),
            (
                r#"{"name":"a","input":{},"output":{"items":{"type":"text"}}}"#,
                "`output/items/type` is no JSON Schema",
            ),
            (r##"{"name":"a","input":{"not":{"$ref":"#"}},"output":{}}"##, "`input/not` is no JSON Schema"),
            (
                r#"{"name":"a","input":{"pattern":"(a{500}){500}"},"output":{}}"#,
                "`input/pattern` is no JSON Schema",
            ),
            (
                r#"{"name":"a","input":{},"output":{},"limits":{"cpu_ms_max":9}}"#,
                "`limits/cpu_ms_max` is less than 10",
            ),
            (&grant(r#"{"kind":"telnet","safety":"read-only"}"#), "unknown kind `telnet`"),
            (
                &grant(r#"{"kind":"http","safety":"twice"}"#),
                "`effects[0].safety`: `twice` is not known here; write one of `at-most-once`",
            ),
            (r#"{"name":"a","input":{},"output":{}} {}"#, "trailing characters at line 1 column"),
            (&grant(r#"{"kind":"http","safety":"read-only","hosts":[""]}"#), "`effects[0]`: allowed host"),
            (
                &grant(r#"{"kind":"http","safety":"read-only","connections":["My CRM"]}"#),
                "`effects[0]` names the connection `My CRM`: a small letter",
            ),
        ] {
            let refused = parse(text.as_bytes(), "it").expect_err(text);
            assert_eq!(refused.code, Code::DescriptorInvalid);
            assert!(refused.message.contains(reason), "{refused}");
        }
    }
}
