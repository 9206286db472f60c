//! One shard of a memory store's keys, as plain data that takes the time as an argument.
//!
//! 1. A key has a slot exactly as long as the key has a lease, a record or a queue.
//! 2. `due` has exactly one entry for each slot, at the earliest expiry in that slot, or at an earlier one that was put off since.
//! 3. Every method that reads or changes a slot first removes all expired entries of the shard, so that the remaining
//!    ones are valid.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    super::{Acquire, Acquired, Expected, Inspection, Release, Released, Renew, Renewed},
    fence::Fence,
    slot::{HintFor, Slot},
    watchers::Watchers,
};
use crate::{Error, LockKey, key::KeyMap, time::Instant};

/// One shard of a memory store's keys.
pub(super) struct State {
    slots: KeyMap<Slot>,
    /// The earliest expiry of each slot.
    due: BTreeSet<(Instant, LockKey)>,
    /// One counter serves all keys of the shard.
    fence: Fence,
    watchers: Arc<Watchers>,
    /// How many calls there were.
    calls: usize,
}

impl State {
    pub(super) fn new(watchers: Arc<Watchers>) -> Self {
        Self {
            slots: KeyMap::default(),
            due: BTreeSet::new(),
            fence: Fence::new(),
            watchers,
            calls: 0,
        }
    }

    /// See [`Slot::acquire`].
    pub(super) fn acquire(&mut self, request: Acquire, now: Instant) -> Result<Acquired, Error> {
        let key = request.key.clone();
        self.with_slot(key, now, |slot, fence, hints| {
            slot.acquire(request, fence, now, hints)
        })
    }

    /// See [`Slot::renew`].
    pub(super) fn renew(&mut self, request: &Renew, now: Instant) -> Renewed {
        let key = request.key.clone();
        self.with_slot(key, now, |slot, fence, hints| {
            slot.renew(request, fence, now, hints)
        })
    }

    /// See [`Slot::release`].
    pub(super) fn release(&mut self, request: Release, now: Instant) -> Released {
        let key = request.key.clone();
        self.with_slot(key, now, |slot, _, hints| slot.release(request, now, hints))
    }

    pub(super) fn force_release(
        &mut self,
        key: &LockKey,
        expected: Expected,
        now: Instant,
    ) -> bool {
        self.with_slot(key.clone(), now, |slot, _, hints| {
            slot.force_release(key, expected, now, hints)
        })
    }

    pub(super) fn raise_fence(&mut self, floor: u64) -> u64 {
        self.fence.raise(floor)
    }

    pub(super) fn inspect(&mut self, key: &LockKey, now: Instant) -> Inspection {
        self.forget_expired(now);
        match self.slots.get(key) {
            Some(slot) => slot.inspect(self.fence.last(), now),
            None => Slot::default().inspect(self.fence.last(), now),
        }
    }

    /// All keys that have a slot.
    pub(super) fn keys(&mut self, now: Instant) -> impl Iterator<Item = &LockKey> {
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

    /// Runs `work` on the slot of a key, keeps the slot only if it is not empty afterwards, and sends the hints.
    fn with_slot<T>(
        &mut self,
        key: LockKey,
        now: Instant,
        work: impl FnOnce(&mut Slot, &mut Fence, &mut Vec<HintFor>) -> T,
    ) -> T {
        self.forget_expired(now);
        let mut hints = Vec::new();
        let mut slot = self.slots.remove(&key).unwrap_or_default();
        let due_before = slot.earliest_expiry();
        let result = work(&mut slot, &mut self.fence, &mut hints);
        self.put_back(key, slot, due_before);
        if !hints.is_empty() {
            self.watchers.tell(hints);
        }
        result
    }

    /// Stores a slot that was taken out, or drops an empty one, and updates its entry in `due`.
    fn put_back(&mut self, key: LockKey, slot: Slot, due_before: Option<Instant>) {
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
    pub(super) fn forget_expired(&mut self, now: Instant) {
        while let Some((_, key)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            let mut slot = self.slots.remove(&key).unwrap_or_default();
            let due_before = self.due.pop_first().map(|(at, _)| at);
            slot.forget_expired(now);
            self.put_back(key, slot, due_before);
        }
    }
}
