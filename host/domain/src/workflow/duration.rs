//! Lengths of time as authors write them: `90s`, `1h30m`, `3d`.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time, in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration {
    /// Milliseconds.
    pub ms: u64,
}

/// Delays, retries and timeouts: what should wait longer than a year is a matter for a calendar.
const DURATION_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1_000;

/// Largest first, so that `1h30m` has one spelling.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const PATTERN: &str = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";

/// A text that is not a length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// It cannot be read.
    #[error("`{0}` is not a length of time: write 90s, 1h30m or 3d, with d, h, m, s and ms in this order")]
    Form(String),
    /// It is longer than a year.
    #[error("`{0}` is longer than 365d")]
    TooLong(String),
}

impl FromStr for Duration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let shown = || text.chars().take(64).collect::<String>();
        let form = || InvalidDuration::Form(shown());
        let too_long = || InvalidDuration::TooLong(shown());
        let mut ms = 0_u64;
        let mut rest = text;
        let mut units = UNITS.iter();
        while !rest.is_empty() {
            let digits = rest.chars().take_while(char::is_ascii_digit).count();
            let (number, after) = rest.split_at(digits);
            let letters = after.chars().take_while(char::is_ascii_lowercase).count();
            let (unit, after) = after.split_at(letters);
            let (_, unit_ms) = units.find(|(name, _)| *name == unit).ok_or_else(form)?;
            if number.is_empty() {
                return Err(form());
            }
            let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit_ms));
            ms = part.and_then(|part| ms.checked_add(part)).ok_or_else(too_long)?;
            rest = after;
        }
        match ms {
            _ if text.is_empty() => Err(form()),
            ..=DURATION_MS_MAX => Ok(Self { ms }),
            _ => Err(too_long()),
        }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ms == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.ms;
        for (unit, unit_ms) in UNITS {
            if rest >= unit_ms {
                write!(f, "{}{unit}", rest / unit_ms)?;
                rest %= unit_ms;
            }
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A length of time: 90s, 1h30m, 3d; at most 365d.",
            "type": "string",
            "pattern": PATTERN,
            "minLength": 2,
        })
    }
}
