//! The text of a definition: JSON values, and where in the text each of them stands.
//!
//! YAML is the skin, JSON the content: every JSON text is read by the same parser. Anchors and merge keys are expanded,
//! within a budget. Plain scalars mean what YAML 1.2 says, except that `007` and `1_000` stay texts.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use serde_saphyr::{Location, MessageFormatter, Spanned, UserMessageFormatter};

use super::problem::Problem;
use super::{DEFINITION_BYTES_MAX, STEPS_DEPTH_MAX};
use crate::code::Code;

/// Nesting of the text: each list of steps takes five levels, a template some more.
const TEXT_DEPTH_MAX: usize = STEPS_DEPTH_MAX * 5 + 32;
/// Text with aliases expanded: twice what the text itself may have.
const SCALAR_BYTES_MAX: usize = 2 * DEFINITION_BYTES_MAX;
/// Events that aliases may add: enough for shared fragments, not for a bomb.
const ALIAS_EVENTS_MAX: usize = 10_000;

/// A text that was read.
#[derive(Debug)]
pub(crate) struct Source {
    text: String,
    pub(crate) value: Value,
    tree: Spanned<Tree>,
}

impl Source {
    /// Reads a text.
    pub(crate) fn read(text: &str) -> Result<Self, Problem> {
        if text.len() > DEFINITION_BYTES_MAX {
            let message =
                format!("a definition has at most {DEFINITION_BYTES_MAX} bytes, this one {}", text.len());
            return Err(whole(Code::Limit, message));
        }
        let options = serde_saphyr::options! {
            with_snippet: false,
            strict_booleans: true,
            leading_zero_numbers_as_strings: true,
            underscored_numbers_as_strings: true,
            reject_unsupported_tags: true,
            budget: serde_saphyr::budget! {
                max_depth: TEXT_DEPTH_MAX,
                max_documents: 1,
                max_total_scalar_bytes: SCALAR_BYTES_MAX,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_EVENTS_MAX },
        };
        let tree: Spanned<Tree> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let location = error.location().unwrap_or(Location::UNKNOWN);
            Problem {
                pointer: String::new(),
                line: location.line().max(1),
                column: location.column().max(1),
                code: Code::Syntax,
                message: UserMessageFormatter.format_message(&error).into_owned(),
            }
        })?;
        Ok(Self { text: text.to_owned(), value: tree.value.to_json(), tree })
    }

    /// Line and column of the value at `pointer`, or of the nearest value around it.
    pub(crate) fn value_position(&self, pointer: &str) -> (u64, u64) {
        position(self.place(pointer).value)
    }

    /// Line and column of the key at `pointer`, or of the nearest value around it.
    pub(crate) fn key_position(&self, pointer: &str) -> (u64, u64) {
        let place = self.place(pointer);
        position(place.key.unwrap_or(place.value))
    }

    /// Line and column `offset` bytes into the text at `pointer`: exact where the scalar stands on one line as it is,
    /// else its beginning.
    pub(super) fn text_position(&self, pointer: &str, offset: usize) -> (u64, u64) {
        let (line, column) = self.value_position(pointer);
        let scalar = self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let start = self.place(pointer).value.span().byte_offset();
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

    /// The place of the value at `pointer`, or of the nearest value around it.
    fn place(&self, pointer: &str) -> Place {
        let mut place = Place { key: None, value: self.tree.referenced };
        let mut tree = &self.tree.value;
        for segment in pointer.split('/').skip(1) {
            let found = match tree {
                Tree::Scalar(_) => None,
                Tree::List(elements) => {
                    segment.parse().ok().and_then(|index: usize| Some((None, elements.get(index)?)))
                }
                Tree::Map(entries) => {
                    let name = segment.replace("~1", "/").replace("~0", "~");
                    let entry = entries.iter().find(|(key, _)| key.value == name);
                    entry.map(|(key, value)| (Some(key.referenced), value))
                }
            };
            let Some((key, child)) = found else { break };
            place = Place { key, value: child.referenced };
            tree = &child.value;
        }
        place
    }
}

/// Where a value stands, and the key before it.
#[derive(Debug, Clone, Copy)]
struct Place {
    key: Option<Location>,
    value: Location,
}

fn whole(code: Code, message: String) -> Problem {
    Problem { pointer: String::new(), line: 1, column: 1, code, message }
}

fn position(location: Location) -> (u64, u64) {
    (location.line().max(1), location.column().max(1))
}

#[derive(Debug)]
enum Tree {
    Scalar(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl Tree {
    fn to_json(&self) -> Value {
        match self {
            Self::Scalar(value) => value.clone(),
            Self::List(elements) => elements.iter().map(|element| element.value.to_json()).collect(),
            Self::Map(entries) => {
                entries.iter().map(|(name, value)| (name.value.clone(), value.value.to_json())).collect()
            }
        }
    }
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
