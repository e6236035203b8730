//! What a person fills in: checked against the JSON Schema that the workflow's author gave.

use serde_json::Value;

/// What is listed of what is wrong: more of it does not help.
const FAULTS_MAX: usize = 20;

/// Whether this is a JSON Schema (draft 2020-12) that needs nothing from elsewhere.
///
/// # Errors
/// Why not.
pub fn check_schema(schema: &Value) -> Result<(), String> {
    validator(schema).map(drop)
}

/// What is wrong with a form that was filled in: places, as JSON Pointers, and why.
///
/// # Errors
/// If the schema itself cannot be used.
pub fn faults(schema: &Value, answer: &Value) -> Result<Vec<(String, String)>, String> {
    let validator = validator(schema)?;
    let faults = validator.iter_errors(answer).take(FAULTS_MAX);
    Ok(faults.map(|fault| (fault.instance_path().to_string(), fault.to_string())).collect())
}

fn validator(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::draft202012::new(schema)
        .map_err(|error| format!("this is no JSON Schema that can be used: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_form_is_checked_against_its_schema() {
        let schema = json!({
            "type": "object", "required": ["limit"], "additionalProperties": false,
            "properties": { "limit": { "type": "integer", "minimum": 1 } },
        });
        for (answer, places) in [
            (json!({ "limit": 3 }), vec![]),
            (json!({ "limit": 0 }), vec!["/limit"]),
            (json!({}), vec![""]),
            (json!(7), vec![""]),
        ] {
            let found = faults(&schema, &answer).expect("the schema can be used");
            assert_eq!(found.iter().map(|(place, _)| place.as_str()).collect::<Vec<_>>(), places, "{answer}");
        }
        for schema in
            [json!(7), json!({ "type": "colour" }), json!({ "$ref": "https://elsewhere.test/schema" })]
        {
            check_schema(&schema).expect_err("it cannot be used");
        }
    }
}
