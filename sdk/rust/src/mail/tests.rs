use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::Failure;
use crate::host::native::{Host, with};

/// Notes what is sent, and replies the same to everything.
struct Server {
    sent: Rc<RefCell<Vec<MailEffect>>>,
    reply: Result<String, EffectError>,
}

impl Host for Server {
    fn mail(&mut self, effect: MailEffect) -> Result<String, EffectError> {
        self.sent.borrow_mut().push(effect);
        self.reply.clone()
    }
}

fn send(
    message: Message,
    reply: Result<String, EffectError>,
) -> (Vec<MailEffect>, Result<String, EffectError>) {
    let sent = Rc::default();
    let result = with(Server { sent: Rc::clone(&sent), reply }, || message.send());
    (sent.take(), result)
}

#[test]
fn a_message_crosses_as_it_was_built() {
    let plain = MailEffect { to: vec!["ada@example.com".into()], ..MailEffect::default() };
    let whole = to("ada@example.com")
        .and_to("Bob <bob@example.com>")
        .subject("Paid")
        .text("Thanks")
        .html("<p>Thanks</p>")
        .header("Reply-To", "team@acme.com")
        .connection("post")
        .key("letter")
        .timeout(Duration::from_millis(2_500));
    let expected = MailEffect {
        to: vec!["ada@example.com".into(), "Bob <bob@example.com>".into()],
        subject: "Paid".into(),
        text: "Thanks".into(),
        html: Some("<p>Thanks</p>".into()),
        headers: vec![("Reply-To".into(), "team@acme.com".into())],
        connection: Some("post".into()),
        key: Some("letter".into()),
        timeout_ms: Some(2_500),
    };
    for (message, expected) in [(to("ada@example.com"), plain), (whole, expected)] {
        let reply = Ok("250 queued".to_owned());
        assert_eq!(send(message, reply.clone()), (vec![expected], reply));
    }
}

/// The codes of mail servers say the opposite of those of HTTP: from 400 on it passes, from 500 on it does not.
#[test]
fn a_refusal_is_what_a_mail_servers_code_says() {
    for (code, transient) in [(421, true), (450, true), (452, true), (550, false), (554, false)] {
        let error = EffectError::MailRefused { code, reply: "no".into() };
        let failure = Failure::from(send(to("a@b.example"), Err(error)).1.expect_err("it was refused"));
        assert_eq!((failure.code(), failure.is_transient()), ("rejected", transient), "{code}");
        assert_eq!(failure.message(), format!("the mail server refused the message with code {code}: no"));
    }
}
