//! The nodes that hold lists of steps beside each other, or again and again.

use serde_json::{Map, Value};

use super::Decoder;
use crate::code::Code;
use crate::expression::child;
use crate::workflow::definition::{
    Join, Lane, MapNode, MapSpec, ParallelNode, Stage, Step, TryNode, default_concurrency,
};
use crate::workflow::{BRANCHES_MAX, MAP_CONCURRENCY_MAX, MAP_ITEMS_MAX};

impl Decoder<'_, '_> {
    pub(super) fn parallel(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        depth: usize,
    ) -> ParallelNode {
        self.check_fields(fields, pointer, &["parallel", "join", "losers"]);
        let lanes = self.parts(fields, pointer, "parallel");
        let lanes: Vec<Lane> = lanes
            .into_iter()
            .map(|(pointer, lane)| Lane { steps: self.held(lane, &pointer, &["do"], depth).remove(0) })
            .collect();
        let join: Join = self.optional(fields, pointer, "join").unwrap_or_default();
        if !(1..=lanes.len()).contains(&(join.needed(lanes.len()) as usize)) && !lanes.is_empty() {
            let message = format!("of {} lists, between 1 and {0} can succeed", lanes.len());
            self.problems.at_value(&child(pointer, "join"), Code::Limit, message);
        }
        let losers = self.optional(fields, pointer, "losers").unwrap_or_default();
        ParallelNode { parallel: lanes, join, losers }
    }

    pub(super) fn map(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        depth: usize,
    ) -> Option<MapNode> {
        self.check_fields(fields, pointer, &["map"]);
        let pointer = child(pointer, "map");
        let Some(map) = fields.get("map").and_then(Value::as_object) else {
            self.problems.at_value(&pointer, Code::Schema, "a map has `items` and `do`");
            return None;
        };
        self.check_fields(map, &pointer, &["items", "do", "concurrency", "on_failure"]);
        let steps = match map.get("do") {
            Some(steps) => self.step_list(steps, &child(&pointer, "do"), depth + 1),
            None => vec![],
        };
        if steps.is_empty() {
            self.problems.at_value(&pointer, Code::Schema, "a map has at least one step in `do`");
        }
        let items = map.get("items").cloned().unwrap_or_default();
        let is_list = match &items {
            Value::Array(items) => items.len() <= MAP_ITEMS_MAX,
            Value::String(text) => text.starts_with('='),
            _ => false,
        };
        if !is_list {
            let message =
                format!("the items of a map are an expression, or a list of at most {MAP_ITEMS_MAX}");
            self.problems.at_value(&child(&pointer, "items"), Code::Schema, message);
        }
        let concurrency = self.optional(map, &pointer, "concurrency").unwrap_or_else(default_concurrency);
        if !(1..=MAP_CONCURRENCY_MAX).contains(&concurrency) {
            let message = format!("a map works on 1 to {MAP_CONCURRENCY_MAX} items at once");
            self.problems.at_value(&child(&pointer, "concurrency"), Code::Limit, message);
        }
        let on_failure = self.optional(map, &pointer, "on_failure").unwrap_or_default();
        Some(MapNode { map: MapSpec { items, steps, concurrency, on_failure } })
    }

    pub(super) fn attempt(&mut self, fields: &Map<String, Value>, pointer: &str, depth: usize) -> TryNode {
        self.check_fields(fields, pointer, &["try", "on_failure"]);
        let stages = self.parts(fields, pointer, "try");
        let stages = stages.into_iter().map(|(pointer, stage)| {
            let mut held = self.held(stage, &pointer, &["do", "undo"], depth);
            let undo = held.pop().unwrap_or_default();
            Stage { steps: held.pop().unwrap_or_default(), undo }
        });
        let stages = stages.collect();
        let on_failure = self.optional(fields, pointer, "on_failure").unwrap_or_default();
        TryNode { stages, on_failure }
    }

    /// The parts that stand in the field that names a container.
    fn parts<'v>(
        &mut self,
        fields: &'v Map<String, Value>,
        pointer: &str,
        kind: &str,
    ) -> Vec<(String, &'v Value)> {
        let pointer = child(pointer, kind);
        let parts = fields.get(kind).map(|parts| self.list(parts, &pointer)).unwrap_or_default();
        if !(1..=BRANCHES_MAX).contains(&parts.len()) {
            let message = format!("`{kind}` has between 1 and {BRANCHES_MAX} lists of steps");
            self.problems.at_value(&pointer, Code::Limit, message);
        }
        parts
    }

    /// The lists of steps in a part, one for each name; the first of them has to be there.
    fn held(&mut self, part: &Value, pointer: &str, names: &[&str], depth: usize) -> Vec<Vec<Step>> {
        let nothing = Map::new();
        let fields = part.as_object().unwrap_or(&nothing);
        self.check_fields(fields, pointer, names);
        if !fields.contains_key(names[0]) {
            let message = format!("a map with `{}` is expected here", names[0]);
            self.problems.at_value(pointer, Code::Schema, message);
        }
        let steps = |name: &&str| match fields.get(*name) {
            Some(steps) => self.step_list(steps, &child(pointer, name), depth + 1),
            None => vec![],
        };
        names.iter().map(steps).collect()
    }

    fn optional<T: serde::de::DeserializeOwned>(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        field: &str,
    ) -> Option<T> {
        self.leaf(fields.get(field)?, &child(pointer, field))
    }
}
