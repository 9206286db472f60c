//! The rules of a key: who is granted a lease, who is next in the queue, and who is told.
//!
//! A [`Slot`] is the state of one key as a plain value. The rules change it and nothing else: they
//! have no clock, no randomness, no locks and no I/O, and what they are told and what they tell is
//! in a [`Step`]. The memory store keeps slots in a map. Redis has the same rules in Lua, and
//! `tests/rules` holds it to these by comparing both.
//!
//! A slot with an exclusive lease of A, for which B and C wait, when A releases:
//!
//! ```text
//! leases  [A: exclusive]   queue  [B: exclusive, C: shared]
//! release(A)
//! leases  []               queue  [B: exclusive, offered; C: shared]
//!         hints: Free to B, Next to C
//! acquire(B): granted
//! leases  [B: exclusive]   queue  [C: shared]
//! ```
//!
//! If B has crashed and C asks again after the head start, B loses its place, and C is granted the
//! key.

#![deny(clippy::wildcard_enum_match_arm)]
// Only the tests see the rules from outside.
#![cfg_attr(not(feature = "test-util"), allow(unreachable_pub))]

#[cfg(feature = "postgres")]
mod codec;
mod fence;
mod leases;
mod mode;
mod moment;
mod queue;

use std::collections::VecDeque;

use bytes::Bytes;

#[cfg(feature = "postgres")]
pub(super) use self::codec::Damaged;
pub(crate) use self::mode::InTheWay;
pub use self::{fence::Fence, moment::Moment};
use self::{
    leases::{Lease, Leases},
    queue::{Attempt, PAGE},
};
use super::{
    Acquire, Acquired, Ending, Expected, Grant, Hint, Holder, Inspection, Instance, Owner,
    Queueing, Release, Released, Renew, Renewed, Tokens, types::LISTED,
};
use crate::{Error, LockKey};

/// The leases or the record of a key, and its queue.
///
/// What has expired counts until [`forget_expired`](Slot::forget_expired), which comes before every
/// other call.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    leases: Leases,
    record: Option<Record>,
    queue: VecDeque<Attempt>,
}

/// The record in the place of a lease. Where a transaction can write it, its owner keeps the lease
/// until the release (`codec.rs`), and nobody sees it.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) owner: Owner,
    pub(super) until: Moment,
    pub(super) content: Bytes,
}

/// One call at a key: what the rules need beside the request, and the hints that they leave.
#[derive(Debug)]
pub struct Step<'a> {
    /// The key, for the hints.
    pub key: &'a LockKey,
    /// The time on the store's clock.
    pub now: Moment,
    /// The wall clock, which tokens follow: a test that pauses the store's clock does not stop it.
    pub wall_clock: Moment,
    /// The token counter of the key.
    pub fence: &'a mut Fence,
    /// The hints, and the instances to send them to.
    pub hints: Vec<(Instance, Hint)>,
}

impl Step<'_> {
    fn tokens(&mut self, block: u32, leases: usize) -> Tokens {
        self.fence.hand_out(block, leases as u32, self.wall_clock)
    }

    fn tell(&mut self, owner: Owner, hint: impl Fn(LockKey) -> Hint) {
        self.hints.push((owner.instance, hint(self.key.clone())));
    }
}

impl Slot {
    /// See [`Store::acquire`](super::Store::acquire).
    pub fn acquire(&mut self, request: &Acquire, step: &mut Step<'_>) -> Result<Acquired, Error> {
        if !request.ends.is_empty() {
            self.end_all(request, step);
        }
        if let Some(record) = &self.record {
            let content = record.content.clone();
            self.leave_for_record(request.owner, step);
            return Ok(Acquired::Recorded(content));
        }
        if self.is_of_other_kind(request) {
            self.leave_queue(request.owner);
            return Err(request.mode.wrong_kind());
        }
        if let Queueing::Wait { head_start, .. } = request.queueing {
            self.drop_heads_that_passed(request, head_start, step.now);
        }
        let room = self.room(request);
        if room == 0 {
            return Ok(Acquired::Held(self.hold_off(request, step)));
        }
        self.leave_queue(request.owner);
        for owner in request.owners().take(room) {
            self.lease(owner, request, step.now);
        }
        self.update_offers(step);
        Ok(Acquired::Granted(Grant {
            tokens: step.tokens(request.block.max(1), room),
            count: room as u32,
            others_wait: self.others_wait(request.owner.instance),
        }))
    }

    /// Ends the owners that an attempt names, as releases do.
    fn end_all(&mut self, request: &Acquire, step: &mut Step<'_>) {
        let mut ended = false;
        for end in &request.ends {
            self.leave_queue(end.owner);
            ended |= self.leases.remove(end.owner).is_some();
        }
        self.offer(ended, step);
    }

