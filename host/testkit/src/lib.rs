//! The provider that counts and loses answers, the crash harness, guests.

pub mod bombs;
pub mod browser;
pub mod corpus;
pub mod guest;
pub mod host;
pub mod http;
pub mod kill;
pub mod ledger;
pub mod postgres;
pub mod provider;
pub mod smtp;
pub mod tenant;
pub mod work;
