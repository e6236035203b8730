//! The text of a definition: JSON values, and where in the text each of them stands.
//!
//! YAML is the skin, JSON the content: every JSON text is read by the same parser. Anchors and merge keys are expanded,
//! within a budget. Plain scalars mean what YAML 1.2 says, except that `007` and `1_000` stay texts.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, MessageFormatter, Spanned, UserMessageFormatter};

use super::problem::{Problem, ProblemCode};
use super::{DEFINITION_BYTES_MAX, STEPS_DEPTH_MAX};
use crate::expression::child;

/// Nesting of the text: each list of steps takes five levels, a template some more.
const TEXT_DEPTH_MAX: usize = STEPS_DEPTH_MAX * 5 + 32;
/// Events that aliases may add: enough for shared fragments, not for a bomb.
const ALIAS_EVENTS_MAX: usize = 10_000;

/// A text that was read.
#[derive(Debug)]
pub(super) struct Source {
    text: String,
    pub(super) value: Value,
    /// By JSON Pointer.
    places: HashMap<String, Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    key: Option<Location>,
    value: Location,
}

impl Source {
    /// Reads a text.
    pub(super) fn read(text: &str) -> Result<Self, Problem> {
        if text.len() > DEFINITION_BYTES_MAX {
            let message =
                format!("a definition has at most {DEFINITION_BYTES_MAX} bytes, this one {}", text.len());
            return Err(whole(ProblemCode::Limit, message));
        }
        let options = serde_saphyr::options! {
            with_snippet: false,
            strict_booleans: true,
            leading_zero_numbers_as_strings: true,
            underscored_numbers_as_strings: true,
            reject_unsupported_tags: true,
            budget: serde_saphyr::budget! { max_depth: TEXT_DEPTH_MAX, max_documents: 1 },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_EVENTS_MAX },
        };
        let tree: Spanned<Tree> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let location = error.location().unwrap_or(Location::UNKNOWN);
            Problem {
                pointer: String::new(),
                line: location.line().max(1),
                column: location.column().max(1),
                code: ProblemCode::Syntax,
                message: UserMessageFormatter.format_message(&error).into_owned(),
            }
        })?;
        let mut places = HashMap::new();
        let value = flatten(tree, None, String::new(), &mut places);
        Ok(Self { text: text.to_owned(), value, places })
    }

    /// Line and column of the value at `pointer`, or of the nearest value around it.
    pub(super) fn value_position(&self, pointer: &str) -> (u64, u64) {
        self.place(pointer).map_or((1, 1), |place| position(place.value))
    }

    /// Line and column of the key at `pointer`, or of the nearest value around it.
    pub(super) fn key_position(&self, pointer: &str) -> (u64, u64) {
        self.place(pointer).map_or((1, 1), |place| position(place.key.unwrap_or(place.value)))
    }

    /// Line and column `offset` bytes into the text at `pointer`: exact where the scalar stands on one line as it is,
    /// else its beginning.
    pub(super) fn text_position(&self, pointer: &str, offset: usize) -> (u64, u64) {
        let (line, column) = self.value_position(pointer);
        let scalar = self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let start = self.place(pointer).and_then(|place| place.value.span().byte_offset());
        let written =
            start.and_then(|start| self.text.get(usize::try_from(start).ok()?..)).unwrap_or_default();
        let quote_len = usize::from(written.starts_with(['"', '\'']));
        let as_it_is = written.get(quote_len..).is_some_and(|written| written.starts_with(scalar));
        match scalar.get(..offset) {
            Some(before) if as_it_is && !before.contains('\n') => {
                (line, column + (quote_len + before.chars().count()) as u64)
            }
            _ => (line, column),
        }
    }

    fn place(&self, pointer: &str) -> Option<&Place> {
        let mut pointer = pointer;
        loop {
            if let Some(place) = self.places.get(pointer) {
                return Some(place);
            }
            pointer = &pointer[..pointer.rfind('/')?];
        }
    }
}

fn whole(code: ProblemCode, message: String) -> Problem {
    Problem { pointer: String::new(), line: 1, column: 1, code, message }
}

fn position(location: Location) -> (u64, u64) {
    (location.line().max(1), location.column().max(1))
}

fn flatten(
    tree: Spanned<Tree>,
    key: Option<Location>,
    pointer: String,
    places: &mut HashMap<String, Place>,
) -> Value {
    let value = match tree.value {
        Tree::Scalar(value) => value,
        Tree::List(elements) => {
            let indexed = elements.into_iter().enumerate();
            indexed
                .map(|(index, element)| flatten(element, None, child(&pointer, &index.to_string()), places))
                .collect()
        }
        Tree::Map(entries) => {
            let mut fields = Map::new();
            for (name, value) in entries {
                let value = flatten(value, Some(name.referenced), child(&pointer, &name.value), places);
                fields.insert(name.value, value);
            }
            Value::Object(fields)
        }
    };
    places.insert(pointer, Place { key, value: tree.referenced });
    value
}

enum Tree {
    Scalar(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Tree, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Tree, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number of JSON is finite"))?;
        Ok(Tree::Scalar(number.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Tree::Map(map))
    }
}
