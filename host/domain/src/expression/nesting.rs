//! Bounds the nesting of brackets on the text.
//!
//! The parser recurses on every bracket, and its tree does not have the parentheses any more: only the text shows
//! how deep they went. The parser's own limit stands behind this one, but it cannot say where.

use super::{EXPRESSION_DEPTH_MAX, ExpressionError};

pub(super) fn check(source: &str) -> Result<(), ExpressionError> {
    let bytes = source.as_bytes();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'(' | b'[' | b'{' => {
                depth += 1;
                if depth > EXPRESSION_DEPTH_MAX {
                    let message = format!("brackets nest at most {EXPRESSION_DEPTH_MAX} deep");
                    return Err(ExpressionError::new(message, at));
                }
                at += 1;
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            b'"' | b'\'' => at = string_end(bytes, at, false)?,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = line_end(bytes, at),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let word_end = word_end(bytes, at);
                let raw = matches!(&bytes[at..word_end], b"r" | b"R" | b"br" | b"bR" | b"Br" | b"BR");
                at = match bytes.get(word_end) {
                    Some(b'"' | b'\'') => string_end(bytes, word_end, raw)?,
                    _ => word_end,
                };
            }
            _ => at += 1,
        }
    }
    Ok(())
}

fn word_end(bytes: &[u8], start: usize) -> usize {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    start + bytes[start..].iter().take_while(|byte| is_word(byte)).count()
}

fn line_end(bytes: &[u8], start: usize) -> usize {
    start + bytes[start..].iter().take_while(|byte| **byte != b'\n').count()
}

/// The position behind the string whose opening quote is at `start`.
fn string_end(bytes: &[u8], start: usize, raw: bool) -> Result<usize, ExpressionError> {
    let quote = bytes[start];
    let triple = [quote; 3];
    let closing: &[u8] = if bytes[start..].starts_with(&triple) { &triple } else { &triple[..1] };
    let mut at = start + closing.len();
    while at < bytes.len() {
        if bytes[at..].starts_with(closing) {
            return Ok(at + closing.len());
        }
        if bytes[at] == b'\n' && closing.len() == 1 {
            break;
        }
        at += if bytes[at] == b'\\' && !raw { 2 } else { 1 };
    }
    Err(ExpressionError::new("this string is not closed", start))
}
