//! One message over one fresh connection to a mail server (RFC 5321), so that "not sent" can be proved.
//!
//! A server does nothing about a message before it has the message's content, so the content takes the place that a
//! request has over HTTP: the send window is asked before its first byte, and once that has left only the server can say
//! whether it took the message. That is why the conversation is our own: no client library says where the content begins.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use counterfoil_domain::outbound::{MailSecurity, MailServer, Refusal};
use counterfoil_domain::ports::{Faults, Site};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};

use super::wire::Wire;
use super::{Budget, Client, Deadline, Lost, LostKind, NotSent, NotSentKind, SendWindow, after, connect};

/// One line of a reply. RFC 5321 allows 512; some servers are wordier.
const LINE_BYTES_MAX: usize = 2 << 10;
/// Lines of one reply: a greeting that lists its extensions has a dozen.
const REPLY_LINES_MAX: usize = 64;

/// A message as it goes to a server.
pub struct WireMail {
    /// Where to.
    pub server: MailServer,
    /// Who the tenant is there, and what proves it.
    pub credentials: Option<(SecretString, SecretString)>,
    /// The sender's address.
    pub from: String,
    /// The recipients' addresses.
    pub to: Vec<String>,
    /// Header and body, in lines that end with CRLF.
    pub content: Vec<u8>,
}

/// What a server replied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its code.
    pub code: u16,
    /// The text behind the code, its lines joined.
    pub text: String,
}

/// What came of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailExchange {
    /// No byte of the content was handed to the operating system.
    NotSent(NotSent),
    /// The server refused the message before it had seen its content. It has none of it, for none of its recipients.
    Refused(Reply),
    /// The server replied to the content.
    Answered(Reply),
    /// At least one byte of the content may have left, and no reply came.
    Lost(Lost),
}

/// Why a conversation went no further.
enum Halt {
    Refused(Reply),
    Broken(Lost),
}

impl From<Lost> for Halt {
    fn from(lost: Lost) -> Self {
        Self::Broken(lost)
    }
}

impl Client {
    /// Sends one message and reads the server's reply, within the budget's total; the content's first byte leaves only
    /// while `window` is open.
    ///
    /// May be dropped at any await: the connection is then closed, and whether a byte of the content had left is not known.
    pub async fn mail(
        &self,
        mail: &WireMail,
        budget: &Budget,
        window: &SendWindow,
        faults: &dyn Faults,
    ) -> MailExchange {
        let wire = Wire::new(*window, faults, self.first_byte_alone, budget.informational_max);
        match self.deliver(mail, budget, &wire).await {
            Ok(reply) => MailExchange::Answered(reply),
            Err(Delivery::NotSent(not_sent)) => MailExchange::NotSent(not_sent),
            Err(Delivery::Halted(Halt::Refused(reply))) => MailExchange::Refused(reply),
            Err(Delivery::Halted(Halt::Broken(lost))) if wire.is_sent() => MailExchange::Lost(lost),
            Err(Delivery::Halted(Halt::Broken(lost))) => MailExchange::NotSent(NotSent {
                kind: if wire.is_window_closed() { NotSentKind::WindowClosed } else { NotSentKind::Connect },
                detail: lost.detail,
            }),
        }
    }

    async fn deliver(&self, mail: &WireMail, budget: &Budget, wire: &Wire<'_>) -> Result<Reply, Delivery> {
        let deadline = Deadline(after(budget.total_ms_max));
        let server = &mail.server;
        let addresses =
            self.names.resolve(server.target(), &self.policy, deadline.within(budget.dns_ms_max)).await?;
        if server.security() == MailSecurity::Plain {
            self.judge_plain(&addresses)?;
        }
        let connected =
            connect::tcp(&addresses, server.port(), deadline.within(budget.connect_ms_max)).await?;
        let hello = connected.local_addr().map_or_else(|_| "[127.0.0.1]".into(), literal);
        let mut stream = wire.kernel_side(connected);
        let handshake = |stream| {
            let until = deadline.within(budget.tls_ms_max);
            connect::handshake(&self.mail_tls, server.target(), server.host(), stream, until)
        };
        match server.security() {
            MailSecurity::Plain => {
                let mut session = Session::new(stream, &deadline);
                session.greet(&hello).await?;
                session.send(mail, wire).await
            }
            MailSecurity::Tls => {
                let mut session = Session::new(handshake(stream).await?, &deadline);
                session.greet(&hello).await?;
                session.send(mail, wire).await
            }
            MailSecurity::StartTls => {
                let mut open = Session::new(&mut stream, &deadline);
                open.greet(&hello).await?;
                open.start_tls().await?;
                let mut session = Session::new(handshake(stream).await?, &deadline);
                session.hello(&hello).await?;
                session.send(mail, wire).await
            }
        }
        .map_err(Delivery::Halted)
    }

