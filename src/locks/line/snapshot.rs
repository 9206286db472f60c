//! A line as operators see it.

use super::{HeldLease, Line};
use crate::{
    LockKey,
    locks::operators::{HeldKey, LeaseView},
    time::Instant,
};

impl Line {
    /// The leases and the requests of this line at one moment.
    pub(crate) fn snapshot(&self, key: &LockKey, now: Instant) -> HeldKey {
        let lease = |held: &HeldLease| LeaseView {
            owner: held.lease.owner,
            mode: held.mode(),
            token: held.token(),
            turns: held.turns(),
            held_for: held.held_for(now),
            remaining: held.lease.deadline().saturating_duration_since(now),
            loss: held.lease.loss(),
        };
        let first = self.waiters.front();
        HeldKey {
            key: key.clone(),
            leases: self.leases.iter().map(lease).collect(),
            waiting: self.waiters.len(),
            longest_wait: first.map(|turn| now.saturating_duration_since(turn.asked)),
        }
    }
}
