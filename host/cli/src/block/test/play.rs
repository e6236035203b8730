//! Plays scenarios with the component in the sandbox; every call goes to the rehearsal in place of a guard.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use counterfoil_domain::code::Code;
use counterfoil_domain::effect::{EffectCall, EffectReply};
use counterfoil_domain::id::{Digest, LeaseId};
use counterfoil_domain::limits::StepLimits;
use counterfoil_domain::ports::{EffectPort, LogLine, StepJob, StepReport, StepRunner, VerifyJob};
use counterfoil_domain::receipt::Actor;
use counterfoil_domain::rehearsal::scenario::{Mismatch, Scenario, Stage};
use counterfoil_domain::rehearsal::{Outcome, Rehearsal};
use counterfoil_domain::schema::Schema;

/// The rehearsal that is on.
#[derive(Default)]
pub(super) struct Stand(Mutex<Option<Rehearsal>>);

impl Stand {
    /// Does something with the rehearsal that is on.
    fn with<T>(&self, act: impl FnOnce(&mut Rehearsal) -> T) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act)
    }

    fn put(&self, rehearsal: Rehearsal) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(rehearsal);
    }

    fn take(&self) -> Option<Rehearsal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl EffectPort for Stand {
    async fn perform(&self, _: LeaseId, call: EffectCall) -> EffectReply {
        self.with(|rehearsal| rehearsal.perform(&call)).unwrap_or(EffectReply::Stop)
    }
}

/// A component, and what it is played with.
pub(super) struct Player<'a> {
    pub(super) runner: &'a dyn StepRunner,
    pub(super) stand: Arc<Stand>,
    pub(super) component: Digest,
    pub(super) limits: StepLimits,
    /// What the block takes.
    pub(super) takes: Schema,
}

/// What came of a scenario.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) mismatches: Vec<Mismatch>,
    /// What the block did otherwise when it was run again.
    pub(super) differences: Vec<String>,
    /// How often it was run again.
    pub(super) reruns: usize,
    /// What it was told of calls that did not take place, in its last execution.
    pub(super) refusals: Vec<String>,
    /// What it logged in its last execution.
    pub(super) logs: Vec<LogLine>,
    /// The most that one execution used.
    pub(super) cpu_ms: u64,
    pub(super) memory_bytes_peak: u64,
}

impl Player<'_> {
    /// Plays a scenario to its end, and then runs the block again from each beginning of its journal.
    pub(super) async fn play(&self, scenario: &Scenario, mut rehearsal: Rehearsal) -> Played {
        let input = scenario.input();
        let mut played = Played::default();
        for stage in 0..=scenario.stages().len() {
            if let Some(Stage { advance, resolve, verify, .. }) =
                stage.checked_sub(1).and_then(|index| scenario.stages().get(index))
            {
                rehearsal.advance(advance.map_or(0, |advance| advance.ms));
                if let Some(resolve) = resolve {
                    let by = Actor::Person("scenario".into());
                    let resolved = rehearsal.resolve(&resolve.effect, resolve.resolution(), by);
                    if let Err(why) = resolved {
                        played.mismatches.push(scenario.unplayable(stage, &why.to_string()));
                        return played;
                    }
                }
                if let Some(effect) = verify {
                    rehearsal = match self.verify(effect, rehearsal).await {
                        Ok(rehearsal) => rehearsal,
                        Err(why) => {
                            played.mismatches.push(scenario.unplayable(stage, &why));
                            return played;
                        }
                    };
                }
            }
            let outcome;
            (rehearsal, outcome) = self.run(&input, rehearsal, &mut played).await;
            played.refusals = rehearsal.refusals();
            let found = scenario.compare(stage, &outcome, &rehearsal, &played.logs);
            let is_over = !found.is_empty();
            played.mismatches.extend(found);
            if is_over {
                // What follows would only say the same again.
                return played;
            }
        }
        played.mismatches.extend(scenario.idle(&rehearsal));
        for again in rehearsal.reruns() {
            played.reruns += 1;
            let (again, _) = self.execute(&input, again).await;
            if let Some(difference) = again.difference() {
                played.differences.push(difference.to_string());
                break;
            }
        }
        played
    }

    /// Runs the step as a host does, until it has ended or an outcome is unknown.
    async fn run(&self, input: &str, mut rehearsal: Rehearsal, played: &mut Played) -> (Rehearsal, Outcome) {
        if let Err(message) = self.judge(input) {
            return (rehearsal, Outcome::Failed { code: Code::InputInvalid.to_string(), message });
        }
        loop {
            if rehearsal.is_blocked() {
                return (rehearsal, Outcome::Blocked { reason: "an outcome is unknown".into() });
            }
            let (again, (outcome, report)) = self.execute(input, rehearsal).await;
            rehearsal = again;
            played.cpu_ms = played.cpu_ms.max(report.cpu_ms);
            played.memory_bytes_peak = played.memory_bytes_peak.max(report.memory_bytes_peak);
            played.logs = report.logs;
            match outcome {
                Outcome::Crashed | Outcome::Queued => {}
                Outcome::Waiting { delay_ms } => rehearsal.advance(delay_ms),
                outcome => return (rehearsal, outcome),
            }
        }
    }

    fn judge(&self, input: &str) -> Result<(), String> {
        let input = serde_json::from_str(input).map_err(|error| error.to_string())?;
        self.takes.judge_input(&input)
    }

    async fn execute(&self, input: &str, mut rehearsal: Rehearsal) -> (Rehearsal, (Outcome, StepReport)) {
        let job = StepJob {
            execution: rehearsal.begin(),
            component: self.component,
            input: input.to_owned(),
            place: rehearsal.place().clone(),
            started_at_ms: rehearsal.started_at_ms(),
            seed: rehearsal.seed(),
            losses: 0,
            limits: self.limits,
        };
        let before = rehearsal.clone();
        self.stand.put(rehearsal);
        let report = self.runner.run(job).await;
        let mut rehearsal = self.stand.take().unwrap_or(before);
        let outcome = rehearsal.finish(report.end.clone());
        (rehearsal, (outcome, report))
    }

    async fn verify(&self, effect: &str, mut rehearsal: Rehearsal) -> Result<Rehearsal, String> {
        let receipt =
            rehearsal.unknown(effect).ok_or_else(|| format!("the outcome of `{effect}` is not unknown"))?;
        let job = VerifyJob {
            execution: rehearsal.begin_verification(),
            component: self.component,
            receipt,
            place: rehearsal.place().clone(),
            started_at_ms: rehearsal.started_at_ms(),
            seed: rehearsal.seed(),
            limits: self.limits,
        };
        let before = rehearsal.clone();
        self.stand.put(rehearsal);
        let report = self.runner.verify(job).await;
        let mut rehearsal = self.stand.take().unwrap_or(before);
        match rehearsal.verified(effect, report) {
            Some(broken) => Err(broken),
            None => Ok(rehearsal),
        }
    }
}
