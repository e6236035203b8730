//! Effects of the kind `mail`: one message over SMTP, through a connection that names the server and the sender. Its
//! Message-ID is the receipt's, so that the message can be found again at the server and in a mailbox.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use counterfoil_domain::block::EffectGrant;
use counterfoil_domain::connection::Abilities;
use counterfoil_domain::effect::{Answer, HttpResponse, MailMessage, Safety};
use counterfoil_domain::limits::bounded_text;
use counterfoil_domain::outbound::{MailServer, Refusal, judge_message};
use counterfoil_domain::receipt::RequestFacts;
use counterfoil_domain::receipt::answer::Exchanged;
use counterfoil_domain::receipt::request::{Canonical, fingerprint, preview_body};
use counterfoil_store::connection::Connection;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message, MultiPart};
use serde_json::json;

use super::{Act, Ask, Exchange, Outside, Prepared, grants, scope, total};
use crate::client::{Budget, MailExchange, NotSent, NotSentKind, Reply, WireMail};
use crate::guard::Known;
use crate::secrets::Opened;

/// Bytes of a recipient and of a subject that a preview shows.
const SHOWN_BYTES_MAX: usize = 256;
/// Recipients that a preview shows: as many as a message may have.
const SHOWN_RECIPIENTS_MAX: usize = 100;
/// Text of a reply that is kept.
const REPLY_BYTES_MAX: usize = 2 << 10;

/// A message that may be sent.
struct Letter {
    server: MailServer,
    secrets: Opened,
    from: Mailbox,
    to: Vec<Mailbox>,
    message: MailMessage,
    budget: Budget,
}

/// Judges a message by the block's grants, its connection and its form.
pub(super) fn prepare(mut ask: Ask<'_>, message: &MailMessage) -> Prepared {
    let total = total(&ask);
    let secrets = std::mem::take(&mut ask.secrets);
    let letter = letter(&ask, secrets, message, total);
    let scope = scope(ask.context, "mail");
    let facts = canonical(&ask, message).facts(Safety::AtMostOnce, ask.default_key, scope);
    let abilities = ask.connection.map(|known| known.abilities.clone()).unwrap_or_default();
    Prepared { facts, act: letter.map(|letter| Act::Exchange(Box::new(letter))), abilities, total }
}

fn canonical<'a>(ask: &Ask<'a>, message: &MailMessage) -> Canonical<'a> {
    let MailMessage { to, subject, text, html, headers } = message;
    let shown = |text: &str| bounded_text(text, SHOWN_BYTES_MAX);
    let first = to.first().map_or_else(|| "nobody".into(), |to| shown(to));
    let others = if to.len() > 1 { format!(" and {} more", to.len() - 1) } else { String::new() };
    Canonical {
        kind: "mail",
        connection: ask.call.connection.as_deref(),
        destination: json!({ "to": to }),
        content: json!({
            "subject": subject,
            "text": fingerprint(text.as_bytes()),
            "html": html.as_ref().map(|html| fingerprint(html.as_bytes())),
            "headers": headers,
        }),
        preview: json!({
            "summary": format!("mail to {first}{others}: {}", shown(subject)),
            "to": to.iter().take(SHOWN_RECIPIENTS_MAX).map(|to| shown(to)).collect::<Vec<_>>(),
            "subject": shown(subject),
            "headers": headers
                .iter()
                .take(SHOWN_RECIPIENTS_MAX)
                .map(|(name, value)| [shown(name), shown(value)])
                .collect::<Vec<_>>(),
            "body": preview_body(text.as_bytes()),
            "body_bytes_len": text.len(),
        }),
    }
}

fn letter(ask: &Ask<'_>, secrets: Opened, message: &MailMessage, total: Duration) -> Result<Letter, String> {
    let name = ask.call.connection.as_deref().ok_or("a message is sent through a connection")?;
    let names = |grant: &EffectGrant| grant.connections.iter().any(|granted| granted == name);
    if grants(ask, Safety::AtMostOnce).is_some_and(|mut grants| !grants.any(names)) {
        return Err(format!("the block's descriptor declares no `mail` effect on `{name}`"));
    }
    if ask.call.safety.is_some_and(|declared| declared != Safety::AtMostOnce) {
        return Err("no mail server recognises a repeat: a message is sent at most once".into());
    }
    if ask.call.idempotency_key.is_some() {
        return Err("no mail server recognises a repeat: a message takes no idempotency key".into());
    }
    let Known { connection, abilities } =
        ask.connection.ok_or_else(|| format!("there is no connection `{name}`"))?;
    judge_message(message)?;
    let letter = Letter {
        server: server(ask, connection, abilities)?,
        secrets,
        from: sender(abilities)?,
        to: message.to.iter().map(|to| recipient(to)).collect::<Result<_, _>>()?,
        message: message.clone(),
        budget: Budget {
            total_ms_max: u64::try_from(total.as_millis()).unwrap_or(u64::MAX),
            ..Budget::DEFAULT
        },
    };
    // Written down once now, so that what cannot be is refused before anything is sent.
    letter.content(&ask.default_key).map(|_| letter)
}

