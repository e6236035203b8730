//! Connections: a tenant's named way to reach a system.

use std::fmt;
use std::str::FromStr;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use crate::id::{Parts, TenantId};
use crate::outbound::judge_headers;
use crate::receipt::answer::StatusMeanings;
use crate::receipt::request::SECRET_HEADERS;

/// Secrets of one connection: it stands for one system, which asks for one or two.
pub const SECRETS_MAX: usize = 16;
/// A sender of mail: a name and an address.
const SENDER_BYTES_MAX: usize = 512;
/// A secret's value: common servers take no longer header.
pub const SECRET_BYTES_MAX: usize = 8 << 10;

/// Something about a connection that cannot be so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidConnection {
    /// Where in its document, as a JSON Pointer (RFC 6901).
    pub pointer: String,
    /// What is wrong, and how it should be. Never a secret.
    pub message: String,
}

impl InvalidConnection {
    fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }
}

/// What a connection declares of the system behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Abilities {
    /// What its statuses mean, where that differs from the table.
    pub statuses: StatusMeanings,
    /// The header that carries the idempotency key; `Idempotency-Key` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_header: Option<String>,
    /// The header in which it names its own receipt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt_id_header: Option<String>,
    /// What mail is sent as, where it is a mail server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail: Option<MailAbilities>,
}

/// What a connection declares of the mail server behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailAbilities {
    /// The sender of every message: an address, or a name and an address in `<>`.
    pub from: String,
    /// The server has no TLS. It must be inside the operator's own networks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain: bool,
}

impl Abilities {
    /// The header that carries the idempotency key.
    pub fn idempotency_header(&self) -> &str {
        self.idempotency_header.as_deref().unwrap_or("idempotency-key")
    }

    /// Judges what is declared. Pointers are below the abilities' own place.
    ///
    /// # Errors
    /// The first that cannot be.
    pub fn judge(&self) -> Result<(), InvalidConnection> {
        if let Some(status) = self.statuses.keys().find(|status| !(200..=599).contains(*status)) {
            let message = format!("{status} is no status of a final answer: those are 200 to 599");
            return Err(InvalidConnection::new(format!("/statuses/{status}"), message));
        }
        let is_sender = |from: &str| {
            from.len() <= SENDER_BYTES_MAX && from.contains('@') && !from.chars().any(char::is_control)
        };
        if self.mail.as_ref().is_some_and(|mail| !is_sender(&mail.from)) {
            let message = "a sender is an address, or a name and an address in `<>`";
            return Err(InvalidConnection::new("/mail/from", message));
        }
        for (pointer, name) in [
            ("/idempotency_header", &self.idempotency_header),
            ("/receipt_id_header", &self.receipt_id_header),
        ] {
            let Some(name) = name else { continue };
            judge_headers(&[(name.clone(), String::new())])
                .map_err(|refusal| InvalidConnection::new(pointer, refusal.to_string()))?;
            if SECRET_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                let message = format!("`{name}` carries credentials: its value would be kept and shown");
                return Err(InvalidConnection::new(pointer, message));
            }
        }
        Ok(())
    }
}

