//! A mail server that keeps what it is given, and misbehaves where it is told to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

/// How long a test waits for a message.
const PATIENCE: Duration = Duration::from_secs(20);
/// Commands of one conversation: more would be a client that never ends.
const COMMANDS_MAX: usize = 200;

/// Where in a conversation the server does something else than what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a command, or what stands for one")]
pub enum Stage {
    Greeting,
    Ehlo,
    StartTls,
    Auth,
    Mail,
    Rcpt,
    Data,
    /// The content has come.
    Content,
}

/// What it does there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Twist {
    /// It replies this instead, without a line end.
    Reply(&'static str),
    /// It closes the connection instead of replying. At [`Stage::Content`] it keeps the message all the same.
    Close,
    /// It says nothing more.
    Silence,
}

/// A message that was taken, or whose reply was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// The sender of the envelope.
    pub from: String,
    /// The recipients of the envelope.
    pub to: Vec<String>,
    /// Header and body as they came, dots at the beginning of lines undone.
    pub content: String,
    /// Who had signed in: name and password.
    pub signed_in: Option<(String, String)>,
    /// It came within TLS.
    pub in_tls: bool,
}

/// How the server is reached.
#[derive(Clone, Default)]
pub enum Tls {
    /// As everybody can hear.
    #[default]
    None,
    /// After STARTTLS.
    OnRequest(TlsAcceptor),
    /// From the first byte.
    AtOnce(TlsAcceptor),
}

/// A server on a port of its own. It ends with this.
pub struct MailServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    tls: Tls,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    letters: Vec<Letter>,
    twists: VecDeque<(Stage, Twist)>,
    conversations: usize,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The twist that is next, if it is for this stage.
    fn twist(&self, here: Stage) -> Option<Twist> {
        let twists = &mut self.state().twists;
        twists.pop_front_if(|(stage, _)| *stage == here).map(|(_, twist)| twist)
    }
}

