//! What an evaluation may touch at most, from the tree and the sizes of the values at hand.
//!
//! cost = nodes × (bytes of what is read, or of the largest value that can come up if that is more
//!                 + for each comprehension: its elements × the bytes of the outer values that its body reads)
//!
//! Sizes are upper bounds, found without evaluating. What a comprehension's body makes of its element is kept apart, as
//! the parts of the element that are in it: so `items.map(x, {'id': x.id, 'name': x.name})` counts for no more than
//! `items`, however unequal its elements are.

use std::collections::BTreeMap;
use std::mem::take;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use serde_json::Value;

use super::environment::ORDERED;
use super::scope::{Need, Node, Path, Root, Scope};

/// A number, a boolean, or null.
const SCALAR_BYTES: u64 = 8;
/// A number as text.
const NUMBER_TEXT_BYTES: u64 = 24;

pub(super) fn of(tree: &IdedExpr, weight: u64, needs: &BTreeMap<Root, Need>, scope: &Scope<'_>) -> u64 {
    let read =
        needs.iter().map(|(root, need)| needed_bytes(scope.root(*root), need)).fold(0, u64::saturating_add);
    let mut estimate =
        Estimate { scope, variable: None, outer_bytes: 0, largest_bytes: read, loops_bytes: 0 };
    let result = estimate.extent(tree);
    estimate.note_largest(&result);
    weight.saturating_mul(estimate.largest_bytes.saturating_add(estimate.loops_bytes))
}

/// An upper bound of a value's size.
#[derive(Debug, Clone, Default)]
struct Extent<'a> {
    bytes: u64,
    /// Parts of the comprehension's element that come on top: the fields that lead to each, and how often it is there.
    of_element: BTreeMap<Vec<&'a str>, u64>,
    /// Elements or entries, for a container.
    len: u64,
}

impl Extent<'_> {
    fn bytes(bytes: u64) -> Self {
        Self { bytes, of_element: BTreeMap::new(), len: bytes }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            len: self.len.saturating_add(other.len),
            of_element: merged(self.of_element, other.of_element, u64::saturating_add),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            len: self.len.max(other.len),
            of_element: merged(self.of_element, other.of_element, u64::max),
        }
    }

    /// How often any one part of the element is in it, at most: by itself, and in the larger parts around it.
    fn element_multiple(&self) -> u64 {
        let times = |part: &Vec<&str>| {
            let around = self.of_element.iter().filter(|(whole, _)| part.starts_with(whole));
            around.map(|(_, times)| *times).fold(0, u64::saturating_add)
        };
        self.of_element.keys().map(times).max().unwrap_or(0)
    }
}

fn merged<'a>(
    mut left: BTreeMap<Vec<&'a str>, u64>,
    right: BTreeMap<Vec<&'a str>, u64>,
    merge: fn(u64, u64) -> u64,
) -> BTreeMap<Vec<&'a str>, u64> {
    for (part, times) in right {
        let known = left.entry(part).or_insert(0);
        *known = merge(*known, times);
    }
    left
}

struct Estimate<'a> {
    scope: &'a Scope<'a>,
    /// The variable of the comprehension around this place, and the size of its whole range.
    variable: Option<(&'a str, u64)>,
    /// Bytes of outer values read in the body at hand.
    outer_bytes: u64,
    largest_bytes: u64,
    loops_bytes: u64,
}

