//! The guard, the leases and the resolutions as a state space: two hosts that crash and freeze, a provider that acts and
//! does not answer, a person, a verifier, cancellation and replay. The decisions are the domain's own; what is modelled is
//! the database, the network and time.
#![expect(clippy::cast_possible_truncation, reason = "places, slots and numbers are few")]

mod act;
mod configurations;
mod database;
mod facts;
mod guest;
mod host;
mod house;
mod mutant;
mod mutants;
mod properties;
mod reach;
mod state;

use stateright::{Checker, HasDiscoveries, Model};

use self::configurations as c;
use self::house::{Config, House};

/// States that the model has at least, over all configurations: fewer would mean that something is cut off.
const UNIQUE_STATES_MIN: usize = 1_000_000;

/// The configurations with the number of unique states that each has: all are explored to the end.
const WHOLE: [(Config, usize); 8] = [
    (c::ALTERNATIVES, 469_254),
    (c::REPLAYED, 476_082),
    (c::CHOICE, 134_641),
    (c::ONE, 201_496),
    (c::RESENT, 367_357),
    (c::RESENT_TWICE, 1_245_039),
    (c::GUARDED, 56_825),
    (c::GUARDED_RESENT, 407_124),
];

/// Explores configurations to their ends; every property must hold in every state.
fn explore(configurations: &[(Config, usize)]) {
    for (config, unique_states) in configurations {
        let checker = House { config: *config, mutant: None }
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let unique = checker.unique_state_count();
        println!("{unique:>9} states, {} steps deep: {}", checker.max_depth(), config.name);
        checker.assert_properties();
        assert_eq!(unique, *unique_states, "{}", config.name);
    }
}

#[test]
fn the_model_has_a_million_states() {
    assert!(WHOLE.iter().map(|(_, unique_states)| unique_states).sum::<usize>() >= UNIQUE_STATES_MIN);
}

#[test]
fn alternatives_never_both_stand() {
    explore(&WHOLE[..3]);
}

#[test]
fn what_is_unknown_is_settled_once() {
    explore(&WHOLE[3..6]);
}

#[test]
fn guarded_content_stands_once() {
    explore(&WHOLE[6..]);
}

#[test]
fn every_step_can_still_end() {
    for config in
        [Config { crashes: 1, ..c::ONE }, Config { name: "re-sent", policy_changes: 0, ..c::RESENT }]
    {
        let reach = reach::reach(&House { config, mutant: None });
        println!("{:>9} states, each of which can end: {}", reach.states, config.name);
        assert!(reach.stuck.is_none(), "{}: {:#?}", config.name, reach.stuck);
    }
}
