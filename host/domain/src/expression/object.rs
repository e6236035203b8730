//! A JSON object as a CEL map that is not copied.
//!
//! The evaluator copies the element of a comprehension several times for each turn, and its own maps copy every field
//! then. This one copies a reference. Fields are converted when they are selected; what needs the evaluator's own map
//! (an equality, the keys, a result) gets one, made once.

use std::sync::OnceLock;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Sizer, Zeroer};
use cel::common::types::{self, CelInt, CelMap, CelString, Type};
use cel::common::value::{Builtin, BuiltinRef, CowVal, Val};
use serde_json::{Map, Value};

use super::value::{json_to_cel, map};

#[derive(Debug)]
pub(super) struct Object<'a> {
    fields: &'a Map<String, Value>,
    own: OnceLock<CelMap<'a>>,
}

impl<'a> Object<'a> {
    pub(super) fn new(fields: &'a Map<String, Value>) -> Self {
        Self { fields, own: OnceLock::new() }
    }

    fn own(&self) -> &CelMap<'a> {
        self.own
            .get_or_init(|| map(self.fields.iter().map(|(name, value)| (name.as_str(), json_to_cel(value)))))
    }

    fn field(&self, name: &dyn Val) -> Option<&'a Value> {
        self.fields.get(name.downcast_ref::<CelString>()?.inner())
    }
}

impl Val for Object<'_> {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &types::MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn into_indexer<'v>(self: Box<Self>) -> Option<Box<dyn Indexer + 'v>>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        self.own().as_iterable()
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        self.own().as_zeroer()
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.own().equals(other)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(Self::new(self.fields))
    }

    // The evaluator's way to ask for its own map; without it, `{} == object` would be false.
    fn as_builtin<'b, 'v>(&'b self) -> BuiltinRef<'b, 'v>
    where
        Self: 'v,
    {
        BuiltinRef::Map(self.own())
    }

    fn into_builtin<'v>(self: Box<Self>) -> Option<Builtin<'v>>
    where
        Self: 'v,
    {
        self.own();
        self.own.into_inner().map(Builtin::Map)
    }
}

impl Container for Object<'_> {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        if self.field(key).is_some() { Ok(true) } else { self.own().contains(key) }
    }
}

impl Indexer for Object<'_> {
    fn get<'b, 'v>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        match self.field(key) {
            Some(value) => Ok(CowVal::Owned(json_to_cel(value))),
            None => self.own().get(key),
        }
    }

    fn steal<'v>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(key).map(CowVal::into_owned)
    }
}

impl Sizer for Object<'_> {
    fn size(&self) -> CelInt {
        self.own().size()
    }
}
