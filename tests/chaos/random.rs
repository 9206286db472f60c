//! Random numbers that a seed determines.

use std::ops::Range;

/// SplitMix64: small, and the same on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence of the same seed, for one client.
    pub(crate) fn stream(seed: u64, number: u64) -> Self {
        let mut random = Self(seed ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.within(0..100) < chance
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.within(0..at as u64 + 1) as usize);
        }
    }
}
