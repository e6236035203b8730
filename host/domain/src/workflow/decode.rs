//! JSON into a [`Definition`], going on after what is wrong: an author sees every problem at once.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

mod containers;
mod nodes;
mod waits;

use super::definition::{
    DedupMode, Definition, GUARDED_KINDS, Invariant, Node, OWN_KINDS, SetNode, Step, Trigger,
};
use super::problem::Problems;
use super::scalars;
use super::{EXPRESSIONS_MAX, NAME_LEN_MAX, RULES_MAX, STEPS_DEPTH_MAX, STEPS_MAX, is_name};
use crate::code::Code;
use crate::expression::child;
use crate::wording;

/// Type of an event: it is an index key.
const EVENT_TYPE_LEN_MAX: usize = 128;

/// A definition, as far as it could be read.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) definition: Definition,
    /// Names of all steps, also of those that could not be read.
    pub(super) step_names: BTreeMap<String, String>,
}

pub(super) fn decode(value: &Value, problems: &mut Problems<'_>) -> Decoded {
    let mut decoder = Decoder { problems, step_names: BTreeMap::new(), steps: 0 };
    let definition = decoder.definition(value);
    Decoded { definition, step_names: decoder.step_names }
}

struct Decoder<'a, 'source> {
    problems: &'a mut Problems<'source>,
    /// Where each name was given, by JSON Pointer.
    step_names: BTreeMap<String, String>,
    steps: usize,
}

impl Decoder<'_, '_> {
    fn definition(&mut self, value: &Value) -> Definition {
        if scalars::check(value, self.problems) > EXPRESSIONS_MAX {
            let message = format!("a workflow has at most {EXPRESSIONS_MAX} expressions in its values");
            self.problems.at_value("", Code::Limit, message);
            return Definition::default();
        }
        let Some(fields) = value.as_object() else {
            self.problems.at_value("", Code::Schema, "a workflow is a map with `name` and `steps`");
            return Definition::default();
        };
        let known = ["name", "description", "triggers", "steps", "invariants"];
        self.check_fields(fields, "", &known);
        let name = self.required_name(fields, "", "name", "a workflow");
        let description = match fields.get("description") {
            None | Some(Value::Null) => None,
            Some(value) => self.leaf(value, "/description"),
        };
        Definition {
            name,
            description,
            triggers: self.triggers(fields),
            steps: if let Some(steps) = fields.get("steps") {
                self.step_list(steps, "/steps", 1)
            } else {
                self.problems.at_value("", Code::Schema, "a workflow has `steps`");
                vec![]
            },
            invariants: self.invariants(fields),
        }
    }

    fn triggers(&mut self, fields: &Map<String, Value>) -> Vec<Trigger> {
        let mut triggers = Vec::new();
        for (pointer, value) in self.rules(fields, "triggers") {
            let Some(trigger) = self.leaf::<Trigger>(value, &pointer) else {
                // What follows keeps its position.
                triggers.push(Trigger::default());
                continue;
            };
            self.check_event_type(&trigger.event, &child(&pointer, "event"));
            if trigger.record.is_none() && trigger.dedup != DedupMode::EveryTime {
                let message = format!(
                    "`dedup: {}` needs `record`; without one, say `dedup: every_time`",
                    trigger.dedup.name()
                );
                self.problems.at_value(&pointer, Code::Schema, message);
            }
            triggers.push(trigger);
        }
        triggers
    }

