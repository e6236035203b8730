//! Between the domain's values and the columns that hold them.

use std::time::Duration;

use counterfoil_domain::id::Digest;
use serde_json::Value;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::{Oid, PgInterval};
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, Postgres};
use sqlx::{Encode, Type};

use crate::StoreError;
use crate::error::Row;

/// An iteration path as a column. Bit by bit, so that every path has one and reads back.
pub(crate) fn path_out(path: &[u32]) -> Vec<i32> {
    path.iter().map(|index| index.cast_signed()).collect()
}

/// The inverse of [`path_out`].
pub(crate) fn path_in(path: &[i32]) -> Vec<u32> {
    path.iter().map(|index| index.cast_unsigned()).collect()
}

/// An iteration path as the text of an array: an array of paths cannot be a parameter, since the arrays of Postgres are
/// rectangular.
pub(crate) fn path_text(path: &[u32]) -> String {
    let indices: Vec<String> = path_out(path).iter().map(ToString::to_string).collect();
    format!("{{{}}}", indices.join(","))
}

/// A duration, at most 100 years of it.
pub(crate) fn interval(duration: Duration) -> PgInterval {
    const CENTURY_MICROSECONDS: i64 = 100 * 365 * 86_400 * 1_000_000;
    let microseconds = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).min(CENTURY_MICROSECONDS);
    PgInterval { months: 0, days: 0, microseconds }
}

/// A payload as it is, as Postgres's `json`. What sqlx sends for a [`Value`] is `jsonb`, which comes out changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exact<'a>(pub(crate) &'a Value);

impl Type<Postgres> for Exact<'_> {
    fn type_info() -> PgTypeInfo {
        // Source: pg_type.dat of Postgres.
        const JSON: Oid = Oid(114);
        PgTypeInfo::with_oid(JSON)
    }
}

impl Encode<'_, Postgres> for Exact<'_> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        serde_json::to_writer(&mut **buffer, self.0)?;
        Ok(IsNull::No)
    }
}

/// A payload in an array of payloads, which goes as text: the array type that sqlx knows is that of jsonb.
pub(crate) fn json_text(value: Option<&Value>) -> Option<String> {
    value.map(ToString::to_string)
}

/// A count or number that the tables keep as a signed one.
pub(crate) fn count<I: std::fmt::Display>(
    row: &Row<I>,
    column: &'static str,
    value: i32,
) -> Result<u32, StoreError> {
    row.read(column, u32::try_from(value))
}

/// A block's digest.
pub(crate) fn digest<I: std::fmt::Display>(
    row: &Row<I>,
    column: &'static str,
    bytes: &[u8],
) -> Result<Digest, StoreError> {
    Ok(Digest(row.read(column, bytes.try_into())?))
}

/// Names kept as text in the tables.
macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in the database and in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The inverse of [`Self::name`].
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.name() == name)
            }
        }
    };
}
pub(crate) use text_enum;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_back() {
        for path in [vec![], vec![0], vec![1, 2, u32::MAX]] {
            assert_eq!(path_in(&path_out(&path)), path);
        }
        assert_eq!(path_text(&[]), "{}");
        assert_eq!(path_text(&[3, 0]), "{3,0}");
    }

    #[test]
    fn no_duration_is_too_long_to_wait() {
        assert_eq!(interval(Duration::from_millis(1500)).microseconds, 1_500_000);
        assert_eq!(interval(Duration::MAX), interval(Duration::from_hours(100 * 365 * 24)));
    }
}
