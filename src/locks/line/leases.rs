//! The leases of a line.
//!
//! All but lines for permits have one most of the time, which therefore needs no allocation. A line
//! may hold thousands of permits, so those whose turns are under way are kept apart: until such a
//! turn ends, no other request concerns its lease, and the cost of a turn does not grow with the
//! number of permits that are held.
//!
//! ```text
//! add ──▶ open ──▶ the turn of a permit begins, `sort` ──▶ busy
//!          ▲                                                │
//!          └────────── the turn ends, `sort` ◀──────────────┘
//! ```

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{Granted, HeldLease};
use crate::time::Instant;

/// The leases of a line, by the numbers of their attempts.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// One of the leases, of either kind, without an allocation.
    first: Option<HeldLease>,
    /// Further leases that may be able to serve a request.
    open: Further,
    /// Further permits whose turns are under way.
    busy: Further,
    /// When another instance was last known to wait. The busy permits hear of it one by one, when
    /// they are looked at.
    hint: Option<Instant>,
}

type Further = BTreeMap<u64, Box<HeldLease>>;

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.open.len() + self.busy.len()
    }

    /// How many permits have a turn under way.
    pub(super) fn busy(&self) -> usize {
        self.first.iter().filter(|held| is_busy(held)).count() + self.busy.len()
    }

    /// All leases, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &HeldLease> {
        self.iter_open().chain(self.busy.values().map(Box::as_ref))
    }

    /// All leases, in no particular order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut HeldLease> {
        let further = self.open.values_mut().chain(self.busy.values_mut());
        self.first.iter_mut().chain(further.map(Box::as_mut))
    }

    /// All leases but the permits whose turns are under way, of which there may be one.
    pub(super) fn iter_open(&self) -> impl Iterator<Item = &HeldLease> {
        let further = self.open.values().map(Box::as_ref);
        self.first.iter().chain(further)
    }

    /// The same leases as from [`iter_open`](Self::iter_open).
    pub(super) fn iter_open_mut(&mut self) -> impl Iterator<Item = &mut HeldLease> {
        let further = self.open.values_mut().map(Box::as_mut);
        self.first.iter_mut().chain(further)
    }

    /// The numbers of the open leases without a turn.
    pub(super) fn idle(&self) -> SmallVec<[u64; 1]> {
        let idle = self.iter_open().filter(|held| held.is_idle());
        idle.map(HeldLease::number).collect()
    }

    /// The lease with a number.
    pub(super) fn get(&mut self, number: u64) -> Option<&mut HeldLease> {
        if self.is_first(number) {
            return self.first.as_mut();
        }
        let held = self.open.get_mut(&number);
        let held = held.or_else(|| self.busy.get_mut(&number))?;
        held.hear(self.hint);
        Some(held)
    }

    /// The lease under which a turn is under way.
    pub(super) fn of_turn(&mut self, granted: &Granted) -> Option<&mut HeldLease> {
        let held = self.get(granted.lease.owner.attempt);
        held.filter(|held| held.serves(granted))
    }

    /// Notes that another instance waits for the key.
    pub(super) fn want(&mut self, now: Instant) {
        self.hint = Some(now);
        self.iter_open_mut().for_each(|held| held.hear(Some(now)));
    }

    /// Adds a lease without a turn.
    pub(super) fn add(&mut self, mut held: HeldLease) {
        held.heard = self.hint;
        match &self.first {
            Some(_) => drop(self.open.insert(held.number(), Box::new(held))),
            None => self.first = Some(held),
        }
    }

    /// Puts a lease where it belongs, after one of its turns has begun or ended.
    pub(super) fn sort(&mut self, number: u64) {
        let (from, to) = match self.get(number) {
            Some(held) if is_busy(held) => (&mut self.open, &mut self.busy),
            _ => (&mut self.busy, &mut self.open),
        };
        if let Some(held) = from.remove(&number) {
            to.insert(number, held);
        }
    }

    /// Removes a lease.
    pub(super) fn remove(&mut self, number: u64) -> Option<HeldLease> {
        if self.is_first(number) {
            return self.first.take();
        }
        let held = self.open.remove(&number);
        held.or_else(|| self.busy.remove(&number)).map(|held| *held)
    }

    fn is_first(&self, number: u64) -> bool {
        let mut first = self.first.iter();
        first.any(|held| held.number() == number)
    }
}

/// Whether a lease is a permit with a turn under way.
fn is_busy(held: &HeldLease) -> bool {
    held.mode().permits().is_some() && !held.is_idle()
}

#[cfg(test)]
mod tests {
    use crate::{LockKey, Locks};

    #[tokio::test(start_paused = true)]
    async fn a_transition_looks_at_no_more_leases_however_many_permits_are_held() {
        let (locks, key) = (Locks::in_memory(), LockKey::new("k").unwrap());
        let counts = || {
            locks.0.with_line(&key, |line, _| {
                let leases = &line.leases;
                let all = leases.iter().count();
                assert_eq!((all, leases.is_empty()), (leases.len(), false));
                (leases.iter_open().count(), leases.busy(), all)
            })
        };
        let mut guards = Vec::new();
        for held in 1..=300 {
            guards.push(locks.permit("k", 400).await.unwrap());
            assert_eq!(counts(), Some((1, held, held)));
        }
        // Whichever of the turns ends: the first one, the last one, or one in between.
        for at in [0, 298, 100] {
            drop(guards.remove(at));
            let (open, busy, all) = counts().unwrap();
            assert!(open <= 1, "{open} leases are looked at");
            assert_eq!((busy, all), (guards.len(), guards.len()));
        }
        guards.push(locks.permit("k", 400).await.unwrap());
        assert_eq!(counts(), Some((1, 298, 298)));

        // A hint that another instance waits reaches a permit when its turn ends.
        locks.0.with_line(&key, |line, t| line.wanted(t.now));
        let wanted = || {
            locks.0.with_line(&key, |line, _| {
                let leases = line.leases.iter();
                leases.filter(|held| held.wanted.is_some()).count()
            })
        };
        assert_eq!(wanted(), Some(1));
        let number = guards[200].owner().attempt;
        locks.0.with_line(&key, |line, _| {
            assert!(line.leases.get(number).unwrap().wanted.is_some());
        });
        assert_eq!(wanted(), Some(2));
        drop(guards);
        assert_eq!(counts(), None);
    }
}
