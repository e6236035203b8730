//! The parent: starts the child, hears it out within bounds, and leaves nothing of it behind.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::child::{COMPILED, INVALID, NOT_BEGUN};
use super::request::{Budget, Request};
use super::{CompileError, Compiler, Effort};
use crate::artifact::EngineId;
use crate::program::Program;

/// Components compiled at once: each may take a core for seconds and gigabytes of memory. Two, so that one that takes
/// all that it may does not stop every other.
const COMPILATIONS_MAX: usize = 2;
/// Machine code of one component: that of a Python runtime has 50 MB.
const MACHINE_CODE_BYTES_MAX: usize = 256 << 20;

/// The exit code of a Rust program whose main thread panicked.
const PANICKED: u8 = 101;

/// Compiles in children of this process.
pub(crate) struct ChildCompiler {
    task: Arc<Task>,
    permits: Arc<Semaphore>,
}

/// What all children are asked.
struct Task {
    program: Program,
    budget: Budget,
    engine: EngineId,
}

/// How a child ended that was not stopped by its parent.
struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    errors: Vec<u8>,
}

/// What became of one child.
enum Outcome {
    Ended(Ended),
    /// It wrote more than any component's machine code has.
    TooLong,
    TooLate,
    /// Nobody waits for it any more.
    Abandoned,
}

impl ChildCompiler {
    pub(crate) fn new(program: Program, budget: Budget, engine: EngineId) -> Self {
        let task = Arc::new(Task { program, budget, engine });
        Self { task, permits: Arc::new(Semaphore::new(COMPILATIONS_MAX)) }
    }
}

#[async_trait]
impl Compiler for ChildCompiler {
    async fn compile(&self, component: Arc<[u8]>) -> Result<Vec<u8>, CompileError> {
        let failed = |reason: &dyn std::error::Error| CompileError::Failed(reason.to_string());
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|closed| failed(&closed))?;
        let (mut answer, answered) = oneshot::channel();
        let task = Arc::clone(&self.task);
        // By itself, so that a child is seen to its end, and its turn is taken up to then, also if the asker is gone.
        tokio::spawn(async move {
            let compiled = task.compile(&component, &mut answer).await;
            drop(permit);
            // Whoever is gone does not want it.
            let _ = answer.send(compiled);
        });
        answered.await.map_err(|gone| failed(&gone))?
    }
}

type Answer = oneshot::Sender<Result<Vec<u8>, CompileError>>;

impl Task {
    /// With optimisation, and if that takes more than it may, once without.
    async fn compile(&self, component: &[u8], answer: &mut Answer) -> Result<Vec<u8>, CompileError> {
        match self.attempt(component, Effort::Optimised, answer).await {
            Err(CompileError::OverBudget(reason)) => {
                tracing::info!(reason, "a component is compiled again, without optimisation");
                match self.attempt(component, Effort::Unoptimised, answer).await {
                    Err(CompileError::OverBudget(reason)) => {
                        Err(CompileError::OverBudget(format!("{reason}, without optimisation too")))
                    }
                    compiled => compiled,
                }
            }
            compiled => compiled,
        }
    }

    async fn attempt(
        &self,
        component: &[u8],
        effort: Effort,
        answer: &mut Answer,
    ) -> Result<Vec<u8>, CompileError> {
        let failed = |doing: &str, error: &dyn std::error::Error| {
            CompileError::Failed(format!("{doing} {}: {error}", self.program.path.display()))
        };
        let mut child = self.command(effort).spawn().map_err(|error| failed("cannot start", &error))?;
        let outcome = tokio::select! {
            heard = timeout(self.budget.wall, hear_out(&mut child, component)) => match heard {
                Ok(heard) => heard.map_err(|error| failed("cannot speak with", &error)),
                Err(_) => Ok(Outcome::TooLate),
            },
            () = answer.closed() => Ok(Outcome::Abandoned),
        };
        if !matches!(outcome, Ok(Outcome::Ended(_))) {
            end(&mut child).await.map_err(|error| failed("cannot end", &error))?;
        }
        self.judge(outcome?)
    }

    fn command(&self, effort: Effort) -> Command {
        let mut command = Command::new(&self.program.path);
        command
            .args(Request::new(&self.budget, effort).to_args())
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // For a runtime that ends under this task; otherwise the child is waited for.
            .kill_on_drop(true);
        command
    }

    fn judge(&self, outcome: Outcome) -> Result<Vec<u8>, CompileError> {
        let Budget { cpu_s, memory_bytes, wall } = self.budget;
        let over = |reason: String| Err(CompileError::OverBudget(reason));
        let Ended { status, mut output, errors } = match outcome {
            Outcome::Ended(ended) => ended,
            Outcome::TooLong => {
                return over(format!("its machine code has more than {MACHINE_CODE_BYTES_MAX} bytes"));
            }
            Outcome::TooLate => return over(format!("it took longer than {} s", wall.as_secs_f32())),
            Outcome::Abandoned => return Err(CompileError::Failed("nobody waited for it".into())),
        };
        let said = bounded_text(String::from_utf8_lossy(&errors).trim_end(), ERROR_TEXT_BYTES_MAX);
        match status.code().map(u8::try_from) {
            Some(Ok(COMPILED)) if output.starts_with(&self.engine.0) => {
                output.drain(..self.engine.0.len());
                Ok(output)
            }
            Some(Ok(COMPILED)) => Err(CompileError::Failed("it is of another version than this host".into())),
            Some(Ok(INVALID)) => {
                let reason = bounded_text(&String::from_utf8_lossy(&output), ERROR_TEXT_BYTES_MAX);
                Err(CompileError::Invalid(reason))
            }
            Some(Ok(NOT_BEGUN)) => Err(CompileError::Failed(said)),
            Some(code) if code != Ok(PANICKED) => {
                Err(CompileError::Failed(format!("it ended with {status}: {said}")))
            }
            _ => {
                tracing::info!(%status, said, "the compiler ended without an answer");
                let spent = status.signal() == Some(Signal::SIGXCPU as i32);
                over(if spent {
                    format!("it used up {cpu_s} s of CPU")
                } else {
                    format!("the compiler broke off ({status}) within {} MiB", memory_bytes >> 20)
                })
            }
        }
    }
}

/// Hands the component over, and takes what comes back, up to the child's end.
async fn hear_out(child: &mut Child, component: &[u8]) -> std::io::Result<Outcome> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let hand_over = async {
        if let Some(mut stdin) = stdin {
            // A child that does not read to the end says why in another way.
            let _ = stdin.write_all(component).await;
        }
    };
    let ((), output, errors) =
        tokio::join!(hand_over, read(stdout, MACHINE_CODE_BYTES_MAX), read(stderr, ERROR_TEXT_BYTES_MAX));
    let (output, errors) = (output?, errors?);
    if output.len() > MACHINE_CODE_BYTES_MAX {
        return Ok(Outcome::TooLong);
    }
    Ok(Outcome::Ended(Ended { status: child.wait().await?, output, errors }))
}

/// Reads to the end, or to one byte more than `bytes_max`, and closes it.
async fn read(pipe: Option<impl AsyncRead + Unpin>, bytes_max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(bytes_max as u64 + 1).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Ends the child and whatever it may have started, and waits until it is gone.
async fn end(child: &mut Child) -> std::io::Result<()> {
    // Without a number it has ended and was waited for.
    if let Some(leader) = child.id() {
        // It may just have ended by itself.
        let _ = killpg(Pid::from_raw(leader.cast_signed()), Signal::SIGKILL);
    }
    child.wait().await.map(drop)
}
