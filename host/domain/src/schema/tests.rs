use serde_json::json;

use super::*;

fn places(schema: &Value, value: &Value) -> Result<Vec<String>, TooCostly> {
    let faults = Schema::new(schema).unwrap_or_else(|why| panic!("{schema}: {why}")).faults(value)?;
    Ok(faults.into_iter().map(|fault| fault.place).collect())
}

#[test]
fn a_value_is_checked_against_its_schema() {
    let limit = json!({
        "type": "object", "required": ["limit"], "additionalProperties": false,
        "properties": { "limit": { "type": "integer", "minimum": 1 } },
    });
    // Of another draft, by its own word, and read by this one.
    let named = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://elsewhere.test/tree", "title": "Tree",
        "$ref": "#/definitions/Tree",
        "definitions": { "Tree": {
            "type": "object", "required": ["name"],
            "properties": {
                "name": { "type": "string", "pattern": "^[a-z]+$", "format": "email" },
                "next": { "anyOf": [{ "$ref": "#/definitions/Tree" }, { "type": "null" }] },
                "all": { "type": "array", "items": { "$ref": "#" }, "uniqueItems": true },
            },
        } },
    });
    for (schema, value, expected) in [
        (&limit, json!({ "limit": 3 }), vec![]),
        (&limit, json!({ "limit": 0 }), vec!["/limit"]),
        (&limit, json!({}), vec![""]),
        (&limit, json!(7), vec![""]),
        (&json!({ "pattern": "^.{1,100}$" }), json!("ä"), vec![]),
        (&json!(true), json!(7), vec![]),
        (&json!(false), json!(7), vec![""]),
        (&named, json!({ "name": "a", "next": { "name": "b", "next": null } }), vec![]),
        (&named, json!({ "name": "a", "all": [{ "name": "b" }, { "name": "C" }] }), vec!["/all/1/name"]),
    ] {
        assert_eq!(places(schema, &value), Ok(expected.into_iter().map(str::to_owned).collect()), "{value}");
    }
}

/// Schemas that refer to one another in a row, so many.
fn chain(keyword: &str, links: usize) -> Value {
    let link = |n: usize| (n.to_string(), json!({ keyword: { "$ref": format!("#/$defs/{}", n + 1) } }));
    let mut links: Map<String, Value> = (0..links).map(link).collect();
    links.insert(links.len().to_string(), json!(true));
    json!({ "$defs": links, "$ref": "#/$defs/0" })
}

/// Links of a chain of which each takes two levels.
const DEPTH: usize = 75;

#[test]
fn a_chain_of_schemas_is_read_as_far_as_a_stack_goes() {
    for (links, is_usable) in [(70, true), (DEPTH, false), (1_500, false)] {
        let schema = chain("items", links);
        let small = std::thread::Builder::new().stack_size(1 << 20);
        let read = small.spawn(move || Schema::new(&schema).is_ok()).expect("starts").join().expect("ends");
        assert_eq!(read, is_usable, "{links}");
    }
    // A circle is a way that has an end.
    let tree = json!({ "properties": { "all": { "items": { "$ref": "#" } } } });
    Schema::new(&tree).expect("usable");
}

/// What is wrong is told in little memory, whatever the schema says and however large the value is.
#[test]
fn what_is_wrong_with_much_is_told_in_short() {
    let lists = json!({ "additionalProperties": { "items": { "type": "string" } } });
    let long_name = json!({ ("n".repeat(100_000)): vec![1; 20_000] });
    let negation = json!({ "items": { "not": { "$comment": "x".repeat(60_000) } } });
    for (schema, value) in [(&lists, long_name), (&negation, json!(vec![1; 20_000]))] {
        let faults = Schema::new(schema).expect("usable").faults(&value).expect("cheap");
        let whys: Vec<_> = faults.iter().map(|Fault { place, why }| (place.as_str(), why.as_str())).collect();
        assert_eq!(whys, [("", "it is not what the schema asks for; it is too large to say where")]);
    }
}

