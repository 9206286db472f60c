//! Transitions from one turn to the next, and the decision which leases to keep.
//!
//! [`Line::serve`] is the last step of every transition that could change who is next. The method does three things, in
//! this order:
//!
//! 1. `begin_turns`: as long as a lease can serve the first request in line, the request's turn begins.
//! 2. `settle_idle_leases`: a lease without a turn is confirmed (if the lease serves the first request next, but must be
//!    renewed before), or released.
//! 3. If the first request needs a lease that the line does not have, a contender starts. Otherwise a contender under way
//!    is woken, and gives up its place in the store's queue.
//!
//! The decisions depend on the modes. For the first request in line:
//!
//! | the request | the line has | the request |
//! |---|---|---|
//! | exclusive | an exclusive lease | waits for the turn before it |
//! | exclusive | a shared lease | needs a lease of its own, from the store's queue |
//! | shared | a shared lease that no other instance waits for | begins at once |
//! | shared | a shared lease that another instance waits for | needs a lease, behind that instance |
//! | a permit | fewer leases than permits | needs one more lease |

use std::sync::Arc;

use bytes::Bytes;

use super::{Contending, Granted, HeldLease, Line, Phase, Transition, Turn, WaitRequest, lost};
use crate::{
    Error, ErrorKind, Loss,
    store::{Mode, Released, StoreFuture},
    sync::oneshot,
    time::Instant,
};

/// The largest block of tokens to reserve, however long the line.
const BLOCK_AT_MOST: u32 = 1024;

/// The result of ending a turn.
///
/// | the turn ends by | the lease | result |
/// |---|---|---|
/// | a drop of the last guard | is passed on, or released | `Quietly` |
/// | `release` | is released | `Releasing` |
/// | `release` | is passed on | `Confirming` |
/// | any | was lost before | `Over` |
pub(crate) enum Ended {
    /// The turn has ended. The lease was passed on or is being released, and no answer is awaited.
    Quietly,
    /// The lease is being released. The future is the store's answer.
    Releasing(StoreFuture<Result<Released, Error>>),
    /// The store is asked whether the lease was held until now, before the lease is passed on.
    Confirming(oneshot::Receiver<Result<(), Error>>),
    /// The turn had ended before, by this loss or by an earlier end.
    Over(Option<Loss>),
}

impl Line {
    /// Ends a turn. With `confirm`, the store is asked whether the lease was held until now.
    pub(crate) fn end(
        &mut self,
        granted: &Granted,
        confirm: bool,
        t: &mut Transition<'_>,
    ) -> Ended {
        let at = self.leases.find_turn(granted);
        let Some((at, held)) = at.and_then(|at| Some((at, self.leases.get(at)?))) else {
            return Ended::Over(granted.lease.loss());
        };
        held.end(granted.number);
        let ended = if held.is_outlived() {
            self.end_outlived(at, t)
        } else if confirm && held.is_idle() {
            self.end_confirmed(at, t)
        } else {
            Ended::Quietly
        };
        self.serve(t);
        ended
    }

    /// Ends the turn of a lease that was lost before. The lease has stayed in the store until now, so that no other
    /// instance began the same work (see `lost`).
    fn end_outlived(&mut self, at: usize, t: &mut Transition<'_>) -> Ended {
        let held = self.leases.remove(at);
        let loss = held.as_ref().and_then(|held| held.lease.loss());
        if let Some(held) = held
            && loss != Some(Loss::NotOurs)
        {
            drop(t.release(held));
        }
        Ended::Over(loss)
    }

    /// Asks the store whether the lease was held until now: by the release, or by a renewal if the lease is to be
    /// passed on.
    fn end_confirmed(&mut self, at: usize, t: &mut Transition<'_>) -> Ended {
        let is_passed_on = self.is_passed_on(at, t);
        let Some(held) = self.leases.get(at) else {
            return Ended::Quietly;
        };
        if !held.lease.is_valid(t.now) {
            self.over(at, Loss::Expired, t);
            return Ended::Over(Some(Loss::Expired));
        }
        if is_passed_on {
            let (confirmation, answer) = oneshot::channel();
            // A renewal that was sent before this moment cannot confirm the end of the turn.
            held.lease.doubt();
            held.confirm(Some(confirmation), t);
            return Ended::Confirming(answer);
        }
        match self.leases.remove(at) {
            Some(held) => Ended::Releasing(t.release(held)),
            None => Ended::Quietly,
        }
    }

    /// Ends a turn whose lease was replaced by a record, and shares the record.
    pub(crate) fn finished(&mut self, granted: &Granted, record: &Bytes, t: &mut Transition<'_>) {
        let at = self.leases.find_turn(granted);
        if let Some(mut held) = at.and_then(|at| self.leases.remove(at)) {
            held.unschedule(t);
            self.share(record);
            self.serve(t);
        }
    }

    /// Restarts the time that the turn may last. Returns whether the turn is under way and its lease valid.
    pub(crate) fn begin_anew(
        &mut self,
        turn: &Arc<Turn>,
        granted: &Granted,
        t: &mut Transition<'_>,
    ) -> bool {
        let Some(held) = self.valid_lease_of(granted, t.now) else {
            return false;
        };
        held.begin_anew(turn, granted.number, t);
        true
    }