impl MailServer {
    /// Starts a server.
    ///
    /// # Errors
    /// There is no port.
    pub async fn start(tls: Tls) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { tls, state: Mutex::default() });
        let serving = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                // A conversation that breaks is the client's to notice.
                tokio::spawn(async move { converse(stream, &shared).await });
            }
        });
        Ok(Self { address, shared, task: task.abort_handle() })
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets the next conversation that gets to `stage` meet a twist there. Twists are met in the order in which they
    /// are set.
    pub fn twist(&self, stage: Stage, twist: Twist) {
        self.shared.state().twists.push_back((stage, twist));
    }

    /// What has come.
    pub fn letters(&self) -> Vec<Letter> {
        self.shared.state().letters.clone()
    }

    /// Connections that were made.
    pub fn conversations(&self) -> usize {
        self.shared.state().conversations
    }

    /// Waits until so many messages have come.
    ///
    /// # Errors
    /// They do not come.
    pub async fn wait_for_letters(&self, count: usize) -> anyhow::Result<Vec<Letter>> {
        let begun = Instant::now();
        loop {
            let letters = self.letters();
            if letters.len() >= count {
                return Ok(letters);
            }
            ensure!(begun.elapsed() < PATIENCE, "{} of {count} messages came", letters.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse(stream: TcpStream, shared: &Shared) -> anyhow::Result<()> {
    shared.state().conversations += 1;
    match &shared.tls {
        Tls::AtOnce(acceptor) => {
            let stream = acceptor.accept(stream).await?;
            Conversation::new(stream, shared, true).run(true).await?;
        }
        Tls::None => {
            Conversation::new(stream, shared, false).run(true).await?;
        }
        Tls::OnRequest(acceptor) => {
            let stream = Conversation::new(stream, shared, false).run(true).await?;
            if let Some(stream) = stream {
                let stream = acceptor.accept(stream).await?;
                Conversation::new(stream, shared, true).run(false).await?;
            }
        }
    }
    Ok(())
}

struct Conversation<'a, S> {
    stream: BufReader<S>,
    shared: &'a Shared,
    in_tls: bool,
    from: String,
    to: Vec<String>,
    signed_in: Option<(String, String)>,
}

/// Whether the conversation goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Command,
    Tls,
    End,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Conversation<'a, S> {
    fn new(stream: S, shared: &'a Shared, in_tls: bool) -> Self {
        let stream = BufReader::new(stream);
        Self { stream, shared, in_tls, from: String::new(), to: vec![], signed_in: None }
    }

    /// Speaks until the end, or until TLS is to begin; then it returns the connection.
    async fn run(mut self, greets: bool) -> anyhow::Result<Option<S>> {
        if greets && !self.say(Stage::Greeting, "220 mail.test ESMTP").await? {
            return Ok(None);
        }
        for _ in 0..COMMANDS_MAX {
            let line = self.line().await?;
            match self.command(&line).await? {
                Next::Command => {}
                Next::Tls => return Ok(Some(self.stream.into_inner())),
                Next::End => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn command(&mut self, line: &str) -> anyhow::Result<Next> {
        let goes_on = if line.starts_with("EHLO ") {
            let tls = if !self.in_tls && matches!(self.shared.tls, Tls::OnRequest(_)) {
                "250-STARTTLS\r\n"
            } else {
                ""
            };
            let reply = format!("250-mail.test\r\n{tls}250-AUTH PLAIN LOGIN\r\n250 SIZE 1000000");
            self.say(Stage::Ehlo, &reply).await?
        } else if line == "STARTTLS" {
            return Ok(if self.say(Stage::StartTls, "220 go ahead").await? { Next::Tls } else { Next::End });
        } else if let Some(plain) = line.strip_prefix("AUTH PLAIN ") {
            self.signed_in = Some(("PLAIN".into(), plain.into()));
            self.say(Stage::Auth, "235 welcome").await?
        } else if let Some(from) = line.strip_prefix("MAIL FROM:") {
            self.from = from.trim_matches(['<', '>']).into();
            self.say(Stage::Mail, "250 ok").await?
        } else if let Some(to) = line.strip_prefix("RCPT TO:") {
            self.to.push(to.trim_matches(['<', '>']).into());
            self.say(Stage::Rcpt, "250 ok").await?
        } else if line == "DATA" {
            self.say(Stage::Data, "354 go ahead").await? && self.content().await?
        } else {
            self.write("221 bye").await?;
            return Ok(Next::End);
        };
        Ok(if goes_on { Next::Command } else { Next::End })
    }

    /// Takes the content. A client that was refused sends none, and says something else.
    async fn content(&mut self) -> anyhow::Result<bool> {
        let mut content = String::new();
        loop {
            let line = self.line().await?;
            if line == "." {
                break;
            }
            content.push_str(line.strip_prefix('.').unwrap_or(&line));
            content.push_str("\r\n");
        }
        let letter = Letter {
            from: std::mem::take(&mut self.from),
            to: std::mem::take(&mut self.to),
            content,
            signed_in: self.signed_in.clone(),
            in_tls: self.in_tls,
        };
        // Kept before the reply: whether the client hears of it is another matter.
        let refuses = |twist: &Twist| matches!(twist, Twist::Reply(reply) if reply.starts_with(['4', '5']));
        let is_refused =
            matches!(self.shared.state().twists.front(), Some((Stage::Content, twist)) if refuses(twist));
        if !is_refused {
            self.shared.state().letters.push(letter);
        }
        self.say(Stage::Content, "250 2.0.0 queued as 1").await
    }

    /// Replies, or does what it was told to do here. False if the conversation is over.
    async fn say(&mut self, stage: Stage, reply: &str) -> anyhow::Result<bool> {
        match self.shared.twist(stage) {
            None => self.write(reply).await?,
            Some(Twist::Reply(twisted)) => self.write(twisted).await?,
            Some(Twist::Close) => return Ok(false),
            Some(Twist::Silence) => {
                // Until the client gives up.
                let _ = self.line().await;
                return Ok(false);
            }
        }
        // A refusal ends nothing: the client says what it does next.
        Ok(true)
    }

    async fn write(&mut self, reply: &str) -> anyhow::Result<()> {
        self.stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
        self.stream.flush().await?;
        Ok(())
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = vec![];
        let read = self.stream.read_until(b'\n', &mut line).await?;
        ensure!(read > 0, "the client closed the connection");
        let line = line.strip_suffix(b"\r\n").context("a line ends with CRLF")?;
        ensure!(!line.contains(&b'\r') && !line.contains(&b'\n'), "a line end stands alone");
        Ok(String::from_utf8_lossy(line).into_owned())
    }
}
