//! Runs a block under plain `cargo test`, with a provider that the test scripts: no host, no Wasm.
//!
//! A [`Step`] is one step of a run that lives through crashes, lost answers and retries. What the block is told follows
//! the host's rules: what was sent and may have happened is never sent again, unless it is idempotent; what was answered
//! is answered from the journal. At the end of every [`run`](Step::run) the block is run again from each beginning of its
//! journal, and must make the same calls.
//!
//! ```
//! use counterfoil_sdk::prelude::*;
//! # #[derive(Deserialize, Serialize, JsonSchema)]
//! # struct Charge { order: String, cents: u64 }
//! # #[derive(Deserialize, Serialize, JsonSchema)]
//! # struct Charged { id: String }
//! #
//! /// Charges a card once.
//! #[block(effects(http(connection = "payments", safety = "at-most-once")))]
//! fn charge_card(input: Charge) -> Result<Charged, Failure> {
//!     let charge = http::post("/charges").connection("payments").key("charge").json(&input)?;
//!     Ok(charge.send()?.json()?)
//! }
//!
//! # fn main() {
//! use counterfoil_sdk::testing::*;
//!
//! let mut step = Step::<charge_card>::new(json!({ "order": "o-1", "cents": 1200 }));
//! step.answer("charge", (201, json!({ "id": "ch_1" })));
//! step.crash_before_answer(1);
//! assert!(step.run().is_blocked());
//! assert_eq!(step.receipt("charge").state, State::Unknown);
//!
//! step.resolve("charge", Resolution::committed((201, json!({ "id": "ch_1" })), "the provider lists it"));
//! assert_eq!(step.run().output(), json!({ "id": "ch_1" }));
//! assert_eq!(step.sent().len(), 1);
//! # }
//! ```
//!
//! What it does not do: the bounds of the sandbox, addresses, rates and secrets of connections, what a connection declares
//! of a status, invariants of a workflow. `counterfoil block test` runs the component within the bounds of a host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

mod effect;
mod end;
mod journal;
mod judge;
mod meaning;
mod native;
mod receipt;
mod rerun;
mod resolution;
mod script;
mod world;

use self::effect::Slot;
use self::journal::{Asker, Entry, Journal, is_open};
use self::native::Native;
use self::rerun::Rerun;
use self::script::{Fault, Script};
use self::world::{Execution, Purpose, Stop, World};
use crate::block::{Block, run};
use crate::context::{Level, Place};
use crate::host::native::with;
use crate::reconcile::{UnknownEffect, Verdict, Verify};

pub use self::end::End;
pub use self::receipt::{Emitted, Receipt, Sent, State};
pub use self::resolution::{Resolution, Unresolvable};
pub use self::script::{Calls, Reply};
pub use crate::effect::Safety;
pub use crate::http::Answer;

/// Attempts after the first, and the waits before them, where a workflow says nothing else.
const RETRIES: [Duration; 3] = [Duration::from_secs(60), Duration::from_secs(240), Duration::from_secs(900)];

/// One step of the block `B`, and the world around it.
pub struct Step<B> {
    world: Rc<RefCell<World>>,
    input: String,
    /// Of the last execution, as the block left it.
    outcome: Option<Result<End, Stop>>,
    ended: Option<End>,
    /// Of earlier runs.
    attempts_before: u32,
    block: PhantomData<B>,
}