    fn invariants(&mut self, fields: &Map<String, Value>) -> Vec<Invariant> {
        let mut invariants: Vec<Invariant> = Vec::new();
        for (pointer, value) in self.rules(fields, "invariants") {
            let Some(invariant) = self.leaf::<Invariant>(value, &pointer) else { continue };
            let id_pointer = child(&pointer, "id");
            self.check_name(&invariant.id, &id_pointer, "an invariant");
            if invariants.iter().any(|other| other.id == invariant.id) {
                let message = format!("another invariant is called `{}`", invariant.id);
                self.problems.at_value(&id_pointer, Code::NameTaken, message);
            }
            if !GUARDED_KINDS.contains(&invariant.kind.as_str()) {
                let kind = &invariant.kind;
                let message = if OWN_KINDS.contains(&kind.as_str()) {
                    format!(
                        "what `{kind}` writes commits with its step, exactly once: no invariant guards it"
                    )
                } else {
                    format!("`{kind}` is no kind of effect; an invariant guards {}", listed(&GUARDED_KINDS))
                };
                self.problems.at_value(&child(&pointer, "kind"), Code::Schema, message);
            }
            invariants.push(invariant);
        }
        invariants
    }

    fn rules<'v>(&mut self, fields: &'v Map<String, Value>, field: &str) -> Vec<(String, &'v Value)> {
        let pointer = child("", field);
        let rules = match fields.get(field) {
            None | Some(Value::Null) => return vec![],
            Some(value) => self.list(value, &pointer),
        };
        if rules.len() > RULES_MAX {
            self.problems.at_value(&pointer, Code::Limit, format!("at most {RULES_MAX} {field}"));
        }
        rules
    }

    fn step_list(&mut self, value: &Value, pointer: &str, depth: usize) -> Vec<Step> {
        if depth > STEPS_DEPTH_MAX {
            let message = format!("lists of steps stand at most {STEPS_DEPTH_MAX} deep in each other");
            self.problems.at_value(pointer, Code::Limit, message);
            return vec![];
        }
        let elements = self.list(value, pointer);
        if depth == 1 && value.as_array().is_some_and(Vec::is_empty) {
            self.problems.at_value(pointer, Code::Schema, "a workflow has at least one step");
        }
        let mut steps: Vec<Step> = Vec::new();
        for (pointer, element) in elements {
            let Some((name, node)) = self.single(element, &pointer) else { continue };
            let pointer = child(&pointer, name);
            if steps.last().is_some_and(|step| matches!(step.node, Node::Stop(_))) {
                self.problems.at_key(&pointer, Code::Unreachable, "nothing comes after `stop`");
            }
            self.step_name(name, &pointer);
            if self.steps > STEPS_MAX || name.len() > NAME_LEN_MAX {
                continue;
            }
            // What cannot be read is there all the same, for the steps that read it.
            let node = self.node(node, &pointer, depth).unwrap_or(Node::Set(SetNode { set: Value::Null }));
            steps.push(Step { name: name.to_owned(), node, pointer });
        }
        steps
    }

    /// The one name and the one node of a step.
    fn single<'v>(&mut self, element: &'v Value, pointer: &str) -> Option<(&'v str, &'v Value)> {
        let mut entries = element.as_object().into_iter().flatten();
        if let (Some((name, node)), None) = (entries.next(), entries.next()) {
            return Some((name, node));
        }
        let message = "a step is a map of one name to what the step does";
        self.problems.at_value(pointer, Code::Schema, message);
        None
    }

    fn step_name(&mut self, name: &str, pointer: &str) {
        self.steps += 1;
        if self.steps == STEPS_MAX + 1 {
            self.problems.at_key(pointer, Code::Limit, format!("a workflow has at most {STEPS_MAX} steps"));
        }
        if !is_name(name) {
            self.problems.at_key(pointer, Code::NameInvalid, name_rule("a step"));
        }
        match self.step_names.get(name) {
            Some(first) => {
                let message =
                    format!("another step is called `{name}`, on line {}", self.problems.line_of_key(first));
                self.problems.at_key(pointer, Code::NameTaken, message);
            }
            None => {
                self.step_names.insert(name.to_owned(), pointer.to_owned());
            }
        }
    }

    /// Reads a value that holds no steps. What of it cannot be read is told and left out, to find what else cannot be; where
    /// only unknown fields were left out, the rest counts as what was meant.
    fn leaf<T: DeserializeOwned>(&mut self, value: &Value, pointer: &str) -> Option<T> {
        /// Of one leaf; each costs a reading of it.
        const FAULTS_MAX: usize = 16;
        let mut left = Cow::Borrowed(value);
        let mut left_out = BTreeSet::new();
        let mut is_meant = true;
        for _ in 0..FAULTS_MAX {
            let error = match serde_path_to_error::deserialize::<_, T>(&*left) {
                Ok(leaf) => return Some(leaf).filter(|_| is_meant),
                Err(error) => error,
            };
            let place = error.path().iter().fold(String::new(), |place, segment| match segment {
                serde_path_to_error::Segment::Seq { index } => child(&place, &index.to_string()),
                serde_path_to_error::Segment::Map { key } => child(&place, key),
                _ => place,
            });
            let message = error.inner().to_string();
            let named = |kind: &str| message.strip_prefix(kind)?.split_once('`').map(|(field, _)| field);
            if named("missing field `").is_some_and(|field| left_out.contains(&child(&place, field))) {
                return None;
            }
            let place = match named("unknown field `") {
                Some(field) if !place.ends_with(&child("", field)) => child(&place, field),
                _ => place,
            };
            let (at, words) = (format!("{pointer}{place}"), wording::told(&message));
            if named("unknown field `").is_some() {
                self.problems.at_key(&at, Code::Schema, words);
            } else {
                is_meant = false;
                self.problems.at_value(&at, Code::Schema, words);
            }
            left_out.insert(leave_out(left.to_mut(), &place)?);
        }
        None
    }

    fn list<'v>(&mut self, value: &'v Value, pointer: &str) -> Vec<(String, &'v Value)> {
        let Some(elements) = value.as_array() else {
            self.problems.at_value(pointer, Code::Schema, "a list is expected here");
            return vec![];
        };
        elements
            .iter()
            .enumerate()
            .map(|(index, element)| (child(pointer, &index.to_string()), element))
            .collect()
    }

    fn required_name(&mut self, fields: &Map<String, Value>, pointer: &str, field: &str, of: &str) -> String {
        match fields.get(field) {
            Some(Value::String(name)) => {
                self.check_name(name, &child(pointer, field), of);
                name.clone()
            }
            Some(_) => {
                self.problems.at_value(&child(pointer, field), Code::NameInvalid, name_rule(of));
                String::new()
            }
            None => {
                self.problems.at_value(pointer, Code::Schema, format!("{of} has a `{field}`"));
                String::new()
            }
        }
    }

    fn check_name(&mut self, name: &str, pointer: &str, of: &str) {
        if !is_name(name) {
            self.problems.at_value(pointer, Code::NameInvalid, name_rule(of));
        }
    }

    fn check_event_type(&mut self, event: &str, pointer: &str) {
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '.' | '-' | '_');
        if event.is_empty() || event.len() > EVENT_TYPE_LEN_MAX || !event.chars().all(is_sign) {
            let message = format!(
                "the type of an event is letters, digits, `.`, `-` and `_`, at most {EVENT_TYPE_LEN_MAX} of them"
            );
            self.problems.at_value(pointer, Code::NameInvalid, message);
        }
    }

    fn check_fields(&mut self, fields: &Map<String, Value>, pointer: &str, known: &[&str]) {
        for field in fields.keys().filter(|field| !known.contains(&field.as_str())) {
            let message = format!("there is no `{field}` here; what there is: {}", listed(known));
            self.problems.at_key(&child(pointer, field), Code::Schema, message);
        }
    }
}

/// Takes the field at `place` out of `value`, or the field that holds the list in which that is; says which.
fn leave_out(value: &mut Value, place: &str) -> Option<String> {
    let (around, name) = place.rsplit_once('/')?;
    match value.pointer_mut(around)? {
        Value::Object(fields) => fields.remove(&name.replace("~1", "/").replace("~0", "~")),
        _ => return leave_out(value, around),
    }
    .map(|_| place.to_owned())
}

fn name_rule(of: &str) -> String {
    format!(
        "the name of {of} is a small letter, then small letters, digits and `-`, at most {NAME_LEN_MAX} in all"
    )
}

fn listed(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
