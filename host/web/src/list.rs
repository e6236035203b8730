//! Lists: keyset pages, at most 200 rows each.

use counterfoil_store::Page;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::Problem;

/// Rows of a page where the caller names no number.
const LIMIT_DEFAULT: u32 = 50;
/// Rows of a page: a page is one answer, and one look of a person.
pub(crate) const LIMIT_MAX: u32 = 200;

/// Which part of a list.
#[derive(Debug, Default, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    /// Rows to return at most, 1 to 200; 50 if absent.
    #[param(minimum = 1, maximum = 200)]
    pub(crate) limit: Option<u32>,
    /// `next` of the page before.
    pub(crate) after: Option<String>,
}

impl ListParams {
    /// # Errors
    /// A refusal if the number of rows is out of bounds.
    pub(crate) fn page(self) -> Result<Page, Problem> {
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Problem::bad_request(format!("`limit` is 1 to {LIMIT_MAX}")));
        }
        let after = self.after.filter(|after| !after.is_empty());
        if after.as_ref().is_some_and(|after| after.chars().any(char::is_control)) {
            return Err(Problem::bad_request("`after` is not a cursor that this list gave out"));
        }
        Ok(Page { after, limit })
    }
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Listed<T> {
    /// The rows.
    pub(crate) items: Vec<T>,
    /// Where the list goes on; null at its end.
    pub(crate) next: Option<String>,
}

impl<T> Listed<T> {
    /// A whole list.
    pub(crate) fn all(items: Vec<T>) -> Self {
        Self { items, next: None }
    }

    /// A page made of `rows`. There is more only if the page is full.
    pub(crate) fn page<R>(
        rows: Vec<R>,
        limit: u32,
        cursor: impl Fn(&R) -> String,
        item: impl Fn(R) -> T,
    ) -> Self {
        let is_full = rows.len() >= limit as usize;
        let next = rows.last().filter(|_| is_full).map(cursor);
        Self { items: rows.into_iter().map(item).collect(), next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_page_names_the_next_and_the_last_does_not() {
        let page = |rows: &[u32], limit| {
            let listed = Listed::page(rows.to_vec(), limit, ToString::to_string, |row| row);
            (listed.items, listed.next)
        };
        assert_eq!(page(&[1, 2], 2), (vec![1, 2], Some("2".into())));
        assert_eq!(page(&[1], 2), (vec![1], None));
        assert_eq!(page(&[], 2), (vec![], None));
    }

    #[test]
    fn a_limit_out_of_bounds_is_refused() {
        for (limit, expected) in
            [(None, Some(50)), (Some(1), Some(1)), (Some(200), Some(200)), (Some(0), None), (Some(201), None)]
        {
            let page = ListParams { limit, after: None }.page();
            assert_eq!(page.map(|page| page.limit).ok(), expected, "{limit:?}");
        }
    }
}
