//! The turns under way of a shared lease.
//!
//! A shared lease has one deadline, but each of its turns has its own `max_hold`. Two sorted
//! collections give the turn of a number, and the turn that ends first, without a look at all
//! turns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Turn;
use crate::time::Instant;

/// The turns under way of a shared lease, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Turns begin in the order of their numbers.
    turns: BTreeMap<u64, Reader>,
    /// The same turns, sorted by the times at which they reach their longest time.
    ends: BTreeSet<(Instant, u64)>,
}

/// A turn under way.
#[derive(Debug)]
struct Reader {
    began: Instant,
    /// When the turn reaches its longest time.
    ends: Instant,
    turn: Arc<Turn>,
}

impl Readers {
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.turns.contains_key(&number)
    }

    /// Adds a turn that may last until `ends`.
    pub(super) fn add(&mut self, number: u64, began: Instant, ends: Instant, turn: Arc<Turn>) {
        self.turns.insert(number, Reader { began, ends, turn });
        self.ends.insert((ends, number));
    }

    /// Removes a turn. Returns whether the turn was under way.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let Some(reader) = self.turns.remove(&number) else {
            return false;
        };
        self.ends.remove(&(reader.ends, number))
    }

    /// Lets a turn last until `ends`. Returns whether the turn is under way.
    pub(super) fn set_end(&mut self, number: u64, ends: Instant) -> bool {
        let Some(reader) = self.turns.get_mut(&number) else {
            return false;
        };
        self.ends.remove(&(reader.ends, number));
        reader.ends = ends;
        self.ends.insert((ends, number))
    }

    /// When the turn began that has lasted longest.
    pub(super) fn first_begin(&self) -> Option<Instant> {
        self.turns.values().next().map(|reader| reader.began)
    }

    /// When the first turn reaches its longest time.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.ends.first().map(|(ends, _)| *ends)
    }

    /// Removes and returns the turns that have reached their longest time.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Arc<Turn>> {
        let mut due = Vec::new();
        while let Some((ends, number)) = self.ends.first().copied()
            && ends <= now
        {
            self.ends.pop_first();
            due.extend(self.turns.remove(&number).map(|reader| reader.turn));
        }
        due
    }
}
