//! Taking a guard out of a statement on its way.

use std::sync::atomic::{AtomicU64, Ordering};

/// A part of statements that is replaced wherever it is met. Between words any white space fits.
#[derive(Debug)]
pub(in crate::kill) struct Rewrite {
    from: &'static str,
    to: &'static str,
    met: AtomicU64,
    must_be_met: bool,
}

impl Rewrite {
    /// Replaces `from` by `to`.
    pub(in crate::kill) fn new(from: &'static str, to: &'static str) -> Self {
        Self { from, to, met: AtomicU64::new(0), must_be_met: true }
    }

    /// The same; that no statement holds `from` is no error.
    pub(in crate::kill) fn if_met(self) -> Self {
        Self { must_be_met: false, ..self }
    }

    pub(super) fn from(&self) -> &'static str {
        self.from
    }

    /// Whether it has been met as it must be.
    pub(super) fn is_met(&self) -> bool {
        !self.must_be_met || self.met.load(Ordering::Relaxed) > 0
    }

    /// The statement without its guard; `None` if it does not hold it.
    pub(super) fn apply(&self, statement: &str) -> Option<String> {
        let mut rewritten = String::with_capacity(statement.len());
        let mut rest = statement;
        while let Some((begin, end)) = find(rest, self.from) {
            rewritten.extend([&rest[..begin], self.to]);
            rest = &rest[end..];
        }
        if rest.len() == statement.len() {
            return None;
        }
        rewritten.push_str(rest);
        self.met.fetch_add(1, Ordering::Relaxed);
        Some(rewritten)
    }
}

/// Where the words of `what` stand one after another in `text`.
fn find(text: &str, what: &str) -> Option<(usize, usize)> {
    let mut words = what.split_whitespace();
    let first = words.next()?;
    text.match_indices(first).find_map(|(begin, _)| {
        let mut end = begin + first.len();
        for word in words.clone() {
            let rest = &text[end..];
            let behind = rest.trim_start();
            if behind.len() == rest.len() || !behind.starts_with(word) {
                return None;
            }
            end += rest.len() - behind.len() + word.len();
        }
        Some((begin, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_found_whatever_the_white_space() {
        let rewrite = Rewrite::new("id = $2 AND state = $3", "id = $2");
        let statement = "UPDATE a SET b WHERE id = $2\n   AND state = $3\n RETURNING id";
        assert_eq!(rewrite.apply(statement).as_deref(), Some("UPDATE a SET b WHERE id = $2\n RETURNING id"));
        for other in ["", "id = $2 ANDstate = $3", "id = $2 AND state = $", "id = $1 AND state = $3"] {
            assert_eq!(rewrite.apply(other), None, "{other}");
        }
        assert!(rewrite.is_met());
        assert!(!Rewrite::new("a", "b").is_met() && Rewrite::new("a", "b").if_met().is_met());
    }
}
