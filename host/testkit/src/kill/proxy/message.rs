//! The client's side of the protocol, as far as the proxy must know it.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Length of a message's own length field.
const LENGTH_BYTES: usize = 4;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// What a client says before it has said who it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// It asks for encryption.
    Encryption,
    /// It says who it is, or what is to be cancelled.
    Other(Bytes),
}

/// Takes the next opening message from the buffer, if it is whole.
pub(super) fn take_opening(buffer: &mut BytesMut) -> Option<Opening> {
    let length = usize::try_from(peek_u32(buffer, 0)?).ok()?;
    if buffer.len() < length {
        return None;
    }
    let code = peek_u32(buffer, LENGTH_BYTES);
    let message = buffer.split_to(length).freeze();
    Some(match code {
        Some(SSL_REQUEST | GSS_REQUEST) => Opening::Encryption,
        _ => Opening::Other(message),
    })
}

/// A message: its kind, and everything behind its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) payload: Bytes,
}

impl Message {
    /// Takes the next message from the buffer, if it is whole.
    pub(super) fn take(buffer: &mut BytesMut) -> Option<Self> {
        let length = usize::try_from(peek_u32(buffer, 1)?).ok()?;
        if buffer.len() < 1 + length {
            return None;
        }
        let mut message = buffer.split_to(1 + length).freeze();
        let kind = message.get_u8();
        message.advance(LENGTH_BYTES);
        Some(Self { kind, payload: message })
    }

    pub(super) fn put(&self, into: &mut BytesMut) {
        into.put_u8(self.kind);
        into.put_u32(u32::try_from(self.payload.len() + LENGTH_BYTES).unwrap_or(u32::MAX));
        into.extend_from_slice(&self.payload);
    }

    /// The nth zero-terminated text at the beginning of the payload.
    pub(super) fn text(&self, nth: usize) -> Option<&str> {
        std::str::from_utf8(self.payload.split(|byte| *byte == 0).nth(nth)?).ok()
    }

    /// The same Parse message with another statement.
    pub(super) fn with_statement(&self, statement: &str) -> Option<Self> {
        let name = self.text(0)?;
        let rest = &self.payload[name.len() + 1 + self.text(1)?.len() + 1..];
        let payload = [name.as_bytes(), b"\0", statement.as_bytes(), b"\0", rest].concat();
        Some(Self { kind: self.kind, payload: payload.into() })
    }
}

fn peek_u32(buffer: &BytesMut, at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(buffer.get(at..at + LENGTH_BYTES)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole_and_put_back_as_they_were() {
        let parse = Message { kind: b'P', payload: Bytes::from_static(b"s1\0SELECT 1\0\0\x01\0\0\0\x17") };
        let mut bytes = BytesMut::new();
        parse.put(&mut bytes);
        let whole = bytes.clone();
        for cut in 0..whole.len() {
            assert_eq!(Message::take(&mut BytesMut::from(&whole[..cut])), None, "{cut}");
        }
        bytes.extend_from_slice(b"S");
        assert_eq!(Message::take(&mut bytes), Some(parse.clone()));
        assert_eq!(&bytes[..], b"S");
        assert_eq!((parse.text(0), parse.text(1)), (Some("s1"), Some("SELECT 1")));
        let other = parse.with_statement("SELECT $1").expect("it parses");
        assert_eq!(&other.payload[..], b"s1\0SELECT $1\0\0\x01\0\0\0\x17");
    }

    #[test]
    fn a_wish_for_encryption_is_told_from_a_start() {
        let mut bytes = BytesMut::from(&b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x09\0\x03\0\0\0"[..]);
        assert_eq!(take_opening(&mut bytes), Some(Opening::Encryption));
        assert_eq!(
            take_opening(&mut bytes),
            Some(Opening::Other(Bytes::from_static(b"\0\0\0\x09\0\x03\0\0\0")))
        );
        assert_eq!(take_opening(&mut bytes), None);
    }
}
