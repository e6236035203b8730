//! What of a definition that holds will not do as things are: told, and not refused, since it may be put right later.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::compile::Authored;
use super::definition::{Definition, Node, Step};
use super::problem::{Problem, Problems};
use crate::block::Descriptor;
use crate::code::Code;
use crate::expression::{Pointer, child};
use crate::schema::Schema;

/// What there is around a workflow.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Workflows of which a version is active.
    pub active: BTreeSet<String>,
    /// Connections.
    pub connections: BTreeSet<String>,
    /// What the blocks that it uses say of themselves, by name.
    pub blocks: BTreeMap<String, Descriptor>,
}

impl Authored {
    /// What of its definition will fail if nothing around it changes, in the order of the text.
    pub fn warnings(&self, definition: &Definition, around: &Surroundings) -> Vec<Problem> {
        let mut adviser = Adviser { own: &definition.name, around, problems: Problems::new(self.source()) };
        adviser.steps(&definition.steps);
        adviser.problems.into_list()
    }
}

struct Adviser<'a> {
    /// The workflow's own name.
    own: &'a str,
    around: &'a Surroundings,
    problems: Problems<'a>,
}

impl Adviser<'_> {
    fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            let pointer = &step.pointer;
            match &step.node {
                Node::Block(node) => self.block(&node.block, &node.input, pointer),
                Node::Http(node) => {
                    if let Some(connection) = &node.http.connection {
                        self.connection(
                            connection,
                            &child(&child(pointer, "http"), "connection"),
                            "the step",
                        );
                    }
                }
                Node::Workflow(node) => self.workflow(&node.workflow, &child(pointer, "workflow")),
                _ => {}
            }
            for steps in step.node.lists() {
                self.steps(steps);
            }
        }
    }

    fn workflow(&mut self, name: &str, pointer: &str) {
        if name != self.own && !self.around.active.contains(name) {
            let message = format!("no version of a workflow `{name}` is active: the step fails until one is");
            self.problems.at_value(pointer, Code::WorkflowUnknown, message);
        }
    }

    fn connection(&mut self, name: &str, pointer: &str, who: &str) {
        if !self.around.connections.contains(name) {
            let message =
                format!("there is no connection `{name}`: {who} cannot call through it until it is set");
            self.problems.at_value(pointer, Code::ConnectionUnknown, message);
        }
    }

    fn block(&mut self, name: &str, input: &Value, pointer: &str) {
        let Some(descriptor) = self.around.blocks.get(name) else { return };
        let names: BTreeSet<&String> =
            descriptor.effects.iter().flat_map(|grant| &grant.connections).collect();
        for connection in names {
            self.connection(connection, &child(pointer, "block"), &format!("block `{name}`"));
        }
        let Ok(takes) = Schema::new(&descriptor.input) else { return };
        let mut known = input.clone();
        let mut open = Vec::new();
        forget_expressions(&mut known, &Pointer::At(""), &mut open);
        for fault in takes.faults_beside(&known, &open) {
            let message = format!("block `{name}` does not take this: {}", fault.why);
            let place = format!("{}{}", child(pointer, "input"), fault.place);
            self.problems.at_value(&place, Code::InputInvalid, message);
        }
    }
}

/// Puts null where an expression stands, whose value is not known before it runs, and keeps its place.
fn forget_expressions(value: &mut Value, pointer: &Pointer<'_>, open: &mut Vec<String>) {
    match value {
        Value::String(text) if text.starts_with('=') => {
            open.push(pointer.to_string());
            *value = Value::Null;
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter_mut().enumerate() {
                forget_expressions(element, &Pointer::Index(pointer, index), open);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                forget_expressions(field, &Pointer::Field(pointer, name), open);
            }
        }
        _ => {}
    }
}
