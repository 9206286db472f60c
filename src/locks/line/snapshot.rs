//! A line as operators see it.

use super::{Line, State};
use crate::{
    LockKey,
    locks::operators::{HeldKey, LeaseView},
    store::Mode,
    time::Instant,
};

impl Line {
    /// The leases and the requests of this line at one moment.
    pub(crate) fn snapshot(&self, key: &LockKey, now: Instant) -> HeldKey {
        let (held, turns) = match &self.state {
            State::Taken(held) | State::Outlived(held) => (Some(held), 1),
            State::Confirming(held, _) => (Some(held), 0),
            State::Contending(_) | State::Gone => (None, 0),
        };
        let lease = held.map(|held| LeaseView {
            owner: held.lease.owner,
            mode: Mode::Exclusive,
            token: held.token.filter(|_| turns > 0),
            turns,
            held_for: now.saturating_duration_since(held.began),
            remaining: held.lease.deadline().saturating_duration_since(now),
            loss: held.lease.loss(),
        });
        let first = self.waiters.front();
        HeldKey {
            key: key.clone(),
            leases: lease.into_iter().collect(),
            waiting: self.waiters.len(),
            longest_wait: first.map(|turn| now.saturating_duration_since(turn.asked)),
        }
    }
}
