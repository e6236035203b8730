//! What a schema may hold.

use std::collections::HashSet;

use serde_json::Value;

use super::{Unusable, work};

/// Keywords that make names, or refer to them: a reference is a place in the schema itself, which can be followed.
const NAMES: [&str; 7] =
    ["$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$schema"];

/// What is below a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Below {
    One,
    List,
    Named,
}

/// The schemas that a keyword holds.
pub(super) fn below(keyword: &str) -> Option<Below> {
    Some(match keyword {
        "not"
        | "if"
        | "then"
        | "else"
        | "items"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains"
        | "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "contentSchema" => Below::One,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Below::List,
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
        | "dependencies" => Below::Named,
        _ => return None,
    })
}

/// Refuses names, references that lead nowhere, and schemas that apply to the same value without end.
pub(super) fn check(schema: &Value) -> Result<(), Unusable> {
    let mut found = Vec::new();
    collect(schema, String::new(), &mut found);
    let schemas: HashSet<*const Value> =
        found.iter().map(|(schema, _)| std::ptr::from_ref(*schema)).collect();
    for (part, place) in &found {
        let Value::Object(fields) = part else { continue };
        let unusable =
            |keyword: &str, why: &str| Err(Unusable { place: format!("{place}/{keyword}"), why: why.into() });
        if let Some(name) = NAMES.iter().find(|name| fields.contains_key(**name)) {
            return unusable(name, "a part of a schema has no name, dialect or address of its own");
        }
        if let Some(reference) = fields.get("$ref") {
            let target = reference.as_str().and_then(|reference| target(schema, reference));
            if !target.is_some_and(|target| schemas.contains(&std::ptr::from_ref(target))) {
                return unusable(
                    "$ref",
                    "a reference leads to a place in the same schema, as `#/$defs/…` does",
                );
            }
        }
    }
    for (part, place) in found {
        if !work::ends(schema, part) {
            let why = "it leads back to itself, or to too many schemas, for one and the same value";
            return Err(Unusable { place, why: why.into() });
        }
    }
    Ok(())
}

/// Every pattern, and its place.
pub(super) fn patterns(schema: &Value) -> Vec<(&str, String)> {
    let (mut found, mut patterns) = (Vec::new(), Vec::new());
    collect(schema, String::new(), &mut found);
    for (part, place) in found {
        let own = part.get("pattern").and_then(Value::as_str);
        patterns.extend(own.map(|own| (own, format!("{place}/pattern"))));
        let names = part.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        patterns.extend(names.map(|(name, _)| (name.as_str(), format!("{place}/patternProperties"))));
    }
    patterns
}

/// What a reference leads to.
pub(super) fn target<'a>(schema: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    // Escapes of addresses are read by nobody here.
    if pointer.contains('%') { None } else { schema.pointer(pointer) }
}

fn collect<'a>(schema: &'a Value, place: String, found: &mut Vec<(&'a Value, String)>) {
    if let Value::Object(fields) = schema {
        for (keyword, value) in fields {
            let at = |name: &str| format!("{place}/{keyword}/{}", name.replace('~', "~0").replace('/', "~1"));
            match (below(keyword), value) {
                (Some(Below::One), one) => collect(one, format!("{place}/{keyword}"), found),
                (Some(Below::List), Value::Array(list)) => {
                    for (index, one) in list.iter().enumerate() {
                        collect(one, at(&index.to_string()), found);
                    }
                }
                (Some(Below::Named), Value::Object(named)) => {
                    for (name, one) in named {
                        collect(one, at(name), found);
                    }
                }
                _ => {}
            }
        }
    }
    found.push((schema, place));
}