fn server(ask: &Ask<'_>, connection: &Connection, abilities: &Abilities) -> Result<MailServer, String> {
    let plain = abilities.mail.as_ref().is_some_and(|mail| mail.plain);
    MailServer::of_connection(&connection.base_url, &connection.allowed_hosts, plain, ask.policy).map_err(
        |refusal| {
            tracing::info!(%refusal, "a message is refused");
            Refusal::GUEST_TEXT.into()
        },
    )
}

fn sender(abilities: &Abilities) -> Result<Mailbox, String> {
    let mail = abilities.mail.as_ref().ok_or("the connection declares no sender (`abilities.mail.from`)")?;
    mail.from.parse().map_err(|error| format!("the connection's sender is no address: {error}"))
}

fn recipient(text: &str) -> Result<Mailbox, String> {
    text.parse().map_err(|error| format!("`{}` is no address: {error}", bounded_text(text, SHOWN_BYTES_MAX)))
}

impl Letter {
    /// The message in lines, under the key by which it can be found again.
    fn content(&self, key: &str) -> Result<Vec<u8>, String> {
        let MailMessage { subject, text, html, headers, .. } = &self.message;
        let mut message = Message::builder()
            .from(self.from.clone())
            .subject(subject)
            .date(SystemTime::now())
            .message_id(Some(format!("<{key}@{}>", self.from.email.domain())));
        for to in &self.to {
            message = message.to(to.clone());
        }
        for (name, value) in headers {
            let name = HeaderName::new_from_ascii(name.clone()).map_err(|error| error.to_string())?;
            message = message.raw_header(HeaderValue::new(name, value.clone()));
        }
        let message = match html {
            Some(html) => message.multipart(MultiPart::alternative_plain_html(text.clone(), html.clone())),
            None => message.header(ContentType::TEXT_PLAIN).body(text.clone()),
        };
        let content = message.map_err(|error| format!("the message cannot be written: {error}"))?.formatted();
        if has_lone_line_end(&content) {
            return Err("the message cannot be written: a line end stands alone".into());
        }
        Ok(content)
    }
}

/// Whether a CR or an LF is there without the other: servers differ in what they take it for, and a message could end
/// for one of them where it goes on for another.
fn has_lone_line_end(content: &[u8]) -> bool {
    let mut before = None;
    for &byte in content {
        if (byte == b'\n') != (before == Some(b'\r')) {
            return true;
        }
        before = Some(byte);
    }
    before == Some(b'\r')
}

#[async_trait]
impl Exchange for Letter {
    async fn exchange(&self, out: Outside<'_>, facts: &RequestFacts) -> Exchanged {
        let content = match self.content(&facts.idempotency_key) {
            Ok(content) => content,
            Err(message) => return Exchanged::NotSent { denied: true, message },
        };
        let mail = WireMail {
            server: self.server.clone(),
            credentials: self
                .secrets
                .credentials()
                .map(|(username, password)| (username.clone(), password.clone())),
            from: self.from.email.to_string(),
            to: self.to.iter().map(|to| to.email.to_string()).collect(),
            content,
        };
        exchanged(out.client.mail(&mail, &self.budget, out.window, out.faults).await, &self.secrets)
    }
}

/// What the client saw, in the words of the table, and without what the server repeats of the secrets it was given.
fn exchanged(exchange: MailExchange, secrets: &Opened) -> Exchanged {
    let shown = |reply: &Reply| {
        bounded_text(&secrets.without(format!("{} {}", reply.code, reply.text)), REPLY_BYTES_MAX)
    };
    match exchange {
        MailExchange::NotSent(reason) => {
            tracing::info!(%reason, "nothing of a message was sent");
            let denied = reason.kind == NotSentKind::Refused;
            let message = if denied { Refusal::GUEST_TEXT } else { NotSent::GUEST_TEXT };
            Exchanged::NotSent { denied, message: message.into() }
        }
        MailExchange::Answered(reply) if (200..300).contains(&reply.code) => {
            Exchanged::Accepted(Answer::Mailed(shown(&reply)))
        }
        MailExchange::Answered(reply) if reply.code < 400 => {
            Exchanged::Lost { reason: format!("the server answered the message with {}", shown(&reply)) }
        }
        MailExchange::Refused(reply) | MailExchange::Answered(reply) => {
            let body = bounded_text(&secrets.without(reply.text), REPLY_BYTES_MAX).into_bytes();
            let response = HttpResponse { status: reply.code, headers: vec![], body, truncated: false };
            Exchanged::Refused { transient: reply.code < 500, response }
        }
        MailExchange::Lost(lost) => Exchanged::Lost { reason: lost.to_string() },
    }
}
