//! What is explored. Each configuration is small enough to be explored to its end; together they cross what may happen.

use counterfoil_domain::effect::Safety::{AtMostOnce, Idempotent, ReadOnly};
use counterfoil_domain::receipt::resolution::Outcome;

use super::guest::Guest;
use super::house::Config;

/// One call that must not be repeated, and nothing but hosts and a provider.
pub(crate) const PLAIN: Config = Config {
    name: "one call",
    guest: Guest::Single([AtMostOnce; 2]),
    places: 1,
    guarded: false,
    numbers_max: 1,
    retries_max: 1,
    losses_max: None,
    crashes: 0,
    policy_changes: 0,
    cancels: 0,
    replays: 0,
    traps: false,
    flushes: false,
    busy: false,
    operator: &[Outcome::Committed, Outcome::Compensated, Outcome::Abandoned],
    declines: false,
    verifier: false,
};

pub(crate) const ALTERNATIVES: Config = Config {
    name: "alternatives",
    guest: Guest::Alternatives([AtMostOnce, AtMostOnce, ReadOnly]),
    crashes: 1,
    ..PLAIN
};

pub(crate) const REPLAYED: Config = Config {
    name: "alternatives, cancelled and replayed",
    guest: Guest::Fallback([AtMostOnce, AtMostOnce]),
    retries_max: 0,
    cancels: 1,
    replays: 1,
    ..PLAIN
};

pub(crate) const CHOICE: Config = Config { name: "a choice by what was read", guest: Guest::Choice, ..PLAIN };

pub(crate) const ONE: Config = Config {
    name: "one call, everybody at it",
    traps: true,
    flushes: true,
    declines: true,
    verifier: true,
    losses_max: Some(1),
    numbers_max: 2,
    ..PLAIN
};

pub(crate) const RESENT: Config = Config {
    name: "re-sent, with an alternative",
    guest: Guest::Fallback([Idempotent, AtMostOnce]),
    policy_changes: 1,
    ..PLAIN
};

pub(crate) const RESENT_TWICE: Config = Config {
    name: "re-sent twice",
    guest: Guest::Single([Idempotent; 2]),
    numbers_max: 2,
    policy_changes: 1,
    flushes: true,
    verifier: true,
    ..PLAIN
};

pub(crate) const GUARDED: Config =
    Config { name: "guarded", places: 2, guarded: true, numbers_max: 0, ..PLAIN };

pub(crate) const GUARDED_RESENT: Config = Config {
    name: "guarded, one re-sent",
    guest: Guest::Single([Idempotent, AtMostOnce]),
    places: 2,
    guarded: true,
    retries_max: 0,
    operator: &[Outcome::Abandoned],
    ..PLAIN
};
