//! Mail: the servers that may be called, and the messages that may be sent through them.

use super::{AddressPolicy, AllowedHosts, Destination, Refusal, Target};
use crate::effect::MailMessage;
use crate::limits::{REQUEST_BODY_BYTES_MAX, bounded_text};

/// Recipients of one message: each is told of by the server, and one that it refuses refuses them all.
const RECIPIENTS_MAX: usize = 100;
/// A recipient: an address has at most 254 bytes, a name before it as many as a line has room for.
const RECIPIENT_BYTES_MAX: usize = 512;
/// A subject, and the value of a header field: a line of a message before it is folded.
const MAIL_LINE_BYTES_MAX: usize = 998;
/// Header fields beside those that the host writes.
const MAIL_HEADERS_MAX: usize = 20;

/// Header fields that a block may set, beside those that begin with `x-`. Any other would contradict what the host
/// writes, or send the message elsewhere.
const MAIL_HEADERS: [&str; 9] = [
    "auto-submitted",
    "importance",
    "in-reply-to",
    "list-id",
    "list-unsubscribe",
    "list-unsubscribe-post",
    "precedence",
    "references",
    "reply-to",
];

/// Ports of submission and transfer: with STARTTLS, within TLS, and between servers.
const MAIL_PORTS: [u16; 3] = [25, 465, 587];

/// How the conversation with a mail server is kept from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailSecurity {
    /// TLS from the first byte.
    Tls,
    /// TLS before anything that matters, or no message.
    StartTls,
    /// None, to servers inside the operator's own networks.
    Plain,
}

/// A mail server that may be called: `smtps://host` (TLS from the first byte, port 465) or `smtp://host` (STARTTLS,
/// port 587), each with a port of its own if need be. The addresses of its name are judged when it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailServer {
    destination: Destination,
    security: MailSecurity,
}

impl MailServer {
    /// Judges a connection's base URL. `plain` is the tenant's word that a server has no TLS.
    ///
    /// # Errors
    /// The first rule that it breaks; the server is not among the allowed hosts, or an entry of those cannot be read.
    pub fn of_connection<T: AsRef<str>>(
        base_url: &str,
        allowed_hosts: &[T],
        plain: bool,
        policy: &AddressPolicy,
    ) -> Result<Self, Refusal> {
        let server = Self::parse(base_url, plain, policy)?;
        AllowedHosts::parse(allowed_hosts)?.judge(&server.destination)?;
        Ok(server)
    }

    /// Judges the URL alone.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn parse(base_url: &str, plain: bool, policy: &AddressPolicy) -> Result<Self, Refusal> {
        let refused = |why| Err(Refusal::Url { why });
        let (authority, port, security) = match base_url.split_once("://") {
            Some(("smtps", _)) if plain => return refused("TLS and no TLS are asked for at once"),
            Some(("smtps", authority)) => (authority, 465, MailSecurity::Tls),
            Some(("smtp", authority)) if plain => (authority, 587, MailSecurity::Plain),
            Some(("smtp", authority)) => (authority, 587, MailSecurity::StartTls),
            _ => return refused("its scheme is neither smtp nor smtps"),
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        if authority.contains(['/', '?', '#', '@']) {
            return refused("a mail server is a host and a port, and nothing else");
        }
        let names_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if names_port { String::new() } else { format!(":{port}") };
        // The rules for hosts are those of HTTP, and its URLs are the ones whose hosts the parser reads.
        let destination = Destination::judged(&format!("https://{authority}{port}"), policy, &MAIL_PORTS)
            .map_err(|refusal| match refusal {
                Refusal::Port { port } => Refusal::MailPort { port },
                other => other,
            })?;
        Ok(Self { destination, security })
    }

    /// What the host stands for.
    pub fn target(&self) -> Target<'_> {
        self.destination.target()
    }

    /// The host as it appears in a URL: IPv6 addresses in brackets.
    pub fn host(&self) -> &str {
        self.destination.host()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.destination.port()
    }

    /// Host and port.
    pub fn authority(&self) -> &str {
        // Never a port of HTTP, which would not be shown.
        self.destination.authority()
    }

    /// How the conversation is kept from others.
    pub const fn security(&self) -> MailSecurity {
        self.security
    }
}

