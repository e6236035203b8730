//! What the provider does with a call.

use serde::{Deserialize, Serialize};

/// Deviations from the ordinary answer. The default is none.
///
/// In a query each field is `name=value` (`true` and `false` for flags; `headers` and `body` only in scripts).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a parameter of a query or a script")]
pub struct Act {
    /// Status in place of the endpoint's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Further header fields of the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Body in place of the endpoint's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// A `Retry-After` header, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// Body of that many bytes in place of the endpoint's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<usize>,
    /// Wait before the answer.
    #[serde(skip_serializing_if = "is_default")]
    pub delay_ms: u64,
    /// Wait before the answer until released.
    #[serde(skip_serializing_if = "is_default")]
    pub hold: bool,
    /// Close without an answer.
    #[serde(skip_serializing_if = "is_default")]
    pub drop: bool,
    /// Reset the connection (RST) after that many bytes of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_at: Option<usize>,
    /// Close the connection (FIN) after that many bytes of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_at: Option<usize>,
    /// Send the body a byte at a time, with this pause between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drip_ms: Option<u64>,
    /// That many `103` answers before the real one.
    #[serde(skip_serializing_if = "is_default")]
    pub informational: usize,
    /// Send header fields until the caller goes away.
    #[serde(skip_serializing_if = "is_default")]
    pub endless_headers: bool,
    /// Answer chunked instead of with a length.
    #[serde(skip_serializing_if = "is_default")]
    pub chunked: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Act {
    /// Closes without an answer.
    pub fn dropped() -> Self {
        Self { drop: true, ..Self::default() }
    }

    /// Waits before the answer until released.
    pub fn held() -> Self {
        Self { hold: true, ..Self::default() }
    }

    /// Answers with `status`.
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// The act that a query asks for; `None` if it speaks of none. Names that are no act's are the caller's own.
    ///
    /// # Errors
    /// A value that does not fit its name.
    pub(crate) fn from_query(query: &str) -> anyhow::Result<Option<Self>> {
        let mut act = Self::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
            match name {
                "status" => act.status = Some(value.parse()?),
                "retry_after" => act.retry_after = Some(value.parse()?),
                "body_bytes" => act.body_bytes = Some(value.parse()?),
                "delay_ms" => act.delay_ms = value.parse()?,
                "hold" => act.hold = value.parse()?,
                "drop" => act.drop = value.parse()?,
                "reset_at" => act.reset_at = Some(value.parse()?),
                "cut_at" => act.cut_at = Some(value.parse()?),
                "drip_ms" => act.drip_ms = Some(value.parse()?),
                "informational" => act.informational = value.parse()?,
                "endless_headers" => act.endless_headers = value.parse()?,
                "chunked" => act.chunked = value.parse()?,
                _ => {}
            }
        }
        Ok((act != Self::default()).then_some(act))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_may_ask_for_an_act() {
        for (query, expected) in [
            ("", None),
            ("page=2&sort=name", None),
            ("drop", Some(Act::dropped())),
            ("hold=true&page=2", Some(Act::held())),
            (
                "status=503&retry_after=7&delay_ms=20",
                Some(Act { retry_after: Some(7), delay_ms: 20, ..Act::status(503) }),
            ),
        ] {
            assert_eq!(Act::from_query(query).expect(query), expected);
        }
        assert!(Act::from_query("status=teapot").is_err());
    }
}
