//! Methods and header fields that a block may set.

use super::Refusal;

/// Header fields of a request that a block sets.
pub const HEADERS_MAX: usize = 64;
/// Names and values of them together: what common servers accept.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
/// Longest method: twice the longest that is registered.
const METHOD_BYTES_MAX: usize = 36;

/// Fields that frame the message or speak of the connection: the client's to set. Whoever set one could make two
/// readers of the same bytes see two different requests, or reach another host than the one that was judged.
const OURS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Judges a request's method.
///
/// # Errors
/// [`Refusal::Method`] unless it is a token, and neither `CONNECT` (a tunnel) nor `TRACE` (its answer repeats the
/// request's headers, secrets of the connection among them).
pub fn judge_method(method: &str) -> Result<(), Refusal> {
    let why = if method.len() > METHOD_BYTES_MAX || !is_token(method) {
        "not a method name"
    } else if ["CONNECT", "TRACE", "TRACK"].iter().any(|refused| method.eq_ignore_ascii_case(refused)) {
        "it tunnels, or repeats what the host adds to a request"
    } else {
        return Ok(());
    };
    Err(Refusal::Method { method: method.to_owned(), why })
}

/// Judges the header fields that a block set.
///
/// # Errors
/// [`Refusal::Header`] with the first that breaks a rule.
pub fn judge_headers(headers: &[(String, String)]) -> Result<(), Refusal> {
    let refused = |name: &str, why| Err(Refusal::Header { name: name.to_owned(), why });
    let mut bytes: usize = 0;
    for (position, (name, value)) in headers.iter().enumerate() {
        bytes = bytes.saturating_add(name.len()).saturating_add(value.len());
        if position >= HEADERS_MAX {
            return refused(name, "more than 64 fields");
        }
        if bytes > HEADER_BYTES_MAX {
            return refused("", "more than 32 KiB of fields");
        }
        if !is_token(name) {
            return refused(name, "not a field name");
        }
        if is_host_field(name) {
            return refused(name, "the host sets it");
        }
        if !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return refused(name, "its value holds something else than visible ASCII and spaces");
        }
    }
    Ok(())
}

/// Whether a field is the host's to set.
pub fn is_host_field(name: &str) -> bool {
    // Gateways that hand fields on as variables cannot tell `Content_Length` from `Content-Length`.
    let name = name.to_ascii_lowercase().replace('_', "-");
    name.starts_with("proxy-") || OURS.contains(&name.as_str())
}

/// A token of RFC 9110.
pub fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn fields_that_frame_the_message_are_the_hosts() {
        for name in OURS.iter().copied().chain(["proxy-authorization", "proxy-connection", "Proxy-X"]) {
            for spelling in [name.to_owned(), name.to_ascii_uppercase(), name.replace('-', "_")] {
                assert_eq!(
                    judge_headers(&[field("accept", "*/*"), field(&spelling, "1")]),
                    Err(Refusal::Header { name: spelling, why: "the host sets it" }),
                );
            }
        }
    }

    #[test]
    fn nothing_in_a_field_can_end_it() {
        for name in ["", " ", "a b", "a:", "a\r\nb", "a\0", "ä", "a(b)"] {
            assert_eq!(
                judge_headers(&[field(name, "1")]),
                Err(Refusal::Header { name: name.to_owned(), why: "not a field name" }),
            );
        }
        for value in ["a\r\nhost: evil", "a\nb", "a\rb", "a\0", "a\tb", "\u{7f}", "ä", "a\u{85}"] {
            let judged = judge_headers(&[field("x-a", value)]);
            assert!(matches!(judged, Err(Refusal::Header { .. })), "{value:?}");
        }
        for (name, value) in
            [("x-a", ""), ("X-A_b.c", "a: b; \"c\""), ("hosts", "a"), ("x-host", "a"), ("cookie", "a=b")]
        {
            assert_eq!(judge_headers(&[field(name, value)]), Ok(()), "{name}");
        }
    }

    #[test]
    fn fields_are_bounded_in_number_and_size() {
        let many = |count| vec![field("x-a", "1"); count];
        let large = |bytes: usize| vec![field("x-a", &"v".repeat(bytes - "x-a".len()))];
        for (headers, fits) in [
            (many(HEADERS_MAX), true),
            (many(HEADERS_MAX + 1), false),
            (large(HEADER_BYTES_MAX), true),
            (large(HEADER_BYTES_MAX + 1), false),
        ] {
            assert_eq!(judge_headers(&headers).is_ok(), fits);
        }
    }

    #[test]
    fn methods_are_tokens_that_end_at_the_provider() {
        for (method, fits) in [
            ("GET", true),
            ("POST", true),
            ("PROPFIND", true),
            ("get", true),
            ("", false),
            ("GE T", false),
            ("GET\r\n", false),
            ("CONNECT", false),
            ("connect", false),
            ("TRACE", false),
            ("TRACK", false),
            ("A-METHOD-LONGER-THAN-ANY-REGISTERED-ONE", false),
        ] {
            assert_eq!(judge_method(method).is_ok(), fits, "{method:?}");
        }
    }
}