impl<B: Block> Step<B> {
    /// A step that has not run, with this input.
    ///
    /// # Panics
    ///
    /// When the input cannot be written as JSON.
    pub fn new(input: impl Serialize) -> Self {
        let seed = [0; 32];
        let world = World {
            grants: B::DECLARATION.effects,
            script: Script::default(),
            journal: Journal::default(),
            place: Place { lineage: "lineage".into(), node: "step".into(), iteration: Vec::new() },
            started_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600),
            seed,
            now: Duration::ZERO,
            asker: Asker { run: 0, attempt: 1 },
            stored: BTreeMap::new(),
            emitted: Vec::new(),
            execution: Execution::new(Purpose::Step, seed),
            rerun: None,
        };
        Self {
            world: Rc::new(RefCell::new(world)),
            input: serde_json::to_string(&input).expect("a step's input is JSON"),
            outcome: None,
            ended: None,
            attempts_before: 0,
            block: PhantomData,
        }
    }

    /// Has the provider answer these calls so: those of a label, `("POST", "/charges")`, or the nth that it sees. Several
    /// answers for the same calls are given in turn, the last of them from then on.
    pub fn answer(&mut self, calls: impl Into<Calls>, reply: impl Into<Reply>) -> &mut Self {
        self.world.borrow_mut().script.add(calls.into(), reply.into());
        self
    }

    /// Has the provider answer so whatever else it is called for.
    pub fn otherwise(&mut self, reply: impl Into<Reply>) -> &mut Self {
        self.world.borrow_mut().script.otherwise(reply.into());
        self
    }

    /// The provider takes its nth call, from 1, and the process dies before the answer is recorded. Work for a worker loses
    /// nothing by that: it lies in a queue, and the step with it.
    pub fn crash_before_answer(&mut self, nth: usize) -> &mut Self {
        self.fault(nth, Fault::CrashBefore)
    }

    /// The process dies when the answer of the provider's nth call, from 1, is recorded.
    pub fn crash_after_answer(&mut self, nth: usize) -> &mut Self {
        self.fault(nth, Fault::CrashAfter)
    }

    /// The provider takes its nth call, from 1, and no answer comes; of a worker, its time runs out.
    pub fn drop_answer(&mut self, nth: usize) -> &mut Self {
        self.fault(nth, Fault::Lose)
    }

    fn fault(&mut self, nth: usize, fault: Fault) -> &mut Self {
        self.world.borrow_mut().script.fault(nth, fault);
        self
    }

    /// What is stored under a key before the step.
    ///
    /// # Panics
    ///
    /// When the value cannot be written as JSON.
    pub fn store(&mut self, key: &str, value: impl Serialize) -> &mut Self {
        let value = serde_json::to_vec(&value).expect("a stored value is JSON");
        self.world.borrow_mut().stored.insert(key.to_owned(), value);
        self
    }

    /// When the step first started; the beginning of 2026 if nothing is said.
    pub fn started_at(&mut self, at: SystemTime) -> &mut Self {
        self.world.borrow_mut().started_at = at;
        self
    }

    /// Which random bytes the block draws: those of a component whose step has this seed.
    pub fn seed(&mut self, seed: [u8; 32]) -> &mut Self {
        self.world.borrow_mut().seed = seed;
        self
    }

    /// Where in the work the step stands.
    pub fn place(&mut self, node: &str, iteration: &[u32]) -> &mut Self {
        let mut world = self.world.borrow_mut();
        node.clone_into(&mut world.place.node);
        world.place.iteration = iteration.to_vec();
        drop(world);
        self
    }

    /// Lets time pass.
    pub fn advance(&mut self, time: Duration) -> &mut Self {
        self.world.borrow_mut().now += time;
        self
    }

    /// Runs the step as a host does: again after a crash, in another attempt when its wait is over, until it has ended or
    /// an outcome is unknown.
    ///
    /// # Panics
    ///
    /// When the step has ended; when a call has no scripted answer; when the block, run again, makes other calls.
    #[track_caller]
    pub fn run(&mut self) -> End {
        loop {
            match self.run_once() {
                End::Crashed => {}
                End::Waiting { delay, .. } => {
                    self.advance(delay);
                }
                end => {
                    self.check_determinism();
                    return end;
                }
            }
        }
    }

    /// Runs the step until the process dies, the step waits, has ended, or an outcome is unknown.
    ///
    /// # Panics
    ///
    /// When the step has ended, or a call has no scripted answer.
    #[track_caller]
    pub fn run_once(&mut self) -> End {
        match self.ended.take() {
            Some(end @ (End::Succeeded(_) | End::Failed { .. })) => {
                panic!("the step has ended, and only a replay of a failed one runs it again: {end:?}")
            }
            Some(End::Blocked { reason }) if self.has_unknown() => {
                let end = End::Blocked { reason };
                self.ended = Some(end.clone());
                return end;
            }
            Some(End::Waiting { .. }) => self.world.borrow_mut().asker.attempt += 1,
            _ => {}
        }
        let mut outcome = self.execute();
        for _ in 0..judge::EFFECTS_MAX {
            if outcome != Err(Stop::Queued) {
                break;
            }
            // It goes on, in the same attempt, with what its worker said.
            outcome = self.execute();
        }
        self.outcome = Some(outcome.clone());
        let end = self.settle(outcome.unwrap_or_else(Self::stopped));
        self.ended = Some(end.clone());
        end
    }

    /// Makes a failed step the same step of a replay: of what may have happened, nothing is done again.
    ///
    /// # Panics
    ///
    /// When the step has not failed.
    #[track_caller]
    pub fn replay(&mut self) -> &mut Self {
        let ended = self.ended.take();
        assert!(matches!(ended, Some(End::Failed { .. })), "only a failed step is replayed: {ended:?}");
        let mut world = self.world.borrow_mut();
        self.attempts_before = world.asker.attempt;
        world.asker = Asker { run: world.asker.run + 1, attempt: world.asker.attempt + 1 };
        drop(world);
        self
    }

    /// Runs the block's function once.
    fn execute(&self) -> Result<End, Stop> {
        self.world.borrow_mut().begin(Purpose::Step);
        let native = Native(Rc::clone(&self.world));
        let caught = catch_unwind(AssertUnwindSafe(|| with(native, || run::<B>(&self.input))));
        match caught {
            Ok(Ok(output)) => Ok(End::Succeeded(serde_json::from_str(&output).unwrap_or_default())),
            Ok(Err(failure)) => Ok(End::of(&failure)),
            Err(payload) => match payload.downcast::<Stop>() {
                Ok(stop) => Err(*stop),
                Err(panic) => Ok(End::trap(&*panic)),
            },
        }
    }

    #[track_caller]
    fn stopped(stop: Stop) -> End {
        match stop {
            Stop::Blocked { reason } => End::Blocked { reason },
            Stop::Resend { reason, retry_after } => {
                let delay = retry_after.unwrap_or_default();
                End::Waiting { code: "unknown".into(), message: reason, delay }
            }
            Stop::Failed { code, message } => End::Failed { code: code.into(), message },
            Stop::Crashed => End::Crashed,
            Stop::Queued => panic!("the block is not deterministic: it hands over other work each time"),
            Stop::Unscripted(what) | Stop::Diverges(what) => panic!("{what}"),
        }
    }

    /// What a host makes of the end of an execution.
    fn settle(&mut self, end: End) -> End {
        let mut world = self.world.borrow_mut();
        if end == End::Crashed {
            return end;
        }
        world.journal.lose();
        let end = match end {
            End::Waiting { code, message, delay } => {
                let retry = usize::try_from(world.asker.attempt - self.attempts_before - 1)
                    .ok()
                    .and_then(|nth| RETRIES.get(nth));
                match retry {
                    Some(wait) => End::Waiting { code, message, delay: delay.max(*wait) },
                    None if code == "unknown" => End::Blocked { reason: message },
                    None => End::Failed { code, message },
                }
            }
            end => end,
        };
        // No step ends while an outcome is unknown.
        let is_open = world.journal.0.iter().any(is_open);
        match end {
            End::Succeeded(_) | End::Failed { .. } if is_open => {
                End::Blocked { reason: "an outcome is unknown".into() }
            }
            End::Succeeded(output) => {
                world.commit();
                End::Succeeded(output)
            }
            end => end,
        }
    }

    fn has_unknown(&self) -> bool {
        self.world.borrow().journal.0.iter().any(is_open)
    }

    /// Runs the block again from each beginning of its journal, and holds its calls and its end to those of the last time.
    #[track_caller]
    fn check_determinism(&self) {
        let Some(first) = &self.outcome else { return };
        if matches!(first, Ok(End::Failed { code, .. }) if code == end::TRAP) {
            return;
        }
        let kept = self.world.borrow().clone();
        let told = &kept.execution.told;
        for recorded in 0..=told.len() {
            let rerun = Rerun { told: told.clone(), recorded };
            let mut again = World { rerun: Some(rerun.clone()), ..kept.clone() };
            again.journal.0.retain(|entry| entry.position < recorded);
            self.world.replace(again);
            let outcome = self.execute();
            let calls = self.world.replace(kept.clone()).execution.told.len();
            match (&outcome, first) {
                (Err(Stop::Diverges(what)), _) => panic!("{what}"),
                _ if calls < told.len() => {
                    panic!("{}", rerun.words(calls, "not made", &format!("`{}`", told[calls].facts.request)))
                }
                (Err(_), Err(_)) => {}
                (Ok(again), Ok(first)) if again == first => {}
                _ => panic!(
                    "the block is not deterministic: run again, it ended with {outcome:?}, and had ended with {first:?}"
                ),
            }
        }
    }

    /// Says what became of an effect, by its label or `#` and its number, as a person would.
    ///
    /// # Panics
    ///
    /// When a host would refuse it; see [`try_resolve`](Self::try_resolve).
    #[track_caller]
    pub fn resolve(&mut self, effect: &str, resolution: Resolution) {
        if let Err(why) = self.try_resolve(effect, resolution) {
            panic!("`{effect}` cannot be resolved so: {why}");
        }
    }

    /// Says what became of an effect, by its label or `#` and its number, as a person would.
    ///
    /// # Errors
    ///
    /// A host would refuse it.
    pub fn try_resolve(&mut self, effect: &str, resolution: Resolution) -> Result<(), Unresolvable> {
        let mut world = self.world.borrow_mut();
        let now = world.now;
        resolution::resolve(&mut world.journal, &slot(effect), resolution, now)
    }

    /// Every receipt, in call order.
    pub fn receipts(&self) -> Vec<Receipt> {
        let world = self.world.borrow();
        let mut entries: Vec<&Entry> = world.journal.0.iter().collect();
        entries.sort_by_key(|entry| (entry.position, entry.dispatch_number));
        entries.into_iter().map(Receipt::of).collect()
    }

    /// The newest receipt of an effect, by its label or `#` and its number.
    ///
    /// # Panics
    ///
    /// When it has none.
    #[track_caller]
    pub fn receipt(&self, effect: &str) -> Receipt {
        let found = self.receipts().into_iter().rfind(|receipt| receipt.effect == effect);
        found.unwrap_or_else(|| panic!("`{effect}` has no receipt; there are {:?}", self.receipts()))
    }

    /// Every call that the provider saw, in order.
    pub fn sent(&self) -> Vec<Sent> {
        self.world.borrow().script.sent().to_vec()
    }

    /// The events that the step has emitted: none before it has succeeded.
    pub fn emitted(&self) -> Vec<Emitted> {
        self.world.borrow().emitted.clone()
    }

    /// What is stored under a key, as JSON: the step's own changes not before it has succeeded.
    pub fn stored(&self, key: &str) -> Option<Value> {
        let world = self.world.borrow();
        world.stored.get(key).map(|value| {
            let text = || String::from_utf8_lossy(value).into();
            serde_json::from_slice(value).unwrap_or_else(|_| Value::String(text()))
        })
    }

    /// What the block logged in its last execution.
    pub fn logs(&self) -> Vec<(Level, String)> {
        self.world.borrow().execution.logs.clone()
    }
}

