//! The least that the next token must exceed, as far as this process knows.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BufMut;

use super::names::{BUCKETS, bucket, put_number};
use crate::LockKey;
use crate::key::stable_hash;

/// Tokens end here: doubles, which Lua and JSON count with, are exact below.
pub(super) const END_OF_TOKENS: u64 = 1 << 53;

/// The server's clock at the last connect, in microseconds, and the highest token seen of each counter. With them, tokens
/// rise although the server lost its counters, or its clock was set back.
///
/// One for each counter: with one for all, every grant would lift the floor above all the other counters, and the
/// next grant of each would have to lift that.
#[derive(Debug)]
pub(super) struct Floors {
    clock: AtomicU64,
    seen: Vec<AtomicU64>,
}

/// Where in every second a server's tokens catch up with its clock, in microseconds (see `floor_by_clock.lua`).
///
/// Each server has one of its own, so that two who take themselves for the primary count in different places.
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

    /// What the server's clock says, in microseconds.
    pub(super) fn raise_all(&self, clock: u64) {
        raise(&self.clock, clock);
    }
}

impl Floor<'_> {
    pub(super) fn raise(self, token: u64) {
        raise(self.seen, token);
    }

    /// Never zero: a counter that is missing shall be below it.
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
