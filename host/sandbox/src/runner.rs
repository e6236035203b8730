//! Guests in processes of their own.
//!
//! Each runner has one thread, one socket to this host, and nothing else: no file, no network, no secret. What breaks out
//! of a guest has that, and the steps that run beside it; what brings its process down costs those steps one execution.

mod child;
mod process;
mod socket;
mod wire;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::code::Code;
use counterfoil_domain::id::Digest;
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, NAME_BYTES_MAX, StepLimits, bounded_text};
use counterfoil_domain::ports::{
    EffectPort, LogLine, Refused, StepEnd, StepJob, StepReport, VerifyEnd, VerifyJob, VerifyReport,
};
use counterfoil_domain::receipt::verification::Verdict;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

pub(crate) use self::child::main;
use self::process::{Door, Runner, Unheard};
pub(crate) use self::wire::Begin;
use self::wire::{Question, Said};
use crate::blocks::NotReady;
use crate::engine::Allocation;
use crate::executor::Executor;
use crate::local::DESCRIBE_WALL_MS_MAX;
use crate::log::StepLog;
use crate::machine_code::MachineCode;
use crate::program::Program;
use crate::report::{narrowest, unready};
use crate::trap;

/// The first argument of a runner.
pub(crate) const COMMAND: &str = "__run";

/// A step whose process was lost so often in a row runs where it can bring down no other.
const LOSSES_TOGETHER_MAX: u32 = 2;
/// Processes for one guest each, beside those for all: for steps, and for descriptions, so that neither waits for the other.
const ALONE_MAX: usize = 2;
/// A step that is to run alone holds its place on this host while it waits. After this it is handed back.
const ALONE_WAIT_MAX: Duration = Duration::from_secs(1);
/// A runner that was started less than this ago and is gone again is not replaced before.
const START_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The runners of one host.
pub(crate) struct Runners {
    program: Program,
    begin: Begin,
    places: Vec<Place>,
    alone: Semaphore,
    describing: Semaphore,
    effects: Arc<dyn EffectPort>,
    heard_on: Option<Handle>,
}

/// Where one runner follows another.
#[derive(Default)]
struct Place {
    current: Mutex<Option<(Arc<Runner>, Instant)>>,
    asked: AtomicU32,
}

/// A question that a place is busy with.
struct Turn<'a>(&'a Place);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.asked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a question has no answer.
enum Unanswered {
    /// Nothing of the guest has run.
    Unavailable(String),
    /// Some of it may have.
    Unheard(Unheard),
}

impl Runners {
    /// So many processes for all guests, of which each is started when it is first needed.
    pub(crate) fn new(
        program: Program,
        processes: NonZeroU32,
        begin: Begin,
        effects: Arc<dyn EffectPort>,
        heard_on: Option<Handle>,
    ) -> Self {
        let places = (0..processes.get()).map(|_| Place::default()).collect();
        Self {
            program,
            begin,
            places,
            alone: Semaphore::new(ALONE_MAX),
            describing: Semaphore::new(ALONE_MAX),
            effects,
            heard_on,
        }
    }

    async fn start(&self, begin: Begin) -> Result<Runner, String> {
        let Some(runtime) = &self.heard_on else { return Runner::start(&self.program, begin).await };
        let program = self.program.clone();
        let starting = runtime.spawn(async move { Runner::start(&program, begin).await });
        starting.await.unwrap_or_else(|broken| Err(format!("a runner could not be started: {broken}")))
    }

    /// The place that is busy with the fewest, and the first of them: so a quiet host keeps few of them warm.
    fn turn(&self) -> Option<Turn<'_>> {
        let place = self.places.iter().min_by_key(|place| place.asked.load(Ordering::Relaxed))?;
        place.asked.fetch_add(1, Ordering::Relaxed);
        Some(Turn(place))
    }

    /// The runner of a place; a new one if the last is gone.
    async fn runner(&self, place: &Place) -> Result<Arc<Runner>, String> {
        let mut current = place.current.lock().await;
        if let Some((runner, started)) = &*current {
            if !runner.is_gone() {
                return Ok(Arc::clone(runner));
            }
            tokio::time::sleep_until(*started + START_AGAIN_AFTER).await;
        }
        let started = Instant::now();
        let runner = Arc::new(self.start(self.begin).await?);
        *current = Some((Arc::clone(&runner), started));
        Ok(runner)
    }

    async fn ask(
        &self,
        code: &Arc<MachineCode>,
        question: &Question,
        door: Door<'_>,
        wall_ms: u64,
        losses: u32,
    ) -> Result<Said, Unanswered> {
        let wall =
            Duration::from_millis(wall_ms.min(self.begin.limits.wall_ms_max.max(DESCRIBE_WALL_MS_MAX)));
        if losses > LOSSES_TOGETHER_MAX {
            let turn = timeout(ALONE_WAIT_MAX, self.alone.acquire()).await;
            let Ok(Ok(_turn)) = turn else {
                let why = "steps that lost what ran them run alone, and others do so now";
                return Err(Unanswered::Unavailable(why.into()));
            };
            return self.ask_alone(code, question, door, wall).await;
        }
        let turn = self.turn().ok_or_else(|| Unanswered::Unavailable("it has no runners".into()))?;
        let runner = self.runner(turn.0).await.map_err(Unanswered::Unavailable)?;
        runner.ask(code, question, door, wall).await.map_err(Unanswered::Unheard)
    }

    /// Asks a runner that is there for this question only.
    async fn ask_alone(
        &self,
        code: &Arc<MachineCode>,
        question: &Question,
        door: Door<'_>,
        wall: Duration,
    ) -> Result<Said, Unanswered> {
        let begin = Begin { allocation: Allocation::OnDemand, slots: 1, ..self.begin };
        let runner = self.start(begin).await.map_err(Unanswered::Unavailable)?;
        runner.ask(code, question, door, wall).await.map_err(Unanswered::Unheard)
    }
}