    fn judge_plain(&self, addresses: &[IpAddr]) -> Result<(), NotSent> {
        match addresses.iter().find(|address| !self.policy.is_inside(**address)) {
            Some(address) => Err(NotSent::refused(Refusal::PlainMail { address: *address })),
            None => Ok(()),
        }
    }
}

enum Delivery {
    NotSent(NotSent),
    Halted(Halt),
}

impl From<NotSent> for Delivery {
    fn from(not_sent: NotSent) -> Self {
        Self::NotSent(not_sent)
    }
}

impl From<Halt> for Delivery {
    fn from(halt: Halt) -> Self {
        Self::Halted(halt)
    }
}

/// How a machine without a name introduces itself (RFC 5321, section 4.1.3).
fn literal(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(address) => format!("[{address}]"),
        IpAddr::V6(address) => format!("[IPv6:{address}]"),
    }
}

/// A conversation with a server. Every part of it ends by the deadline.
struct Session<'a, S> {
    stream: S,
    /// What was read and is not yet understood.
    pending: Vec<u8>,
    /// What the server said that it is able to do, in upper case.
    extensions: Vec<String>,
    until: Instant,
    deadline: &'a Deadline,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Session<'a, S> {
    fn new(stream: S, deadline: &'a Deadline) -> Self {
        Self { stream, pending: vec![], extensions: vec![], until: deadline.0, deadline }
    }

    async fn greet(&mut self, hello: &str) -> Result<(), Halt> {
        let greeting = self.reply().await?;
        expect(&greeting, 220)?;
        self.hello(hello).await
    }

    async fn hello(&mut self, hello: &str) -> Result<(), Halt> {
        let reply = self.command(&format!("EHLO {hello}"), 250).await?;
        self.extensions = reply.text.lines().skip(1).map(str::to_ascii_uppercase).collect();
        Ok(())
    }

    fn offers(&self, extension: &str) -> bool {
        self.extensions.iter().any(|offered| offered.split(' ').next() == Some(extension))
    }

    async fn start_tls(&mut self) -> Result<(), Halt> {
        if !self.offers("STARTTLS") {
            return Err(malformed("the server offers no STARTTLS").into());
        }
        self.command("STARTTLS", 220).await?;
        // What came before the handshake could be anybody's, and must not be taken for the server's.
        if self.pending.is_empty() {
            Ok(())
        } else {
            Err(malformed("the server spoke on before the TLS handshake").into())
        }
    }

    async fn authenticate(&mut self, username: &str, password: &str) -> Result<(), Halt> {
        let mechanisms = self.extensions.iter().find(|offered| offered.starts_with("AUTH "));
        let offers = |mechanism: &str| {
            mechanisms.is_some_and(|offered| offered.split(' ').any(|offered| offered == mechanism))
        };
        let answered = if offers("PLAIN") {
            let plain = STANDARD.encode(format!("\0{username}\0{password}"));
            self.command(&format!("AUTH PLAIN {plain}"), 235).await
        } else if offers("LOGIN") {
            self.command("AUTH LOGIN", 334).await?;
            self.command(&STANDARD.encode(username), 334).await?;
            self.command(&STANDARD.encode(password), 235).await
        } else {
            return Err(malformed("the server offers neither AUTH PLAIN nor AUTH LOGIN").into());
        };
        answered.map(drop).map_err(|halt| match halt {
            // Some servers repeat what they were given.
            Halt::Refused(Reply { code, .. }) => {
                Halt::Refused(Reply { code, text: "the connection's credentials are refused".into() })
            }
            broken @ Halt::Broken(_) => broken,
        })
    }

    /// Hands the message over: to all of its recipients, or to none.
    async fn send(&mut self, mail: &WireMail, wire: &Wire<'_>) -> Result<Reply, Halt> {
        if let Some((username, password)) = &mail.credentials {
            self.authenticate(username.expose_secret(), password.expose_secret()).await?;
        }
        self.command(&format!("MAIL FROM:<{}>", mail.from), 250).await?;
        for to in &mail.to {
            self.command(&format!("RCPT TO:<{to}>"), 250).await?;
        }
        self.command("DATA", 354).await?;
        wire.faults.reach(Site::AfterConnect);
        let content = transparent(&mail.content);
        let written = async {
            let mut content_side = wire.request_side(&mut self.stream);
            content_side.write_all(&content).await?;
            content_side.flush().await
        };
        let written = timeout_at(self.until, written).await;
        written.map_err(|_| timeout())?.map_err(|error| closed(&error))?;
        let reply = self.reply().await?;
        wire.faults.reach(Site::MidAnswer);
        // What it would say to that is of no interest any more.
        let _ = timeout_at(self.deadline.within(QUIT_MS_MAX), self.stream.write_all(b"QUIT\r\n")).await;
        Ok(reply)
    }

    async fn command(&mut self, line: &str, expected: u16) -> Result<Reply, Halt> {
        let write = async {
            self.stream.write_all(format!("{line}\r\n").as_bytes()).await?;
            self.stream.flush().await
        };
        let written = timeout_at(self.until, write).await;
        written.map_err(|_| timeout())?.map_err(|error| closed(&error))?;
        let reply = self.reply().await?;
        expect(&reply, expected)?;
        Ok(reply)
    }

    /// Reads one reply. The code of its last line is the reply's.
    async fn reply(&mut self) -> Result<Reply, Lost> {
        let mut lines: Vec<String> = vec![];
        loop {
            let line = self.line().await?;
            let (code, is_last, text) =
                parse(&line).ok_or_else(|| malformed("a reply is not one of SMTP"))?;
            lines.push(text.to_owned());
            if is_last {
                return Ok(Reply { code, text: lines.join("\n") });
            }
            if lines.len() >= REPLY_LINES_MAX {
                return Err(Lost::new(LostKind::HeadTooLarge, "a reply has too many lines"));
            }
        }
    }

    async fn line(&mut self) -> Result<String, Lost> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned());
            }
            if self.pending.len() > LINE_BYTES_MAX {
                return Err(Lost::new(LostKind::HeadTooLarge, "a line of a reply is too long"));
            }
            let mut part = [0; 512];
            let read = timeout_at(self.until, self.stream.read(&mut part)).await;
            match read.map_err(|_| timeout())?.map_err(|error| closed(&error))? {
                0 => return Err(Lost::new(LostKind::Closed, "the server closed the connection")),
                read => self.pending.extend_from_slice(&part[..read]),
            }
        }
    }
}