/// Whether a base URL is that of a mail server.
pub fn is_mail_url(base_url: &str) -> bool {
    base_url.starts_with("smtp://") || base_url.starts_with("smtps://")
}

/// Judges the parts of a message that are text. Its addresses are read where it is written down.
///
/// # Errors
/// What cannot be sent, in words for the block.
pub fn judge_message(message: &MailMessage) -> Result<(), String> {
    let MailMessage { to, subject, text, html, headers } = message;
    if !(1..=RECIPIENTS_MAX).contains(&to.len()) {
        return Err(format!("a message has 1 to {RECIPIENTS_MAX} recipients"));
    }
    if to.iter().any(|to| !is_line(to, RECIPIENT_BYTES_MAX) || !to.is_ascii()) {
        return Err(format!("a recipient has 1 to {RECIPIENT_BYTES_MAX} bytes of ASCII, on one line"));
    }
    if !is_line(subject, MAIL_LINE_BYTES_MAX) {
        return Err(format!("a subject has 1 to {MAIL_LINE_BYTES_MAX} bytes, on one line"));
    }
    let body_bytes_len = text.len() + html.as_ref().map_or(0, String::len);
    if body_bytes_len as u64 > REQUEST_BODY_BYTES_MAX {
        return Err(format!(
            "the texts have {body_bytes_len} bytes together; at most {REQUEST_BODY_BYTES_MAX} are sent"
        ));
    }
    if text.contains('\0') || html.as_ref().is_some_and(|html| html.contains('\0')) {
        return Err("a text holds a NUL character".into());
    }
    if headers.len() > MAIL_HEADERS_MAX {
        return Err(format!("at most {MAIL_HEADERS_MAX} header fields beside those of the host"));
    }
    headers.iter().try_for_each(|(name, value)| judge_header(name, value))
}

fn judge_header(name: &str, value: &str) -> Result<(), String> {
    let lower = name.to_ascii_lowercase();
    let is_named = MAIL_HEADERS.contains(&lower.as_str())
        || lower.strip_prefix("x-").is_some_and(|rest| {
            !rest.is_empty()
                && rest.len() < 64
                && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        });
    if !is_named {
        let known = MAIL_HEADERS.join(", ");
        let name = bounded_text(name, 64);
        return Err(format!("a block sets no header field `{name}`, but {known}, and those named `x-…`"));
    }
    if !is_line(value, MAIL_LINE_BYTES_MAX) {
        return Err(format!("the value of `{name}` has 1 to {MAIL_LINE_BYTES_MAX} bytes, on one line"));
    }
    Ok(())
}

