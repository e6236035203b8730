//! What the host holds in memory for a guest, beside the guest's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::Abort;

/// Bodies and header fields of all requests and answers that one guest has at once: several of the largest.
const HELD_BYTES_MAX: usize = 8 << 20;

/// What is left of it.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Budget {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(HELD_BYTES_MAX)))
    }

    /// A part of it, to be grown.
    pub(super) fn held(&self) -> Held {
        Held { budget: self.clone(), bytes: 0 }
    }
}

/// A part that something holds, and gives back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Budget,
    bytes: usize,
}

impl Held {
    /// # Errors
    /// [`Abort::HoldsTooMuch`] if so much is not left.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Abort> {
        let taken =
            self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map_err(|_| Abort::HoldsTooMuch)?;
        self.bytes += bytes;
        Ok(())
    }

    pub(super) fn release(&mut self) {
        self.budget.0.fetch_add(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// Nothing held, of the same budget.
    pub(super) fn empty(&self) -> Self {
        self.budget.held()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_given_back_and_more_than_all_is_refused() {
        let budget = Budget::new();
        let (mut one, mut other) = (budget.held(), budget.held());
        assert_eq!(one.grow(HELD_BYTES_MAX), Ok(()));
        assert_eq!(other.grow(1), Err(Abort::HoldsTooMuch));
        drop(one);
        assert_eq!(other.grow(HELD_BYTES_MAX), Ok(()));
        other.release();
        assert_eq!(budget.held().grow(HELD_BYTES_MAX), Ok(()));
    }
}
