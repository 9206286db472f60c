//! One key of a memory store: its leases or its record, and its queue.
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
//! If B has crashed and C asks again after the head start, B loses its place, and C is granted the key.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use super::super::{
    Acquire, Acquired, Ending, Expected, Grant, Held, Hint, Holder, Inspection, Instance, Mode,
    Owner, Queueing, Release, Released, Renew, Renewed, types::LISTED,
};
use super::{
    fence::Fence,
    leases::{Lease, Leases},
};
use crate::{
    Error, ErrorKind, LockKey,
    time::{Instant, later},
};

/// How many attempts from the head of the queue on an offer looks at, and how many are told of a record: the work of a call must not grow with
/// the queue. The attempts behind them become next as those ahead take the key or leave.
const PAGE: usize = 32;

/// How many attempts behind those that are next are sent [`Hint::Next`]: if the next have crashed, the first of them
/// that is alive takes the key.
const HINTED_BEHIND_THE_NEXT: usize = 4;

/// A hint, and the instance to send the hint to.
pub(super) type HintFor = (Instance, Hint);

/// The leases or the record of a key, and its queue.
#[derive(Default)]
pub(super) struct Slot {
    leases: Leases,
    record: Option<Record>,
    queue: VecDeque<Attempt>,
}

/// The record in the place of a lease.
struct Record {
    owner: Owner,
    until: Instant,
    content: Bytes,
}

/// A place in the queue.
struct Attempt {
    owner: Owner,
    mode: Mode,
    /// When the place expires.
    until: Instant,
    /// Since when the attempt could have had the key.
    offered: Option<Instant>,
}

