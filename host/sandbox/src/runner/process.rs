//! A runner as its host sees it: a process that is asked, may itself ask for effects, and may be gone at any time.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use counterfoil_domain::effect::EffectCall;
use counterfoil_domain::id::{Digest, LeaseId};
use counterfoil_domain::limits::{ERROR_TEXT_BYTES_MAX, bounded_text};
use counterfoil_domain::ports::EffectPort;
use futures::future::OptionFuture;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::COMMAND;
use super::socket::{Incoming, Outgoing, SocketError, send};
use super::wire::{Begin, FromRunner, Question, Said, Ticket, ToRunner};
use crate::blocks::NotReady;
use crate::machine_code::MachineCode;
use crate::program::Program;

/// A runner that has not begun by then never will.
const BEGIN_FOR_MAX: Duration = Duration::from_secs(20);
/// Between the end of a step's time, which its runner sees to, and the moment when its host does: one that is busy with a
/// hundred guests comes round to each in seconds.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// How long a runner may take to say that it has given up a question. One that does not is stuck, and is ended.
const FORGET_FOR_MAX: Duration = Duration::from_secs(10);
/// Loaded so often, a block makes room for others before it is run only where the runner does not mean to run it.
const LOADS_MAX: usize = 3;
/// What a question can still bring once nobody has looked: an effect, the answer, and that it was given up.
const HEARD_MAX: usize = 3;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unheard {
    /// The runner has ended, whatever was being asked of it.
    #[error("the process that ran it is gone")]
    Gone,
    /// The question was given up, and the runner goes on.
    #[error("its time was over, and it was given up")]
    Late,
}

/// Who asks, where an effect may be asked for: whose lease it is, and the door out.
pub(super) type Door<'a> = Option<(LeaseId, &'a dyn EffectPort)>;

/// One runner. It ends with this value.
pub(super) struct Runner {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    life: Arc<Life>,
    loaded: Mutex<HashSet<Digest>>,
}

/// What its watcher shares with those who ask.
struct Life {
    open: Mutex<Tickets>,
    end: Notify,
}

struct Tickets {
    next: u64,
    /// None once it is gone.
    open: Option<HashMap<Ticket, mpsc::Sender<Heard>>>,
}

/// What a runner says about one ticket.
enum Heard {
    Effect(EffectCall),
    Said(Said),
    Forgotten,
}

/// A ticket that is open.
struct Asking<'a> {
    runner: &'a Runner,
    ticket: Ticket,
    heard: mpsc::Receiver<Heard>,
    answered: bool,
}

impl Life {
    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if the runner says what it may not.
    fn hear(&self, ticket: Ticket, heard: Heard) -> bool {
        let tickets = self.tickets();
        match tickets.open.as_ref().and_then(|open| open.get(&ticket)) {
            Some(asking) => asking.try_send(heard).is_ok(),
            // A question that was given up while the answer was under way; but none that was never put.
            None => ticket.0 < tickets.next,
        }
    }
}

