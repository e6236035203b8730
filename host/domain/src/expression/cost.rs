//! What an evaluation may touch at most, from the tree and the sizes of the values at hand.
//!
//! cost = nodes × (bytes of what is read, or of the largest value that can come up if that is more
//!                 + for each comprehension: its elements × the bytes of the outer values that its body reads)
//!
//! Sizes are upper bounds, found without evaluating. The size of what a comprehension's body yields is kept as
//! a part per element and a multiple of the element's own size, so that `items.map(x, x.name)` counts for no more than
//! `items`, however unequal its elements are.

use std::collections::BTreeMap;

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
    estimate.note_largest(result);
    weight.saturating_mul(estimate.largest_bytes.saturating_add(estimate.loops_bytes))
}

/// An upper bound of a value's size.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    bytes: u64,
    /// That many times the size of the comprehension's element comes on top.
    elements_multiple: u64,
    /// Elements or entries, for a container.
    len: u64,
}

impl Extent {
    fn bytes(bytes: u64) -> Self {
        Self { bytes, elements_multiple: 0, len: bytes }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            elements_multiple: self.elements_multiple.saturating_add(other.elements_multiple),
            len: self.len.saturating_add(other.len),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            elements_multiple: self.elements_multiple.max(other.elements_multiple),
            len: self.len.max(other.len),
        }
    }
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
    fn extent(&mut self, expr: &'a IdedExpr) -> Extent {
        if let Some(extent) = self.path_extent(expr) {
            return extent;
        }
        let extent = match &expr.expr {
            Expr::Literal(literal) => Extent::bytes(literal_bytes(literal)),
            Expr::Ident(name) if self.variable.is_some_and(|(variable, _)| variable == name) => {
                Extent { bytes: 0, elements_multiple: 1, len: 0 }
            }
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
        self.note_largest(extent);
        extent
    }

    fn path_extent(&mut self, expr: &IdedExpr) -> Option<Extent> {
        let path = Path::of(expr)?;
        if self.variable.is_some_and(|(variable, _)| variable == path.root.name()) {
            return None;
        }
        let extent = match self.scope.find(&path) {
            Some(_) if path.presence => Extent::bytes(SCALAR_BYTES),
            Some(node) => Extent { bytes: bytes(node), elements_multiple: 0, len: len(node) },
            None => Extent::default(),
        };
        self.outer_bytes = self.outer_bytes.saturating_add(extent.bytes);
        Some(extent)
    }

    fn call_extent(&mut self, call: &'a CallExpr) -> Extent {
        let target = call.target.as_deref().map(|target| self.extent(target));
        let arguments: Vec<_> = call.args.iter().map(|argument| self.extent(argument)).collect();
        let first = target.or(arguments.first().copied()).unwrap_or_default();
        match (call.func_name.as_str(), arguments.as_slice()) {
            (operators::CONDITIONAL, [_, then, otherwise]) => then.or(*otherwise),
            (operators::ADD, [left, right]) => left.plus(*right),
            (operators::INDEX, [container, _]) => Extent { len: container.bytes, ..*container },
            (ORDERED | "dyn", _) => first,
            ("string" | "bytes", _) => first.plus(Extent::bytes(NUMBER_TEXT_BYTES)),
            _ => Extent::bytes(SCALAR_BYTES),
        }
    }

    fn comprehension_extent(&mut self, comprehension: &'a ComprehensionExpr) -> Extent {
        let range = self.extent(&comprehension.iter_range);
        let outer_before = std::mem::take(&mut self.outer_bytes);
        self.variable = Some((&comprehension.iter_var, range.bytes));
        let step = self.extent(&comprehension.loop_step);
        self.variable = None;
        let in_loop = range.len.saturating_mul(self.outer_bytes);
        self.loops_bytes = self.loops_bytes.saturating_add(in_loop);
        self.outer_bytes = outer_before;
        // What the step adds to the accumulator, once per element.
        let per_element = step.bytes.saturating_mul(range.len);
        let of_elements = step.elements_multiple.saturating_mul(range.bytes);
        Extent { bytes: per_element.saturating_add(of_elements), elements_multiple: 0, len: range.len }
    }

    /// An element is at most as large as its whole range.
    fn note_largest(&mut self, extent: Extent) {
        let element_bytes = self.variable.map_or(0, |(_, range_bytes)| range_bytes);
        let bytes = extent.bytes.saturating_add(extent.elements_multiple.saturating_mul(element_bytes));
        self.largest_bytes = self.largest_bytes.max(bytes);
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
        other => other
            .fields()
            .into_iter()
            .flatten()
            .map(|(name, value)| 4 + name.len() as u64 + bytes(value))
            .fold(2, u64::saturating_add),
    }
}
