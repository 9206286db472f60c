//! The least that the next token must exceed, as far as this process knows.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens end here: doubles, which Lua and JSON count with, are exact below.
pub(super) const END_OF_TOKENS: u64 = 1 << 53;

/// The highest of all tokens seen and of the server's clock, in microseconds, at each connect. With it, tokens rise
/// although the server lost its counters, or its clock was set back.
#[derive(Debug, Default)]
pub(super) struct Floor(AtomicU64);

impl Floor {
    pub(super) fn raise(&self, seen: u64) {
        if seen < END_OF_TOKENS {
            self.0.fetch_max(seen, Ordering::Relaxed);
        }
    }

    /// Never zero: a counter that is missing shall be below it.
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed).max(1)
    }
}
