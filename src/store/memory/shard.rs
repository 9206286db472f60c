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
        let mut slot = self.slots.remove(key).unwrap_or_default();
        let due_before = slot.earliest_expiry();
        let mut step = Step {
            key,
            now,
            // The runs of the model checker must be repeatable.
            wall_clock: if cfg!(shuttle) { now } else { wall_clock() },
            fence: &mut self.fence,
            hints: Vec::new(),
        };
        let result = work(&mut slot, &mut step);
        let hints = step.hints;
        self.put_back(key.clone(), slot, due_before);
        if !hints.is_empty() {
            self.watchers.tell(hints);
        }
        result
    }

    /// Stores a slot that was taken out, or drops an empty one, and updates its entry in `due`.
    fn put_back(&mut self, key: LockKey, slot: Slot, due_before: Option<Moment>) {
        let due = slot.earliest_expiry();
        if due != due_before {
            self.due.extend(due.map(|at| (at, key.clone())));
            if let Some(before) = due_before {
                self.due.remove(&(before, key.clone()));
            }
        }
        if due.is_some() {
            self.slots.insert(key, slot);
        }
    }

    /// Removes all entries of the shard that have expired.
    pub(super) fn forget_expired(&mut self, now: Moment) {
        while let Some((_, key)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            let mut slot = self.slots.remove(&key).unwrap_or_default();
            let due_before = self.due.pop_first().map(|(at, _)| at);
            slot.forget_expired(now);
            self.put_back(key, slot, due_before);
        }
    }
}

pub(super) fn wall_clock() -> Moment {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Moment(0) + since_1970.unwrap_or_default()
}
