//! The leases of a line. All but lines for permits have one most of the time, which therefore needs no allocation.

use super::{Granted, HeldLease};
use crate::lease::Lease;

/// The leases of a line, in no particular order.
#[derive(Debug, Default)]
pub(super) struct Leases {
    first: Option<HeldLease>,
    /// Empty unless `first` is set.
    more: Vec<HeldLease>,
}

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeldLease> {
        self.first.iter().chain(&self.more)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut HeldLease> {
        self.first.iter_mut().chain(&mut self.more)
    }

    /// The lease at a place. Places are valid until the next removal.
    pub(super) fn get(&mut self, at: usize) -> Option<&mut HeldLease> {
        self.iter_mut().nth(at)
    }

    /// Adds a lease.
    pub(super) fn add(&mut self, held: HeldLease) {
        match &self.first {
            Some(_) => self.more.push(held),
            None => self.first = Some(held),
        }
    }

    /// Removes a lease. Another lease may take its place, so a loop that removes must look at the same place again.
    pub(super) fn remove(&mut self, at: usize) -> Option<HeldLease> {
        match at {
            0 => std::mem::replace(&mut self.first, self.more.pop()),
            _ => (at <= self.more.len()).then(|| self.more.swap_remove(at - 1)),
        }
    }

    /// The place of a lease.
    pub(super) fn find(&self, lease: &Lease) -> Option<usize> {
        self.iter().position(|held| held.is_of(lease))
    }

    /// The place of the lease under which a turn is under way.
    pub(super) fn find_turn(&self, granted: &Granted) -> Option<usize> {
        self.iter().position(|held| held.serves(granted))
    }
}
