//! API in, pages out.
//!
//! [`router`] answers the API under `/v1`, the pages, advice and what operators ask; [`serve`] listens with it. A
//! handler reads the request, asks `store` or `domain`, and shows the verdict: nothing is decided here.

#![warn(missing_docs)]

mod advice;
mod api;
mod aside;
mod auth;
mod extract;
mod idempotency;
mod layers;
mod list;
mod login_link;
mod metrics;
mod openapi;
mod pages;
mod problem;
mod server;
mod session;
mod state;
mod turns;
mod uploads;

pub use login_link::LoginLinks;
pub use openapi::document;
pub use server::{router, serve};
pub use state::WebState;
