//! Reads what `describe` returned, or what a manifest says.

use counterfoil_domain::block::Descriptor;
use counterfoil_domain::code::Code;
use counterfoil_domain::effect::Safety;
use counterfoil_domain::expression::child;
use counterfoil_domain::limits::{CPU_TICK_MS, ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX, bounded_text};
use counterfoil_domain::outbound::Reach;
use counterfoil_domain::ports::Refused;
use counterfoil_domain::schema::{Fault, Schema};
use counterfoil_domain::wording;
use counterfoil_domain::workflow::{NAME_LEN_MAX, is_name};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::refusal::{refused, shown};

/// The kinds of effect that the contract knows.
const KINDS: [&str; 6] = ["http", "emit", "storage", "mail", "model", "worker"];

/// Faults that are listed: more of them do not help the author.
const FAULTS_MAX: usize = 50;

/// # Errors
/// `descriptor_invalid` with everything that is wrong, each with its place, or with why the text is no JSON.
pub(crate) fn parse(text: &[u8], source: &str) -> Result<Descriptor, Refused> {
    let no_descriptor =
        |why: &str| refused(Code::DescriptorInvalid, format!("{source} is not a descriptor: {}", shown(why)));
    let value: Value = serde_json::from_slice(text).map_err(|error| no_descriptor(&error.to_string()))?;
    let mut reading = Reading::default();
    reading.descriptor(&value);
    let mut details = reading.faults;
    if details.is_empty() {
        // JSON lets pass that a field is given twice.
        return serde_json::from_slice(text)
            .map_err(|error| no_descriptor(&wording::told(&error.to_string())));
    }
    let count = if details.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", details.len()) };
    details.truncate(FAULTS_MAX);
    Err(Refused { details, ..no_descriptor(&count) })
}

/// Looks at a descriptor field by field, so that one fault hides no other.
#[derive(Default)]
struct Reading {
    faults: Vec<Fault>,
}

impl Reading {
    fn fault(&mut self, place: String, why: impl AsRef<str>) {
        self.faults.push(Fault { place, why: bounded_text(why.as_ref(), ERROR_TEXT_BYTES_MAX) });
    }

