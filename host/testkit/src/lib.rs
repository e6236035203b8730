//! The provider that counts and loses answers, the crash harness, guests.

pub mod bombs;
pub mod browser;
pub mod corpus;
pub mod fuzz;
pub mod guest;
pub mod host;
pub mod http;
pub mod kill;
pub mod ledger;
pub mod postgres;
pub mod provider;
mod random;
pub mod smtp;
mod stage;
pub mod tenant;
mod watch;
pub mod work;

/// Another one each time, short enough to be typed.
pub fn seed_of_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() % 1_000_000
}

/// Whether somebody who starts one of these programs wants to know how.
pub fn asks_for_help<A: AsRef<std::ffi::OsStr>>(arguments: &[A]) -> bool {
    arguments.iter().any(|argument| argument.as_ref() == "--help" || argument.as_ref() == "-h")
}
