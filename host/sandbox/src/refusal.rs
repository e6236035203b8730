//! Small makers of refusals, and of text that is safe to show in them.

use counterfoil_domain::code::Code;
use counterfoil_domain::limits::{NAME_BYTES_MAX, bounded_text};
use counterfoil_domain::ports::Refused;
use counterfoil_domain::schema::Fault;

pub(crate) fn refused(code: Code, message: impl Into<String>) -> Refused {
    Refused { code, message: message.into(), details: Vec::new() }
}

/// A detail that has no place within what was sent.
pub(crate) fn whole(why: String) -> Fault {
    Fault { place: String::new(), why }
}

/// A piece of foreign text, as much of it as a sentence bears.
pub(crate) fn shown(text: &str) -> String {
    bounded_text(text, NAME_BYTES_MAX)
}
