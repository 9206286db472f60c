//! The times at which the leases of a shard need attention: for their next renewal, or because they
//! end.
//!
//! 1. A lease has at most one entry, and its line knows which: for the next renewal if that is due
//!    before the lease ends, otherwise for the end.
//! 2. The cost of a look at the schedule depends on the number of entries that are due, not on the
//!    number of leases.
//!
//! Two sorted maps hold the entries of a shard: one of renewals, one of ends. A renewal may be sent
//! a little early, together with others, and an end must not be handled early; the two are
//! therefore taken with different limits:
//!
//! ```text
//! renewals  (10.00 s, attempt 4) (10.02 s, attempt 68) (17.30 s, attempt 132)
//! ends      (12.50 s, attempt 196)                     a turn with a short `max_hold`
//!
//! take_due(now: 10.00 s, soon: 10.25 s)  ──▶  attempts 4 and 68
//! next                                   ──▶  12.50 s
//! ```

use std::collections::BTreeMap;

use super::Lease;
use crate::{LockKey, time::Instant};

/// The leases of a shard, sorted by time.
#[derive(Default)]
pub(crate) struct Schedule {
    renewals: Times,
    ends: Times,
}

/// Keys by time. The number of the lease's attempt distinguishes entries of the same time.
type Times = BTreeMap<(Instant, u64), LockKey>;

/// The entry of a lease in a [`Schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The lease is to be renewed at this time.
    Renewal(Instant),
    /// The lease, or its turn, ends at this time.
    End(Instant),
}

impl Entry {
    /// The time of the entry.
    pub(crate) fn at(self) -> Instant {
        match self {
            Self::Renewal(at) | Self::End(at) => at,
        }
    }
}

impl Schedule {
    /// Adds the entry of a lease.
    pub(crate) fn add(&mut self, lease: &Lease, entry: Entry) {
        let id = (entry.at(), lease.owner.attempt);
        self.times(entry).insert(id, lease.key.clone());
    }

    /// Removes the entry of a lease.
    pub(crate) fn remove(&mut self, lease: &Lease, entry: Entry) {
        let id = (entry.at(), lease.owner.attempt);
        self.times(entry).remove(&id);
    }

    /// Removes and returns all leases that end by `now`, and all that are to be renewed by `soon`:
    /// their keys, and the numbers of their attempts.
    pub(crate) fn take_due(&mut self, now: Instant, soon: Instant) -> Vec<(LockKey, u64)> {
        let mut due = Vec::new();
        take_until(&mut self.ends, now, &mut due);
        take_until(&mut self.renewals, soon, &mut due);
        due
    }

    /// The time of the first entry.
    pub(crate) fn next(&self) -> Option<Instant> {
        let first = |times: &Times| times.first_key_value().map(|((at, _), _)| *at);
        match (first(&self.renewals), first(&self.ends)) {
            (Some(renewal), Some(end)) => Some(renewal.min(end)),
            (renewal, end) => renewal.or(end),
        }
    }

    /// The map that an entry belongs to.
    fn times(&mut self, entry: Entry) -> &mut Times {
        match entry {
            Entry::Renewal(_) => &mut self.renewals,
            Entry::End(_) => &mut self.ends,
        }
    }
}

/// Moves all entries up to `until` into `due`.
fn take_until(times: &mut Times, until: Instant, due: &mut Vec<(LockKey, u64)>) {
    while let Some(first) = times.first_entry()
        && first.key().0 <= until
    {
        let ((_, attempt), key) = first.remove_entry();
        due.push((key, attempt));
    }
}