impl<B: Verify> Step<B> {
    /// Asks the block's `verify` what became of the effect, as a host does before it asks a person, and acts on what it
    /// says if a host would.
    ///
    /// # Panics
    ///
    /// When the effect's outcome is not unknown; when a call has no scripted answer.
    #[track_caller]
    pub fn verify(&mut self, effect: &str) -> Verdict {
        let receipt = self.receipt(effect);
        let is_http = receipt.kind == "http";
        assert_eq!(receipt.state, State::Unknown, "only an effect whose outcome is unknown is verified");
        let asked = self.unknown(receipt);
        let native = Native(Rc::clone(&self.world));
        let execution = self.world.borrow().execution.clone();
        self.world.borrow_mut().begin(Purpose::Verification);
        let caught = catch_unwind(AssertUnwindSafe(|| with(native, || B::verify(&asked))));
        self.world.borrow_mut().execution = execution;
        let verdict = match caught {
            Ok(verdict) => verdict,
            Err(payload) => match payload.downcast::<Stop>().map(|stop| *stop) {
                Ok(Stop::Unscripted(what)) => panic!("{what}"),
                _ => Verdict::inconclusive("it ended before it said anything"),
            },
        };
        let evidence = "the block's verify said so";
        // What a host does not believe yet, it asks again later.
        let _ = match verdict.clone() {
            // An answer of HTTP is none of a mail server.
            Verdict::Applied(_) if !is_http => Ok(()),
            Verdict::Applied(answer) => self.try_resolve(effect, Resolution::verified(answer, evidence)),
            Verdict::NotApplied => self.try_resolve(effect, Resolution::abandoned(evidence)),
            Verdict::Inconclusive(_) => Ok(()),
        };
        verdict
    }

    fn unknown(&self, receipt: Receipt) -> UnknownEffect {
        let world = self.world.borrow();
        let mut entries = world.journal.0.iter().rev();
        let request = entries
            .find(|entry| entry.slot == slot(&receipt.effect))
            .map(|entry| entry.facts.content.clone())
            .unwrap_or_default();
        UnknownEffect {
            id: format!("eff_{}_{}", receipt.effect, receipt.dispatch_number),
            kind: receipt.kind.to_owned(),
            node: world.place.node.clone(),
            key: receipt.effect,
            idempotency_key: Some(receipt.idempotency_key),
            request,
            sent_at: world.started_at,
        }
    }
}

fn slot(effect: &str) -> Slot {
    match effect.strip_prefix('#').and_then(|number| number.parse().ok()) {
        Some(ordinal) => Slot::Ordinal(ordinal),
        None => Slot::Label(effect.to_owned()),
    }
}

#[cfg(test)]
mod tests;