#[test]
fn what_cannot_be_used_is_refused_with_its_place() {
    // Each level applies the next one twice.
    let mut doubling: Map<String, Value> = (0..40)
        .map(|n| {
            let next = json!({ "$ref": format!("#/$defs/l{}", n + 1) });
            (format!("l{n}"), json!({ "anyOf": [next, next] }))
        })
        .collect();
    doubling.insert("l40".into(), json!({ "type": "null" }));
    let deep = (0..200).fold(json!({}), |inner, _| json!({ "items": inner }));
    let many: Map<String, Value> = (0..=PATTERNS_MAX).map(|n| (format!("^{n}"), json!(true))).collect();
    let own = |keyword: &str, value: Value| json!({ "properties": { "a": { keyword: value } } });
    for (schema, place) in [
        (json!(7), ""),
        (json!({ "type": "colour" }), "/type"),
        (own("type", json!("colour")), "/properties/a/type"),
        (own("pattern", json!("(")), "/properties/a/pattern"),
        (own("pattern", json!("(?=a)b")), "/properties/a/pattern"),
        (own("pattern", json!("(?:(?:a{500}){500}){500}")), "/properties/a/pattern"),
        (own("patternProperties", json!({ "a": true, "(?!a)": true })), "/properties/a/patternProperties"),
        (own("patternProperties", Value::Object(many)), ""),
        (own("$ref", json!("https://elsewhere.test/schema")), "/properties/a/$ref"),
        (own("$ref", json!("#/$defs/none")), "/properties/a/$ref"),
        (own("$id", json!("https://elsewhere.test/schema")), "/properties/a/$id"),
        (own("$dynamicRef", json!("#a")), "/properties/a/$dynamicRef"),
        (own("unevaluatedProperties", json!(false)), "/properties/a/unevaluatedProperties"),
        (chain("items", DEPTH), ""),
        (chain("items", 1_500), ""),
        (json!({ "$ref": "#" }), ""),
        (json!({ "$defs": { "a": { "not": { "$ref": "#/$defs/a" } } } }), "/$defs/a/not"),
        (json!({ "$ref": "#/$defs/l0", "$defs": doubling }), "/$defs/l0/anyOf/0"),
        (deep, ""),
        (json!({ "title": "x".repeat(SCHEMA_BYTES_MAX) }), ""),
    ] {
        let unusable = Schema::new(&schema).expect_err("it cannot be used");
        assert_eq!(unusable.place, place, "{unusable}");
        assert!(unusable.to_string().len() < 400, "{unusable}");
    }
}

#[test]
fn a_hostile_schema_is_cheap_or_found_to_be_costly() {
    let doubling = json!({ "anyOf": [
        { "properties": { "a": { "$ref": "#" } }, "required": ["b"] },
        { "properties": { "a": { "$ref": "#" } }, "required": ["c"] },
    ] });
    let nested = |levels| (0..levels).fold(json!({}), |inner, _| json!({ "a": inner }));
    let backtracking = json!({ "pattern": "^(a+)+$" });
    let many = json!({ "items": { "enum": (0..5_000).collect::<Vec<_>>() } });
    for (schema, value, is_checked) in [
        (&doubling, nested(5), true),
        (&doubling, nested(90), false),
        (&json!({ "additionalProperties": { "$ref": "#" } }), nested(99), true),
        (&backtracking, json!(format!("{}b", "a".repeat(200_000))), true),
        (&backtracking, json!(format!("{}b", "a".repeat(300_000))), false),
        (&many, json!(vec![0; 10]), true),
        (&many, json!(vec![0; 60_000]), false),
        (&json!({ "uniqueItems": true }), json!((0..60_000).collect::<Vec<_>>()), true),
    ] {
        let schema = Schema::new(schema).unwrap_or_else(|why| panic!("{schema}: {why}"));
        // One that were gone through without a count would not end.
        assert_eq!(schema.faults(&value).is_ok(), is_checked, "{schema:?}");
    }
}
