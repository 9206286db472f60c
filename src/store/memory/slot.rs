//! One key of a memory store: its lease or record, and its queue.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use super::super::{
    Acquire, Acquired, Ending, Grant, Held, Hint, Holder, Inspection, Instance, Owner, Queueing,
    Release, Released, Renew, Renewed, Tokens,
};
use crate::{
    LockKey,
    time::{Instant, later},
};

/// How many attempts behind the head of the queue are sent [`Hint::Next`]: if the head has crashed, the first of them
/// that is alive takes the key.
const HINTED_BEHIND_THE_HEAD: usize = 4;

/// A hint, and the instance to send the hint to.
pub(super) type HintFor = (Instance, Hint);

/// The lease or record of a key, and its queue.
#[derive(Default)]
pub(super) struct Slot {
    taken: Option<Taken>,
    queue: VecDeque<Attempt>,
}

/// A lease or a record, which takes the key until its time is over.
struct Taken {
    owner: Owner,
    until: Instant,
    by: By,
}

/// The kind of thing that takes a key.
enum By {
    Lease { fingerprint: Option<Bytes> },
    Record(Bytes),
}

/// A place in the queue.
struct Attempt {
    owner: Owner,
    /// When the place expires.
    until: Instant,
    /// Since when the key has been free for this attempt, as the head of the queue.
    offered: Option<Instant>,
}

