//! Each protection taken away, one at a time: the model must notice, or say what else protects.

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use super::configurations as c;
use super::house::{Config, House};
use super::mutant::Mutant;
use super::properties as p;
use super::reach::reach;

/// A mutant, where it is looked for, and the property that must catch it.
type Case = (Mutant, Config, &'static str);

const REPLAYED_ONE: Config =
    Config { name: "one call, replayed", cancels: 1, replays: 1, retries_max: 0, ..c::PLAIN };
const VERIFIED: Config = Config { name: "one call, verified", verifier: true, operator: &[], ..c::PLAIN };
const TRAPPED: Config = Config { name: "one call, trapped", traps: true, ..c::PLAIN };
const RETRIED: Config = Config { name: "alternatives, retried", crashes: 0, ..c::ALTERNATIVES };

const CAUGHT: [Case; 23] = [
    (Mutant::SendWindow, c::PLAIN, p::NEVER_TWICE),
    (Mutant::AbsenceWait, c::PLAIN, p::NEVER_TWICE),
    (Mutant::Recheck, c::RESENT, p::ANSWERED_ONCE),
    (Mutant::DispatchFence, REPLAYED_ONE, p::CLOSED),
    (Mutant::EndFence, c::CHOICE, p::SAME_ANSWERS),
    (Mutant::JournalBeforeChecks, Config { policy_changes: 1, ..c::ALTERNATIVES }, p::ONE_ALTERNATIVE),
    (Mutant::VerifyAsksAfresh, VERIFIED, p::NEVER_TWICE),
    (Mutant::RefusalHidden, c::RESENT, p::ONE_ALTERNATIVE),
    (Mutant::FallbackKept, c::REPLAYED, p::ONE_ALTERNATIVE),
    (Mutant::LateAnswerResumes, c::PLAIN, p::BLOCKED_UNKNOWN),
    (Mutant::Receipt, Config { crashes: 1, ..c::PLAIN }, p::NEVER_TWICE),
    (Mutant::SwapExpectsFrom, c::PLAIN, p::COMMITTED_ONCE),
    (Mutant::GuardIndex, c::GUARDED, p::GUARDED),
    (Mutant::JournalAndIdentity, c::PLAIN, p::NEVER_TWICE),
    (Mutant::SettleLooks, TRAPPED, p::CLOSED),
    (Mutant::CancelLoses, REPLAYED_ONE, p::CLOSED),
    (Mutant::BlockLooks, c::PLAIN, p::BLOCKED_UNKNOWN),
    (Mutant::FlushLooks, c::RESENT_TWICE, p::SAME_ANSWERS),
    (Mutant::SiblingsVerified, c::RESENT, p::ONE_ANSWER),
    (Mutant::SiblingsCompensated, c::RESENT, p::COMMITTED_ONCE),
    (Mutant::AnswersBeforeDispatch, RETRIED, p::ONE_ALTERNATIVE),
    (Mutant::LineageShared, REPLAYED_ONE, p::NEVER_TWICE),
    (Mutant::FreshKey, c::RESENT_TWICE, p::COMMITTED_ONCE),
];

/// Protections behind which another stands, and which one it is: nothing is done twice without them.
const COVERED: [(Mutant, Config, &str); 2] = [
    (Mutant::Journal, Config { crashes: 1, ..c::PLAIN }, "the receipt's identity"),
    (
        Mutant::Identity,
        Config { crashes: 1, cancels: 1, replays: 1, ..c::PLAIN },
        "the journal and the lease",
    ),
];

fn check(mutant: Mutant, config: Config, until: HasDiscoveries) -> impl Checker<House> {
    House { config, mutant: Some(mutant) }.checker().threads(2).finish_when(until).spawn_bfs().join()
}

#[test]
fn every_mutant_is_caught() {
    let mut missed = vec![];
    for (mutant, config, property) in CAUGHT {
        let checker = check(mutant, config, HasDiscoveries::AllOf([property].into()));
        let unique = checker.unique_state_count();
        let is_caught = checker.discovery(property).is_some();
        let verdict = if is_caught { "caught by" } else { "MISSED by" };
        println!("{unique:>9} states: without {mutant:?}, {verdict} `{property}` ({})", config.name);
        if !is_caught {
            missed.push(mutant);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn a_protection_behind_another_is_named() {
    for (mutant, config, cover) in COVERED {
        let checker = check(mutant, config, HasDiscoveries::AnyFailures);
        let unique = checker.unique_state_count();
        println!("{unique:>9} states: without {mutant:?}, covered by {cover} ({})", config.name);
        let failed: Vec<_> = checker
            .discoveries()
            .into_keys()
            .filter(|name| matches!(checker.model().property(name).expectation, Expectation::Always))
            .collect();
        assert!(failed.is_empty(), "{mutant:?} is not covered: {failed:?}");
    }
}

/// Without a look at the journal nothing is done twice, but nothing is ever finished either.
#[test]
fn a_step_without_its_journal_never_ends() {
    for (mutant, is_stuck) in [(None, false), (Some(Mutant::Journal), true)] {
        let reach = reach(&House { config: c::PLAIN, mutant });
        println!("{:>9} states: without {mutant:?}, stuck: {}", reach.states, reach.stuck.is_some());
        assert_eq!(reach.stuck.is_some(), is_stuck, "{mutant:?}");
    }
}
