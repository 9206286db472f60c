//! Leases, queues and records of a memory store, as plain data that is told the time.
//!
//! 1. A key has a slot exactly as long as it has a lease, a record or a queue.
//! 2. `due` has exactly one entry for each slot, at the slot's earliest expiry.
//! 3. Every method first forgets what has expired, so that what is there is valid.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use super::super::{
    Acquire, Acquired, Ending, Grant, Held, Hint, Holder, Inspection, Instance, Owner, Queueing,
    Release, Released, Renew, Renewed, Tokens,
};
use crate::{
    LockKey,
    key::KeyMap,
    sync::{HashMap, mpsc},
    time::{Instant, later},
};

/// So many attempts behind the head are told that it was offered the key: the first of them that lives passes by the dead.
const TOLD_BEHIND_THE_HEAD: usize = 4;

pub(super) struct State {
    slots: KeyMap<Slot>,
    due: BTreeSet<(Instant, LockKey)>,
    /// The highest token handed out: one counter for all keys rises for each of them.
    fence: u64,
    watchers: HashMap<Instance, mpsc::UnboundedSender<Hint>>,
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
    Lease { fingerprint: Option<Bytes> },
    Record(Bytes),
}

/// A place in the queue.
struct Attempt {
    owner: Owner,
    until: Instant,
    /// Since when the key is free for this attempt, which is the head of the queue.
    offered: Option<Instant>,
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

    /// Whether the free key is for this owner. Heads of the queue that had their head start are passed by.
    fn is_next(&mut self, owner: Owner, queueing: Queueing, now: Instant) -> bool {
        while let Some(head) = self.queue.front()
            && head.owner != owner
        {
            let had_its_start = match (queueing, head.offered) {
                (Queueing::Wait { head_start, .. }, Some(offered)) => {
                    now >= later(offered, head_start)
                }
                _ => false,
            };
            if !had_its_start {
                return false;
            }
            self.queue.pop_front();
        }
        true
    }

    /// The key is not granted: queues the attempt, or removes its place.
    fn hold_off(
        &mut self,
        request: &Acquire,
        now: Instant,
        hints: &mut Vec<(Instance, Hint)>,
    ) -> Held {
        let Queueing::Wait {
            deadline,
            head_start,
        } = request.queueing
        else {
            if request.queueing == Queueing::No {
                self.leave(&request.key, request.owner, now, hints);
            }
            return self.held(now, Duration::MAX);
        };
        let until = later(now, deadline);
        match self
            .queue
            .iter_mut()
            .find(|attempt| attempt.owner == request.owner)
        {
            Some(attempt) => attempt.until = until,
            None => {
                self.queue.push_back(Attempt {
                    owner: request.owner,
                    until,
                    offered: None,
                });
                let holder = self.taken.as_ref().map(|taken| taken.owner.instance);
                hints.extend(holder.map(|holder| (holder, Hint::Wanted(request.key.clone()))));
            }
        }
        if self.taken.is_none() {
            self.offer(&request.key, now, hints);
        }
        self.held(now, head_start)
    }

    fn held(&self, now: Instant, head_start: Duration) -> Held {
        let Some(taken) = &self.taken else {
            let remaining = self.queue.front().map(|head| {
                let passed_by = later(head.offered.unwrap_or(now), head_start);
                passed_by.min(head.until) - now
            });
            return Held {
                remaining: remaining.unwrap_or_default(),
                fingerprint: None,
                label: None,
            };
        };
        Held {
            remaining: taken.until - now,
            fingerprint: match &taken.by {
                By::Lease { fingerprint } => fingerprint.clone(),
                By::Record(_) => None,
            },
            label: None,
        }
    }

    /// Removes an attempt's place. If that makes another one the head of a free key, it is offered the key.
    fn leave(
        &mut self,
        key: &LockKey,
        owner: Owner,
        now: Instant,
        hints: &mut Vec<(Instance, Hint)>,
    ) {
        let was_head = self.queue.front().is_some_and(|head| head.owner == owner);
        self.queue.retain(|attempt| attempt.owner != owner);
        if was_head && self.taken.is_none() {
            self.offer(key, now, hints);
        }
    }