impl Runner {
    /// Starts one, and waits until it can be asked.
    ///
    /// # Errors
    /// In words, for the operator.
    pub(super) async fn start(program: &Program, begin: Begin) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{} cannot be started: {error}", program.path.display());
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let socket = Arc::new(UnixStream::from_std(ours).map_err(failed)?);
        let mut child = command(program, theirs).spawn().map_err(failed)?;
        let mut incoming = Incoming::new(Arc::clone(&socket), false);
        let (runner, sending) = Self::speaking(socket);
        let life = Arc::clone(&runner.life);
        runner.say(&ToRunner::Begin(begin), None).map_err(|error| error.to_string())?;
        match timeout(BEGIN_FOR_MAX, incoming.next()).await {
            Ok(Ok(Some(FromRunner::Ready))) => {}
            heard => {
                sending.abort();
                let said = end(&mut child).await;
                let heard = match heard {
                    Ok(Err(error)) => error.to_string(),
                    Ok(Ok(_)) => "it ended".into(),
                    Err(_) => "it took too long".into(),
                };
                return Err(format!("a runner did not begin: {heard}; {said}"));
            }
        }
        tokio::spawn(async move {
            let why = tokio::select! {
                why = watch(&life, incoming) => Some(why),
                () = life.end.notified() => None,
            };
            let abandoned = life.tickets().open.take().map_or(0, |open| open.len());
            sending.abort();
            let said = end(&mut child).await;
            if why.is_some() || abandoned > 0 {
                tracing::warn!(
                    why = why.as_deref().unwrap_or("it was ended"),
                    said,
                    abandoned,
                    "a runner has ended, and the steps that it ran are lost to it"
                );
            }
        });
        Ok(runner)
    }

    /// One at the other end of a socket, and the task that speaks to it.
    fn speaking(socket: Arc<UnixStream>) -> (Self, JoinHandle<()>) {
        let (outgoing, to_send) = mpsc::unbounded_channel();
        let life = Arc::new(Life {
            open: Mutex::new(Tickets { next: 0, open: Some(HashMap::new()) }),
            end: Notify::new(),
        });
        let speaks = Arc::clone(&life);
        let sending = tokio::spawn(async move {
            // One that cannot be told anything any more would let every step in it wait in vain.
            if let Err(error) = send(&socket, to_send).await {
                tracing::error!(error = &error as &dyn std::error::Error, "a runner cannot be spoken to");
                speaks.end.notify_one();
            }
        });
        (Self { outgoing, life, loaded: Mutex::default() }, sending)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.life.tickets().open.is_none()
    }

    /// Ends it.
    pub(super) fn end(&self) {
        self.life.end.notify_one();
    }

    /// Asks about a block, which is loaded first where it is not. Whatever the runner says, it has an end.
    ///
    /// # Errors
    /// [`Unheard`]; where the runner is gone, once the effect that was under way, if one was, has come to its end.
    pub(super) async fn ask(
        &self,
        code: &Arc<MachineCode>,
        question: &Question,
        door: Door<'_>,
        wall: Duration,
    ) -> Result<Said, Unheard> {
        let component = question.component();
        for _ in 0..LOADS_MAX {
            if !self.loaded().contains(&component)
                && let Said::Loaded(Err(error)) = self.load(component, code).await?
            {
                return Ok(Said::Loaded(Err(error)));
            }
            let asking = self.open(|ticket| ToRunner::Ask(ticket, Box::new(question.clone())), None)?;
            match asking.answer(door, wall).await? {
                Said::Absent => {
                    self.loaded().remove(&component);
                }
                said => return Ok(said),
            }
        }
        tracing::error!("a runner has no block of those that it has loaded, and is ended");
        self.end();
        Err(Unheard::Gone)
    }

    /// Loads a block, whether it is there or not.
    pub(super) async fn load(&self, component: Digest, code: &Arc<MachineCode>) -> Result<Said, Unheard> {
        let loading = self.open(|ticket| ToRunner::Load(ticket, component), Some(Arc::clone(code)))?;
        let said = match loading.answer(None, BEGIN_FOR_MAX).await {
            // Nothing of the guest has run.
            Err(Unheard::Late) => {
                let why = "the process that runs blocks is too busy to load it".into();
                Said::Loaded(Err(NotReady::Unavailable(why)))
            }
            heard => heard?,
        };
        if matches!(said, Said::Loaded(Ok(()))) {
            self.loaded().insert(component);
        }
        Ok(said)
    }

    fn loaded(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(
        &self,
        message: impl FnOnce(Ticket) -> ToRunner,
        code: Option<Arc<MachineCode>>,
    ) -> Result<Asking<'_>, Unheard> {
        let (hear, heard) = mpsc::channel(HEARD_MAX);
        let ticket = {
            let mut tickets = self.life.tickets();
            let ticket = Ticket(tickets.next);
            tickets.open.as_mut().ok_or(Unheard::Gone)?.insert(ticket, hear);
            tickets.next += 1;
            ticket
        };
        let asking = Asking { runner: self, ticket, heard, answered: false };
        self.say(&message(ticket), code).map_err(|error| self.broken(&error))?;
        Ok(asking)
    }

    fn say(&self, message: &ToRunner, code: Option<Arc<MachineCode>>) -> Result<(), SocketError> {
        // What cannot be sent any more is not heard any more, of which the watcher tells.
        let _ = self.outgoing.send(Outgoing::new(message, code)?);
        Ok(())
    }

    fn broken(&self, error: &SocketError) -> Unheard {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "a runner cannot be told something, and is ended"
        );
        self.end();
        Unheard::Gone
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.end();
    }
}

