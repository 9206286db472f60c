//! Leases, queues and records of a memory store, as plain data that is told the time.
//!
//! 1. A key has a slot exactly as long as it has a lease, a record or a queue.
//! 2. `due` has exactly one entry for each slot, at the slot's earliest expiry.
//! 3. Every method first forgets what has expired, so that what is there is valid.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use super::super::{
    Acquire, Acquired, Ending, Grant, Held, Hint, Holder, Inspection, Instance, Owner, Queueing,
    Release, Released, Renew, Renewed, Tokens,
};
use crate::{LockKey, time::later};

pub(super) struct State {
    slots: HashMap<LockKey, Slot>,
    due: BTreeSet<(Instant, LockKey)>,
    /// The highest token handed out: one counter for all keys rises for each of them.
    fence: u64,
    watchers: HashMap<Instance, mpsc::UnboundedSender<Hint>>,
    missed_releases: Vec<Release>,
    /// None as long as nothing was ever forgotten: no lease is older than the memory of this process.
    restarted: Option<Instant>,
}

#[derive(Default)]
struct Slot {
    taken: Option<Taken>,
    queue: VecDeque<Attempt>,
}

struct Taken {
    owner: Owner,
    until: Instant,
    by: By,
}

enum By {
    Lease { note: Option<Bytes> },
    Record(Bytes),
}

struct Attempt {
    owner: Owner,
    until: Instant,
}

impl Slot {
    fn leased_to(&mut self, owner: Owner) -> Option<&mut Taken> {
        self.taken
            .as_mut()
            .filter(|taken| taken.owner == owner && matches!(taken.by, By::Lease { .. }))
    }

    fn earliest_expiry(&self) -> Option<Instant> {
        let taken = self.taken.iter().map(|taken| taken.until);
        taken
            .chain(self.queue.iter().map(|attempt| attempt.until))
            .min()
    }

    fn forget_expired(&mut self, now: Instant) {
        self.taken.take_if(|taken| taken.until <= now);
        self.queue.retain(|attempt| attempt.until > now);
    }
}

