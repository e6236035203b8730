//! The runner: gives up all it can do but to compute and to speak with its host, and runs guests until that is gone.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::panic;
use std::process::{self, ExitCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_domain::effect::{EffectCall, EffectReply};
use counterfoil_domain::id::{Digest, LeaseId};
use counterfoil_domain::ports::{EffectPort, StepJob, VerifyJob};
use nix::libc;
use nix::sys::resource::Resource;
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::COMMAND;
use super::socket::{Incoming, Outgoing, SocketError, send};
use super::wire::{Begin, FromRunner, Question, Said, Ticket, ToRunner};
use crate::confine::{self, Allowed, ConfineError};
use crate::engine::engine;
use crate::local::{INSPECTIONS_MAX, Local, LocalError};
use crate::machine_code::MachineCode;

/// Where the kernel keeps how readily it ends a process when memory runs out.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Guests go before their host.
const OOM_SCORE_OF_RUNNER: &str = "500";
/// Files in memory are files: the largest component's code, and the images of its memories.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// It waits for its socket, and keeps code and the images of memories in files that have no name.
const FREE: &[libc::c_long] = &[
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_write,
    libc::SYS_writev,
];
/// Asks which pages of a memory were touched, to reset those only: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xC060_6610;
/// It speaks without handing anything over, and asks of a descriptor no more than what it is and that it be sealed: what else
/// can be asked of one lets it signal other processes.
const ALLOWED: &[Allowed] = &[
    (libc::SYS_ioctl, 1, PAGEMAP_SCAN),
    (libc::SYS_fcntl, 1, libc::F_GETFD as u64),
    (libc::SYS_fcntl, 1, libc::F_GETFL as u64),
    (libc::SYS_fcntl, 1, libc::F_ADD_SEALS as u64),
    (libc::SYS_fcntl, 1, libc::F_GET_SEALS as u64),
];

#[derive(Debug, thiserror::Error)]
enum RunnerError {
    #[error("usage: {COMMAND} PARENT, with a socket as the standard input")]
    Usage,
    #[error(transparent)]
    Confine(#[from] ConfineError),
    #[error("it cannot be begun: {0}")]
    Io(#[from] io::Error),
    #[error("the WebAssembly engine cannot be built: {0:#}")]
    Engine(wasmtime::Error),
    #[error("guests cannot be run: {0}")]
    Local(#[from] LocalError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the host did not say how to begin")]
    NotBegun,
    #[error("machine code came without a descriptor")]
    NoCode,
}

/// Runs guests for the host at the other end of the standard input. `args` are what follows [`COMMAND`].
pub(crate) fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // The host is told at once that it is alone, instead of waiting for the steps' time to run out.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
    match work(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever cannot hear it sees the exit code.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn work(args: impl IntoIterator<Item = OsString>) -> Result<(), RunnerError> {
    let parent = args.into_iter().next().and_then(|parent| parent.to_str()?.parse().ok());
    let parent = Pid::from_raw(parent.ok_or(RunnerError::Usage)?);
    confine::limit(
        parent,
        &[
            ("the size of files", Resource::RLIMIT_FSIZE, FILE_BYTES_MAX, FILE_BYTES_MAX),
            ("core dumps", Resource::RLIMIT_CORE, 0, 0),
        ],
    )?;
    // A kernel without it takes whom it likes.
    let _ = std::fs::write(OOM_SCORE, OOM_SCORE_OF_RUNNER);
    let socket = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(1)
        .thread_keep_alive(Duration::MAX)
        .build()?;
    runtime.block_on(serve(socket))
}

async fn serve(socket: StdUnixStream) -> Result<(), RunnerError> {
    let socket = Arc::new(UnixStream::from_std(socket)?);
    let mut incoming = Incoming::new(Arc::clone(&socket), true);
    let Some(ToRunner::Begin(Begin { allocation, slots, limits })) = incoming.next().await? else {
        return Err(RunnerError::NotBegun);
    };
    let (outgoing, to_send) = mpsc::unbounded_channel();
    let host = Arc::new(HostSide { outgoing, open: Mutex::default() });
    let engine =
        engine(allocation, slots.saturating_add(INSPECTIONS_MAX), &limits).map_err(RunnerError::Engine)?;
    let local = Arc::new(Local::new(engine, slots, limits, Arc::clone(&host) as _)?);
    // All threads are there from here on: this one, one that loads code, and one that counts the time of guests.
    tokio::task::spawn_blocking(|| ()).await.map_err(io::Error::other)?;
    confine::forbid_system_calls_but(FREE, ALLOWED)?;
    host.say(&FromRunner::Ready)?;
    let hear = async {
        while let Some(message) = incoming.next().await? {
            match message {
                ToRunner::Begin(_) => return Err(RunnerError::NotBegun),
                ToRunner::Load(ticket, component) => {
                    let code = MachineCode::received(incoming.descriptor().ok_or(RunnerError::NoCode)?)?;
                    let local = Arc::clone(&local);
                    host.begin(ticket, async move { load(&local, component, code).await });
                }
                ToRunner::Ask(ticket, question) => {
                    let local = Arc::clone(&local);
                    host.begin(ticket, async move { answer(&local, ticket, *question).await });
                }
                ToRunner::Reply(ticket, reply) => host.reply(ticket, reply),
                ToRunner::Forget(ticket) => host.forget(ticket)?,
            }
        }
        Ok(())
    };
    tokio::select! {
        heard = hear => heard,
        sent = send(&socket, to_send) => Ok(sent?),
    }
}

/// The host, as the guests' effect port.
struct HostSide {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    open: Mutex<HashMap<Ticket, Open>>,
}

/// A question that is being worked on.
struct Open {
    work: AbortHandle,
    /// Who waits for the reply to an effect.
    effect: Option<oneshot::Sender<EffectReply>>,
}

impl HostSide {
    fn open(&self) -> MutexGuard<'_, HashMap<Ticket, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, message: &FromRunner) -> Result<(), SocketError> {
        // Once nobody sends any more, nobody hears any more.
        let _ = self.outgoing.send(Outgoing::new(message, None)?);
        Ok(())
    }

    fn begin(self: &Arc<Self>, ticket: Ticket, work: impl Future<Output = Said> + Send + 'static) {
        let host = Arc::clone(self);
        // Held until it is noted down, so that work that ends at once finds itself.
        let mut open = self.open();
        let work = tokio::spawn(async move {
            let said = work.await;
            host.open().remove(&ticket);
            if let Err(error) = host.say(&FromRunner::Said(ticket, said)) {
                panic!("an answer cannot be sent: {error}");
            }
        });
        open.insert(ticket, Open { work: work.abort_handle(), effect: None });
    }

    fn reply(&self, ticket: Ticket, reply: EffectReply) {
        let waiting = self.open().get_mut(&ticket).and_then(|open| open.effect.take());
        if let Some(waiting) = waiting {
            // Whoever has ended meanwhile needs no reply.
            let _ = waiting.send(reply);
        }
    }

    fn forget(&self, ticket: Ticket) -> Result<(), SocketError> {
        if let Some(open) = self.open().remove(&ticket) {
            open.work.abort();
        }
        self.say(&FromRunner::Forgotten(ticket))
    }
}

#[async_trait]
impl EffectPort for HostSide {
    async fn perform(&self, execution: LeaseId, call: EffectCall) -> EffectReply {
        let (reply, replied) = oneshot::channel();
        let asked = Ticket::of(execution).is_some_and(|ticket| {
            let mut open = self.open();
            let Some(open) = open.get_mut(&ticket) else { return false };
            open.effect = Some(reply);
            self.say(&FromRunner::Effect(ticket, call)).is_ok()
        });
        if !asked {
            return EffectReply::Stop;
        }
        replied.await.unwrap_or(EffectReply::Stop)
    }
}

async fn load(local: &Local, component: Digest, code: MachineCode) -> Said {
    Said::Loaded(local.load(component, &Arc::new(code)).await)
}

async fn answer(local: &Local, ticket: Ticket, question: Question) -> Said {
    let Some(block) = local.find(question.component()).await else { return Said::Absent };
    match question {
        Question::Describe(_) => Said::Described(local.describe(&block).await),
        Question::Run(job) => {
            let job = StepJob { execution: ticket.execution(), ..job };
            Said::Ran(local.run(&block, job).await)
        }
        Question::Verify(job) => {
            let job = VerifyJob { execution: ticket.execution(), ..job };
            Said::Verified(local.verify(&block, job).await)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::process::Command;

    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::sys::signal::kill;
    use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

    use super::*;

    const CONFINED: &str = "COUNTERFOIL_TEST_CONFINED";

    /// What a guest that has taken over its process could do to others, tried from within.
    #[test]
    fn a_runner_reaches_no_file_and_no_other_process() {
        if std::env::var_os(CONFINED).is_none() {
            let this = std::env::current_exe().expect("a test");
            let name = "runner::child::tests::a_runner_reaches_no_file_and_no_other_process";
            let confined =
                Command::new(this).args(["--exact", name, "--nocapture"]).env(CONFINED, "1").output();
            let confined = confined.expect("started");
            assert_eq!(confined.status.code(), Some(42), "{}", String::from_utf8_lossy(&confined.stderr));
            return;
        }
        let (ours, theirs) = StdUnixStream::pair().expect("a pair");
        let parent = nix::unistd::getppid();
        confine::forbid_system_calls_but(FREE, ALLOWED).expect("confined");
        let denied =
            |what: io::Result<()>| what.is_err_and(|error| error.raw_os_error() == Some(Errno::EPERM as i32));
        let mut nothing = SendAncillaryBuffer::default();
        let tried = [
            ("open", denied(std::fs::File::open("/proc/self/status").map(drop))),
            ("stat", denied(std::fs::metadata("/").map(drop))),
            ("connect", denied(std::net::TcpStream::connect("127.0.0.1:1").map(drop))),
            ("pair", denied(StdUnixStream::pair().map(drop))),
            ("exec", denied(Command::new("/bin/true").status().map(drop))),
            ("thread", denied(std::thread::Builder::new().spawn(|| ()).map(drop))),
            ("kill", denied(kill(parent, None).map_err(Into::into))),
            // With an owner and a signal of its choice a descriptor kills whom it names.
            ("async", denied(fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_ASYNC)).map(drop).map_err(Into::into))),
            ("hand over", {
                let sent = sendmsg(&ours, &[IoSlice::new(b"x")], &mut nothing, SendFlags::empty());
                denied(sent.map(drop).map_err(Into::into))
            }),
            ("speak", rustix::net::send(&ours, b"x", SendFlags::NOSIGNAL) == Ok(1)),
            ("hear", rustix::io::read(&theirs, &mut [0_u8; 1]) == Ok(1)),
        ];
        eprintln!("{tried:?}");
        process::exit(if tried.iter().all(|(_, right)| *right) { 42 } else { 1 });
    }
}
