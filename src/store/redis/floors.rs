//! Floors: numbers that the next token must exceed, as far as this process knows.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BufMut;

use super::names::{BUCKETS, bucket, put_number};
use crate::LockKey;
use crate::key::stable_hash;

/// All tokens are below this number, up to which the doubles of Lua and JSON are exact.
pub(super) const END_OF_TOKENS: u64 = 1 << 53;

/// The server's clock at the last connect, in microseconds, and the highest token seen of each counter. With these floors, tokens
/// rise although the server has lost its counters, or its clock was set back.
///
/// Each counter has a floor of its own. With one for all, every grant would raise the floor above all the other counters, and the
/// next grant would have to raise each of them.
#[derive(Debug)]
pub(super) struct Floors {
    clock: AtomicU64,
    seen: Vec<AtomicU64>,
}

/// The microsecond of every second at which a server's tokens catch up with its clock (see `floor_by_clock.lua`).
///
/// Each server has one of its own, so that the tokens of two servers that both act as the primary differ.
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

    pub(super) fn of(&self, key: &LockKey) -> Floor<'_> {
        Floor {
            clock: &self.clock,
            seen: &self.seen[bucket(key)],
        }
    }

    /// Writes the floor of a key's counter, as an argument of a script.
    pub(super) fn write(&self, key: &LockKey, fraction: Option<Fraction>, to: &mut impl BufMut) {
        put_number(self.of(key).get(), to);
        if let Some(Fraction(fraction)) = fraction {
            to.put_u8(b' ');
            put_number(fraction, to);
        }
    }

    /// Raises all floors to the server's clock, in microseconds.
    pub(super) fn raise_all(&self, clock: u64) {
        raise(&self.clock, clock);
    }
}

impl Floor<'_> {
    pub(super) fn raise(self, token: u64) {
        raise(self.seen, token);
    }

    /// Never zero, so that a missing counter is below the floor.
    pub(super) fn get(self) -> u64 {
        let [clock, seen] = [self.clock, self.seen].map(|part| part.load(Ordering::Relaxed));
        clock.max(seen).max(1)
    }
}

fn raise(floor: &AtomicU64, to: u64) {
    if to < END_OF_TOKENS {
        floor.fetch_max(to, Ordering::Relaxed);
    }
}
