//! Mail, sent by the host through a mail server that the tenant has set up, and recorded by a receipt each.
//!
//! ```no_run
//! # use counterfoil_sdk::prelude::*;
//! # fn send() -> Result<(), Failure> {
//! mail::to("ada@example.com")
//!     .subject("Your order is paid")
//!     .text("Thank you.")
//!     .connection("post")
//!     .key("receipt")
//!     .send()?;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use crate::effect::{EffectError, MailEffect};
use crate::host;

/// A message to an address, or to a name and an address: `Ada <ada@example.com>`.
pub fn to(recipient: impl Into<String>) -> Message {
    Message { effect: MailEffect { to: vec![recipient.into()], ..MailEffect::default() } }
}

/// A message that has not been sent.
#[derive(Debug, Clone)]
#[must_use = "a message is not sent until it is sent"]
pub struct Message {
    effect: MailEffect,
}

impl Message {
    /// Adds a recipient, of 100 at most. A server that refuses one of them refuses the message.
    pub fn and_to(mut self, recipient: impl Into<String>) -> Self {
        self.effect.to.push(recipient.into());
        self
    }

    /// Sets the subject.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.effect.subject = subject.into();
        self
    }

    /// Sets the plain text.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.effect.text = text.into();
        self
    }

    /// Sets the same as HTML, for readers that show it.
    pub fn html(mut self, html: impl Into<String>) -> Self {
        self.effect.html = Some(html.into());
        self
    }

    /// Adds a header field, such as `Reply-To`, `References`, `List-Unsubscribe` or one named `X-…`. The sender, the
    /// recipients, the date and the message's id are the host's to write.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.effect.headers.push((name.into(), value.into()));
        self
    }

    /// Sends through a connection of the tenant, which holds the mail server's address, the sender and the credentials.
    pub fn connection(mut self, name: impl Into<String>) -> Self {
        self.effect.connection = Some(name.into());
        self
    }

    /// Labels the effect within its step, so that it keeps its receipt when the code around it changes.
    /// Without a label, it is known by its place among the unlabelled effects of the step.
    pub fn key(mut self, label: impl Into<String>) -> Self {
        self.effect.key = Some(label.into());
        self
    }

    /// Bounds the whole conversation. The host has a bound of its own; the shorter one holds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.effect.timeout_ms = Some(timeout.as_millis().try_into().unwrap_or(u32::MAX));
        self
    }

    /// Has the host send the message, or hand over the reply that it has already recorded for it: the mail server's
    /// code and its text.
    ///
    /// Does not return when the outcome is unknown: the step stops here until that is resolved.
    ///
    /// # Errors
    ///
    /// When it is known that the server did not take the message.
    pub fn send(self) -> Result<String, EffectError> {
        host::mail(self.effect)
    }
}

#[cfg(test)]
mod tests;