impl Asking<'_> {
    /// Hears the question out, and performs the effects that it asks for.
    async fn answer(mut self, door: Door<'_>, wall: Duration) -> Result<Said, Unheard> {
        match timeout(wall + ANSWER_GRACE, self.hear_out(door)).await {
            Ok(heard) => heard,
            Err(_) => self.give_up().await,
        }
    }

    /// Has the runner give the question up, beside which others run there; ends it only if it does not even do that.
    async fn give_up(&mut self) -> Result<Said, Unheard> {
        let forget = ToRunner::Forget(self.ticket);
        self.runner.say(&forget, None).map_err(|error| self.runner.broken(&error))?;
        let given_up = async {
            loop {
                match self.heard.recv().await {
                    // It was asked for while the question was given up, and is not performed.
                    Some(Heard::Effect(_)) => {}
                    Some(Heard::Said(said)) => return Ok(said),
                    Some(Heard::Forgotten) => return Err(Unheard::Late),
                    None => return Err(Unheard::Gone),
                }
            }
        };
        let heard = timeout(FORGET_FOR_MAX, given_up).await;
        self.answered = true;
        heard.unwrap_or_else(|_| {
            tracing::error!("a runner does not give up a step whose time is over, and is ended");
            self.runner.end();
            Err(Unheard::Gone)
        })
    }

    async fn hear_out(&mut self, door: Door<'_>) -> Result<Said, Unheard> {
        let mut effect = OptionFuture::from(None);
        let mut is_waiting = false;
        loop {
            tokio::select! {
                heard = self.heard.recv() => match (heard, door) {
                    (Some(Heard::Said(said)), _) => {
                        self.answered = true;
                        return Ok(said);
                    }
                    (Some(Heard::Effect(call)), Some((lease, port))) if !is_waiting => {
                        effect = Some(port.perform(lease, call)).into();
                        is_waiting = true;
                    }
                    (Some(Heard::Effect(_)), _) => {
                        tracing::error!("a runner asks for an effect where none may be, and is ended");
                        self.runner.end();
                        effect.await;
                        return Err(Unheard::Gone);
                    }
                    // It was not told to.
                    (Some(Heard::Forgotten), _) => {
                        tracing::error!("a runner gives up what it was not told to, and is ended");
                        self.runner.end();
                        effect.await;
                        return Err(Unheard::Gone);
                    }
                    (None, _) => {
                        // What was begun is seen to its end, so that the step goes on from there.
                        effect.await;
                        return Err(Unheard::Gone);
                    }
                },
                Some(reply) = &mut effect => {
                    effect = None.into();
                    is_waiting = false;
                    let reply = ToRunner::Reply(self.ticket, reply);
                    self.runner.say(&reply, None).map_err(|error| self.runner.broken(&error))?;
                }
            }
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.runner.life.tickets().open.as_mut() {
            open.remove(&self.ticket);
        }
        if !self.answered
            && let Err(error) = self.runner.say(&ToRunner::Forget(self.ticket), None)
        {
            self.runner.broken(&error);
        }
    }
}

/// Hands on what the runner says, until it has ended or says what it may not; then it says why.
async fn watch(life: &Life, mut incoming: Incoming) -> String {
    loop {
        let may = match incoming.next().await {
            Ok(Some(FromRunner::Said(ticket, said))) => life.hear(ticket, Heard::Said(said)),
            Ok(Some(FromRunner::Effect(ticket, call))) => life.hear(ticket, Heard::Effect(call)),
            Ok(Some(FromRunner::Forgotten(ticket))) => life.hear(ticket, Heard::Forgotten),
            Ok(Some(FromRunner::Ready)) => false,
            Ok(None) => return "it closed its socket".into(),
            Err(error) => return error.to_string(),
        };
        if !may {
            return "it says what it may not".into();
        }
    }
}

