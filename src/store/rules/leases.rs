//! The leases of one key. What a call costs hardly depends on how many there are: a key may have
//! thousands of permits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{
    super::{Instance, Mode, Owner},
    Moment,
};

#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) mode: Mode,
    pub(super) until: Moment,
    pub(super) fingerprint: Option<Bytes>,
}

/// The leases of one key: at most one if the key is held exclusively, and otherwise shared ones or
/// permits.
#[derive(Debug, Clone, Default)]
pub(super) struct Leases {
    by_owner: BTreeMap<Owner, Lease>,
    /// The ends of all leases.
    ends: BTreeSet<(Moment, Owner)>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.by_owner.len()
    }

    pub(super) fn get(&self, owner: Owner) -> Option<&Lease> {
        self.by_owner.get(&owner)
    }

    /// The leases, in the order in which they end.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Owner, &Lease)> {
        let leases = self.ends.iter();
        leases.filter_map(|(_, owner)| Some((*owner, self.get(*owner)?)))
    }

    /// The lease that ends first: the only one of a key that is held exclusively.
    pub(super) fn first(&self) -> Option<&Lease> {
        self.iter().next().map(|(_, lease)| lease)
    }

    /// The mode of any of the leases.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.first().map(|lease| lease.mode)
    }

    /// The instances of the first holders, each once.
    pub(super) fn instances(&self, at_most: usize) -> BTreeSet<Instance> {
        let holders = self.ends.iter().take(at_most);
        holders.map(|(_, owner)| owner.instance).collect()
    }

    /// Adds a lease, or puts it in the place of the owner's present one.
    pub(super) fn set(&mut self, owner: Owner, lease: Lease) {
        let until = lease.until;
        if let Some(before) = self.by_owner.insert(owner, lease) {
            self.ends.remove(&(before.until, owner));
        }
        self.ends.insert((until, owner));
    }

    pub(super) fn remove(&mut self, owner: Owner) -> Option<Lease> {
        let removed = self.by_owner.remove(&owner)?;
        self.ends.remove(&(removed.until, owner));
        Some(removed)
    }

    /// Removes the leases whose time is over.
    pub(super) fn forget_expired(&mut self, now: Moment) {
        while let Some((_, owner)) = self.ends.first().filter(|(until, _)| *until <= now) {
            self.remove(*owner);
        }
    }
}
