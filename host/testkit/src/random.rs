//! Random numbers that follow from a seed.

/// `SplitMix64`: small, fast, and the same everywhere. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The numbers that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`; 0 if `end` is.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// From `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True in so many cases of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True once in so many cases; never if that is 0.
    pub fn once_in(&mut self, cases: u64) -> bool {
        cases > 0 && self.below(cases) == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(from.len() as u64)).unwrap_or(0);
        &from[index]
    }
}
