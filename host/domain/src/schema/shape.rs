//! What a schema may hold.

use std::collections::HashMap;

use serde_json::Value;

use super::{Unusable, work};

/// Keywords that make names, or refer to them: a reference is a place in the schema itself, which can be followed.
const NAMES: [&str; 7] =
    ["$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$schema"];
/// Keywords for which the checker reads the whole of a schema anew, wherever they stand.
const LEFT_OVER: [&str; 2] = ["unevaluatedItems", "unevaluatedProperties"];
/// Schemas within schemas, followed through every keyword and reference: whoever reads them recurses over them.
const DEPTH_MAX: usize = 150;

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
        | "contains"
        | "additionalProperties"
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
    let schemas: HashMap<*const Value, usize> =
        found.iter().enumerate().map(|(n, (schema, _))| (std::ptr::from_ref(*schema), n)).collect();
    for (part, place) in &found {
        let Value::Object(fields) = part else { continue };
        let unusable =
            |keyword: &str, why: &str| Err(Unusable { place: format!("{place}/{keyword}"), why: why.into() });
        if let Some(name) = NAMES.iter().find(|name| fields.contains_key(**name)) {
            return unusable(name, "a part of a schema has no name, dialect or address of its own");
        }
        if let Some(keyword) = LEFT_OVER.iter().find(|keyword| fields.contains_key(**keyword)) {
            return unusable(keyword, "what other keywords leave over is not looked for: name the parts");
        }
        if let Some(reference) = fields.get("$ref") {
            let target = reference.as_str().and_then(|reference| target(schema, reference));
            if !target.is_some_and(|target| schemas.contains_key(&std::ptr::from_ref(target))) {
                return unusable(
                    "$ref",
                    "a reference leads to a place in the same schema, as `#/$defs/…` does",
                );
            }
        }
    }
    if depth_max(schema, &found, &schemas) > DEPTH_MAX {
        let why = format!("more than {DEPTH_MAX} of its parts are within, or refer to, one another in a row");
        return Err(Unusable { place: String::new(), why });
    }
    for (part, place) in found {
        if !work::ends(schema, part) {
            let why = "it leads back to itself, or to too many schemas, for one and the same value";
            return Err(Unusable { place, why: why.into() });
        }
    }
    Ok(())
}

/// No fewer than the longest way from schema to schema has: whatever is on a circle, or above one, may be on one way.
fn depth_max(schema: &Value, found: &[(&Value, String)], schemas: &HashMap<*const Value, usize>) -> usize {
    let mut above = vec![vec![]; found.len()];
    let mut left = vec![0; found.len()];
    for (n, (part, _)) in found.iter().enumerate() {
        let reference = part.get("$ref").and_then(Value::as_str).and_then(|to| target(schema, to));
        for one in own_parts(part).into_iter().map(|(one, _)| one).chain(reference) {
            if let Some(&below) = schemas.get(&std::ptr::from_ref(one)) {
                above[below].push(n);
                left[n] += 1;
            }
        }
    }
    // From those that hold nothing upwards.
    let mut heights = vec![1; found.len()];
    let mut ready: Vec<usize> = (0..found.len()).filter(|n| left[*n] == 0).collect();
    let (mut count, mut most) = (0, 0);
    while let Some(n) = ready.pop() {
        count += 1;
        most = most.max(heights[n]);
        for &one in &above[n] {
            heights[one] = heights[one].max(heights[n] + 1);
            left[one] -= 1;
            if left[one] == 0 {
                ready.push(one);
            }
        }
    }
    most + (found.len() - count)
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

/// The schemas that one holds, and where.
fn own_parts(schema: &Value) -> Vec<(&Value, String)> {
    let Value::Object(fields) = schema else { return vec![] };
    let mut parts = vec![];
    for (keyword, value) in fields {
        let at = |name: &str| format!("/{keyword}/{}", name.replace('~', "~0").replace('/', "~1"));
        match (below(keyword), value) {
            (Some(Below::One), one) => parts.push((one, format!("/{keyword}"))),
            (Some(Below::List), Value::Array(list)) => {
                parts.extend(list.iter().enumerate().map(|(index, one)| (one, at(&index.to_string()))));
            }
            (Some(Below::Named), Value::Object(named)) => {
                parts.extend(named.iter().map(|(name, one)| (one, at(name))));
            }
            _ => {}
        }
    }
    parts
}

fn collect<'a>(schema: &'a Value, place: String, found: &mut Vec<(&'a Value, String)>) {
    for (one, at) in own_parts(schema) {
        collect(one, format!("{place}{at}"), found);
    }
    found.push((schema, place));
}
