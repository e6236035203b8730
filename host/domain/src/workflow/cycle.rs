//! Workflows that start each other: one that comes back to itself would never end.

use std::collections::{BTreeMap, BTreeSet};

use super::compile::{Authored, Version};
use super::definition::{Node, Step};
use super::plan::{NodeKind, Plan};
use super::problem::{Problem, Problems};
use crate::code::Code;

/// How a workflow and others start each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Types of the events that start it.
    triggers: BTreeSet<String>,
    /// Types of the events that its nodes emit. What its blocks emit is not known before they run.
    emits: BTreeSet<String>,
    /// Workflows that its nodes start.
    starts: BTreeSet<String>,
}

impl Plan {
    /// How the workflow and others start each other.
    pub fn links(&self) -> Links {
        let mut links = Links {
            triggers: self.triggers().iter().map(|trigger| trigger.event.clone()).collect(),
            ..Links::default()
        };
        for node in self.nodes() {
            match &node.kind {
                NodeKind::Emit { event, .. } => drop(links.emits.insert(event.clone())),
                NodeKind::Workflow { workflow, .. } => drop(links.starts.insert(workflow.clone())),
                _ => {}
            }
        }
        links
    }

    /// The names on the way by which the workflow starts itself, straight or through `others`: the active workflows.
    pub fn way_back(&self, others: &BTreeMap<String, Links>) -> Option<Vec<String>> {
        let (name, own) = (self.workflow(), self.links());
        let mut links: BTreeMap<&str, &Links> =
            others.iter().map(|(name, links)| (name.as_str(), links)).collect();
        links.insert(name, &own);
        Some(way_back(name, &links)?.into_iter().map(str::to_owned).collect())
    }
}

impl Links {
    fn start(&self, name: &str, other: &Self) -> bool {
        self.starts.contains(name) || self.emits.iter().any(|event| other.triggers.contains(event))
    }
}

impl Authored {
    /// The problem with a version that starts itself, straight or through `others`: the active workflows, by name. It
    /// stands at the step that the way begins with.
    pub fn cycle(&self, version: &Version, others: &BTreeMap<String, Links>) -> Option<Problem> {
        let way = version.plan.way_back(others)?;
        let next_name = way.get(1)?;
        let own = version.plan.links();
        let next = if next_name == version.plan.workflow() { &own } else { others.get(next_name)? };
        let pointer = first_step(&version.definition.steps, &|node| match node {
            Node::Emit(node) => next.triggers.contains(&node.emit.event),
            Node::Workflow(node) => node.workflow == *next_name,
            _ => false,
        });
        let mut problems = Problems::new(self.source());
        problems.at_value(&pointer.unwrap_or_default(), Code::Cycle, cycle_message(&way));
        problems.into_list().pop()
    }
}

/// What is wrong with a way back, in words.
pub fn cycle_message(way: &[String]) -> String {
    format!("this starts the workflow again, without end: {}", way.join(" → "))
}

/// The shortest way from a workflow back to itself.
fn way_back<'a>(name: &'a str, links: &BTreeMap<&'a str, &Links>) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = vec![name];
    while !next.is_empty() {
        let mut found = vec![];
        for at in next {
            for (other, _) in links.iter().filter(|(name, other)| links[at].start(name, other)) {
                if came_from.contains_key(other) {
                    continue;
                }
                came_from.insert(other, at);
                if *other == name {
                    let back = std::iter::successors(Some(came_from[name]), |at| {
                        (*at != name).then(|| came_from[at])
                    });
                    let mut way: Vec<&str> = back.collect();
                    way.reverse();
                    way.push(name);
                    return Some(way);
                }
                found.push(*other);
            }
        }
        next = found;
    }
    None
}

/// Where the first step stands that `is` it.
fn first_step(steps: &[Step], is: &dyn Fn(&Node) -> bool) -> Option<String> {
    steps.iter().find_map(|step| {
        if is(&step.node) {
            return Some(step.pointer.clone());
        }
        step.node.lists().into_iter().find_map(|steps| first_step(steps, is))
    })
}
