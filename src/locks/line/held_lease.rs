//! A lease of a line, with the state that is needed to pass the lease on and to renew the lease.
//!
//! ```text
//! granted ──▶ turns are under way ◀───────────┐
//!               │   │                         │ renewed, with tokens if they had run out
//!               │   └─ idle, for a moment ────┘
//!               │        a turn has ended, the next request waits, and the lease is doubted or has no tokens
//!               │
//!               ├─ lost, and the turn has a fingerprint ──▶ outlived ──▶ the turn ends
//!               └─ lost, released or recorded ──▶ gone from the line
//! ```
//!
//! A caller that asks whether the lease is held, or was held until the end of a turn, is told by
//! the answer to a renewal that was sent after that moment, or to the release. Nothing waits for
//! it: the next turn begins meanwhile, because a lease that was lost does not come back.
//!
//! A lease that is wanted by another instance is *used up* after `pass_turns` further turns, or
//! after `pass_time`. With the defaults, a lease that had served 40 turns when the hint came serves
//! turn 56 at most, and no turn that would begin more than 10 ms after the hint.

use std::{mem::take, sync::Arc, time::Duration};

use super::{Away, Callers, Granted, Transition, Turn, lost_error, readers::Readers};
use crate::{
    Loss,
    lease::{Entry, Lease, Renewal},
    store::{Mode, Tokens, ends::Caller},
    time::{Instant, later},
};

/// A lease, with everything about the lease that only its line needs.
#[derive(Debug)]
pub(super) struct HeldLease {
    /// The part of the lease that guards share.
    pub(super) lease: Arc<Lease>,
    /// The lease is lost, but its turn goes on, because the turn has a fingerprint: work that is
    /// done once runs to its end. Requests with the same fingerprint wait for the end of that
    /// turn, and share the record.
    pub(super) is_outlived: bool,
    /// The store may have forgotten the lease. No turn begins until it has answered a renewal that
    /// was sent after the doubt came.
    pub(super) is_doubted: bool,
    /// The doubt came after the last renewal was sent, whose answer does not settle it.
    pub(super) is_doubted_anew: bool,
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
    /// The last hint of another instance that the lease has heard of.
    pub(super) heard: Option<Instant>,
    /// Requests with numbers below this one were in line when the lease was granted or downgraded.
    /// The readers among them begin together, even if another instance waits. Zero once they
    /// have begun.
    pub(super) late_from: u64,
    /// Set while renewals fail.
    pub(super) away: Option<Away>,
    /// When the lease is renewed next.
    pub(super) renewal: Renewal,
    /// The callers that are told whether the lease is held.
    pub(super) callers: Callers,
    /// How many of them the answer to the renewal under way is for.
    pub(super) asked: usize,
    /// The entry of the lease in the schedule of its shard.
    entry: Option<Entry>,
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
            renewal: Renewal::new(t.pace, lease.length, sent),
            lease,
            is_outlived: false,
            is_doubted: false,
            is_doubted_anew: false,
            block: tokens.left(),
            tokens,
            token: None,
            served: 0,
            in_turn: false,
            readers: Readers::default(),
            began: t.now,
            max_hold: Duration::MAX,
            wanted: others_wait.then_some((t.now, 0)),
            heard: None,
            late_from: t.numbers.next,
            away: None,
            callers: Callers::new(),
            asked: 0,
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

    /// The token of the turn under way, or of the last one of several.
    pub(super) fn token(&self) -> Option<u64> {
        self.token.filter(|_| !self.is_idle())
    }

    /// Whether a request would wait for a renewal of this lease. A doubted lease that readers share
    /// serves no further reader, although turns are under way.
    pub(super) fn awaits_renewal(&self) -> bool {
        let waits_with_others = self.mode().shares_turns() && self.is_doubted;
        !self.is_outlived && (self.is_idle() || waits_with_others)
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
    }

    /// Restarts the time that a turn under way may last.
    pub(super) fn begin_anew(&mut self, turn: &Arc<Turn>, number: u64, t: &mut Transition<'_>) {
        let max_hold = turn.request.holding.max_hold.unwrap_or(t.config.max_hold);
        if !self.readers.set_end(number, later(t.now, max_hold)) {
            self.began = t.now;
        }
        self.schedule(t);
    }

    /// Makes the turn of an exclusive lease the first turn of a shared lease.
    pub(super) fn downgrade(&mut self, turn: Arc<Turn>, t: &Transition<'_>) {
        let ends = later(self.began, self.max_hold);
        self.readers.add(self.served, self.began, ends, turn);
        self.in_turn = false;
        self.late_from = t.numbers.next;
        self.lease.downgrade();
    }

    /// When the turn under way has lasted too long, or the first of several.
    pub(super) fn turn_ends(&self) -> Option<Instant> {
        let ends = self.in_turn.then(|| later(self.began, self.max_hold));
        ends.or_else(|| self.readers.first_end())
    }

    /// Whether the turn under way has lasted too long, or one of several.
    pub(super) fn is_past_its_time(&self, now: Instant) -> bool {
        self.turn_ends().is_some_and(|ends| now >= ends)
    }

    /// Doubts the lease: the store may have forgotten it.
    pub(super) fn doubt(&mut self) {
        self.is_doubted = true;
        self.is_doubted_anew = true;
    }

    /// Ends the lease as lost. Callers whose turns have ended before are told what the store says,
    /// now or in the answer to the release: the loss may be that of the next turn only.
    pub(super) fn lose(&mut self, loss: Loss, t: &mut Transition<'_>) {
        self.lease.lose(loss);
        if loss == Loss::NotOurs {
            t.tell(take(&mut self.callers), Err(lost_error(Some(loss))));
        }
        t.follow_up.lost.push((self.lease.clone(), loss));
    }

    /// Notes that another instance waits for the key.
    pub(super) fn want(&mut self, now: Instant) {
        self.wanted.get_or_insert((now, self.served));
    }

    /// Notes that another instance waits, unless the lease has heard of that before.
    pub(super) fn hear(&mut self, hint: Option<Instant>) {
        if self.heard != hint {
            self.heard = hint;
            hint.into_iter().for_each(|at| self.want(at));
        }
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

    /// Asks the store on behalf of a caller whether it has the lease.
    pub(super) fn confirm(&mut self, caller: Caller, t: &mut Transition<'_>) {
        self.callers.push(caller);
        self.renew_now(t);
    }

    /// Takes the callers that the renewal under way was sent for.
    pub(super) fn take_asked(&mut self) -> Callers {
        let asked = take(&mut self.asked).min(self.callers.len());
        self.callers.drain(..asked).collect()
    }

    /// Renews the lease at once.
    pub(super) fn renew_now(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_now(t.now);
        self.schedule(t);
    }

    /// Renews the lease at once for a turn that cannot begin before, unless that was asked for.
    pub(super) fn renew_for_a_turn(&mut self, t: &mut Transition<'_>) {
        self.renewal.renew_for_a_turn(t.now);
        self.schedule(t);
    }

    /// Updates the lease's entry in the schedule, after the renewal, the deadline or the turn has
    /// changed.
    pub(super) fn schedule(&mut self, t: &mut Transition<'_>) {
        let deadline = self.lease.deadline();
        let end = self.turn_ends().map_or(deadline, |ends| ends.min(deadline));
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
