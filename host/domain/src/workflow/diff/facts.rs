//! What is compared of a step, a trigger and an invariant, by name.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Facts, Grants};
use crate::expression::Compiled;
use crate::workflow::definition::Invariant;
use crate::workflow::plan::{NodeKind, Plan, PlanTrigger};

pub(super) fn trigger_facts(trigger: &PlanTrigger) -> Facts {
    without(fields(trigger), &["event"])
}

pub(super) fn invariant_facts(invariant: &Invariant) -> Facts {
    without(fields(invariant), &["id"])
}

/// What is compared of a step. What stands inside it is named, as far as both versions have it: the rest is told by
/// itself.
pub(super) fn facts(plan: &Plan, position: usize, shared: &BTreeSet<&str>, grants: &Grants) -> Facts {
    let kind = &plan.nodes()[position].kind;
    let inside = |range: &Range<usize>| -> Vec<&str> {
        let paths = plan.nodes()[range.clone()].iter().map(|node| node.path.as_str());
        let mut paths: Vec<&str> = paths.filter(|path| shared.contains(path)).collect();
        // Their order is told by itself too.
        paths.sort_unstable();
        paths
    };
    let own = fields(kind);
    match kind {
        NodeKind::Switch { branches } => {
            let branches = branches.iter().map(
                |branch| json!({ "when": branch.when.as_ref().map(Compiled::source), "do": inside(&branch.nodes) }),
            );
            with(own, "branches", branches.collect())
        }
        NodeKind::Parallel { branches, .. } => {
            let mut branches: Vec<Vec<&str>> = branches.iter().map(inside).collect();
            if kind.has_equal_lanes() {
                branches.sort_unstable();
            }
            with(own, "branches", branches.into_iter().map(Value::from).collect())
        }
        NodeKind::Map { .. } => without(own, &["body"]),
        NodeKind::Try { stages, .. } => {
            let stages = stages.iter();
            let stages =
                stages.map(|stage| json!({ "do": inside(&stage.nodes), "undo": inside(&stage.undo) }));
            with(own, "stages", stages.collect())
        }
        NodeKind::Listen { listen, on_timeout } => {
            let own = spread(own, "listen", fields(listen.as_ref()));
            with(own, "on_timeout", on_timeout.is_some().into())
        }
        NodeKind::Approval { approval, on_timeout } => {
            let own = spread(own, "approval", fields(approval.as_ref()));
            with(own, "on_timeout", on_timeout.is_some().into())
        }
        NodeKind::Http { call, .. } => spread(own, "call", fields(call.as_ref())),
        NodeKind::Worker { task, .. } => spread(own, "task", fields(task.as_ref())),
        NodeKind::Block { digest, .. } => with(own, "effects", json!(grants.get(digest))),
        NodeKind::Delay { .. }
        | NodeKind::Until { .. }
        | NodeKind::Emit { .. }
        | NodeKind::Workflow { .. }
        | NodeKind::Set { .. }
        | NodeKind::Stop { .. } => own,
    }
}

/// The fields of something that is stored as a map.
fn fields(of: &impl Serialize) -> Facts {
    match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields.into_iter().collect(),
        _ => Facts::new(),
    }
}

fn with(mut facts: Facts, field: &str, value: Value) -> Facts {
    facts.insert(field.to_owned(), value);
    facts
}

fn without(mut facts: Facts, fields: &[&str]) -> Facts {
    facts.retain(|name, _| !fields.contains(&name.as_str()));
    facts
}

/// The fields of a part, in place of the part.
fn spread(facts: Facts, part: &str, fields: Facts) -> Facts {
    let mut facts = without(facts, &[part]);
    facts.extend(fields);
    facts
}
