//! The `#[block]` attribute of `counterfoil-sdk`, which re-exports it.

#![warn(missing_docs)]

mod arguments;
mod expansion;
mod signature;

use proc_macro::TokenStream;

/// Makes a function the block of its crate.
///
/// The function takes one input and returns `Result<Output, Failure>`: the input derives `Deserialize`,
/// the output `Serialize`, both `JsonSchema`. An error of another type will do where it becomes a
/// `Failure` through `From`. The function's name, with hyphens, is the block's name; the first paragraph
/// of its doc comment is the block's summary.
///
/// Arguments, all optional:
///
/// - `effects(http(…), mail(…), emit, storage, …)`: the effects that the block may perform, and no others. Each `http`
///   names where it goes, by `connection = "payments"` or `hosts = ["api.example.com"]`, and how safe it is
///   to repeat, by `safety = "at-most-once"` (as without it), `"idempotent"` or `"read-only"`.
///   `mail(connection = "post")` allows messages through a mail server; `emit` allows events; `storage` allows stored values, and `storage(safety = "read-only")` only to read them.
/// - `credits = 1`: the price of one step.
/// - `verify = find`: the function `fn find(effect: &UnknownEffect) -> Verdict` (or a `Result` of one), which the host
///   asks what became of an effect whose outcome is unknown, before it asks a person. It may look and change nothing:
///   its calls must be read-only.
#[proc_macro_attribute]
pub fn block(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expansion::expand(arguments.into(), item.into()).into()
}