/// How often a connection may be used, whichever hosts use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Calls in a period, in the long run.
    pub limit: u32,
    /// The period, in milliseconds.
    pub per_ms: u32,
    /// Calls that may be made ahead of that. So in no period are there more than `limit + burst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl Rate {
    /// Longest period: what is rarer than daily wants a schedule.
    const PER_MS_MAX: u32 = 24 * 60 * 60 * 1_000;
    /// Calls that pass in this time are the burst of a rate that names none: as much as a host may be late.
    const BURST_MS: u64 = 100;

    /// Judges the numbers. Pointers are below the rate's own place.
    ///
    /// # Errors
    /// The first that cannot be.
    pub fn judge(&self) -> Result<(), InvalidConnection> {
        let Self { limit, per_ms, burst } = *self;
        if !(1..=Self::PER_MS_MAX).contains(&per_ms) {
            let message = format!("a period has 1 to {} milliseconds", Self::PER_MS_MAX);
            return Err(InvalidConnection::new("/per_ms", message));
        }
        // Each call takes its turn in one row of the database.
        if limit == 0 || limit > per_ms {
            return Err(InvalidConnection::new("/limit", "at least 1, and at most one for each millisecond"));
        }
        if burst.is_some_and(|burst| burst > limit) {
            return Err(InvalidConnection::new(
                "/burst",
                "at most the limit: a larger one is a larger limit",
            ));
        }
        Ok(())
    }

    /// The calls that may be made ahead.
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or_else(|| {
            let passing = u64::from(self.limit) * Self::BURST_MS / u64::from(self.per_ms.max(1));
            u32::try_from(passing).unwrap_or(u32::MAX).clamp(1, self.limit.max(1))
        })
    }

    /// Between two calls, in the long run, in microseconds.
    pub fn interval_us(&self) -> u64 {
        (u64::from(self.per_ms) * 1_000).div_ceil(u64::from(self.limit.max(1)))
    }
}

/// What a secret of a connection is for, which is also its name: `header:<name>`, `username` or `password`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretName {
    /// Sent as this header field, whose name is in lower case.
    Header(String),
    /// Who the tenant is to the system.
    Username,
    /// What proves it.
    Password,
}

/// A text that names no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a secret is named `header:` and a header field's name, `username` or `password`")]
pub struct InvalidSecretName;

impl FromStr for SecretName {
    type Err = InvalidSecretName;

    fn from_str(text: &str) -> Result<Self, InvalidSecretName> {
        match text.split_once(':') {
            None if text == "username" => Ok(Self::Username),
            None if text == "password" => Ok(Self::Password),
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.to_ascii_lowercase())),
            _ => Err(InvalidSecretName),
        }
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Username => f.write_str("username"),
            Self::Password => f.write_str("password"),
        }
    }
}

impl SecretName {
    /// Judges a value for this name: a header by the rules that a block's own headers are judged by.
    ///
    /// # Errors
    /// What is wrong, without the value.
    pub fn judge(&self, value: &SecretString) -> Result<(), String> {
        let text = value.expose_secret();
        if text.is_empty() || text.len() > SECRET_BYTES_MAX {
            return Err(format!("a secret has 1 to {SECRET_BYTES_MAX} bytes"));
        }
        match self {
            Self::Header(_) if text.trim() != text => {
                Err("a header's value neither begins nor ends with a space".into())
            }
            Self::Header(name) => {
                // The value is judged in its place and goes no further.
                judge_headers(&[(name.clone(), text.to_owned())]).map_err(|refusal| refusal.to_string())
            }
            Self::Username | Self::Password if text.chars().any(char::is_control) => {
                Err("a username or password holds no control characters".into())
            }
            Self::Username | Self::Password => Ok(()),
        }
    }
}

/// A secret as the database holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedSecret {
    /// What it is for.
    pub name: SecretName,
    /// Which key it is sealed with.
    pub key: String,
    /// The value, sealed to its place: see [`secret_place`].
    pub sealed: Vec<u8>,
}