impl Slot {
    /// See [`Store::acquire`](super::Store::acquire).
    pub(super) fn acquire(
        &mut self,
        request: Acquire,
        fence: &mut Fence,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> Result<Acquired, Error> {
        if !request.ends.is_empty() {
            self.end_all(&request, now, hints);
        }
        if let Some(record) = &self.record {
            let content = record.content.clone();
            self.leave_for_record(&request, hints);
            return Ok(Acquired::Recorded(content));
        }
        if self.is_of_other_kind(&request) {
            self.leave_queue(request.owner);
            return Err(wrong_kind(request.mode));
        }
        if let Queueing::Wait { head_start, .. } = request.queueing {
            self.drop_heads_that_passed(&request, head_start, now);
        }
        let room = self.room(&request);
        if room == 0 {
            return Ok(Acquired::Held(self.hold_off(&request, now, hints)));
        }
        self.leave_queue(request.owner);
        let instance = request.owner.instance;
        for owner in request.owners().take(room) {
            self.lease(owner, &request, now);
        }
        self.update_offers(&request.key, now, hints);
        Ok(Acquired::Granted(Grant {
            tokens: fence.hand_out(request.block.max(1), room as u32),
            count: room as u32,
            others_wait: self.others_wait(instance),
        }))
    }

    /// Ends the owners that an attempt names, as releases do.
    fn end_all(&mut self, request: &Acquire, now: Instant, hints: &mut Vec<HintFor>) {
        let mut ended = false;
        for end in &request.ends {
            self.leave_queue(end.owner);
            ended |= self.leases.remove(end.owner).is_some();
        }
        self.offer(&request.key, ended, now, hints);
    }

    /// See [`Store::renew`](super::Store::renew).
    pub(super) fn renew(
        &mut self,
        request: &Renew,
        fence: &mut Fence,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> Renewed {
        let Some(lease) = self.leases.get_mut(request.owner) else {
            return Renewed::NotOurs;
        };
        let until = lease.until.max(later(now, request.lease));
        lease.until = until;
        let is_downgrade = lease.mode == Mode::Exclusive
            && request.mode == Mode::Shared
            && lease.fingerprint.is_none();
        if is_downgrade {
            lease.mode = Mode::Shared;
        }
        self.leases.ends_at(until);
        if is_downgrade {
            self.offer(&request.key, true, now, hints);
        }
        Renewed::Renewed {
            tokens: (request.refill > 0).then(|| fence.hand_out(request.refill, 1)),
            others_wait: self.others_wait(request.owner.instance),
        }
    }

    /// See [`Store::release`](super::Store::release).
    pub(super) fn release(
        &mut self,
        request: Release,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> Released {
        let Release {
            key, owner, ending, ..
        } = request;
        self.leave_queue(owner);
        let is_record = matches!(ending, Ending::Record { .. });
        let held = self.leases.get(owner).map(|lease| lease.mode);
        if held.is_none_or(|mode| is_record && mode != Mode::Exclusive) {
            self.offer(&key, false, now, hints);
            return match &self.record {
                Some(record) if record.owner == owner => Released::Freed,
                _ => Released::NotOurs,
            };
        }
        self.leases.remove(owner);
        match ending {
            Ending::Free => self.offer(&key, true, now, hints),
            Ending::Record { content, retain } => {
                self.record = Some(Record {
                    owner,
                    until: later(now, retain),
                    content,
                });
                let free = |attempt: &Attempt| (attempt.owner.instance, Hint::Free(key.clone()));
                hints.extend(self.queue.iter().take(PAGE).map(free));
            }
        }
        Released::Freed
    }

    /// See [`Store::force_release_if`](super::Store::force_release_if).
    pub(super) fn force_release(
        &mut self,
        key: &LockKey,
        expected: Expected,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> bool {
        let is_as_expected = match expected {
            Expected::Anything => true,
            Expected::Holder(owner) => self.leases.get(owner).is_some(),
            Expected::Record => self.record.is_some(),
        };
        if !is_as_expected {
            return false;
        }
        let was_taken = self.record.take().is_some() || !self.leases.is_empty();
        self.leases.clear();
        self.offer(key, true, now, hints);
        was_taken
    }

    /// See [`Store::inspect`](super::Store::inspect).
    pub(super) fn inspect(&self, fence: u64, now: Instant) -> Inspection {
        let holder = |(owner, lease): (&Owner, &Lease)| Holder {
            owner: *owner,
            mode: lease.mode,
            remaining: lease.until - now,
            fingerprint: lease.fingerprint.clone(),
            label: None,
        };
        let mut holders: Vec<_> = self.leases.iter().map(holder).collect();
        holders.sort_by_key(|holder| holder.remaining);
        holders.truncate(LISTED);
        let record = self.record.as_ref();
        Inspection {
            holders,
            queue: self.queue.iter().take(LISTED).map(|it| it.owner).collect(),
            record: record.map(|record| record.content.clone()),
            record_remaining: record.map(|record| record.until - now),
            fence,
        }
    }

    /// A time before which no entry of the slot expires, or `None` if the slot is empty.
    pub(super) fn earliest_expiry(&self) -> Option<Instant> {
        let leases = self.leases.soonest().into_iter();
        let record = self.record.iter().map(|record| record.until);
        let queue = self.queue.iter().map(|attempt| attempt.until);
        leases.chain(record).chain(queue).min()
    }

    /// Removes the leases, the record and the places whose time is over.
    pub(super) fn forget_expired(&mut self, now: Instant) {
        self.leases.forget_expired(now);
        self.record.take_if(|record| record.until <= now);
        self.queue.retain(|attempt| attempt.until > now);
    }

    /// How many of the attempt's owners there is room for, beside the holders and the attempts ahead in the queue.
    fn room(&self, request: &Acquire) -> usize {
        // A shared lease is not granted again as an exclusive one.
        let is_ours = |owner: &Owner| {
            let lease = self.leases.get(*owner);
            lease.is_some_and(|it| it.mode == request.mode || it.mode == Mode::Exclusive)
        };
        let ours = request.owners().filter(is_ours).count();
        let ahead = match request.queueing {
            Queueing::Skip => 0,
            Queueing::No | Queueing::Wait { .. } => self.ahead_of(request.owner),
        };
        let is_reader = |attempt: &Attempt| attempt.mode == Mode::Shared;
        let all_share = ahead <= PAGE && self.queue.iter().take(ahead).all(is_reader);
        let held = self.leases.len() - ours;
        let room = room_behind(request.mode, self.leases.mode(), held, ahead, all_share);
        room.max(ours).min(1 + request.more.len())
    }

    /// How many attempts are ahead of this owner's: all of them if the owner is not queued.
    fn ahead_of(&self, owner: Owner) -> usize {
        let place = self.queue.iter().position(|attempt| attempt.owner == owner);
        place.unwrap_or(self.queue.len())
    }

    /// Whether the key is a semaphore and the attempt wants a lock, or the other way round.
    fn is_of_other_kind(&self, request: &Acquire) -> bool {
        let mut others = self
            .queue
            .iter()
            .filter(|other| other.owner != request.owner);
        let mode = self.leases.mode();
        mode.or_else(|| others.next().map(|attempt| attempt.mode))
            .is_some_and(|mode| mode.is_permit() != request.mode.is_permit())
    }

    /// Whether attempts of other instances are queued.
    fn others_wait(&self, instance: Instance) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|attempt| attempt.owner.instance != instance)
    }

    /// Leases the key to an owner, or counts the time of the owner's lease anew.
    fn lease(&mut self, owner: Owner, request: &Acquire, now: Instant) {
        let until = later(now, request.lease);
        match self.leases.get_mut(owner) {
            Some(lease) => {
                lease.until = until;
                self.leases.ends_at(until);
            }
            None => {
                let lease = Lease {
                    mode: request.mode,
                    until,
                    fingerprint: request.fingerprint.clone(),
                };
                self.leases.insert(owner, lease);
            }
        }
    }

    /// Removes the owner's place in the queue, if there is one.
    fn leave_queue(&mut self, owner: Owner) {
        self.queue.retain(|attempt| attempt.owner != owner);
    }

    /// Removes the attempt, which has found a record, from the queue, and tells the attempt that thereby comes into the first page, or to the
    /// place of this one: all attempts in the queue learn of the record one page after another.
    fn leave_for_record(&mut self, request: &Acquire, hints: &mut Vec<HintFor>) {
        let place = self.ahead_of(request.owner);
        if self.queue.remove(place).is_some()
            && let Some(following) = self.queue.get(place.max(PAGE - 1))
        {
            hints.push((following.owner.instance, Hint::Free(request.key.clone())));
        }
    }

    /// Removes the heads of the queue that have left the key untaken for a head start, if they are in the way of this attempt: all of
    /// them at once, so that a page of dead attempts delays the next page once.
    fn drop_heads_that_passed(&mut self, request: &Acquire, head_start: Duration, now: Instant) {
        if self.room(request) > 0 {
            return;
        }
        while let Some(head) = self.queue.front()
            && head.owner != request.owner
            && head
                .offered
                .is_some_and(|offered| now >= later(offered, head_start))
        {
            self.queue.pop_front();
        }
    }

    /// Handles an attempt that is not granted the key: queues the attempt, or removes its place.
    fn hold_off(&mut self, request: &Acquire, now: Instant, hints: &mut Vec<HintFor>) -> Held {
        let head_start = match request.queueing {
            Queueing::Wait {
                deadline,
                head_start,
            } => {
                self.queue(request, later(now, deadline), hints);
                head_start
            }
            Queueing::No => {
                self.leave_queue(request.owner);
                Duration::MAX
            }
            Queueing::Skip => Duration::MAX,
        };
        self.offer(&request.key, false, now, hints);
        self.held(now, head_start)
    }

    /// Adds the attempt to the queue, or moves the deadline of its place. Tells the holders of a new attempt.
    fn queue(&mut self, request: &Acquire, until: Instant, hints: &mut Vec<HintFor>) {
        let owner = request.owner;
        if let Some(attempt) = self.queue.iter_mut().find(|queued| queued.owner == owner) {
            attempt.until = until;
            return;
        }
        // An instance has one attempt at a key. With the second attempt, every holder knows of one that is not its own.
        if self.queue.len() < 2 || self.leases.mode() == Some(Mode::Exclusive) {
            let holders = self.leases.instances();
            let others = holders.filter(|holder| *holder != owner.instance);
            hints.extend(others.map(|holder| (holder, Hint::Wanted(request.key.clone()))));
        }
        self.queue.push_back(Attempt {
            owner,
            mode: request.mode,
            until,
            offered: None,
        });
    }

    /// The answer for an attempt that is not granted the key: the time until the first lease ends, or until the head of
    /// the queue has left the key untaken for a head start.
    fn held(&self, now: Instant, head_start: Duration) -> Held {
        let leases = self.leases.soonest().into_iter();
        let passed = self.queue.front().and_then(|head| {
            let passed = later(head.offered?, head_start);
            Some(passed.min(head.until))
        });
        let first = leases.chain(passed).min();
        Held {
            remaining: first.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)),
            fingerprint: self
                .leases
                .any()
                .and_then(|lease| lease.fingerprint.clone()),
            label: None,
        }
    }

