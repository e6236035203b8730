//! Write a Counterfoil block in Rust.
//!
//! A block is one function from a typed input to a typed output. It runs in a sandbox whose only way
//! out is an effect, such as an HTTP call through [`http`]; the host writes a receipt before it makes
//! the call, so that the call is never made twice for one step. An event of [`emit`] and a value of
//! [`storage`] are recorded with the step, exactly once. A [`worker`] is a program of the tenant's own, outside the host.
//!
//! ```
//! use counterfoil_sdk::prelude::*;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Charge {
//!     order: String,
//!     cents: u64,
//! }
//! #[derive(Deserialize, Serialize, JsonSchema)]
//! struct Charged {
//!     id: String,
//! }
//!
//! /// Charges a card once.
//! #[block(effects(http(connection = "payments", safety = "at-most-once")), credits = 1)]
//! fn charge_card(input: Charge) -> Result<Charged, Failure> {
//!     let body = json!({ "order": input.order, "cents": input.cents });
//!     let answer =
//!         http::post("/charges").connection("payments").key("charge").json(&body)?.send()?;
//!     Ok(answer.json()?)
//! }
//! ```
//!
//! A block's crate is a `cdylib` for `wasm32-unknown-unknown` and names `serde` and `schemars` beside
//! this crate, because their derives do.

#![warn(missing_docs)]

// `#[block]` and the bindings name this crate as an author's crate does.
extern crate self as counterfoil_sdk;

mod block;
pub mod context;
mod effect;
pub mod emit;
mod failure;
mod host;
pub mod http;
pub mod mail;
mod reconcile;
pub mod storage;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
pub mod worker;

pub use counterfoil_sdk_macros::block;

pub use crate::effect::{EffectError, Safety};
pub use crate::failure::{Failure, JsonError};
pub use crate::reconcile::{UnknownEffect, Verdict};

/// What nearly every block uses.
pub mod prelude {
    pub use counterfoil_sdk_macros::block;
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
    pub use serde_json::{Value, json};

    pub use crate::{
        EffectError, Failure, UnknownEffect, Verdict, context, emit, http, mail, storage, worker,
    };
}

/// What `#[block]` expands to. No part of the interface: it changes without notice.
#[doc(hidden)]
pub mod __private {
    pub use crate::__export_block as export_block;
    pub use crate::block::{Block, Declaration, Grant, describe, outcome, run};
    #[cfg(target_family = "wasm")]
    pub use crate::host::guest::{Step, bindings, verifying};
    pub use crate::reconcile::{Verify, verdict};
    #[cfg(target_family = "wasm")]
    pub use wit_bindgen;
}
