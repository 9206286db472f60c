//! A lease of a line, with the state that is needed to pass the lease on and to renew the lease.
//!
//! The phases of a lease in its line:
//!
//! ```text
//! granted ──▶ Serving ◀──────────────┐
//!               │   │                │ renewed, with tokens if they had run out
//!               │   └─ Confirming ───┘
//!               │        a turn has ended, the next request waits, and the lease is doubted or has no tokens
//!               │
//!               ├─ lost, and the turn has a fingerprint ──▶ Outlived ──▶ the turn ends
//!               └─ lost, released or recorded ──▶ gone from the line
//! ```
//!
//! A lease that is wanted by another instance is *used up* after `pass_turns` further turns, or
//! after `pass_time`. With the defaults, a lease that had served 40 turns when the hint came serves
//! turn 56 at most, and no turn that would begin more than 10 ms after the hint.

use std::{sync::Arc, time::Duration};

use super::{Away, Confirmation, Granted, Transition, Turn, readers::Readers};
use crate::{
    lease::{Entry, Lease, Renewal},
    store::{Mode, Tokens},
    time::{Instant, later},
};

/// A lease, with everything about the lease that only its line needs.
#[derive(Debug)]
pub(super) struct HeldLease {
    /// The part of the lease that guards share.
    pub(super) lease: Arc<Lease>,
    pub(super) phase: Phase,
    /// The tokens for the next turns.
    pub(super) tokens: Tokens,
    /// How many tokens there were when the last of them arrived.
    pub(super) block: u32,
    /// The token of the last turn.
    pub(super) token: Option<u64>,
    /// How many turns the lease has served, including those under way.
    pub(super) served: u64,
    /// The turn of an exclusive lease or of a permit is under way.
    pub(super) in_turn: bool,
    /// The turns under way of a shared lease.
    pub(super) readers: Readers,
    /// When the last turn began.
    pub(super) began: Instant,
    /// How long the turn of an exclusive lease or of a permit may last.
    pub(super) max_hold: Duration,
    /// When another instance was first known to wait, and how many turns the lease had served by
    /// then.
    pub(super) wanted: Option<(Instant, u64)>,
    /// Requests with numbers below this one were in line when the lease was granted or downgraded.
    /// The readers among them begin together, even if another instance waits. Zero once they
    /// have begun.
    pub(super) late_from: u64,
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

/// Whether turns can begin under a lease.
#[derive(Debug, Default)]
pub(super) enum Phase {
    /// Turns are under way. A lease in this phase has no turn only within a transition.
    #[default]
    Serving,
    /// No turn is under way. The lease waits for a renewal that confirms the lease or brings
    /// tokens, and the next turn begins after that. `release` of the last turn may wait for the
    /// same renewal.
    Confirming(Option<Confirmation>),
    /// The lease is lost, but its turn goes on, because the turn has a fingerprint: work that is
    /// done once runs to its end. Requests with the same fingerprint wait for the end of that
    /// turn, and share the record.
    Outlived,
}

impl HeldLease {
    /// Creates a held lease from a grant that was requested at `sent`.
    pub(super) fn new(
        lease: Arc<Lease>,
        tokens: Tokens,
        others_wait: bool,
        sent: Instant,
        t: &Transition<'_>,
    ) -> Self {
        Self {
            renewal: Renewal::new(&t.limits.pace, lease.length, sent),
            lease,
            phase: Phase::Serving,
            block: tokens.left(),
            tokens,
            token: None,
            served: 0,
            in_turn: false,
            readers: Readers::default(),
            began: t.now,
            max_hold: Duration::MAX,
            wanted: others_wait.then_some((t.now, 0)),
            late_from: t.numbers.next,
            refill_asked: false,
            is_passed_on: false,
            away: None,
            entry: None,
        }
    }

    /// The mode of the lease, which a downgrade changes.
    pub(super) fn mode(&self) -> Mode {
        self.lease.mode()
    }

    /// The number of the lease's attempt, which identifies the lease in its line.
    pub(super) fn number(&self) -> u64 {
        self.lease.owner.attempt
    }

    /// How many turns are under way.
    pub(super) fn turns(&self) -> usize {
        usize::from(self.in_turn) + self.readers.len()
    }

