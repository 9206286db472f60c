//! The leases of one key. What a call costs does not depend on how many there are: a key may have thousands of permits.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use bytes::Bytes;

use super::super::{Instance, Mode, Owner};
use crate::time::Instant;

pub(super) struct Lease {
    pub(super) mode: Mode,
    pub(super) until: Instant,
    pub(super) fingerprint: Option<Bytes>,
}

/// The leases of one key: at most one if the key is held exclusively, and otherwise shared ones or permits.
#[derive(Default)]
pub(super) struct Leases {
    by_owner: BTreeMap<Owner, Lease>,
    /// No lease ends before this time. Of several leases, the first one may end later, because a renewal does not look at the others.
    soonest: Option<Instant>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.by_owner.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    pub(super) fn get(&self, owner: Owner) -> Option<&Lease> {
        self.by_owner.get(&owner)
    }

    pub(super) fn get_mut(&mut self, owner: Owner) -> Option<&mut Lease> {
        self.by_owner.get_mut(&owner)
    }

    /// Any of the leases: the only one of a key that is held exclusively.
    pub(super) fn any(&self) -> Option<&Lease> {
        self.by_owner.values().next()
    }

    /// The mode of any of the leases.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.any().map(|lease| lease.mode)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Owner, &Lease)> {
        self.by_owner.iter()
    }

    /// The instances of the holders, each once.
    pub(super) fn instances(&self) -> impl Iterator<Item = Instance> + '_ {
        let first = self.by_owner.keys().next();
        std::iter::successors(first.map(|owner| owner.instance), |instance| {
            let last = Owner {
                instance: *instance,
                attempt: u64::MAX,
            };
            let mut later = self.by_owner.range((Excluded(last), Unbounded));
            later.next().map(|(owner, _)| owner.instance)
        })
    }

    /// A time before which no lease ends.
    pub(super) fn soonest(&self) -> Option<Instant> {
        self.soonest
    }

    pub(super) fn insert(&mut self, owner: Owner, lease: Lease) {
        let until = lease.until;
        self.by_owner.insert(owner, lease);
        self.ends_at(until);
    }

    /// Notes that a lease ends at this time from now on.
    pub(super) fn ends_at(&mut self, until: Instant) {
        self.soonest = match (self.len(), self.soonest) {
            (1, _) | (_, None) => Some(until),
            (_, Some(soonest)) => Some(soonest.min(until)),
        };
    }

    pub(super) fn remove(&mut self, owner: Owner) -> Option<Lease> {
        let removed = self.by_owner.remove(&owner);
        if self.len() < 2 {
            self.soonest = self.any().map(|lease| lease.until);
        }
        removed
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Removes the leases whose time is over.
    pub(super) fn forget_expired(&mut self, now: Instant) {
        if self.soonest.is_some_and(|soonest| soonest <= now) {
            self.by_owner.retain(|_, lease| lease.until > now);
            self.soonest = self.by_owner.values().map(|lease| lease.until).min();
        }
    }
}