impl<'a> Estimate<'a> {
    fn extent(&mut self, expr: &'a IdedExpr) -> Extent<'a> {
        if let Some(extent) = self.path_extent(expr) {
            return extent;
        }
        if let Some(part) = self.variable.and_then(|(variable, _)| fields_of(expr, variable)) {
            return Extent { of_element: BTreeMap::from([(part, 1)]), ..Extent::default() };
        }
        let extent = match &expr.expr {
            Expr::Literal(literal) => Extent::bytes(literal_bytes(literal)),
            // An accumulator, or the name of a type.
            Expr::Ident(_) | Expr::Unspecified | Expr::Struct(_) => Extent::bytes(SCALAR_BYTES),
            Expr::Select(select) => {
                let operand = self.extent(&select.operand);
                Extent { len: operand.bytes, ..operand }
            }
            Expr::Call(call) => self.call_extent(call),
            Expr::List(list) => {
                let elements = list
                    .elements
                    .iter()
                    .map(|element| self.extent(element))
                    .fold(Extent::default(), Extent::plus);
                Extent {
                    len: list.elements.len() as u64,
                    ..elements.plus(Extent::bytes(2 + list.elements.len() as u64))
                }
            }
            Expr::Map(map) => {
                let mut extent = Extent::bytes(2);
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        extent = extent.plus(self.extent(&entry.key)).plus(self.extent(&entry.value));
                    }
                }
                Extent { len: map.entries.len() as u64, ..extent }
            }
            Expr::Comprehension(comprehension) => self.comprehension_extent(comprehension),
        };
        self.note_largest(&extent);
        extent
    }

    fn path_extent(&mut self, expr: &IdedExpr) -> Option<Extent<'a>> {
        let path = Path::of(expr)?;
        if self.variable.is_some_and(|(variable, _)| variable == path.root.name()) {
            return None;
        }
        let extent = match self.scope.find(&path) {
            Some(_) if path.presence => Extent::bytes(SCALAR_BYTES),
            Some(node) => Extent { bytes: bytes(node), of_element: BTreeMap::new(), len: len(node) },
            None => Extent::default(),
        };
        self.outer_bytes = self.outer_bytes.saturating_add(extent.bytes);
        Some(extent)
    }

    fn call_extent(&mut self, call: &'a CallExpr) -> Extent<'a> {
        let target = call.target.as_deref().map(|target| self.extent(target));
        let mut extents: Vec<_> =
            target.into_iter().chain(call.args.iter().map(|argument| self.extent(argument))).collect();
        match (call.func_name.as_str(), extents.as_mut_slice()) {
            (operators::CONDITIONAL, [_, then, otherwise]) => take(then).or(take(otherwise)),
            (operators::ADD, [left, right]) => take(left).plus(take(right)),
            (operators::INDEX, [container, _]) => Extent { len: container.bytes, ..take(container) },
            (ORDERED | "dyn", [value]) => take(value),
            ("string" | "bytes", [value]) => take(value).plus(Extent::bytes(NUMBER_TEXT_BYTES)),
            _ => Extent::bytes(SCALAR_BYTES),
        }
    }

    fn comprehension_extent(&mut self, comprehension: &'a ComprehensionExpr) -> Extent<'a> {
        let range = self.extent(&comprehension.iter_range);
        let outer_before = take(&mut self.outer_bytes);
        self.variable = Some((&comprehension.iter_var, range.bytes));
        let step = self.extent(&comprehension.loop_step);
        self.variable = None;
        let in_loop = range.len.saturating_mul(self.outer_bytes);
        self.loops_bytes = self.loops_bytes.saturating_add(in_loop);
        self.outer_bytes = outer_before;
        // What the step adds to the accumulator, once per element.
        let per_element = step.bytes.saturating_mul(range.len);
        let of_elements = step.element_multiple().saturating_mul(range.bytes);
        Extent { bytes: per_element.saturating_add(of_elements), of_element: BTreeMap::new(), len: range.len }
    }

    /// An element is at most as large as its whole range.
    fn note_largest(&mut self, extent: &Extent<'_>) {
        let element_bytes = self.variable.map_or(0, |(_, range_bytes)| range_bytes);
        let bytes = extent.bytes.saturating_add(extent.element_multiple().saturating_mul(element_bytes));
        self.largest_bytes = self.largest_bytes.max(bytes);
    }
}

/// The constant fields below the variable that `expr` is, if it is that.
fn fields_of<'a>(expr: &'a IdedExpr, variable: &str) -> Option<Vec<&'a str>> {
    match &expr.expr {
        Expr::Ident(name) => (name == variable).then(Vec::new),
        Expr::Select(select) if !select.test => {
            let mut fields = fields_of(&select.operand, variable)?;
            fields.push(&select.field);
            Some(fields)
        }
        _ => None,
    }
}

fn literal_bytes(literal: &LiteralValue) -> u64 {
    match literal {
        LiteralValue::String(text) => 2 + text.inner().len() as u64,
        LiteralValue::Bytes(bytes) => 2 + bytes.inner().len() as u64,
        _ => SCALAR_BYTES,
    }
}

fn needed_bytes(node: Node<'_>, need: &Need) -> u64 {
    match need {
        Need::Whole => bytes(node),
        Need::Fields(fields) => fields
            .iter()
            .filter_map(|(name, need)| Some(name.len() as u64 + 4 + needed_bytes(node.field(name)?, need)))
            .fold(2, u64::saturating_add),
    }
}

fn len(node: Node<'_>) -> u64 {
    match node {
        Node::Json(Value::Array(elements)) => elements.len() as u64,
        other => other.fields().map_or(0, |fields| fields.count() as u64),
    }
}

/// About the length of the value as JSON text, never less than one byte for each value in it.
fn bytes(node: Node<'_>) -> u64 {
    match node {
        Node::Json(Value::Null | Value::Bool(_) | Value::Number(_)) => SCALAR_BYTES,
        Node::Json(Value::String(text)) => 2 + text.len() as u64,
        Node::Json(Value::Array(elements)) => {
            elements.iter().map(|element| 1 + bytes(Node::Json(element))).fold(2, u64::saturating_add)
        }
        // A list has many of these.
        Node::Json(Value::Object(fields)) => fields
            .iter()
            .map(|(name, value)| 4 + name.len() as u64 + bytes(Node::Json(value)))
            .fold(2, u64::saturating_add),
        other => other
            .fields()
            .into_iter()
            .flatten()
            .map(|(name, value)| 4 + name.len() as u64 + bytes(value))
            .fold(2, u64::saturating_add),
    }
}