    /// Leases the key to an owner, or writes the owner's lease anew.
    fn lease(&mut self, owner: Owner, request: &Acquire, now: Moment) {
        // A lease that covers another mode stays what it is.
        let present = self.leases.get(owner).filter(|it| it.mode != request.mode);
        let (mode, fingerprint) = match present {
            Some(lease) => (lease.mode, &lease.fingerprint),
            None => (request.mode, &request.fingerprint),
        };
        let lease = Lease {
            mode,
            until: now + request.lease,
            fingerprint: fingerprint.clone(),
            label: None,
        };
        self.leases.set(owner, lease);
    }

    /// See [`Store::renew`](super::Store::renew).
    pub fn renew(&mut self, request: &Renew, step: &mut Step<'_>) -> Renewed {
        let Some(mut lease) = self.leases.get(request.owner).cloned() else {
            return Renewed::NotOurs;
        };
        let before = lease.mode;
        lease.until = lease.until.max(step.now + request.lease);
        if lease.fingerprint.is_none() {
            lease.mode = before.renewed_as(request.mode);
        }
        let is_downgrade = lease.mode != before;
        self.leases.set(request.owner, lease);
        if is_downgrade {
            self.offer(true, step);
        }
        Renewed::Renewed {
            tokens: (request.refill > 0).then(|| step.tokens(request.refill, 1)),
            others_wait: self.others_wait(request.owner.instance),
        }
    }

    /// See [`Store::release`](super::Store::release).
    pub fn release(&mut self, request: &Release, step: &mut Step<'_>) -> Released {
        let owner = request.owner;
        self.leave_queue(owner);
        let held = self.leases.get(owner).map(|lease| lease.mode);
        match (&request.ending, held) {
            (Ending::Free, Some(_)) => {
                self.leases.remove(owner);
                self.offer(true, step);
            }
            (Ending::Record { content, retain }, Some(mode)) if mode.may_end_with_record() => {
                self.leases.remove(owner);
                self.record = Some(Record {
                    owner,
                    until: step.now + *retain,
                    content: content.clone(),
                });
                for attempt in self.queue.iter().take(PAGE) {
                    step.tell(attempt.owner, Hint::Free);
                }
            }
            (Ending::Free | Ending::Record { .. }, _) => {
                self.offer(false, step);
                if self.record.as_ref().is_none_or(|it| it.owner != owner) {
                    return Released::NotOurs;
                }
            }
        }
        Released::Freed
    }

    /// See [`Store::force_release_if`](super::Store::force_release_if).
    pub fn force_release(&mut self, expected: Expected, step: &mut Step<'_>) -> bool {
        let is_taken = self.record.is_some() || self.leases.first().is_some();
        let is_as_expected = match expected {
            Expected::Anything => true,
            Expected::Holder(owner) => self.record.is_none() && self.leases.get(owner).is_some(),
            Expected::Record => self.record.is_some(),
        };
        if is_as_expected {
            self.record = None;
            self.leases = Leases::default();
            self.offer(true, step);
        }
        is_taken && is_as_expected
    }

    /// See [`Store::inspect`](super::Store::inspect).
    pub fn inspect(&self, fence: u64, now: Moment) -> Inspection {
        let holder = |(owner, lease): (Owner, &Lease)| Holder {
            owner,
            mode: lease.mode,
            remaining: lease.until - now,
            fingerprint: lease.fingerprint.clone(),
            label: lease.label.clone(),
        };
        let record = self.record.as_ref();
        let listed = if record.is_some() { 0 } else { LISTED };
        Inspection {
            holders: self.leases.iter().take(listed).map(holder).collect(),
            queue: self.queue.iter().take(LISTED).map(|it| it.owner).collect(),
            record: record.map(|record| record.content.clone()),
            record_remaining: record.map(|record| record.until - now),
            fence,
        }
    }

    /// When the first entry of the slot expires, or `None` if the slot is empty.
    pub fn earliest_expiry(&self) -> Option<Moment> {
        let lease = self.leases.first().map(|lease| lease.until);
        let record = self.record.as_ref().map(|record| record.until);
        let queue = self.queue.iter().map(|attempt| attempt.until);
        queue.chain(lease).chain(record).min()
    }

    /// Removes the leases, the record and the places whose time is over.
    pub fn forget_expired(&mut self, now: Moment) {
        self.leases.forget_expired(now);
        self.record.take_if(|record| record.until <= now);
        self.queue.retain(|attempt| attempt.until > now);
    }
}
