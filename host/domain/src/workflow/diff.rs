//! What tells two versions of a workflow apart, and which of it touches what they do to other systems.
//!
//! It compares plans, which hold everything that a run follows. Steps are the same where their paths are: that is also
//! what their receipts go by.

mod facts;
mod reach;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use serde::Serialize;
use serde_json::Value;

use self::facts::{facts, invariant_facts, trigger_facts};
use self::reach::Reach;
use super::plan::Plan;
use crate::block::EffectGrant;
use crate::id::Digest;

/// What the blocks of both versions may do, by digest. One that is not in it may do anything.
pub type Grants = BTreeMap<Digest, Vec<EffectGrant>>;

/// All that tells a version from another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Triggers, then steps in the order of the newer version, then invariants.
    pub changes: Vec<Change>,
}

/// One thing that is different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What kind of thing.
    pub subject: Subject,
    /// Which: the path of a step, the event of a trigger, the id of an invariant.
    pub name: String,
    /// In which way.
    pub how: How,
    /// What of it, where it was changed.
    pub fields: Vec<FieldChange>,
    /// Why it touches side effects; none if it does not.
    pub risk: Option<String>,
}

/// What may be different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Subject {
    Trigger,
    Step,
    Invariant,
}

/// In which way something is different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Only the newer version has it.
    Added,
    /// Only the older version has it.
    Removed,
    /// It has another place among the others.
    Moved,
    /// Both have it, and not the same.
    Changed,
}

/// A part of something that is different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// Its name.
    pub field: String,
    /// In the older version; null if it was not there.
    pub from: Value,
    /// In the newer version; null if it is not there any more.
    pub to: Value,
}

impl Diff {
    /// The changes that touch side effects.
    pub fn risky(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.risk.is_some())
    }
}

impl Subject {
    /// The name in JSON and in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trigger => "trigger",
            Self::Step => "step",
            Self::Invariant => "invariant",
        }
    }
}

impl How {
    /// The name in JSON and in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Moved => "moved",
            Self::Changed => "changed",
        }
    }
}

/// As a person reads it: `step charge: url, body changed (it has effects)`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.subject.name(), self.name)?;
        let fields: Vec<&str> = self.fields.iter().map(|field| field.field.as_str()).collect();
        if !fields.is_empty() {
            write!(f, "{} ", fields.join(", "))?;
        }
        f.write_str(self.how.name())?;
        match &self.risk {
            Some(risk) => write!(f, " ({risk})"),
            None => Ok(()),
        }
    }
}

/// Compares a version with an older one.
pub fn diff(old: &Plan, new: &Plan, grants: &Grants) -> Diff {
    let both = Both { old: Reach::of(old, grants), new: Reach::of(new, grants), grants };
    let mut changes = both.triggers();
    changes.extend(both.steps());
    changes.extend(both.invariants());
    Diff { changes }
}

struct Both<'a> {
    old: Reach<'a>,
    new: Reach<'a>,
    grants: &'a Grants,
}

type Facts = BTreeMap<String, Value>;

impl Both<'_> {
    fn triggers(&self) -> Vec<Change> {
        // One event may start the same workflow in several ways, which have no names of their own.
        let named = |plan: &Plan| {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            let triggers = plan.triggers().iter().map(|trigger| {
                let count = counts.entry(trigger.event.clone()).or_default();
                *count += 1;
                let nth = if *count == 1 { String::new() } else { format!(" #{count}") };
                (format!("{}{nth}", trigger.event), trigger_facts(trigger))
            });
            triggers.collect::<Vec<_>>()
        };
        compared(Subject::Trigger, &named(self.old.plan), &named(self.new.plan), |_| {
            self.any_effect("it decides when the effects of the workflow begin")
        })
    }

    fn invariants(&self) -> Vec<Change> {
        let named = |plan: &Plan| {
            let invariants = plan.invariants().iter();
            invariants.map(|invariant| (invariant.id.clone(), invariant_facts(invariant))).collect::<Vec<_>>()
        };
        compared(Subject::Invariant, &named(self.old.plan), &named(self.new.plan), |_| {
            self.any_effect("it decides which effects are sent")
        })
    }

    fn steps(&self) -> Vec<Change> {
        let (old, new) = (self.old.plan, self.new.plan);
        let shared: BTreeSet<&str> = old
            .nodes()
            .iter()
            .map(|node| node.path.as_str())
            .filter(|path| new.node(path).is_some())
            .collect();
        let named = |plan: &Plan| {
            let facts = |(position, node): (usize, &super::plan::PlanNode)| {
                (node.path.clone(), facts(plan, position, &shared, self.grants))
            };
            plan.nodes().iter().enumerate().map(facts).collect::<Vec<_>>()
        };
        let mut changes = compared(Subject::Step, &named(old), &named(new), |path| self.step_risk(path));
        let moved = moved(old, new, &shared).into_iter().map(|path| Change {
            subject: Subject::Step,
            how: How::Moved,
            fields: vec![],
            risk: self.step_risk(&path),
            name: path,
        });
        changes.extend(moved);
        let place = |change: &Change| (change.how == How::Removed, new.position(&change.name));
        changes.sort_by_key(place);
        changes
    }

    /// Why a change of a step touches side effects: it has effects itself, or effects come behind it.
    fn step_risk(&self, path: &str) -> Option<String> {
        let sides = [&self.new, &self.old];
        let found = sides.map(|side| side.plan.position(path).map(|position| (side, position)));
        let found: Vec<_> = found.into_iter().flatten().collect();
        if found.iter().any(|(side, position)| side.has_effects(*position)) {
            return Some("it has effects".into());
        }
        let behind = found.iter().find_map(|(side, position)| side.behind(*position))?;
        Some(format!("{behind}, which has effects, comes behind it"))
    }

    fn any_effect(&self, why: &str) -> Option<String> {
        (self.old.has_any() || self.new.has_any()).then(|| why.to_owned())
    }
}

