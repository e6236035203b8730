//! What `#[block]` implements, and what the host asks of it.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;

/// A block: its declaration, its types, its function.
pub trait Block {
    /// What the step is given.
    type Input: DeserializeOwned + JsonSchema;
    /// What the step gives.
    type Output: Serialize + JsonSchema;
    /// What the attribute says.
    const DECLARATION: Declaration;

    /// The annotated function.
    fn run(input: Self::Input) -> Result<Self::Output, Failure>;
}

/// What the attribute, the name and the doc comment of a block say.
#[derive(Debug, Clone, Copy)]
pub struct Declaration {
    /// The function's name, with hyphens.
    pub name: &'static str,
    /// The first paragraph of the function's doc comment.
    pub summary: &'static str,
    /// Effects that it may perform.
    pub effects: &'static [Grant],
    /// Price of one step.
    pub credits: u32,
}

/// One entry of the attribute's `effects(…)`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Grant {
    /// The kind of effect.
    pub kind: &'static str,
    /// The contract's name for what may happen when an outcome is open.
    pub safety: &'static str,
    /// Connections that the calls may name.
    pub connections: &'static [&'static str],
    /// Hosts that the calls may reach without a connection.
    pub hosts: &'static [&'static str],
}

#[derive(Serialize)]
struct Descriptor {
    name: &'static str,
    summary: &'static str,
    input: Schema,
    output: Schema,
    effects: &'static [Grant],
    limits: Limits,
    credits: u32,
}

/// A block asks for no limits of its own: those in force apply.
#[derive(Serialize)]
struct Limits {}

/// The block's descriptor as JSON.
///
/// # Panics
///
/// When a schema of the block's types cannot be written as JSON, which `schemars` never produces.
pub fn describe<B: Block>() -> String {
    let Declaration { name, summary, effects, credits } = B::DECLARATION;
    let settings = SchemaSettings::draft2020_12();
    let descriptor = Descriptor {
        name,
        summary,
        input: settings.clone().into_generator().into_root_schema_for::<B::Input>(),
        output: settings.for_serialize().into_generator().into_root_schema_for::<B::Output>(),
        effects,
        limits: Limits {},
        credits,
    };
    serde_json::to_string(&descriptor).expect("a schema is JSON")
}

/// Runs the block on JSON.
pub fn run<B: Block>(input: &str) -> Result<String, Failure> {
    let input = serde_json::from_str(input).map_err(|error| {
        Failure::permanent("invalid_input", format!("the input does not fit this block: {error}"))
    })?;
    let output = B::run(input)?;
    serde_json::to_string(&output).map_err(|error| {
        Failure::permanent("invalid_output", format!("the output cannot be written as JSON: {error}"))
    })
}

/// Lets a block return an error of its own that becomes a [`Failure`].
pub fn outcome<T, E: Into<Failure>>(result: Result<T, E>) -> Result<T, Failure> {
    result.map_err(Into::into)
}

/// Makes the block the crate's component.
#[doc(hidden)]
#[macro_export]
#[cfg(target_family = "wasm")]
macro_rules! __export_block {
    ($block:ident) => {
        type Exported = $crate::__private::Step<$block>;
        $crate::__private::bindings::export!(Exported with_types_in $crate::__private::bindings);
    };
    ($block:ident verifying) => {
        $crate::__export_block!($block);
        $crate::__private::verifying::export_verifying!(Exported with_types_in $crate::__private::verifying);
    };
}

/// Outside Wasm nothing is exported; the block is only checked.
#[doc(hidden)]
#[macro_export]
#[cfg(not(target_family = "wasm"))]
macro_rules! __export_block {
    ($block:ident $($verifying:ident)?) => {
        const _: fn() -> ::std::string::String = $crate::__private::describe::<$block>;
    };
}

#[cfg(test)]
mod tests;