fn command(program: &Program, socket: StdUnixStream) -> Command {
    let mut command = Command::new(&program.path);
    command
        .args([COMMAND, &std::process::id().to_string()])
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Ends the process, waits until it is gone, and tells how it went and what it had to say.
async fn end(child: &mut Child) -> String {
    let mut said = Vec::new();
    // It may have ended by itself; and what it cannot be asked, it has not said.
    let _ = child.start_kill();
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(ERROR_TEXT_BYTES_MAX as u64).read_to_end(&mut said).await;
    }
    let said = bounded_text(String::from_utf8_lossy(&said).trim_end(), ERROR_TEXT_BYTES_MAX);
    match child.wait().await {
        Ok(status) => format!("{status}: {said}"),
        Err(error) => format!("{error}: {said}"),
    }
}

/// A guest that has taken its runner over, at the other end of the socket.
#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use counterfoil_domain::effect::{EffectReply, EffectRequest};
    use counterfoil_domain::id::{LineageId, Place};
    use counterfoil_domain::limits::StepLimits;
    use counterfoil_domain::ports::StepJob;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;
    use uuid::Uuid;

    use super::*;
    use crate::artifact::Artifact;

    const WALL: Duration = Duration::from_mins(1);

    struct Evil {
        runner: Runner,
        says: mpsc::UnboundedSender<Outgoing>,
        hears: Incoming,
    }

    /// Both ends; what watches the host's tells why it ended the runner.
    fn evil() -> (Evil, JoinHandle<String>) {
        let (ours, theirs) = StdUnixStream::pair().expect("a pair");
        let [ours, theirs] = [ours, theirs].map(|end| {
            end.set_nonblocking(true).expect("set");
            Arc::new(UnixStream::from_std(end).expect("a socket"))
        });
        let incoming = Incoming::new(Arc::clone(&ours), false);
        let (runner, _) = Runner::speaking(ours);
        let life = Arc::clone(&runner.life);
        let watching = tokio::spawn(async move {
            let why = tokio::select! {
                why = watch(&life, incoming) => why,
                () = life.end.notified() => "it was ended".into(),
            };
            life.tickets().open.take();
            why
        });
        let (says, to_send) = mpsc::unbounded_channel();
        let hears = Incoming::new(Arc::clone(&theirs), true);
        tokio::spawn(async move { send(&theirs, to_send).await });
        (Evil { runner, says, hears }, watching)
    }

    fn say(says: &mpsc::UnboundedSender<Outgoing>, message: &FromRunner) {
        says.send(Outgoing::new(message, None).expect("short")).unwrap_or_else(|_| panic!("it is heard"));
    }

    /// Answers at once when it is let, and counts.
    struct Port {
        asked: AtomicUsize,
        let_through: Semaphore,
    }

    #[async_trait]
    impl EffectPort for Port {
        async fn perform(&self, _execution: LeaseId, _call: EffectCall) -> EffectReply {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.let_through.acquire().await.expect("open").forget();
            EffectReply::Stop
        }
    }

    fn question() -> Question {
        Question::Run(StepJob {
            execution: LeaseId(Uuid::nil()),
            component: Digest([1; 32]),
            input: "{}".into(),
            place: Place { lineage: LineageId(Uuid::nil()), node: "n".into(), iteration: Vec::new() },
            started_at_ms: 0,
            seed: [0; 32],
            limits: StepLimits::DEFAULT,
            losses: 0,
        })
    }

    fn code() -> Arc<MachineCode> {
        Arc::new(MachineCode::of(&Artifact::compiled(b"code".to_vec())).expect("memory"))
    }

    fn call() -> EffectCall {
        EffectCall {
            request: EffectRequest::Model("{}".into()),
            key: None,
            connection: None,
            safety: None,
            idempotency_key: None,
            timeout_ms: None,
            extra: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_runner_that_never_has_the_block_holds_no_step() {
        let (Evil { runner, says, mut hears }, watching) = evil();
        let peer = tokio::spawn(async move {
            let mut loads = 0;
            while let Ok(Some(message)) = hears.next::<ToRunner>().await {
                match message {
                    ToRunner::Load(ticket, _) => {
                        loads += 1;
                        say(&says, &FromRunner::Said(ticket, Said::Loaded(Ok(()))));
                    }
                    ToRunner::Ask(ticket, _) => say(&says, &FromRunner::Said(ticket, Said::Absent)),
                    _ => {}
                }
            }
            loads
        });
        assert!(runner.ask(&code(), &question(), None, WALL).await.is_err());
        assert_eq!(watching.await.expect("told"), "it was ended");
        drop(runner);
        assert_eq!(peer.await.expect("ended"), LOADS_MAX);
    }

    #[tokio::test]
    async fn a_second_effect_on_one_ticket_ends_the_runner_and_the_first_is_seen_to_its_end() {
        let (Evil { runner, says, mut hears }, watching) = evil();
        let port = Port { asked: AtomicUsize::new(0), let_through: Semaphore::new(0) };
        let peer = async {
            while let Ok(Some(message)) = hears.next::<ToRunner>().await {
                match message {
                    ToRunner::Load(ticket, _) => say(&says, &FromRunner::Said(ticket, Said::Loaded(Ok(())))),
                    ToRunner::Ask(ticket, _) => {
                        for _ in 0..2 {
                            say(&says, &FromRunner::Effect(ticket, call()));
                        }
                        break;
                    }
                    _ => {}
                }
            }
            let why = watching.await.expect("told");
            port.let_through.add_permits(1);
            why
        };
        let (code, question) = (code(), question());
        let asking = runner.ask(&code, &question, Some((LeaseId(Uuid::nil()), &port)), WALL);
        let (answer, why) = tokio::join!(asking, peer);
        assert!(answer.is_err());
        assert_eq!((why.as_str(), port.asked.load(Ordering::SeqCst)), ("it was ended", 1));
        assert_eq!(port.let_through.available_permits(), 0, "the one that was begun was performed");
    }

    #[tokio::test]
    async fn a_question_whose_time_is_over_is_given_up_and_only_a_runner_that_does_not_is_ended() {
        for (gives_up, expected) in [(true, Unheard::Late), (false, Unheard::Gone)] {
            let (Evil { runner, says, mut hears }, watching) = evil();
            tokio::spawn(async move {
                while let Ok(Some(message)) = hears.next::<ToRunner>().await {
                    match message {
                        ToRunner::Load(ticket, _) => {
                            say(&says, &FromRunner::Said(ticket, Said::Loaded(Ok(()))));
                        }
                        ToRunner::Forget(ticket) if gives_up => say(&says, &FromRunner::Forgotten(ticket)),
                        _ => {}
                    }
                }
            });
            let answer = runner.ask(&code(), &question(), None, Duration::ZERO).await;
            assert_eq!(answer.err(), Some(expected));
            if gives_up {
                assert!(!runner.is_gone(), "others run there");
            } else {
                assert_eq!(watching.await.expect("told"), "it was ended");
            }
        }
    }

    #[tokio::test]
    async fn a_runner_that_gives_up_what_it_was_not_told_to_is_ended() {
        let (Evil { runner, says, mut hears }, watching) = evil();
        tokio::spawn(async move {
            while let Ok(Some(message)) = hears.next::<ToRunner>().await {
                match message {
                    ToRunner::Load(ticket, _) => say(&says, &FromRunner::Said(ticket, Said::Loaded(Ok(())))),
                    ToRunner::Ask(ticket, _) => say(&says, &FromRunner::Forgotten(ticket)),
                    _ => {}
                }
            }
        });
        assert_eq!(runner.ask(&code(), &question(), None, WALL).await.err(), Some(Unheard::Gone));
        assert_eq!(watching.await.expect("told"), "it was ended");
    }

    #[tokio::test]
    async fn an_answer_to_what_was_never_asked_ends_the_runner() {
        let (Evil { runner, says, .. }, watching) = evil();
        say(&says, &FromRunner::Said(Ticket(7), Said::Absent));
        assert_eq!(watching.await.expect("told"), "it says what it may not");
        assert!(runner.is_gone());
    }
}