    /// Makes the exclusive lease of a turn a shared one, and lets in the readers at the head of the line. Returns
    /// whether the turn is under way and its lease valid.
    pub(crate) fn downgrade(
        &mut self,
        turn: &Arc<Turn>,
        granted: &Granted,
        t: &mut Transition<'_>,
    ) -> bool {
        let Some(held) = self.valid_lease_of(granted, t.now) else {
            return false;
        };
        if held.mode() == Mode::Exclusive {
            held.downgrade(turn.clone());
        }
        self.serve(t);
        true
    }

    /// The lease of a turn, if the turn is under way and the lease valid.
    fn valid_lease_of(&mut self, granted: &Granted, now: Instant) -> Option<&mut HeldLease> {
        let at = self.leases.find_turn(granted)?;
        let held = self.leases.get(at)?;
        (!held.is_outlived() && held.lease.is_valid(now)).then_some(held)
    }

    /// Brings the line up to date after a change: begins the turns that can begin, gives back the leases that are not
    /// needed, and asks the store for a lease if one is needed.
    pub(super) fn serve(&mut self, t: &mut Transition<'_>) {
        self.begin_turns(t);
        self.settle_idle_leases(t);
        let first = self.waiters.front();
        let needs_lease = first.is_some_and(|first| self.needs_lease(&first.request));
        if !needs_lease {
            // The contender gives up its place in the store's queue.
            self.wake_contender();
        } else if self.contending.is_none() {
            let contender = t.number();
            // The store has answered for this line before, so the requests that wait survive if the store is away for
            // a while.
            self.contending = Some(Contending::new(contender, true, t.away.take()));
            t.follow_up.contend = Some(contender);
        }
        self.look_ahead(t);
    }

    /// Begins the turns of the requests at the head of the line, as far as there are leases for them.
    fn begin_turns(&mut self, t: &mut Transition<'_>) {
        while let Some(first) = self.waiters.front() {
            let mut leases = self.leases.iter_mut();
            let Some(held) = leases.find(|held| held.can_serve(&first.request, t)) else {
                break;
            };
            if let Some(first) = self.waiters.pop_front() {
                held.begin(first, t);
            }
        }
        self.leases.iter_mut().for_each(|held| held.is_new = false);
    }

    /// Decides about the leases without a turn: a lease that is passed on, but cannot serve yet, is confirmed first, and
    /// every other one is released.
    fn settle_idle_leases(&mut self, t: &mut Transition<'_>) {
        let mut at = 0;
        while let Some(held) = self.leases.get(at) {
            let is_settled = !held.is_idle()
                || matches!(held.phase, Phase::Outlived | Phase::Confirming(Some(_)));
            if is_settled {
                at += 1;
            } else if !held.lease.is_valid(t.now) {
                self.over(at, Loss::Expired, t);
            } else if self.is_passed_on(at, t) {
                if let Some(held) = self.leases.get(at).filter(|held| !held.is_confirming()) {
                    held.confirm(None, t);
                }
                at += 1;
            } else if let Some(held) = self.leases.remove(at) {
                drop(t.release(held));
            }
        }
    }

    /// Whether a lease serves the first request in line next.
    fn is_passed_on(&mut self, at: usize, t: &Transition<'_>) -> bool {
        match (self.leases.get(at), self.waiters.front()) {
            (Some(held), Some(first)) => held.is_passed_on_to(&first.request, t),
            _ => false,
        }
    }

    /// Whether the store must be asked for a lease before the request can have its turn. If not, the turn begins after
    /// a turn or a renewal that is under way.
    pub(super) fn needs_lease(&self, request: &WaitRequest) -> bool {
        let is_exclusive = |held: &HeldLease| held.mode() == Mode::Exclusive;
        match request.mode {
            Mode::Exclusive => !self.leases.iter().any(is_exclusive),
            // Later readers wait behind the request of another instance, and need a lease after that.
            Mode::Shared => !self
                .leases
                .iter()
                .any(|held| is_exclusive(held) || held.wanted.is_none()),
            Mode::Permit { of } => self.leases.len() < of as usize,
        }
    }

    /// Requests further tokens before they run out. A turn with a fingerprint most likely ends with a record, and
    /// needs no further tokens.
    fn look_ahead(&mut self, t: &mut Transition<'_>) {
        let waiting = self.waiters.len();
        for held in self.leases.iter_mut() {
            if matches!(held.phase, Phase::Serving)
                && held.lease.fingerprint.is_none()
                && held.lacks_tokens(waiting)
                && !held.refill_asked
            {
                held.refill_asked = true;
                held.renew_now(t);
            }
        }
    }

    /// How many tokens to request.
    pub(super) fn block(&self, at_least: u32) -> u32 {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(BLOCK_AT_MOST);
        waiting.clamp(at_least, BLOCK_AT_MOST)
    }

    /// Ends a lease as lost, and the turns under it.
    pub(super) fn over(&mut self, at: usize, loss: Loss, t: &mut Transition<'_>) {
        if let Some(held) = self.leases.remove(at) {
            held.lease.lose(loss);
            t.follow_up.lost.push((held.lease.clone(), loss));
            // The store may still have the lease.
            drop(t.release(held));
        }
    }
}

impl Ended {
    /// Waits for the store's answer, if one is due: whether the lease was held until the end of the turn.
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
                    ErrorKind::Unreachable,
                    "the turn has ended, but the line ended before the store confirmed the lease",
                ))
            }),
        }
    }
}
