//! The queue of a key: who is next, who is offered the key, and who is told.
//!
//! The work of a call must not grow with the queue: it looks at one [page](PAGE) of attempts from
//! the head on. The attempts behind them become next as those ahead take the key or leave.

use std::time::Duration;

use super::{
    super::{Acquire, Held, Hint, Instance, Mode, Owner, Queueing},
    Moment, Slot, Step,
    mode::InTheWay,
};

/// How many attempts from the head of the queue on an offer looks at, and how many are told of a
/// record.
pub(super) const PAGE: usize = 16;

/// How many attempts behind those that are next are sent [`Hint::Next`]: if the next have crashed,
/// the first of them that is alive takes the key.
const HINTED_BEHIND_THE_NEXT: usize = 4;

/// How many holders are told that an attempt waits.
const HOLDERS_TOLD: usize = 100;

/// Among how many attempts another instance's is looked for. An instance has one attempt at a key,
/// or a few while it gives others up.
const SEARCHED_FOR_OTHERS: usize = 10;

/// A place in the queue.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    /// When the place expires.
    pub(super) until: Moment,
    /// Since when the attempt could have had the key.
    pub(super) offered: Option<Moment>,
}

impl Slot {
    /// How many of the attempt's owners there is room for, beside the holders and the attempts
    /// ahead in the queue.
    pub(super) fn room(&self, request: &Acquire) -> usize {
        let is_ours = |owner: &Owner| {
            let lease = self.leases.get(*owner);
            lease.is_some_and(|it| it.mode.covers(request.mode))
        };
        let ours = request.owners().filter(is_ours).count();
        let ahead = match request.queueing {
            Queueing::Skip => 0,
            Queueing::No | Queueing::Wait { .. } => self.ahead_of(request.owner),
        };
        let mut attempts = self.queue.iter().take(ahead);
        let room = request.mode.room(InTheWay {
            leased: self.leases.mode(),
            held: self.leases.len() - ours,
            ahead,
            all_share: ahead <= PAGE && attempts.all(|it| it.mode.shares_turns()),
        });
        room.max(ours).min(1 + request.more.len())
    }

    /// How many attempts are ahead of this owner's: all of them if the owner is not queued.
    fn ahead_of(&self, owner: Owner) -> usize {
        let place = self.queue.iter().position(|attempt| attempt.owner == owner);
        place.unwrap_or(self.queue.len())
    }

    /// Whether the key is a semaphore and the attempt wants a lock, or the other way round.
    pub(super) fn is_of_other_kind(&self, request: &Acquire) -> bool {
        let mut queue = self.queue.iter();
        let other = queue.find(|other| other.owner != request.owner);
        let mode = self.leases.mode().or(other.map(|attempt| attempt.mode));
        mode.is_some_and(|mode| mode.is_permit() != request.mode.is_permit())
    }

    /// Whether attempts of other instances are queued.
    pub(super) fn others_wait(&self, instance: Instance) -> bool {
        let mut queue = self.queue.iter().take(SEARCHED_FOR_OTHERS);
        queue.any(|attempt| attempt.owner.instance != instance)
    }

    /// Removes the owner's place in the queue, if there is one.
    pub(super) fn leave_queue(&mut self, owner: Owner) {
        self.queue.retain(|attempt| attempt.owner != owner);
    }

    /// Removes an attempt that has found a record from the queue, and tells the attempt that
    /// thereby comes into the first page, or to the place of this one: all attempts in the
    /// queue learn of the record one page after another.
    pub(super) fn leave_for_record(&mut self, owner: Owner, step: &mut Step<'_>) {
        let place = self.ahead_of(owner);
        if self.queue.remove(place).is_some()
            && let Some(following) = self.queue.get(place.max(PAGE - 1))
        {
            step.tell(following.owner, Hint::Free);
        }
    }

    /// Removes the heads of the queue that have left the key untaken for a head start, if they are
    /// in the way of this attempt: all of them at once, so that a page of dead attempts delays
    /// the next page once.
    pub(super) fn drop_heads_that_passed(
        &mut self,
        request: &Acquire,
        head_start: Duration,
        now: Moment,
    ) {
        if self.room(request) > 0 {
            return;
        }
        let has_passed = |head: &Attempt| {
            let offered = head.offered;
            head.owner != request.owner && offered.is_some_and(|at| now >= at + head_start)
        };
        while self.queue.front().is_some_and(has_passed) {
            self.queue.pop_front();
        }
    }

