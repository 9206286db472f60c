//! The leases of one key. What a call costs hardly depends on how many there are: a key may have
//! thousands of permits.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
    pub(super) label: Option<Arc<str>>,
}

/// The leases of one key: at most one if the key is held exclusively, and otherwise shared ones or
/// permits.
///
/// A key that never had two leases at once has its lease in `only`, without an allocation, and the
/// maps are empty. Otherwise all leases are in the maps.
#[derive(Debug, Clone, Default)]
pub(super) struct Leases {
    only: Option<(Owner, Lease)>,
    by_owner: BTreeMap<Owner, Lease>,
    /// The ends of all leases in `by_owner`.
    ends: BTreeSet<(Moment, Owner)>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        usize::from(self.only.is_some()) + self.by_owner.len()
    }

    pub(super) fn get(&self, owner: Owner) -> Option<&Lease> {
        match &self.only {
            Some((only, lease)) => (*only == owner).then_some(lease),
            None => self.by_owner.get(&owner),
        }
    }

    /// The leases, in the order in which they end.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Owner, &Lease)> {
        let only = self.only.iter().map(|(owner, lease)| (*owner, lease));
        let by_end = self.ends.iter();
        only.chain(by_end.filter_map(|(_, owner)| Some((*owner, self.by_owner.get(owner)?))))
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
        let holders = self.iter().take(at_most);
        holders.map(|(owner, _)| owner.instance).collect()
    }

    /// Adds a lease, or puts it in the place of the owner's present one.
    pub(super) fn set(&mut self, owner: Owner, lease: Lease) {
        let only = self.only.take_if(|(only, _)| *only != owner);
        if only.is_none() && self.by_owner.is_empty() {
            self.only = Some((owner, lease));
            return;
        }
        for (owner, lease) in only.into_iter().chain([(owner, lease)]) {
            let until = lease.until;
            if let Some(before) = self.by_owner.insert(owner, lease) {
                self.ends.remove(&(before.until, owner));
            }
            self.ends.insert((until, owner));
        }
    }

    pub(super) fn remove(&mut self, owner: Owner) -> Option<Lease> {
        if let Some((_, lease)) = self.only.take_if(|(only, _)| *only == owner) {
            return Some(lease);
        }
        let removed = self.by_owner.remove(&owner)?;
        self.ends.remove(&(removed.until, owner));
        Some(removed)
    }

    /// Removes the leases whose time is over.
    pub(super) fn forget_expired(&mut self, now: Moment) {
        self.only.take_if(|(_, lease)| lease.until <= now);
        while let Some((_, owner)) = self.ends.first().filter(|(until, _)| *until <= now) {
            self.remove(*owner);
        }
    }
}