/// The place that a secret is sealed to: moved to another tenant, connection or name, it does not open.
pub fn secret_place(tenant: TenantId, connection: &str, name: &SecretName) -> [u8; 32] {
    let mut place = Parts::new(b"counterfoil-secret-v1\0");
    place.part(tenant.0.as_bytes());
    place.part(connection.as_bytes());
    place.part(name.to_string().as_bytes());
    place.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::StatusMeaning;

    #[test]
    fn what_is_declared_can_be_so() {
        let header = |name: &str| Some(name.to_owned());
        let declared = |status| StatusMeanings::from([(status, StatusMeaning::NotApplied)]);
        for (abilities, pointer) in [
            (Abilities::default(), None),
            (Abilities { statuses: declared(500), ..Abilities::default() }, None),
            (Abilities { idempotency_header: header("X-Request-Key"), ..Abilities::default() }, None),
            (Abilities { statuses: declared(100), ..Abilities::default() }, Some("/statuses/100")),
            (Abilities { statuses: declared(600), ..Abilities::default() }, Some("/statuses/600")),
            (
                Abilities { idempotency_header: header("Content-Length"), ..Abilities::default() },
                Some("/idempotency_header"),
            ),
            (
                Abilities { idempotency_header: header("a b"), ..Abilities::default() },
                Some("/idempotency_header"),
            ),
            (
                Abilities { receipt_id_header: header("Set-Cookie"), ..Abilities::default() },
                Some("/receipt_id_header"),
            ),
            (Abilities { receipt_id_header: header(""), ..Abilities::default() }, Some("/receipt_id_header")),
        ] {
            let judged = abilities.judge().err().map(|fault| fault.pointer);
            assert_eq!(judged.as_deref(), pointer, "{abilities:?}");
        }
    }

    #[test]
    fn a_rate_is_spread_over_its_period() {
        let rate = |limit, per_ms, burst| Rate { limit, per_ms, burst };
        for (rate, expected) in [
            (rate(20, 1_000, None), Ok((50_000, 2))),
            (rate(20, 1_000, Some(0)), Ok((50_000, 0))),
            (rate(7, 1_000, Some(7)), Ok((142_858, 7))),
            (rate(1_000, 1_000, None), Ok((1_000, 100))),
            (rate(10, 60_000, None), Ok((6_000_000, 1))),
            (rate(1, 86_400_000, None), Ok((86_400_000_000, 1))),
            (rate(0, 1_000, None), Err("/limit")),
            (rate(1_001, 1_000, None), Err("/limit")),
            (rate(1, 0, None), Err("/per_ms")),
            (rate(1, 86_400_001, None), Err("/per_ms")),
            (rate(5, 1_000, Some(6)), Err("/burst")),
        ] {
            let judged = rate.judge().map(|()| (rate.interval_us(), rate.burst()));
            assert_eq!(judged.map_err(|fault| fault.pointer), expected.map_err(str::to_owned), "{rate:?}");
        }
    }

    #[test]
    fn a_secret_is_named_by_what_it_is_for() {
        for (text, expected) in [
            ("header:Authorization", Some("header:authorization")),
            ("header:x", Some("header:x")),
            ("username", Some("username")),
            ("password", Some("password")),
            ("header:", None),
            ("header", None),
            ("Password", None),
            ("cookie:a", None),
            ("", None),
        ] {
            let name = text.parse::<SecretName>().ok();
            assert_eq!(name.as_ref().map(ToString::to_string).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_secrets_value_is_judged_and_never_told() {
        let long = "canary".repeat(2_000);
        for (name, value, fits) in [
            ("header:authorization", "Bearer canary", true),
            ("header:authorization", "", false),
            ("header:authorization", " canary", false),
            ("header:authorization", "canary\r\nhost: evil", false),
            ("header:authorization", "canary\u{e4}", false),
            ("header:authorization", long.as_str(), false),
            ("header:host", "canary", false),
            ("header:Content_Length", "1", false),
            ("header:a b", "canary", false),
            ("password", "canary \u{e4}", true),
            ("password", "canary\n", false),
            ("username", "", false),
        ] {
            let name = name.parse::<SecretName>().expect(name);
            let judged = name.judge(&SecretString::from(value));
            assert_eq!(judged.is_ok(), fits, "{name} {value:?}");
            assert!(!judged.err().unwrap_or_default().contains("canary"), "{name} {value:?}");
        }
    }

    #[test]
    fn no_two_places_are_one() {
        let tenant = |n| TenantId(uuid::Uuid::from_u128(n));
        let header = |name: &str| SecretName::Header(name.into());
        let places = [
            secret_place(tenant(1), "a", &header("b")),
            secret_place(tenant(2), "a", &header("b")),
            secret_place(tenant(1), "ab", &header("")),
            secret_place(tenant(1), "a", &header("c")),
            secret_place(tenant(1), "a", &SecretName::Password),
            secret_place(tenant(1), "a", &SecretName::Username),
        ];
        let distinct: std::collections::BTreeSet<_> = places.iter().collect();
        assert_eq!(distinct.len(), places.len());
    }
}
