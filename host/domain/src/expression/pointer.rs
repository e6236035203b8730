//! Places in JSON values.

use std::fmt;

/// A JSON Pointer (RFC 6901) as a chain on the stack: its text is made only when somebody reads it, so that walking a
/// value costs nothing for the places where all is well.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pointer<'a> {
    /// The pointer with this text.
    At(&'a str),
    /// A field of what is there.
    Field(&'a Pointer<'a>, &'a str),
    /// An element of what is there.
    Index(&'a Pointer<'a>, usize),
}

impl fmt::Display for Pointer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(text) => f.write_str(text),
            Self::Index(parent, index) => write!(f, "{parent}/{index}"),
            Self::Field(parent, name) => {
                write!(f, "{parent}/")?;
                for part in name.split_inclusive(['~', '/']) {
                    match (part.strip_suffix('~'), part.strip_suffix('/')) {
                        (Some(part), _) => write!(f, "{part}~0")?,
                        (_, Some(part)) => write!(f, "{part}~1")?,
                        _ => f.write_str(part)?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// The JSON Pointer of a field of what is at `pointer`.
pub fn child(pointer: &str, name: &str) -> String {
    Pointer::Field(&Pointer::At(pointer), name).to_string()
}