    /// Updates the offers, and tells the attempts right behind those that are next if there is a new offer, or if a lease has `ended`.
    fn offer(&mut self, key: &LockKey, ended: bool, now: Instant, hints: &mut Vec<HintFor>) {
        if self.record.is_some() {
            return;
        }
        let (last, is_new) = self.update_offers(key, now, hints);
        if ended || is_new {
            let behind = self.queue.iter().skip(last).take(HINTED_BEHIND_THE_NEXT);
            hints.extend(behind.map(|behind| (behind.owner.instance, Hint::Next(key.clone()))));
        }
    }

    /// Offers the key to the attempts of the first page that have become next, and takes the offers back from those that are not next any
    /// more. Returns the place behind the last one that is next, and whether there is a new offer.
    fn update_offers(
        &mut self,
        key: &LockKey,
        now: Instant,
        hints: &mut Vec<HintFor>,
    ) -> (usize, bool) {
        let (mode, held) = (self.leases.mode(), self.leases.len());
        let (mut last, mut is_new, mut all_share) = (0, false, true);
        for (ahead, attempt) in self.queue.iter_mut().take(PAGE).enumerate() {
            if room_behind(attempt.mode, mode, held, ahead, all_share) == 0 {
                attempt.offered = None;
            } else {
                last = ahead + 1;
                if attempt.offered.is_none() {
                    attempt.offered = Some(now);
                    is_new = true;
                    hints.push((attempt.owner.instance, Hint::Free(key.clone())));
                }
            }
            all_share &= attempt.mode == Mode::Shared;
        }
        (last, is_new)
    }
}

/// How many leases of a mode there is room for, beside the leases of others and behind `ahead` attempts, which all share the key or not. `leased`
/// is the mode of the present leases.
fn room_behind(
    mode: Mode,
    leased: Option<Mode>,
    held: usize,
    ahead: usize,
    all_share: bool,
) -> usize {
    match mode {
        Mode::Exclusive => usize::from(held == 0 && ahead == 0),
        Mode::Shared => usize::from(leased.is_none_or(|it| it == Mode::Shared) && all_share),
        Mode::Permit { of } => (of as usize).saturating_sub(held + ahead),
    }
}

/// The error of an attempt at a key that is used for the other kind of leases.
fn wrong_kind(mode: Mode) -> Error {
    let message = match mode.is_permit() {
        true => "the key is locked: use another key for permits",
        false => "permits of this key are held: use another key for locks",
    };
    Error::new(ErrorKind::Foreign, message)
}
