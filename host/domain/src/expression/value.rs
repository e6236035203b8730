//! JSON into CEL, as much of it as is needed, and CEL into JSON.

use std::collections::HashMap;

use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt,
};
use cel::common::value::Val;
use serde_json::{Map, Number, Value};

use super::error::Reason;
use super::object::Object;
use super::scope::{Need, Node};

/// Nesting of a result: stored JSON is read back by parsers that recurse, and stop at 128.
const RESULT_DEPTH_MAX: usize = 100;

pub(super) fn to_cel<'a>(node: Node<'a>, need: &'a Need) -> Box<dyn Val + 'a> {
    match (node, need) {
        (Node::Json(value), Need::Whole) => json_to_cel(value),
        (Node::Json(value), _) if !value.is_object() => shallow(value),
        (_, Need::Whole) => {
            let fields = node.fields().into_iter().flatten();
            Box::new(map(fields.map(|(name, value)| (name, to_cel(value, need)))))
        }
        (_, Need::Fields(fields)) => {
            let known = fields
                .iter()
                .filter_map(|(name, need)| Some((name.as_str(), to_cel(node.field(name)?, need))));
            Box::new(map(known))
        }
    }
}

pub(super) fn map<'a>(entries: impl Iterator<Item = (&'a str, Box<dyn Val + 'a>)>) -> CelMap<'a> {
    let entries: HashMap<CelMapKey<'a>, Box<dyn Val + 'a>> =
        entries.map(|(name, value)| (CelMapKey::String(CelString::from(name)), value)).collect();
    CelMap::from(entries)
}

pub(super) fn json_to_cel(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(value) => Box::new(CelBool::from(*value)),
        Value::Number(number) => number_to_cel(number),
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(elements) => {
            Box::new(CelList::from(elements.iter().map(json_to_cel).collect::<Vec<_>>()))
        }
        Value::Object(fields) => Box::new(Object::new(fields)),
    }
}

/// A value of which only the kind matters.
fn shallow(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Array(_) => Box::new(CelList::from(Vec::new())),
        other => json_to_cel(other),
    }
}

fn number_to_cel<'a>(number: &Number) -> Box<dyn Val + 'a> {
    match number.as_i64() {
        Some(integer) => Box::new(CelInt::from(integer)),
        None => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
    }
}

pub(super) fn from_cel(value: &dyn Val) -> Result<Value, Reason> {
    to_json(value, 0)
}

fn to_json(value: &dyn Val, depth: usize) -> Result<Value, Reason> {
    let not_json = |what: &str| Err(Reason::NotJson(what.to_owned()));
    if depth > RESULT_DEPTH_MAX {
        return not_json("nested too deep");
    }
    if let Some(text) = value.downcast_ref::<CelString>() {
        Ok(Value::from(text.inner()))
    } else if let Some(boolean) = value.downcast_ref::<CelBool>() {
        Ok(Value::Bool(*boolean.inner()))
    } else if let Some(integer) = value.downcast_ref::<CelInt>() {
        Ok(Value::from(*integer.inner()))
    } else if let Some(integer) = value.downcast_ref::<CelUInt>() {
        Ok(Value::from(*integer.inner()))
    } else if let Some(double) = value.downcast_ref::<CelDouble>() {
        match Number::from_f64(*double.inner()) {
            Some(number) => Ok(Value::Number(number)),
            None => not_json("infinite, or not a number"),
        }
    } else if value.downcast_ref::<CelNull>().is_some() {
        Ok(Value::Null)
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        list.iter().map(|element| to_json(element.as_ref(), depth + 1)).collect()
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        // In key order: the evaluator's own differs from run to run.
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        let mut fields = Map::new();
        for (key, value) in entries {
            let CelMapKey::String(name) = key else { return not_json("a map whose keys are not strings") };
            fields.insert(name.inner().to_owned(), to_json(value.as_ref(), depth + 1)?);
        }
        Ok(Value::Object(fields))
    } else {
        not_json(value.get_type().name())
    }
}

/// What kind of JSON value it is, for messages.
pub(super) fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