#[async_trait]
impl Executor for Runners {
    async fn load(&self, component: Digest, code: &Arc<MachineCode>) -> Result<(), NotReady> {
        let turn = self.turn().ok_or_else(|| NotReady::Unavailable("it has no runners".into()))?;
        let runner = self.runner(turn.0).await.map_err(NotReady::Unavailable)?;
        match runner.load(component, code).await {
            Ok(Said::Loaded(loaded)) => loaded,
            Ok(_) => Err(NotReady::Unavailable(BESIDE_THE_POINT.into())),
            Err(gone) => Err(NotReady::Unavailable(gone.to_string())),
        }
    }

    /// Nobody has vouched for a block yet that is described, so that it runs alone.
    async fn describe(&self, component: Digest, code: &Arc<MachineCode>) -> Result<String, Refused> {
        let wall = Duration::from_millis(DESCRIBE_WALL_MS_MAX);
        let turn = self.describing.acquire().await;
        let _turn = turn.map_err(|closed| unready(&closed.to_string()))?;
        match self.ask_alone(code, &Question::Describe(component), None, wall).await {
            Ok(Said::Described(described)) => described,
            Ok(Said::Loaded(Err(error))) => Err(error.refusal()),
            Ok(_) => Err(unready(BESIDE_THE_POINT)),
            Err(Unanswered::Unavailable(why)) => Err(unready(&why)),
            Err(Unanswered::Unheard(why)) => Err(crate::refusal::refused(
                Code::DescriptorInvalid,
                format!("`describe` did not return: {why}. It runs once at upload and may only describe."),
            )),
        }
    }

    async fn run(&self, code: &Arc<MachineCode>, job: StepJob) -> StepReport {
        let (lease, wall_ms, losses) = (job.execution, job.limits.wall_ms_max, job.losses);
        let limits = narrowest(job.limits, self.begin.limits);
        let door = Some((lease, &*self.effects));
        StepReport::nothing(match self.ask(code, &Question::Run(job), door, wall_ms, losses).await {
            Ok(Said::Ran(report)) => return bounded(report, &limits),
            Ok(Said::Loaded(Err(error))) => StepEnd::Unavailable { message: error.to_string() },
            Ok(_) => StepEnd::Lost { message: BESIDE_THE_POINT.into() },
            Err(Unanswered::Unavailable(message)) => StepEnd::Unavailable { message },
            Err(Unanswered::Unheard(Unheard::Late)) => trap::out_of_time(&limits).into(),
            Err(Unanswered::Unheard(gone @ Unheard::Gone)) => StepEnd::Lost { message: gone.to_string() },
        })
    }

    async fn verify(&self, code: &Arc<MachineCode>, job: VerifyJob) -> VerifyReport {
        let (lease, wall_ms) = (job.execution, job.limits.wall_ms_max);
        let limits = narrowest(job.limits, self.begin.limits);
        let door = Some((lease, &*self.effects));
        VerifyReport::nothing(match self.ask(code, &Question::Verify(job), door, wall_ms, 0).await {
            Ok(Said::Verified(VerifyReport { end, logs })) => {
                return VerifyReport { end: bounded_verdict(end), logs: bounded_logs(logs, &limits).0 };
            }
            Ok(Said::Loaded(Err(error))) => VerifyEnd::Unavailable { message: error.to_string() },
            Err(Unanswered::Unavailable(message)) => VerifyEnd::Unavailable { message },
            // Asked again and again it would bring down others each time.
            Ok(_) => VerifyEnd::Trapped { code: Code::HostLost, message: BESIDE_THE_POINT.into() },
            Err(Unanswered::Unheard(Unheard::Late)) => trap::out_of_time(&limits).into(),
            Err(Unanswered::Unheard(gone @ Unheard::Gone)) => {
                VerifyEnd::Trapped { code: Code::HostLost, message: gone.to_string() }
            }
        })
    }
}

