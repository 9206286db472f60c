//! The lease that a line has: what it takes to pass it on, and to renew it.

use std::{sync::Arc, time::Duration};

use super::{Away, Granted, Transition};
use crate::{
    lease::{Entry, Lease, Renewal},
    store::{Grant, Tokens},
    time::{Instant, later},
};

/// A refill is asked for before fewer than so many tokens are left, if so many wait.
const TOKENS_AHEAD: usize = 16;

/// A lease with everything that only its line knows of it.
#[derive(Debug)]
pub(super) struct HeldLease {
    /// The part that guards look at.
    pub(super) lease: Arc<Lease>,
    pub(super) tokens: Tokens,
    /// How many turns the lease has served, the present one included.
    pub(super) turn: u64,
    /// When the present turn began,
    pub(super) began: Instant,
    /// and how long it may last.
    pub(super) max_hold: Duration,
    /// Since when, and since how many turns, another instance is known to wait.
    pub(super) wanted: Option<(Instant, u64)>,
    pub(super) refill_asked: bool,
    /// The lease serves one turn after another, and is renewed more often.
    pub(super) is_passed_on: bool,
    /// Renewals have failed since then.
    pub(super) away: Option<Away>,
    pub(super) renewal: Renewal,
    /// The lease's entry in the schedule of its shard.
    entry: Option<Entry>,
}

impl HeldLease {
    /// A lease that was asked for at `sent`.
    pub(super) fn new(lease: Arc<Lease>, grant: Grant, sent: Instant, t: &Transition<'_>) -> Self {
        Self {
            renewal: Renewal::new(&t.limits.pace, lease.length, sent),
            lease,
            tokens: grant.tokens,
            turn: 0,
            began: t.now,
            max_hold: Duration::MAX,
            wanted: grant.others_wait.then_some((t.now, 0)),
            refill_asked: false,
            is_passed_on: false,
            away: None,
            entry: None,
        }
    }

    /// Whether other instances have waited long enough.
    pub(super) fn is_used_up(&self, t: &Transition<'_>) -> bool {
        self.wanted.is_some_and(|(since, turns)| {
            let enough_turns = self.turn >= turns + u64::from(t.limits.pass_turns);
            self.turn > 0 && (enough_turns || t.now >= later(since, t.limits.pass_time))
        })
    }

    pub(super) fn want(&mut self, now: Instant) {
        self.wanted.get_or_insert((now, self.turn));
    }

    pub(super) fn lacks_tokens(&self, waiting: usize) -> bool {
        (self.tokens.left() as usize) < waiting.min(TOKENS_AHEAD)
    }

    pub(super) fn serves(&self, granted: &Granted) -> bool {
        self.is_of(&granted.lease) && self.turn == granted.number
    }

    pub(super) fn is_of(&self, lease: &Lease) -> bool {
        self.lease.owner == lease.owner
    }

    /// Renews the lease at once.
    pub(super) fn renew_now(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_now(t.now);
        self.schedule(t);
        t.after.renews_now = true;
    }

    /// Renews the lease as often as one that is passed on.
    pub(super) fn renew_soon(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_soon(&t.limits.pace, t.now);
        self.schedule(t);
    }

    /// Puts the lease into the schedule, or moves it there, after its renewal, its deadline or its turn has changed.
    pub(super) fn schedule(&mut self, t: &mut Transition<'_>) {
        let end = self.lease.deadline().min(self.lease.turn_ends());
        let entry = match self.renewal.due() {
            Some(next) if next < end => Entry::Renewal(next),
            _ => Entry::End(end),
        };
        if self.entry == Some(entry) {
            return;
        }
        self.unschedule(t);
        self.entry = Some(entry);
        t.schedule.add(&self.lease, entry);
        t.scheduler.look_by(entry.at());
    }

    /// Takes the lease out of the schedule. From here on no answer to a renewal means anything.
    pub(super) fn unschedule(&mut self, t: &mut Transition<'_>) {
        if let Some(entry) = self.entry.take() {
            t.schedule.remove(&self.lease, entry);
        }
    }

    /// The schedule has given the lease's entry out.
    pub(super) fn was_taken_out(&mut self) {
        self.entry = None;
    }
}
