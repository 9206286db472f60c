//! The turns under way of a shared lease.
//!
//! A shared lease has one deadline, but each of its turns has its own `max_hold`. Two sorted collections give the turn of a
//! number, and the turn that ends first, without a look at all turns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Turn;
use crate::time::Instant;

/// The turns under way of a shared lease, by their numbers, with the times at which they reach their longest time.
#[derive(Debug, Default)]
pub(super) struct Readers {
    turns: BTreeMap<u64, (Instant, Arc<Turn>)>,
    /// The same turns, sorted by time.
    ends: BTreeSet<(Instant, u64)>,
}

impl Readers {
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.turns.contains_key(&number)
    }

    /// Adds a turn that may last until `ends`.
    pub(super) fn add(&mut self, number: u64, ends: Instant, turn: Arc<Turn>) {
        self.turns.insert(number, (ends, turn));
        self.ends.insert((ends, number));
    }

    /// Removes a turn. Returns whether the turn was under way.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let Some((ends, _)) = self.turns.remove(&number) else {
            return false;
        };
        self.ends.remove(&(ends, number))
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
            due.extend(self.turns.remove(&number).map(|(_, turn)| turn));
        }
        due
    }
}
