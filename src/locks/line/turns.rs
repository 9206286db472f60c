//! Turns, one after another under one lease.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Away, Contending, Contention, Line, State, Transition, lost};
use crate::{
    Error, Loss,
    lease::Lease,
    store::{Grant, Released, StoreFuture, Tokens},
    sync::oneshot,
    time::{Instant, later},
};

/// How many tokens are reserved at once at most, however long the line.
const BLOCK_AT_MOST: u32 = 1024;
/// A refill is asked for before fewer than so many are left, if so many wait.
const TOKENS_AHEAD: usize = 16;

/// A turn as it is handed to the waiter whose turn it is.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) lease: Arc<Lease>,
    pub(crate) turn: u64,
    pub(crate) token: u64,
}

/// What came of the end of a turn.
pub(crate) enum Ended {
    /// The turn has ended, and its lease was passed on or is being released.
    Quietly,
    /// The lease is being released, and this is the answer.
    Releasing(StoreFuture<Result<Released, Error>>),
    /// The store is asked whether the lease was ours until now, before it is passed on.
    Confirming(oneshot::Receiver<Result<(), Error>>),
    /// The turn was not under way any more.
    Over(Option<Loss>),
}

/// A lease, and what is needed to pass it on.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) lease: Arc<Lease>,
    pub(super) tokens: Tokens,
    /// How many turns the lease has served, the present one included.
    turn: u64,
    /// When the present turn began,
    pub(super) began: Instant,
    /// and how long it may last.
    max_hold: Duration,
    /// Since when, and since how many turns, another instance is known to wait.
    pub(super) wanted: Option<(Instant, u64)>,
    pub(super) refill_asked: bool,
    pub(super) quickened: bool,
    /// Renewals have failed since then.
    pub(super) away: Option<Away>,
}

impl HeldLease {
    pub(super) fn new(lease: Arc<Lease>, grant: Grant, now: Instant) -> Self {
        Self {
            lease,
            tokens: grant.tokens,
            turn: 0,
            began: now,
            max_hold: Duration::MAX,
            wanted: grant.others_wait.then_some((now, 0)),
            refill_asked: false,
            quickened: false,
            away: None,
        }
    }

    /// Whether other instances have waited long enough.
    fn is_used_up(&self, t: &Transition<'_>) -> bool {
        self.wanted.is_some_and(|(since, turns)| {
            let enough_turns = self.turn >= turns + u64::from(t.limits.pass_turns);
            self.turn > 0 && (enough_turns || t.now >= later(since, t.limits.pass_time))
        })
    }

    pub(super) fn want(&mut self, now: Instant) {
        self.wanted.get_or_insert((now, self.turn));
    }

    fn serves(&self, granted: &Granted) -> bool {
        self.is_of(&granted.lease) && self.turn == granted.turn
    }

    pub(super) fn is_of(&self, lease: &Lease) -> bool {
        self.lease.owner == lease.owner
    }
}

impl Line {
    /// A turn ends. With `confirm`, the store is asked whether the lease was ours until now.
    pub(crate) fn end(
        &mut self,
        granted: &Granted,
        confirm: bool,
        t: &mut Transition<'_>,
    ) -> Ended {
        match std::mem::take(&mut self.state) {
            State::Taken(held) if held.serves(granted) => {
                if confirm {
                    return self.end_confirmed(held, t);
                }
                self.serve(held, t);
                Ended::Quietly
            }
            State::Outlived(held) if held.serves(granted) => {
                // The store was left alone until now, so that nobody begins the same beside the turn (see `lost`).
                let loss = held.lease.loss();
                if loss != Some(Loss::NotOurs) {
                    drop(t.release(&held.lease));
                }
                self.start_over(held, t);
                Ended::Over(loss)
            }
            other => {
                self.state = other;
                Ended::Over(granted.lease.loss())
            }
        }
    }

    fn end_confirmed(&mut self, held: HeldLease, t: &mut Transition<'_>) -> Ended {
        if !held.lease.is_valid(t.now) {
            self.over(held, Loss::Expired, t);
            return Ended::Over(Some(Loss::Expired));
        }
        if self.is_not_passed_on(&held, t) {
            let answer = t.release(&held.lease);
            self.start_over(held, t);
            return Ended::Releasing(answer);
        }
        let (confirmation, answer) = oneshot::channel();
        // A renewal that is on its way now says nothing about this end.
        held.lease.doubt();
        held.lease.between_turns();
        t.scheduler.hurry(&held.lease);
        self.state = State::Confirming(held, Some(confirmation));
        Ended::Confirming(answer)
    }

    /// A turn has ended with a record in the lease's place.
    pub(crate) fn finished(&mut self, granted: &Granted, record: &Bytes, t: &mut Transition<'_>) {
        match std::mem::take(&mut self.state) {
            State::Taken(held) | State::Outlived(held) if held.serves(granted) => {
                t.scheduler.untrack(&held.lease);
                self.share(record);
                self.start_over(held, t);
            }
            other => self.state = other,
        }
    }

