//! Floors: the numbers that the next token must exceed, as far as this process knows.
//!
//! The server counts tokens. A server that has lost its counters, or whose clock was set back,
//! would hand out lower tokens than before, so every acquire carries a floor, and the script raises
//! the counter above the floor (`fence.lua`).

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BufMut;

use super::names::{BUCKETS, bucket, put_number};
use crate::{LockKey, key::stable_hash, store::types::END_OF_TOKENS};

/// The floors of all counters: the highest clock of the server at a connect, in microseconds, and
/// the highest token seen of each counter.
///
/// Each counter has its own floor. With a single floor for all counters, every grant would raise
/// the floor above all the other counters, and the next grant in each bucket would have to raise
/// its counter.
#[derive(Debug)]
pub(super) struct Floors {
    clock: AtomicU64,
    seen: Vec<AtomicU64>,
}

/// The microsecond within every second at which a server's tokens catch up with the server's clock
/// (see `floor_by_clock.lua`).
///
/// The fraction follows from the server's address, so that two servers that both act as the primary
/// hand out different tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fraction(u64);

impl Fraction {
    pub(super) fn of(address: &str) -> Self {
        Self(stable_hash(address) % 1_000_000)
    }
}

/// The floor of one counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor<'a> {
    clock: &'a AtomicU64,
    seen: &'a AtomicU64,
}

impl Floors {
    pub(super) fn new() -> Self {
        Self {
            clock: AtomicU64::new(0),
            seen: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The floor of the counter of a key.
    pub(super) fn of(&self, key: &LockKey) -> Floor<'_> {
        Floor {
            clock: &self.clock,
            seen: &self.seen[bucket(key)],
        }
    }

    /// Writes the floor of a key's counter, as an argument of a script.
    pub(super) fn write(&self, key: &LockKey, fraction: Option<Fraction>, to: &mut impl BufMut) {
        put_floor(self.of(key).get(), fraction, to);
    }

    /// Writes the floor that all counters have in common.
    pub(super) fn write_least(&self, fraction: Option<Fraction>, to: &mut impl BufMut) {
        put_floor(self.clock.load(Ordering::Relaxed).max(1), fraction, to);
    }

    /// Raises all floors to the server's clock, in microseconds.
    pub(super) fn raise_all(&self, clock: u64) {
        raise(&self.clock, clock);
    }
}

impl Floor<'_> {
    /// Raises the floor to a token that was handed out.
    pub(super) fn raise(self, token: u64) {
        raise(self.seen, token);
    }

    /// The number that the next token must exceed. Never zero, so that a missing counter is below
    /// the floor.
    pub(super) fn get(self) -> u64 {
        let [clock, seen] = [self.clock, self.seen].map(|part| part.load(Ordering::Relaxed));
        clock.max(seen).max(1)
    }
}

fn put_floor(floor: u64, fraction: Option<Fraction>, to: &mut impl BufMut) {
    put_number(floor, to);
    if let Some(Fraction(fraction)) = fraction {
        to.put_u8(b' ');
        put_number(fraction, to);
    }
}

fn raise(floor: &AtomicU64, to: u64) {
    if to < END_OF_TOKENS {
        floor.fetch_max(to, Ordering::Relaxed);
    }
}
