//! Memory and tables of one store, summed: the runtime itself limits each memory by itself only.

use counterfoil_domain::limits::StepLimits;
use wasmtime::ResourceLimiter;

/// A table element is a pointer.
const TABLE_ELEMENT_BYTES: u64 = 8;

/// Grants growth while the sums stay within their limits.
///
/// A store's memories and tables never shrink, so the sums are also the peaks. A grant that the operating system then
/// cannot honour stays counted: the error that tells of it does not say whose grant it was.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_bytes_max: u64,
    table_elements_max: u64,
    memory_bytes: u64,
    table_elements: u64,
    refusal: Option<String>,
}

impl Limiter {
    pub(crate) fn new(limits: &StepLimits) -> Self {
        Self {
            memory_bytes_max: limits.memory_bytes_max,
            table_elements_max: limits.table_elements_max,
            memory_bytes: 0,
            table_elements: 0,
            refusal: None,
        }
    }

    /// The last growth that was refused, in words.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Most that was held at once.
    pub(crate) fn bytes_peak(&self) -> u64 {
        self.memory_bytes + self.table_elements * TABLE_ELEMENT_BYTES
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let (memory_bytes_max, refusal) = (self.memory_bytes_max, &mut self.refusal);
        Ok(grown(&mut self.memory_bytes, current, desired, maximum, memory_bytes_max, |sum| {
            *refusal = Some(format!(
                "it asked for {sum} bytes of linear memory; at most {memory_bytes_max} are granted"
            ));
        }))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let (table_elements_max, refusal) = (self.table_elements_max, &mut self.refusal);
        Ok(grown(&mut self.table_elements, current, desired, maximum, table_elements_max, |sum| {
            *refusal =
                Some(format!("it asked for {sum} table elements; at most {table_elements_max} are granted"));
        }))
    }
}

/// Adds a growth to `sum` if it is granted. What exceeds the maximum that the guest itself declared, or the room in its
/// slot, fails without us; but not in silence where it is beyond our own limit as well.
fn grown(
    sum: &mut u64,
    current: usize,
    desired: usize,
    declared_max: Option<usize>,
    sum_max: u64,
    refuse: impl FnOnce(u64),
) -> bool {
    let wanted = sum.saturating_add(desired.saturating_sub(current) as u64);
    if wanted > sum_max {
        refuse(wanted);
        return false;
    }
    if declared_max.is_some_and(|max| desired > max) {
        return false;
    }
    *sum = wanted;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64 << 10;

    fn limiter() -> Limiter {
        Limiter::new(&StepLimits {
            memory_bytes_max: 4 * PAGE as u64,
            table_elements_max: 10,
            ..StepLimits::DEFAULT
        })
    }

    #[test]
    fn growth_is_summed_over_memories_and_refused_one_page_over() {
        let mut limiter = limiter();
        for (current, desired, granted) in
            [(0, PAGE, true), (0, 2 * PAGE, true), (PAGE, 3 * PAGE, false), (PAGE, 2 * PAGE, true)]
        {
            assert_eq!(
                limiter.memory_growing(current, desired, None).ok(),
                Some(granted),
                "{current} {desired}"
            );
        }
        assert_eq!(limiter.bytes_peak(), 4 * PAGE as u64);
        assert!(
            limiter.refusal().is_some_and(|text| text.contains("327680 bytes")),
            "{:?}",
            limiter.refusal()
        );
    }

    #[test]
    fn tables_are_summed_too() {
        let mut limiter = limiter();
        for (current, desired, granted) in [(0, 6, true), (0, 4, true), (6, 7, false)] {
            assert_eq!(
                limiter.table_growing(current, desired, None).ok(),
                Some(granted),
                "{current} {desired}"
            );
        }
        assert_eq!(limiter.bytes_peak(), 80);
    }

    #[test]
    fn a_growth_beyond_what_the_guest_declared_neither_counts_nor_is_a_refusal() {
        let mut limiter = limiter();
        assert_eq!(limiter.memory_growing(0, 3 * PAGE, Some(2 * PAGE)).ok(), Some(false));
        assert_eq!((limiter.bytes_peak(), limiter.refusal()), (0, None));
        assert_eq!(limiter.memory_growing(0, 5 * PAGE, Some(2 * PAGE)).ok(), Some(false));
        assert_eq!(limiter.bytes_peak(), 0);
        assert!(limiter.refusal().is_some(), "beyond our own limit too");
    }

    #[test]
    fn a_failure_that_nothing_was_granted_for_gives_nothing_back() {
        let mut limiter = limiter();
        assert_eq!(limiter.memory_growing(0, 4 * PAGE, None).ok(), Some(true));
        limiter.memory_grow_failed(wasmtime::Error::msg("beyond the memory's type")).expect("recorded");
        assert_eq!(limiter.memory_growing(0, PAGE, None).ok(), Some(false));
    }
}