/// What a runner says of a step, within the bounds that one of ours has kept already.
fn bounded(report: StepReport, limits: &StepLimits) -> StepReport {
    let StepReport { end, logs, logs_truncated, cpu_ms, memory_bytes_peak } = report;
    let end = match end {
        StepEnd::Output(output) if output.len() as u64 > limits.output_bytes_max => {
            trap::output_too_large(limits).into()
        }
        StepEnd::Failed { retry_after_ms, code, message } => StepEnd::Failed {
            retry_after_ms,
            code: bounded_text(&code, NAME_BYTES_MAX),
            message: bounded_text(&message, ERROR_TEXT_BYTES_MAX),
        },
        StepEnd::Trapped { code, message } => {
            StepEnd::Trapped { code, message: bounded_text(&message, ERROR_TEXT_BYTES_MAX) }
        }
        StepEnd::Unavailable { message } => {
            StepEnd::Unavailable { message: bounded_text(&message, ERROR_TEXT_BYTES_MAX) }
        }
        StepEnd::Lost { message } => StepEnd::Lost { message: bounded_text(&message, ERROR_TEXT_BYTES_MAX) },
        end @ (StepEnd::Output(_) | StepEnd::Stopped) => end,
    };
    let (logs, cut) = bounded_logs(logs, limits);
    StepReport { end, logs, logs_truncated: logs_truncated || cut, cpu_ms, memory_bytes_peak }
}

fn bounded_verdict(end: VerifyEnd) -> VerifyEnd {
    match end {
        VerifyEnd::Trapped { code, message } => {
            VerifyEnd::Trapped { code, message: bounded_text(&message, ERROR_TEXT_BYTES_MAX) }
        }
        VerifyEnd::Unavailable { message } => {
            VerifyEnd::Unavailable { message: bounded_text(&message, ERROR_TEXT_BYTES_MAX) }
        }
        VerifyEnd::Said(Verdict::Inconclusive(why)) => {
            VerifyEnd::Said(Verdict::Inconclusive(bounded_text(&why, ERROR_TEXT_BYTES_MAX)))
        }
        end @ (VerifyEnd::Said(_) | VerifyEnd::Stopped) => end,
    }
}

fn bounded_logs(lines: Vec<LogLine>, limits: &StepLimits) -> (Vec<LogLine>, bool) {
    let mut log = StepLog::new(limits);
    for LogLine { level, message } in lines {
        log.push(level, &message);
    }
    log.into_lines()
}

/// A runner that answers so is not one of ours any more.
const BESIDE_THE_POINT: &str = "the process that ran it answered another question";

#[cfg(test)]
mod tests {
    use counterfoil_domain::ports::LogLevel;

    use super::*;

    #[test]
    fn a_report_is_held_to_its_bounds_whoever_made_it() {
        let limits = StepLimits::DEFAULT;
        let line = |message: &str| LogLine { level: LogLevel::Info, message: message.into() };
        let lines_max = usize::try_from(limits.log_lines_max).expect("fits");
        let long = "m".repeat(1 << 20);
        let logs = |count: usize| vec![line(""); count];
        let report = |end, logs| StepReport { logs, ..StepReport::nothing(end) };
        let kept = bounded(report(StepEnd::Stopped, logs(lines_max)), &limits);
        assert_eq!((kept.logs.len(), kept.logs_truncated), (lines_max, false), "at the limit");
        let cut = bounded(report(StepEnd::Stopped, logs(lines_max + 1)), &limits);
        assert_eq!((cut.logs.len(), cut.logs_truncated), (lines_max, true), "one over");
        let cut = bounded(report(StepEnd::Stopped, vec![line(&long)]), &limits);
        assert!(cut.logs_truncated && cut.logs[0].message.len() as u64 <= limits.log_bytes_max);
        // What our own runner says is the same afterwards.
        assert_eq!(bounded(cut.clone(), &limits), cut);
        for end in [
            StepEnd::Output(long.clone()),
            StepEnd::Failed { retry_after_ms: None, code: long.clone(), message: long.clone() },
            StepEnd::Trapped { code: Code::GuestTrap, message: long.clone() },
            StepEnd::Unavailable { message: long.clone() },
            StepEnd::Lost { message: long.clone() },
        ] {
            let said = format!("{:?}", bounded(StepReport::nothing(end), &limits).end);
            assert!(said.len() < 2 * ERROR_TEXT_BYTES_MAX, "{} bytes", said.len());
        }
    }
}