    fn descriptor(&mut self, value: &Value) {
        let known = ["name", "summary", "input", "output", "effects", "limits", "credits"];
        let Some(fields) = self.object(value, "", &known) else { return };
        let name: Option<String> = self.required(fields, "", "name");
        if name.is_some_and(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
            self.fault("/name".into(), format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        let _: Option<String> = self.field(fields, "", "summary");
        let _: Option<u32> = self.field(fields, "", "credits");
        for name in ["input", "output"] {
            let Some(schema) = self.required::<Value>(fields, "", name) else { continue };
            if let Err(unusable) = Schema::new(&schema) {
                let why = format!("this is no JSON Schema that can be used: {}", unusable.why);
                self.fault(format!("/{name}{}", unusable.place), why);
            }
        }
        if let Some(limits) = fields.get("limits") {
            self.limits(limits);
        }
        let grants: Option<Vec<Value>> = self.field(fields, "", "effects");
        for (index, grant) in grants.iter().flatten().enumerate() {
            self.grant(grant, &format!("/effects/{index}"));
        }
    }

    fn limits(&mut self, value: &Value) {
        let names = ["memory_bytes_max", "cpu_ms_max", "wall_ms_max"];
        let Some(fields) = self.object(value, "/limits", &names) else { return };
        for name in names {
            let wanted: Option<Option<u64>> = self.field(fields, "/limits", name);
            if name == "cpu_ms_max" && wanted.flatten().is_some_and(|wanted| wanted < CPU_TICK_MS) {
                let why = format!("this is less than {CPU_TICK_MS}, in which CPU is counted");
                self.fault("/limits/cpu_ms_max".into(), why);
            }
        }
    }

    fn grant(&mut self, value: &Value, place: &str) {
        let Some(fields) = self.object(value, place, &["kind", "safety", "connections", "hosts"]) else {
            return;
        };
        let kind: Option<String> = self.required(fields, place, "kind");
        if let Some(kind) = kind.filter(|kind| !KINDS.contains(&kind.as_str())) {
            let why = format!("there is no kind `{}`; known are {}", shown(&kind), KINDS.join(", "));
            self.fault(format!("{place}/kind"), why);
        }
        let _: Option<Safety> = self.required(fields, place, "safety");
        // What no connection is called, and no host, would be granted in vain.
        let connections: Option<Vec<String>> = self.field(fields, place, "connections");
        for (index, name) in connections.iter().flatten().enumerate().filter(|(_, name)| !is_name(name)) {
            let why = format!(
                "no connection is called `{}`: a small letter comes first, then small letters, digits and `-`, \
                 {NAME_LEN_MAX} at most",
                shown(name)
            );
            self.fault(format!("{place}/connections/{index}"), why);
        }
        let hosts: Option<Vec<String>> = self.field(fields, place, "hosts");
        if let Some(Err(refusal)) = hosts.as_deref().map(Reach::of_grant) {
            self.fault(format!("{place}/hosts"), refusal.to_string());
        }
    }

    /// The fields of an object that has no others than those that are known.
    fn object<'a>(
        &mut self,
        value: &'a Value,
        place: &str,
        known: &[&str],
    ) -> Option<&'a serde_json::Map<String, Value>> {
        let Value::Object(fields) = value else {
            self.fault(
                place.into(),
                format!("a map is expected here, and this is `{}`", shown(&value.to_string())),
            );
            return None;
        };
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            let there_is = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let why = format!("there is no `{}` here; what there is: {there_is}", shown(name));
            self.fault(child(place, name), why);
        }
        Some(fields)
    }

    fn required<T: DeserializeOwned>(
        &mut self,
        fields: &serde_json::Map<String, Value>,
        place: &str,
        name: &str,
    ) -> Option<T> {
        if !fields.contains_key(name) {
            self.fault(place.into(), format!("`{name}` is missing"));
        }
        self.field(fields, place, name)
    }

    /// The value of a field, if it is there and can be read.
    fn field<T: DeserializeOwned>(
        &mut self,
        fields: &serde_json::Map<String, Value>,
        place: &str,
        name: &str,
    ) -> Option<T> {
        match serde_path_to_error::deserialize(fields.get(name)?) {
            Ok(value) => Some(value),
            Err(error) => {
                let place = error.path().iter().fold(child(place, name), |place, segment| match segment {
                    Segment::Seq { index } => child(&place, &index.to_string()),
                    Segment::Map { key } => child(&place, key),
                    Segment::Enum { .. } | Segment::Unknown => place,
                });
                self.fault(place, wording::told(&error.inner().to_string()));
                None
            }
        }
    }
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
    fn all_that_makes_no_sense_is_told_with_its_place() {
        let grant = |grant: &str| format!(r#"{{"name":"a","input":{{}},"output":{{}},"effects":[{grant}]}}"#);
        for (text, message, faults) in [
            ("", "it is not a descriptor: EOF", vec![]),
            ("{ \"name\": \"a\",", "descriptor: EOF while parsing", vec![]),
            ("not json", "line 1 column", vec![]),
            (r#"{"name":"a","input":{},"output":{}} {}"#, "trailing characters at line 1 column", vec![]),
            (r#"{"name":"a","input":{},"output":{},"name":"b"}"#, "`name` is given twice", vec![]),
            ("[]", "1 fault", vec![("", "a map is expected here, and this is `[]`")]),
            (
                "{}",
                "it is not a descriptor: 3 faults",
                vec![("", "`name` is missing"), ("", "`input` is missing"), ("", "`output` is missing")],
            ),
            (
                r#"{"name":"","input":[],"output":{"items":{"type":"text"}},"extra/1":1,"credits":-1}"#,
                "5 faults",
                vec![
                    ("/extra~11", "there is no `extra/1` here; what there is: `name`, `summary`"),
                    ("/name", "a name has 1 to"),
                    ("/credits", "a whole number, not below 0, is expected here, and this is `-1`"),
                    ("/input", "no JSON Schema that can be used"),
                    ("/output/items/type", "no JSON Schema that can be used"),
                ],
            ),
            (
                r##"{"name":"a","input":{"not":{"$ref":"#"}},"output":{"pattern":"(a{500}){500}"}}"##,
                "2 faults",
                vec![("/input/not", "no JSON Schema"), ("/output/pattern", "no JSON Schema")],
            ),
            (
                r#"{"name":7,"input":{},"output":{},"limits":{"cpu_ms_max":9,"wall_ms_max":"1s","cpu":1}}"#,
                "4 faults",
                vec![
                    ("/name", "a text is expected here, and this is `7`"),
                    ("/limits/cpu", "there is no `cpu` here"),
                    ("/limits/cpu_ms_max", "less than 10"),
                    ("/limits/wall_ms_max", "a whole number, not below 0, is expected here"),
                ],
            ),
            (
                &grant(
                    r#"{"kind":"telnet","safety":"twice","connections":["crm","My CRM"],"hosts":[""]},{"kind":"http"},7"#,
                ),
                "6 faults",
                vec![
                    ("/effects/0/kind", "there is no kind `telnet`; known are http"),
                    ("/effects/0/safety", "`twice` is not known here; write one of `at-most-once`"),
                    ("/effects/0/connections/1", "no connection is called `My CRM`: a small letter"),
                    ("/effects/0/hosts", "allowed host"),
                    ("/effects/1", "`safety` is missing"),
                    ("/effects/2", "a map is expected here, and this is `7`"),
                ],
            ),
            (
                &grant(r#"{"kind":"http","safety":"read-only","connections":[1]}"#),
                "1 fault",
                vec![("/effects/0/connections/0", "a text is expected here")],
            ),
        ] {
            let refused = parse(text.as_bytes(), "it").expect_err(text);
            assert_eq!(refused.code, Code::DescriptorInvalid);
            assert!(refused.message.contains(message), "{text}: {refused}");
            assert_eq!(refused.details.len(), faults.len(), "{text}: {:?}", refused.details);
            for (found, (place, why)) in refused.details.iter().zip(faults) {
                assert!(found.place == place && found.why.contains(why), "{text}: {found:?}");
            }
        }
    }
}
