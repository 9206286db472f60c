//! The lease of a line, with the state that is needed to pass the lease on and to renew the lease.

use std::{sync::Arc, time::Duration};

use super::{Away, Granted, Transition};
use crate::{
    lease::{Entry, Lease, Renewal},
    store::{Grant, Tokens},
    time::{Instant, later},
};

/// A refill is requested when fewer than this many tokens are left for the requests that wait.
const TOKENS_AHEAD: usize = 16;

/// A lease, with everything about the lease that only its line needs.
#[derive(Debug)]
pub(super) struct HeldLease {
    /// The part of the lease that guards share.
    pub(super) lease: Arc<Lease>,
    /// The tokens for the next turns.
    pub(super) tokens: Tokens,
    /// The token of the current turn.
    pub(super) token: Option<u64>,
    /// How many turns the lease has served, including the current one.
    pub(super) turn: u64,
    /// When the current turn began.
    pub(super) began: Instant,
    /// How long the current turn may last.
    pub(super) max_hold: Duration,
    /// When another instance was first known to wait, and how many turns the lease had served by then.
    pub(super) wanted: Option<(Instant, u64)>,
    /// A refill of tokens was requested and has not arrived.
    pub(super) refill_asked: bool,
    /// The lease serves one turn after another, and is renewed more often for that reason.
    pub(super) is_passed_on: bool,
    /// Set while renewals fail.
    pub(super) away: Option<Away>,
    /// When the lease is renewed next.
    pub(super) renewal: Renewal,
    /// The entry of the lease in the schedule of its shard.
    entry: Option<Entry>,
}

impl HeldLease {
    /// Creates a held lease from a grant that was requested at `sent`.
    pub(super) fn new(lease: Arc<Lease>, grant: Grant, sent: Instant, t: &Transition<'_>) -> Self {
        Self {
            renewal: Renewal::new(&t.limits.pace, lease.length, sent),
            lease,
            tokens: grant.tokens,
            token: None,
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

    /// Whether the lease has served enough turns since another instance began to wait.
    pub(super) fn is_used_up(&self, t: &Transition<'_>) -> bool {
        self.wanted.is_some_and(|(since, turns)| {
            let enough_turns = self.turn >= turns + u64::from(t.limits.pass_turns);
            self.turn > 0 && (enough_turns || t.now >= later(since, t.limits.pass_time))
        })
    }

    /// Notes that another instance waits for the key.
    pub(super) fn want(&mut self, now: Instant) {
        self.wanted.get_or_insert((now, self.turn));
    }

    /// Whether a refill is needed for the requests that wait.
    pub(super) fn lacks_tokens(&self, waiting: usize) -> bool {
        (self.tokens.left() as usize) < waiting.min(TOKENS_AHEAD)
    }

    /// Whether the current turn of this lease is the given one.
    pub(super) fn serves(&self, granted: &Granted) -> bool {
        self.is_of(&granted.lease) && self.turn == granted.number
    }

    /// Whether this is the given lease.
    pub(super) fn is_of(&self, lease: &Lease) -> bool {
        self.lease.owner == lease.owner
    }

    /// Renews the lease at once.
    pub(super) fn renew_now(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_now(t.now);
        self.schedule(t);
        t.follow_up.renews_now = true;
    }

    /// Renews the lease at the pace of a lease that is passed on.
    pub(super) fn renew_soon(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_soon(&t.limits.pace, t.now);
        self.schedule(t);
    }

    /// Updates the lease's entry in the schedule, after the renewal, the deadline or the turn has changed.
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

    /// Removes the lease from the schedule. Answers to renewals have no effect from now on.
    pub(super) fn unschedule(&mut self, t: &mut Transition<'_>) {
        if let Some(entry) = self.entry.take() {
            t.schedule.remove(&self.lease, entry);
        }
    }

    /// Notes that the schedule has already removed the entry.
    pub(super) fn was_taken_out(&mut self) {
        self.entry = None;
    }
}
