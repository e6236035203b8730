//! Keyset pages: a list goes on after the row that its cursor names, whatever was added meanwhile.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::StoreError;

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The `cursor()` of the last row that was seen.
    pub after: Option<String>,
    /// Rows to return at most.
    pub limit: u32,
}

impl Page {
    pub(crate) fn limit(&self) -> i64 {
        i64::from(self.limit)
    }

    /// The cursor of a list that is in the order of ids.
    pub(crate) fn after_id(&self) -> Result<Option<Uuid>, StoreError> {
        let parse = |text: &String| Uuid::try_parse(text).map_err(|_| StoreError::InvalidCursor);
        self.after.as_ref().map(parse).transpose()
    }

    /// The cursor of a list that is in the order of run, time and id.
    pub(crate) fn after_effect(&self) -> Result<Option<(Uuid, DateTime<Utc>, Uuid)>, StoreError> {
        let Some(text) = &self.after else { return Ok(None) };
        let mut parts = text.splitn(3, '.');
        let cursor = (|| {
            let run = Uuid::try_parse(parts.next()?).ok()?;
            let at = DateTime::from_timestamp_micros(parts.next()?.parse().ok()?)?;
            let id = Uuid::try_parse(parts.next()?).ok()?;
            Some((run, at, id))
        })();
        cursor.map(Some).ok_or(StoreError::InvalidCursor)
    }
}

pub(crate) fn effect_cursor(run: Uuid, at: DateTime<Utc>, id: Uuid) -> String {
    format!("{}.{}.{}", run.simple(), at.timestamp_micros(), id.simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_anything_else_is_refused() {
        let at = DateTime::from_timestamp_micros(1_700_000_000_123_456).expect("a time");
        let cursor = (Uuid::from_u128(1), at, Uuid::from_u128(2));
        let page = |after: String| Page { after: Some(after), limit: 1 };
        let text = effect_cursor(cursor.0, cursor.1, cursor.2);
        assert_eq!(page(text).after_effect().expect("a cursor"), Some(cursor));
        for text in ["", ".", "x.1.y", "00000000000000000000000000000001.9223372036854775807.1"] {
            let refused = page(text.into()).after_effect();
            assert!(matches!(refused, Err(StoreError::InvalidCursor)), "{text:?}");
            assert!(matches!(page(text.into()).after_id(), Err(StoreError::InvalidCursor)), "{text:?}");
        }
    }
}