/// A server that is told goodbye has answered already.
const QUIT_MS_MAX: u64 = 100;

/// `250-text` goes on, `250 text` and `250` end.
fn parse(line: &str) -> Option<(u16, bool, &str)> {
    let code: u16 = line.get(..3)?.parse().ok().filter(|code| (200..600).contains(code))?;
    match line.as_bytes().get(3) {
        None => Some((code, true, "")),
        Some(b' ') => Some((code, true, &line[4..])),
        Some(b'-') => Some((code, false, &line[4..])),
        Some(_) => None,
    }
}

fn expect(reply: &Reply, code: u16) -> Result<(), Halt> {
    // A recipient that another server serves is 251, and taken.
    if reply.code == code || code == 250 && reply.code == 251 {
        return Ok(());
    }
    match reply.code {
        400..600 => Err(Halt::Refused(reply.clone())),
        other => Err(malformed(&format!("the server replied {other} where {code} was to come")).into()),
    }
}

/// The content with a dot before every line that begins with one, and the line of one dot that ends it.
fn transparent(content: &[u8]) -> Vec<u8> {
    let mut sent = Vec::with_capacity(content.len() + 64);
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            sent.push(b'.');
        }
        sent.extend_from_slice(line);
    }
    if !sent.ends_with(b"\r\n") {
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b".\r\n");
    sent
}

fn malformed(detail: &str) -> Lost {
    Lost::new(LostKind::Malformed, detail)
}

fn closed(error: &std::io::Error) -> Lost {
    Lost::new(LostKind::Closed, error)
}

fn timeout() -> Lost {
    Lost::new(LostKind::Timeout, "the mail server did not answer in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_begins_with_a_dot_keeps_it() {
        for (content, sent) in [
            ("", "\r\n.\r\n"),
            ("a", "a\r\n.\r\n"),
            ("a\r\n", "a\r\n.\r\n"),
            (".", "..\r\n.\r\n"),
            ("a\r\n.\r\nMAIL FROM:<b>\r\n", "a\r\n..\r\nMAIL FROM:<b>\r\n.\r\n"),
            ("a.\r\n..b\r\n", "a.\r\n...b\r\n.\r\n"),
        ] {
            assert_eq!(
                String::from_utf8(transparent(content.as_bytes())).expect("text"),
                sent,
                "{content:?}"
            );
        }
    }

    #[test]
    fn a_reply_is_a_code_and_a_text() {
        for (line, expected) in [
            ("250 ok", Some((250, true, "ok"))),
            ("250-size 1", Some((250, false, "size 1"))),
            ("354", Some((354, true, ""))),
            ("250", Some((250, true, ""))),
            ("25", None),
            ("250_ok", None),
            ("199 no", None),
            ("600 no", None),
            ("abc no", None),
            ("+25 ok", None),
            ("äö ok", None),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
