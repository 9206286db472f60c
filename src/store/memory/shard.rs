//! One shard of a memory store's keys, as plain data that takes the time as an argument.
//!
//! 1. A key has a slot exactly as long as the key has a lease, a record or a queue.
//! 2. `due` has exactly one entry for each slot, at the earliest expiry in that slot.
//! 3. Every method that reads or changes a slot first removes all expired entries of the shard, so
//!    that the remaining ones are valid.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use super::{
    super::rules::{Fence, Moment, Slot, Step},
    watchers::Watchers,
};
use crate::{LockKey, key::KeyMap};

/// One shard of a memory store's keys.
pub(super) struct Shard {
    slots: KeyMap<Slot>,
    /// The earliest expiry of each slot.
    due: BTreeSet<(Moment, LockKey)>,
    /// One counter serves all keys of the shard.
    fence: Fence,
    watchers: Arc<Watchers>,
    /// How many calls there were.
    calls: usize,
}

impl Shard {
    pub(super) fn new(watchers: Arc<Watchers>, epoch: Moment) -> Self {
        Self {
            slots: KeyMap::default(),
            due: BTreeSet::new(),
            fence: Fence::new(epoch),
            watchers,
            calls: 0,
        }
    }

    /// All keys that have a slot.
    pub(super) fn keys(&mut self, now: Moment) -> impl Iterator<Item = &LockKey> {
        self.forget_expired(now);
        self.slots.keys()
    }

    /// Removes everything but the token counter.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn forget(&mut self) {
        self.slots.clear();
        self.due.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.due.is_empty()
    }

    /// Counts a call. Returns the number of calls so far.
    pub(super) fn count_call(&mut self) -> usize {
        self.calls = self.calls.wrapping_add(1);
        self.calls
    }

    /// Runs `work` on the slot of a key, keeps the slot only if it is not empty afterwards, and
    /// sends the hints.
    pub(super) fn with_slot<T>(
        &mut self,
        key: &LockKey,
        now: Moment,
        work: impl FnOnce(&mut Slot, &mut Step<'_>) -> T,
    ) -> T {
        self.forget_expired(now);
        let slot = self.slots.entry(key.clone()).or_default();
        let due_before = slot.earliest_expiry();
        let mut step = Step {
            key,
            now,
            // The runs of the model checker must be repeatable.
            wall_clock: if cfg!(shuttle) { now } else { wall_clock() },
            fence: &mut self.fence,
            hints: Vec::new(),
        };
        let result = work(slot, &mut step);
        let hints = step.hints;
        let due = slot.earliest_expiry();
        self.changed(key, due_before, due);
        if !hints.is_empty() {
            self.watchers.tell(hints);
        }
        result
    }

    /// Updates the entry in `due` of a slot that may have changed, and removes an empty slot.
    fn changed(&mut self, key: &LockKey, before: Option<Moment>, due: Option<Moment>) {
        if due != before {
            self.due.extend(due.map(|at| (at, key.clone())));
            if let Some(before) = before {
                self.due.remove(&(before, key.clone()));
            }
        }
        if due.is_none() {
            self.slots.remove(key);
        }
    }

    /// Removes all entries of the shard that have expired.
    pub(super) fn forget_expired(&mut self, now: Moment) {
        while let Some((at, key)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            let due = self.slots.get_mut(&key).and_then(|slot| {
                slot.forget_expired(now);
                slot.earliest_expiry()
            });
            self.changed(&key, Some(at), due);
        }
    }
}

pub(super) fn wall_clock() -> Moment {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Moment(0) + since_1970.unwrap_or_default()
}