/// What is different among things that have names.
fn compared(
    subject: Subject,
    old: &[(String, Facts)],
    new: &[(String, Facts)],
    risk: impl Fn(&str) -> Option<String>,
) -> Vec<Change> {
    let older: BTreeMap<&str, &Facts> = old.iter().map(|(name, facts)| (name.as_str(), facts)).collect();
    let newer: BTreeSet<&str> = new.iter().map(|(name, _)| name.as_str()).collect();
    let change =
        |name: &str, how, fields| Change { subject, name: name.to_owned(), how, fields, risk: risk(name) };
    let mut changes = vec![];
    for (name, facts) in new {
        match older.get(name.as_str()) {
            None => changes.push(change(name, How::Added, vec![])),
            Some(before) => {
                let fields = field_changes(before, facts);
                if !fields.is_empty() {
                    changes.push(change(name, How::Changed, fields));
                }
            }
        }
    }
    let gone = old.iter().filter(|(name, _)| !newer.contains(name.as_str()));
    changes.extend(gone.map(|(name, _)| change(name, How::Removed, vec![])));
    changes
}

fn field_changes(old: &Facts, new: &Facts) -> Vec<FieldChange> {
    let of = |facts: &Facts, field: &str| facts.get(field).cloned().unwrap_or(Value::Null);
    let fields: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |field: &String| {
        let (from, to) = (of(old, field), of(new, field));
        (from != to).then(|| FieldChange { field: field.clone(), from, to })
    };
    let mut changes: Vec<FieldChange> = fields.into_iter().filter_map(change).collect();
    // Of another kind, it has other fields, all of them new.
    if changes.iter().any(|change| change.field == "kind") {
        changes.retain(|change| change.field == "kind");
    }
    changes
}

/// The fewest steps that both versions have whose move explains why the others stand in another order.
fn moved(old: &Plan, new: &Plan, shared: &BTreeSet<&str>) -> Vec<String> {
    let place: BTreeMap<&str, usize> =
        order(new, shared).into_iter().enumerate().map(|(at, path)| (path, at)).collect();
    let in_old = order(old, shared).into_iter();
    let places: Vec<(&str, usize)> = in_old.filter_map(|path| Some((path, *place.get(path)?))).collect();
    // The longest series that goes forward in both, found from its end.
    let mut best: Vec<(usize, Option<usize>)> = vec![(1, None); places.len()];
    for at in (0..places.len()).rev() {
        for next in at + 1..places.len() {
            if places[next].1 > places[at].1 && best[next].0 + 1 > best[at].0 {
                best[at] = (best[next].0 + 1, Some(next));
            }
        }
    }
    let first = (0..places.len()).max_by_key(|at| (best[*at].0, std::cmp::Reverse(*at)));
    let kept: BTreeSet<usize> = std::iter::successors(first, |at| best[*at].1).collect();
    let moved = places.iter().enumerate().filter(|(at, _)| !kept.contains(at));
    moved.map(|(_, (path, _))| (*path).to_owned()).collect()
}

/// The paths of the steps that both versions have, in the order of the plan; lanes that may change places stand in one order.
fn order<'a>(plan: &'a Plan, shared: &BTreeSet<&str>) -> Vec<&'a str> {
    fn visit<'a>(plan: &'a Plan, range: Range<usize>, shared: &BTreeSet<&str>) -> Vec<&'a str> {
        let mut order = vec![];
        let mut at = range.start;
        while at < range.end {
            let node = &plan.nodes()[at];
            order.extend(shared.contains(node.path.as_str()).then_some(node.path.as_str()));
            let ranges = node.kind.parts();
            at = ranges.last().map_or(at + 1, |last| last.end);
            let mut parts: Vec<Vec<&str>> =
                ranges.into_iter().map(|range| visit(plan, range.clone(), shared)).collect();
            if node.kind.has_equal_lanes() {
                parts.sort_unstable();
            }
            order.extend(parts.concat());
        }
        order
    }
    visit(plan, 0..plan.nodes().len(), shared)
}