    /// Whether no turn is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.turns() == 0
    }

    /// Whether the lease is lost and its turn goes on.
    pub(super) fn is_outlived(&self) -> bool {
        matches!(self.phase, Phase::Outlived)
    }

    /// The token of the turn under way, or of the last one of several.
    pub(super) fn token(&self) -> Option<u64> {
        self.token.filter(|_| !self.is_idle())
    }

    /// Whether no turn is under way, and the next renewal decides about the next turn.
    pub(super) fn is_confirming(&self) -> bool {
        matches!(self.phase, Phase::Confirming(_))
    }

    /// Whether a request would wait for the confirmation of this lease: a doubted lease that
    /// readers share serves no further reader, although turns are under way.
    pub(super) fn awaits_confirmation(&self) -> bool {
        let is_shared = matches!(self.phase, Phase::Serving) && self.mode() == Mode::Shared;
        self.is_confirming() || (is_shared && !self.lease.is_confirmed())
    }

    /// How long the turn under way has lasted, or the longest one of several.
    pub(super) fn held_for(&self, now: Instant) -> Duration {
        let began = self.readers.first_begin().unwrap_or(self.began);
        now.saturating_duration_since(began)
    }

    /// Ends a turn that is under way.
    pub(super) fn end(&mut self, number: u64) {
        if !self.readers.remove(number) {
            self.in_turn = false;
        }
        self.set_turn_ends();
    }

    /// Restarts the time that a turn under way may last.
    pub(super) fn begin_anew(&mut self, turn: &Arc<Turn>, number: u64, t: &mut Transition<'_>) {
        let max_hold = turn.request.holding.max_hold.unwrap_or(t.limits.max_hold);
        if !self.readers.set_end(number, later(t.now, max_hold)) {
            self.began = t.now;
        }
        self.set_turn_ends();
        self.schedule(t);
    }

    /// Makes the turn of an exclusive lease the first turn of a shared lease.
    pub(super) fn downgrade(&mut self, turn: Arc<Turn>, t: &Transition<'_>) {
        let ends = later(self.began, self.max_hold);
        self.readers.add(self.served, self.began, ends, turn);
        self.in_turn = false;
        self.late_from = t.numbers.next;
        self.lease.downgrade();
        self.set_turn_ends();
    }

    /// Ends the turns of a shared lease that have lasted too long, and returns them.
    pub(super) fn take_readers_past_their_time(&mut self, now: Instant) -> Vec<Arc<Turn>> {
        let due = self.readers.take_due(now);
        self.set_turn_ends();
        due
    }

    /// Tells the lease when its turn has lasted too long: the turn of an exclusive lease, or the
    /// first of several readers.
    pub(super) fn set_turn_ends(&self) {
        let ends = if self.in_turn {
            Some(later(self.began, self.max_hold))
        } else {
            self.readers.first_end()
        };
        self.lease.set_turn_ends(ends);
    }

    /// Notes that another instance waits for the key.
    pub(super) fn want(&mut self, now: Instant) {
        self.wanted.get_or_insert((now, self.served));
    }

    /// Whether the given turn is under way under this lease.
    pub(super) fn serves(&self, granted: &Granted) -> bool {
        let is_last = self.in_turn && self.served == granted.number;
        self.is_of(&granted.lease) && (is_last || self.readers.contains(granted.number))
    }

    /// Whether this is the given lease.
    pub(super) fn is_of(&self, lease: &Lease) -> bool {
        self.lease.owner == lease.owner
    }

    /// Waits for a renewal before the next turn begins.
    pub(super) fn confirm(&mut self, confirmation: Option<Confirmation>, t: &mut Transition<'_>) {
        self.phase = Phase::Confirming(confirmation);
        self.renew_now(t);
    }

    /// Renews the lease at once.
    pub(super) fn renew_now(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_now(t.now);
        self.schedule(t);
    }

    /// Renews the lease at the pace of a lease that is passed on.
    pub(super) fn renew_soon(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_soon(&t.limits.pace, t.now);
        self.schedule(t);
    }

    /// Updates the lease's entry in the schedule, after the renewal, the deadline or the turn has
    /// changed.
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

    /// Removes the lease from the schedule.
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
