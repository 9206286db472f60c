//! Random numbers that a seed determines, for the stress test, the model checker and the chaos run.

use std::{ops::Range, time::Duration};

/// SplitMix64: small, the same on every machine, and good enough to choose the next step of a test.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    /// One of several sequences of the same seed.
    pub fn stream(seed: u64, number: u64) -> Self {
        let mut random = Self(seed ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
        random.next();
        random
    }

    /// Another generator, so that each task has its own and the scheduling of tasks does not mix
    /// them.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.within(0..100) < chance
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.within(0..from.len() as u64) as usize]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.within(0..at as u64 + 1) as usize);
        }
    }

    pub fn micros(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.within(range))
    }

    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }
}