    /// Counts the present turn's time anew. Says whether the turn is under way and its lease valid.
    pub(crate) fn begin_anew(&mut self, granted: &Granted, t: &mut Transition<'_>) -> bool {
        match &self.state {
            State::Taken(held) if held.serves(granted) && held.lease.is_valid(t.now) => {
                held.lease.begin_turn(t.now, held.max_hold);
                t.scheduler.track_on(&held.lease);
                true
            }
            _ => false,
        }
    }

    /// Finds the best use for a lease that serves no turn now.
    pub(super) fn serve(&mut self, held: HeldLease, t: &mut Transition<'_>) {
        if !held.lease.is_valid(t.now) {
            self.over(held, Loss::Expired, t);
        } else if self.is_not_passed_on(&held, t) {
            drop(t.release(&held.lease));
            self.start_over(held, t);
        } else if !held.lease.is_confirmed() || held.tokens.left() == 0 {
            held.lease.between_turns();
            t.scheduler.hurry(&held.lease);
            self.state = State::Confirming(held, None);
        } else {
            self.begin_turn(held, t);
        }
    }

    fn is_not_passed_on(&self, held: &HeldLease, t: &Transition<'_>) -> bool {
        self.waiters.is_empty()
            || held.is_used_up(t)
            || self.wants_other_than(&held.lease.fingerprint)
            // The turn that was to record something has ended without an answer, and the record may be there by now.
            || held.lease.is_recording()
    }

    /// Whether the first who waits wants the key for something else than this. Then the lease is not passed on: the store
    /// would tell others what the key was wanted for before.
    pub(super) fn wants_other_than(&self, fingerprint: &Option<Bytes>) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| first.request.fingerprint != *fingerprint)
    }

    fn begin_turn(&mut self, mut held: HeldLease, t: &mut Transition<'_>) {
        let (Some(next), Some(token)) = (self.waiters.pop_front(), held.tokens.take()) else {
            unreachable!("`serve` has looked at both under the same lock");
        };
        held.turn += 1;
        let max_hold = next.request.holding.max_hold;
        held.began = t.now;
        held.max_hold = max_hold.unwrap_or(t.limits.max_hold);
        held.lease.begin_turn(t.now, held.max_hold);
        // The turn may end before the scheduler would look at the lease again.
        t.scheduler.track_on(&held.lease);
        if held.turn > 1 && !held.quickened {
            held.quickened = true;
            t.scheduler.quicken(&held.lease);
        }
        let granted = Granted {
            lease: held.lease.clone(),
            turn: held.turn,
            token,
        };
        if !next.grant(granted) {
            // That waiter went away at this very moment: its turn has ended.
            return self.serve(held, t);
        }
        self.state = State::Taken(held);
        self.look_ahead(t);
    }

    /// Asks for tokens before they run out. Not for a turn that most likely ends with a record, and needs no more.
    pub(super) fn look_ahead(&mut self, t: &mut Transition<'_>) {
        let waiting = self.waiters.len();
        if let State::Taken(held) = &mut self.state
            && held.lease.fingerprint.is_none()
            && lacks_tokens(held, waiting)
            && !held.refill_asked
        {
            held.refill_asked = true;
            t.scheduler.hurry(&held.lease);
        }
    }

    /// How many tokens to ask for.
    pub(super) fn block(&self, at_least: u32) -> u32 {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(BLOCK_AT_MOST);
        waiting.clamp(at_least, BLOCK_AT_MOST)
    }

    /// The lease is over, and its turn too, if there was one.
    pub(super) fn over(&mut self, held: HeldLease, loss: Loss, t: &mut Transition<'_>) {
        held.lease.lose(loss);
        t.after.lost = Some((held.lease.clone(), loss));
        // The store may still have the lease.
        drop(t.release(&held.lease));
        self.start_over(held, t);
    }

    /// The lease has left the line. Those who wait need a new one.
    pub(super) fn start_over(&mut self, held: HeldLease, t: &mut Transition<'_>) {
        if self.waiters.is_empty() {
            self.state = State::Gone;
            return;
        }
        let contention = Contention::new(held.lease.key.clone());
        // The store has answered for this line before, so those who wait survive it when the store is away for a while.
        self.state = State::Contending(Contending::new(contention.clone(), true, held.away));
        t.after.contend = Some(contention);
    }
}

pub(super) fn lacks_tokens(held: &HeldLease, waiting: usize) -> bool {
    (held.tokens.left() as usize) < waiting.min(TOKENS_AHEAD)
}

impl Ended {
    /// Waits for the answer, if the store was asked: whether the lease was ours until the end of the turn.
    pub(crate) async fn confirmed(self) -> Result<(), Error> {
        match self {
            Self::Quietly => Ok(()),
            Self::Over(loss) => Err(lost(loss)),
            Self::Releasing(answer) => match answer.await? {
                Released::Freed => Ok(()),
                Released::NotOurs => Err(lost(Some(Loss::NotOurs))),
            },
            Self::Confirming(answer) => answer.await.unwrap_or_else(|_| {
                Err(Error::new(
                    crate::ErrorKind::Unreachable,
                    "the turn has ended, and the store was not heard: its line is gone",
                ))
            }),
        }
    }
}