impl State {
    pub(super) fn new() -> Self {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            slots: HashMap::new(),
            due: BTreeSet::new(),
            fence: clock.unwrap_or_default().as_micros() as u64,
            watchers: HashMap::new(),
            missed_releases: Vec::new(),
            restarted: None,
        }
    }

    pub(super) fn acquire(&mut self, request: Acquire, now: Instant) -> Acquired {
        let Acquire { key, owner, .. } = &request;
        let (key, owner) = (key.clone(), *owner);
        self.with_slot(&key, now, |slot, fence, hints| {
            let first_in_queue = request.queueing == Queueing::Skip
                || slot.queue.front().is_none_or(|head| head.owner == owner);
            let note = match &slot.taken {
                Some(Taken {
                    by: By::Record(record),
                    ..
                }) => {
                    slot.queue.retain(|attempt| attempt.owner != owner);
                    return Acquired::Recorded(record.clone());
                }
                Some(Taken {
                    owner: holder,
                    by: By::Lease { note },
                    ..
                }) if *holder != owner => note.clone(),
                None if !first_in_queue => None,
                _ => {
                    slot.queue.retain(|attempt| attempt.owner != owner);
                    slot.taken = Some(Taken {
                        owner,
                        until: later(now, request.lease),
                        by: By::Lease { note: request.note },
                    });
                    return Acquired::Granted(Grant {
                        tokens: hand_out(fence, request.block.max(1)),
                        others_wait: !slot.queue.is_empty(),
                    });
                }
            };
            if let Queueing::Wait { deadline } = request.queueing {
                let until = later(now, deadline);
                match slot.queue.iter_mut().find(|attempt| attempt.owner == owner) {
                    Some(attempt) => attempt.until = until,
                    None => {
                        slot.queue.push_back(Attempt { owner, until });
                        let holder = slot.taken.as_ref().map(|taken| taken.owner.instance);
                        hints.extend(holder.map(|holder| (holder, Hint::Wanted(request.key))));
                    }
                }
            }
            let blocking = slot.taken.as_ref().map(|taken| taken.until);
            let blocking = blocking.or(slot.queue.front().map(|head| head.until));
            Acquired::Held(Held {
                remaining: blocking.map_or(Duration::ZERO, |until| until - now),
                note,
            })
        })
    }

    pub(super) fn renew(&mut self, request: &Renew, now: Instant) -> Renewed {
        self.with_slot(&request.key, now, |slot, fence, _| {
            let others_wait = !slot.queue.is_empty();
            let Some(taken) = slot.leased_to(request.owner) else {
                return Renewed::NotOurs;
            };
            taken.until = taken.until.max(later(now, request.lease));
            Renewed::Renewed {
                tokens: (request.refill > 0).then(|| hand_out(fence, request.refill)),
                others_wait,
            }
        })
    }

    pub(super) fn release(&mut self, request: Release, now: Instant) -> Released {
        let Release { key, owner, ending } = request;
        self.with_slot(&key, now, |slot, _, hints| {
            let was_head = slot.queue.front().is_some_and(|head| head.owner == owner);
            slot.queue.retain(|attempt| attempt.owner != owner);
            let recorded =
                matches!(&slot.taken, Some(Taken { owner: by, by: By::Record(_), .. }) if *by == owner);
            if recorded {
                return Released::Freed;
            }
            if slot.leased_to(owner).is_none() {
                if was_head && slot.taken.is_none() {
                    hints.extend(hint_free(slot, &key).take(1));
                }
                return Released::NotOurs;
            }
            match ending {
                Ending::Free => {
                    slot.taken = None;
                    hints.extend(hint_free(slot, &key).take(1));
                }
                Ending::Record { content, retain } => {
                    slot.taken = Some(Taken {
                        owner,
                        until: later(now, retain),
                        by: By::Record(content),
                    });
                    hints.extend(hint_free(slot, &key));
                }
            }
            Released::Freed
        })
    }

    pub(super) fn force_release(&mut self, key: &LockKey, now: Instant) -> bool {
        self.with_slot(key, now, |slot, _, hints| {
            hints.extend(hint_free(slot, key).take(1));
            slot.taken.take().is_some()
        })
    }

    pub(super) fn raise_fence(&mut self, floor: u64) -> u64 {
        self.fence = self.fence.max(floor);
        self.fence
    }

    pub(super) fn inspect(&mut self, key: &LockKey, now: Instant) -> Inspection {
        self.forget_expired(now);
        let mut seen = Inspection {
            fence: self.fence,
            ..Inspection::default()
        };
        let Some(slot) = self.slots.get(key) else {
            return seen;
        };
        seen.queue = slot.queue.iter().map(|attempt| attempt.owner).collect();
        match &slot.taken {
            Some(Taken {
                until,
                by: By::Record(record),
                ..
            }) => {
                seen.record = Some(record.clone());
                seen.record_remaining = Some(*until - now);
            }
            Some(Taken {
                owner,
                until,
                by: By::Lease { note },
            }) => {
                seen.holder = Some(Holder {
                    owner: *owner,
                    remaining: *until - now,
                    note: note.clone(),
                });
            }
            None => {}
        }
        seen
    }

    pub(super) fn watch(&mut self, instance: Instance, hints: mpsc::UnboundedSender<Hint>) {
        self.watchers.retain(|_, watcher| !watcher.is_closed());
        self.watchers.insert(instance, hints);
    }

    pub(super) fn tell_everybody_reconnected(&mut self) {
        for watcher in self.watchers.values() {
            let _ = watcher.send(Hint::Reconnected);
        }
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.slots.clear();
        self.due.clear();
        self.missed_releases.clear();
        self.restarted = Some(now);
    }

    pub(super) fn uptime(&self, now: Instant) -> Duration {
        self.restarted
            .map_or(Duration::MAX, |restarted| now - restarted)
    }

    pub(super) fn miss_release(&mut self, request: Release) {
        self.missed_releases.push(request);
    }

    pub(super) fn settle_missed_releases(&mut self, now: Instant) {
        for request in std::mem::take(&mut self.missed_releases) {
            self.release(request, now);
        }
    }

    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.forget_expired(now);
        self.slots.is_empty() && self.due.is_empty() && self.missed_releases.is_empty()
    }

    /// Works on a key's slot, which is there only if it is still of use afterwards; then sends the hints.
    fn with_slot<T>(
        &mut self,
        key: &LockKey,
        now: Instant,
        work: impl FnOnce(&mut Slot, &mut u64, &mut Vec<(Instance, Hint)>) -> T,
    ) -> T {
        self.forget_expired(now);
        let mut hints = Vec::new();
        let mut slot = self.slots.remove(key).unwrap_or_default();
        let due_before = slot.earliest_expiry();
        let result = work(&mut slot, &mut self.fence, &mut hints);
        self.put_back(key.clone(), slot, due_before);
        for (instance, hint) in hints {
            if let Some(watcher) = self.watchers.get(&instance) {
                let _ = watcher.send(hint);
            }
        }
        result
    }

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

    fn forget_expired(&mut self, now: Instant) {
        while let Some((_, key)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            let mut slot = self.slots.remove(&key).unwrap_or_default();
            let due_before = self.due.pop_first().map(|(at, _)| at);
            slot.forget_expired(now);
            self.put_back(key, slot, due_before);
        }
    }
}

fn hand_out(fence: &mut u64, count: u32) -> Tokens {
    let block = Tokens::new(*fence + 1, count);
    *fence += u64::from(count);
    block
}

fn hint_free<'a>(slot: &'a Slot, key: &'a LockKey) -> impl Iterator<Item = (Instance, Hint)> + 'a {
    let hint = |attempt: &Attempt| (attempt.owner.instance, Hint::Free(key.clone()));
    slot.queue.iter().map(hint)
}