    /// Handles an attempt that is not granted the key: queues the attempt, or removes its place.
    pub(super) fn hold_off(&mut self, request: &Acquire, step: &mut Step<'_>) -> Held {
        self.take_place(request, step);
        self.offer(false, step);
        let head_start = match request.queueing {
            Queueing::Wait { head_start, .. } => head_start,
            Queueing::No | Queueing::Skip => Duration::MAX,
        };
        self.held(head_start, step.now)
    }

    /// Queues an attempt that waits, and removes the place of one that does not.
    pub(super) fn take_place(&mut self, request: &Acquire, step: &mut Step<'_>) {
        match request.queueing {
            Queueing::Wait { deadline, .. } => self.queue(request, step.now + deadline, step),
            Queueing::No => self.leave_queue(request.owner),
            Queueing::Skip => {}
        }
    }

    /// Adds the attempt to the queue, or moves the deadline of its place. Tells the holders of a
    /// new attempt.
    fn queue(&mut self, request: &Acquire, until: Moment, step: &mut Step<'_>) {
        let owner = request.owner;
        if let Some(attempt) = self.queue.iter_mut().find(|queued| queued.owner == owner) {
            attempt.until = until;
            return;
        }
        // An instance has one attempt at a key. With the second attempt, every holder knows of one
        // that is not its own.
        if self.queue.len() < 2 || self.leases.mode().is_some_and(Mode::is_alone) {
            let mut holders = self.leases.instances(HOLDERS_TOLD);
            holders.remove(&owner.instance);
            let wanted = |holder| (holder, Hint::Wanted(step.key.clone()));
            step.hints.extend(holders.into_iter().map(wanted));
        }
        self.queue.push_back(Attempt {
            owner,
            mode: request.mode,
            until,
            offered: None,
        });
    }

    /// The answer for an attempt that is not granted the key: the time until the first lease ends,
    /// or until the head of the queue has left the key untaken for a head start.
    fn held(&self, head_start: Duration, now: Moment) -> Held {
        let lease = self.leases.first();
        let passed = self.queue.front().and_then(|head| {
            let passed = head.offered? + head_start;
            Some(passed.min(head.until))
        });
        let first = lease
            .map(|lease| lease.until)
            .into_iter()
            .chain(passed)
            .min();
        Held {
            remaining: first.map_or(Duration::ZERO, |at| at - now),
            fingerprint: lease.and_then(|lease| lease.fingerprint.clone()),
            label: lease.and_then(|lease| lease.label.clone()),
        }
    }

    /// Updates the offers, and tells the attempts right behind those that are next if there is a
    /// new offer, or if a lease has `ended`. A key with a record is not offered.
    pub(super) fn offer(&mut self, ended: bool, step: &mut Step<'_>) {
        if self.record.is_some() {
            return;
        }
        let (last, is_new) = self.update_offers(step);
        if ended || is_new {
            let behind = self.queue.iter().skip(last).take(HINTED_BEHIND_THE_NEXT);
            behind.for_each(|behind| step.tell(behind.owner, Hint::Next));
        }
    }

    /// Offers the key to the attempts of the first page that have become next, and takes the offers
    /// back from those that are not next any more. Returns the place behind the last one that is
    /// next, and whether there is a new offer.
    pub(super) fn update_offers(&mut self, step: &mut Step<'_>) -> (usize, bool) {
        let mut way = InTheWay {
            leased: self.leases.mode(),
            held: self.leases.len(),
            ahead: 0,
            all_share: true,
        };
        let (mut last, mut is_new) = (0, false);
        for attempt in self.queue.iter_mut().take(PAGE) {
            let is_next = attempt.mode.room(way) > 0;
            way.ahead += 1;
            way.all_share &= attempt.mode.shares_turns();
            if !is_next {
                attempt.offered = None;
                continue;
            }
            last = way.ahead;
            if attempt.offered.is_none() {
                attempt.offered = Some(step.now);
                is_new = true;
                step.tell(attempt.owner, Hint::Free);
            }
        }
        (last, is_new)
    }
}