    /// The key is free: tells the head of the queue, unless it was told before, and those right behind it.
    fn offer(&mut self, key: &LockKey, now: Instant, hints: &mut Vec<(Instance, Hint)>) {
        let Some(head) = self.queue.front_mut() else {
            return;
        };
        if head.offered.is_some() {
            return;
        }
        head.offered = Some(now);
        hints.push((head.owner.instance, Hint::Free(key.clone())));
        let behind = self.queue.iter().skip(1).take(TOLD_BEHIND_THE_HEAD);
        hints.extend(behind.map(|next| (next.owner.instance, Hint::Next(key.clone()))));
    }
}

impl State {
    pub(super) fn new() -> Self {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            slots: KeyMap::default(),
            due: BTreeSet::new(),
            fence: clock.unwrap_or_default().as_micros() as u64,
            watchers: HashMap::default(),
            restarted: None,
        }
    }

    pub(super) fn acquire(&mut self, request: Acquire, now: Instant) -> Acquired {
        let (key, owner) = (request.key.clone(), request.owner);
        self.with_slot(&key, now, |slot, fence, hints| {
            if let Some(Taken {
                by: By::Record(record),
                ..
            }) = &slot.taken
            {
                let record = record.clone();
                slot.queue.retain(|attempt| attempt.owner != owner);
                return Acquired::Recorded(record);
            }
            let is_held = slot
                .taken
                .as_ref()
                .is_some_and(|taken| taken.owner != owner);
            let is_next = request.queueing == Queueing::Skip
                || slot.taken.is_some()
                || slot.is_next(owner, request.queueing, now);
            if is_held || !is_next {
                return Acquired::Held(slot.hold_off(&request, now, hints));
            }
            slot.queue.retain(|attempt| attempt.owner != owner);
            if let Some(head) = slot.queue.front_mut() {
                head.offered = None;
            }
            slot.taken = Some(Taken {
                owner,
                until: later(now, request.lease),
                by: By::Lease {
                    fingerprint: request.fingerprint,
                },
            });
            Acquired::Granted(Grant {
                tokens: hand_out(fence, request.block.max(1)),
                others_wait: !slot.queue.is_empty(),
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
        let Release {
            key, owner, ending, ..
        } = request;
        self.with_slot(&key, now, |slot, _, hints| {
            let recorded =
                matches!(&slot.taken, Some(Taken { owner: by, by: By::Record(_), .. }) if *by == owner);
            if slot.leased_to(owner).is_none() {
                slot.leave(&key, owner, now, hints);
                return match recorded {
                    true => Released::Freed,
                    false => Released::NotOurs,
                };
            }
            slot.queue.retain(|attempt| attempt.owner != owner);
            match ending {
                Ending::Free => {
                    slot.taken = None;
                    slot.offer(&key, now, hints);
                }
                Ending::Record { content, retain } => {
                    slot.taken = Some(Taken {
                        owner,
                        until: later(now, retain),
                        by: By::Record(content),
                    });
                    let free = |attempt: &Attempt| (attempt.owner.instance, Hint::Free(key.clone()));
                    hints.extend(slot.queue.iter().map(free));
                }
            }
            Released::Freed
        })
    }

    pub(super) fn force_release(&mut self, key: &LockKey, now: Instant) -> bool {
        self.with_slot(key, now, |slot, _, hints| {
            let was_taken = slot.taken.take().is_some();
            slot.offer(key, now, hints);
            was_taken
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
                by: By::Lease { fingerprint },
            }) => {
                seen.holder = Some(Holder {
                    owner: *owner,
                    remaining: *until - now,
                    fingerprint: fingerprint.clone(),
                    label: None,
                });
            }
            None => {}
        }
        seen
    }

    pub(super) fn watch(&mut self, instance: Instance, hints: mpsc::UnboundedSender<Hint>) {
        let _ = hints.send(Hint::Listening);
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
        self.restarted = Some(now);
    }

    pub(super) fn uptime(&self, now: Instant) -> Duration {
        self.restarted
            .map_or(Duration::MAX, |restarted| now - restarted)
    }

    pub(super) fn is_empty(&mut self, now: Instant) -> bool {
        self.forget_expired(now);
        self.slots.is_empty() && self.due.is_empty()
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