impl Slot {
    /// See [`Store::acquire`](super::Store::acquire). `fence` is the highest token handed out.
    pub(super) fn acquire(
        &mut self,
        request: Acquire,
        fence: &mut u64,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> Acquired {
        let owner = request.owner;
        if let Some(record) = self.record() {
            let record = record.clone();
            self.leave_queue(owner);
            return Acquired::Recorded(record);
        }
        let is_held = self
            .taken
            .as_ref()
            .is_some_and(|taken| taken.owner != owner);
        let is_next = request.queueing == Queueing::Skip
            || self.taken.is_some()
            || self.is_next(owner, request.queueing, now);
        if is_held || !is_next {
            return Acquired::Held(self.hold_off(&request, now, hints));
        }
        self.leave_queue(owner);
        if let Some(head) = self.queue.front_mut() {
            head.offered = None;
        }
        self.taken = Some(Taken {
            owner,
            until: later(now, request.lease),
            by: By::Lease {
                fingerprint: request.fingerprint,
            },
        });
        Acquired::Granted(Grant {
            tokens: hand_out(fence, request.block.max(1)),
            others_wait: !self.queue.is_empty(),
        })
    }

    /// See [`Store::renew`](super::Store::renew).
    pub(super) fn renew(&mut self, request: &Renew, fence: &mut u64, now: Instant) -> Renewed {
        let others_wait = !self.queue.is_empty();
        let Some(taken) = self.leased_to(request.owner) else {
            return Renewed::NotOurs;
        };
        taken.until = taken.until.max(later(now, request.lease));
        Renewed::Renewed {
            tokens: (request.refill > 0).then(|| hand_out(fence, request.refill)),
            others_wait,
        }
    }

    /// See [`Store::start_release`](super::Store::start_release).
    pub(super) fn release(
        &mut self,
        request: Release,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> Released {
        let Release {
            key, owner, ending, ..
        } = request;
        if self.leased_to(owner).is_none() {
            let is_recorded =
                self.record().is_some() && self.taken.iter().any(|taken| taken.owner == owner);
            self.leave(&key, owner, now, hints);
            return if is_recorded {
                Released::Freed
            } else {
                Released::NotOurs
            };
        }
        self.leave_queue(owner);
        match ending {
            Ending::Free => {
                self.taken = None;
                self.offer(&key, now, hints);
            }
            Ending::Record { content, retain } => {
                self.taken = Some(Taken {
                    owner,
                    until: later(now, retain),
                    by: By::Record(content),
                });
                let free = |attempt: &Attempt| (attempt.owner.instance, Hint::Free(key.clone()));
                hints.extend(self.queue.iter().map(free));
            }
        }
        Released::Freed
    }

    /// See [`Store::force_release`](super::Store::force_release).
    pub(super) fn force_release(
        &mut self,
        key: &LockKey,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> bool {
        let was_taken = self.taken.take().is_some();
        self.offer(key, now, hints);
        was_taken
    }

    /// See [`Store::inspect`](super::Store::inspect).
    pub(super) fn inspect(&self, fence: u64, now: Instant) -> Inspection {
        let mut seen = Inspection {
            queue: self.queue.iter().map(|attempt| attempt.owner).collect(),
            fence,
            ..Inspection::default()
        };
        match &self.taken {
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

    fn record(&self) -> Option<&Bytes> {
        match &self.taken {
            Some(Taken {
                by: By::Record(record),
                ..
            }) => Some(record),
            _ => None,
        }
    }

    fn leave_queue(&mut self, owner: Owner) {
        self.queue.retain(|attempt| attempt.owner != owner);
    }

    /// The lease of this owner, if the owner holds the key.
    fn leased_to(&mut self, owner: Owner) -> Option<&mut Taken> {
        self.taken
            .as_mut()
            .filter(|taken| taken.owner == owner && matches!(taken.by, By::Lease { .. }))
    }

    /// When the first entry of the slot expires, or `None` if the slot is empty.
    pub(super) fn earliest_expiry(&self) -> Option<Instant> {
        let taken = self.taken.iter().map(|taken| taken.until);
        taken
            .chain(self.queue.iter().map(|attempt| attempt.until))
            .min()
    }

    pub(super) fn forget_expired(&mut self, now: Instant) {
        self.taken.take_if(|taken| taken.until <= now);
        self.queue.retain(|attempt| attempt.until > now);
    }

    /// Whether the owner is next for the free key. Removes heads of the queue whose head start is over.
    fn is_next(&mut self, owner: Owner, queueing: Queueing, now: Instant) -> bool {
        while let Some(head) = self.queue.front()
            && head.owner != owner
        {
            let is_head_start_over = match (queueing, head.offered) {
                (Queueing::Wait { head_start, .. }, Some(offered)) => {
                    now >= later(offered, head_start)
                }
                _ => false,
            };
            if !is_head_start_over {
                return false;
            }
            self.queue.pop_front();
        }
        true
    }

    /// Handles an attempt that is not granted the key: queues the attempt, or removes its place.
    fn hold_off(&mut self, request: &Acquire, now: Instant, hints: &mut Vec<HintFor>) -> Held {
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

    /// The answer for an attempt that is not granted the key: the remaining time of the lease or record, or of the
    /// head's head start.
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

    /// Removes an attempt's place. If another attempt becomes the head of a free key's queue, the key is offered to
    /// that attempt.
    fn leave(&mut self, key: &LockKey, owner: Owner, now: Instant, hints: &mut Vec<HintFor>) {
        let was_head = self.queue.front().is_some_and(|head| head.owner == owner);
        self.leave_queue(owner);
        if was_head && self.taken.is_none() {
            self.offer(key, now, hints);
        }
    }

    /// Offers the free key to the head of the queue, unless that was done before, and tells the attempts right behind
    /// the head.
    fn offer(&mut self, key: &LockKey, now: Instant, hints: &mut Vec<HintFor>) {
        let Some(head) = self.queue.front_mut() else {
            return;
        };
        if head.offered.is_some() {
            return;
        }
        head.offered = Some(now);
        hints.push((head.owner.instance, Hint::Free(key.clone())));
        let behind = self.queue.iter().skip(1).take(HINTED_BEHIND_THE_HEAD);
        hints.extend(behind.map(|next| (next.owner.instance, Hint::Next(key.clone()))));
    }
}

/// Takes the next `count` tokens from the counter.
fn hand_out(fence: &mut u64, count: u32) -> Tokens {
    let block = Tokens::new(*fence + 1, count);
    *fence += u64::from(count);
    block
}