/// Text that stays where it is put: no control character, so none that would begin another line.
fn is_line(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mail_server_is_a_host_and_a_port() {
        let closed = AddressPolicy::default();
        let development = AddressPolicy { loopback: true, private: vec![] };
        let shown = |url: &str, plain, policy: &AddressPolicy| match MailServer::parse(url, plain, policy) {
            Ok(server) => format!("{}:{} {:?}", server.host(), server.port(), server.security()),
            Err(refusal) => refusal.to_string(),
        };
        for (url, plain, policy, expected) in [
            ("smtps://mail.acme.com", false, &closed, "mail.acme.com:465 Tls"),
            ("smtp://mail.acme.com", false, &closed, "mail.acme.com:587 StartTls"),
            ("smtp://mail.acme.com/", true, &closed, "mail.acme.com:587 Plain"),
            ("smtp://mail.acme.com:25", false, &closed, "mail.acme.com:25 StartTls"),
            ("smtp://mail.acme.com:2525", false, &closed, "mail.acme.com:2525 StartTls"),
            ("smtp://127.0.0.1:1025", true, &development, "127.0.0.1:1025 Plain"),
            ("smtp://[::1]", true, &development, "[::1]:587 Plain"),
            ("smtps://[2606:4700:4700::1111]:465", false, &closed, "[2606:4700:4700::1111]:465 Tls"),
            ("smtp://127.0.0.1:1025", true, &closed, "address 127.0.0.1 is refused: loopback"),
            (
                "smtp://mail.internal",
                false,
                &closed,
                "host mail.internal is refused: the name is for private use",
            ),
            (
                "smtp://mail.acme.com:443",
                false,
                &closed,
                "port 443 is refused: of the ports below 1024 only 25, 465 and 587 are those of mail servers",
            ),
            (
                "smtp://mail.acme.com:80",
                false,
                &closed,
                "port 80 is refused: of the ports below 1024 only 25, 465 and 587 are those of mail servers",
            ),
            (
                "smtps://mail.acme.com",
                true,
                &closed,
                "the URL is refused: TLS and no TLS are asked for at once",
            ),
            (
                "https://mail.acme.com",
                false,
                &closed,
                "the URL is refused: its scheme is neither smtp nor smtps",
            ),
            (
                "smtp://user:word@mail.acme.com",
                false,
                &closed,
                "the URL is refused: a mail server is a host and a port, and nothing else",
            ),
            (
                "smtp://mail.acme.com/?a",
                false,
                &closed,
                "the URL is refused: a mail server is a host and a port, and nothing else",
            ),
            ("smtp://", false, &closed, "the URL is refused: not an absolute URL"),
        ] {
            assert_eq!(shown(url, plain, policy), expected, "{url}");
        }
    }

    #[test]
    fn only_an_allowed_server_is_one() {
        let policy = AddressPolicy::default();
        for (hosts, allowed) in [
            (&[][..], false),
            (&["mail.acme.com"], true),
            (&["mail.acme.com:587"], true),
            (&["mail.acme.com:25"], false),
            (&["*.acme.com"], true),
        ] {
            let server = MailServer::of_connection("smtp://mail.acme.com", hosts, false, &policy);
            assert_eq!(server.is_ok(), allowed, "{hosts:?}");
        }
    }

    #[test]
    fn a_message_says_what_it_seems_to_say() {
        let message = |change: &dyn Fn(&mut MailMessage)| {
            let mut message = MailMessage {
                to: vec!["ada@acme.com".into()],
                subject: "Hello".into(),
                text: "Hi".into(),
                html: None,
                headers: vec![("Reply-To".into(), "team@acme.com".into()), ("X-Order".into(), "o-1".into())],
            };
            change(&mut message);
            judge_message(&message).is_ok()
        };
        let header = |name: &'static str, value: &'static str| {
            message(&move |message| message.headers.push((name.into(), value.into())))
        };
        assert!(message(&|_| ()));
        assert!(message(&|message| message.to = vec!["a@b.example".into(); RECIPIENTS_MAX]));
        assert!(!message(&|message| message.to = vec!["a@b.example".into(); RECIPIENTS_MAX + 1]));
        assert!(!message(&|message| message.to = vec![]));
        assert!(!message(&|message| message.to = vec!["a@b.example\r\nRCPT TO:<c@d.example>".into()]));
        assert!(!message(&|message| message.to = vec!["ä@b.example".into()]));
        assert!(!message(&|message| message.subject = "a\r\nBcc: c@d.example".into()));
        assert!(!message(&|message| message.subject = String::new()));
        assert!(!message(&|message| message.text = "a\0".into()));
        assert!(!message(&|message| message.html = Some("x".repeat(1 << 20))));
        assert!(header("References", "<a@b.example>"));
        for (name, value) in [
            ("Bcc", "c@d.example"),
            ("To", "c@d.example"),
            ("From", "c@d.example"),
            ("Date", "now"),
            ("Message-ID", "<a@b>"),
            ("Content-Type", "text/html"),
            ("x-", "a"),
            ("x-a:b", "c"),
            ("x-a\r\nBcc", "c@d.example"),
            ("X-A", "b\r\nBcc: c@d.example"),
            ("X-A", "b\nc"),
            ("X-A", ""),
        ] {
            assert!(!header(name, value), "{name:?}: {value:?}");
        }
        assert!(
            !message(&|message| message.headers = vec![("x-a".into(), "b".into()); MAIL_HEADERS_MAX + 1])
        );
    }
}
