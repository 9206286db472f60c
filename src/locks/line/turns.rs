//! Transitions from one turn to the next under one lease.

use bytes::Bytes;

use super::{Contending, Granted, HeldLease, Line, State, Transition, lost};
use crate::{
    Error, Loss,
    store::{Released, StoreFuture},
    sync::oneshot,
};

/// The largest block of tokens to reserve, however long the line.
const BLOCK_AT_MOST: u32 = 1024;

/// The result of ending a turn.
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
        match std::mem::take(&mut self.state) {
            State::Taken(held) if held.serves(granted) => {
                if confirm {
                    return self.end_confirmed(held, t);
                }
                self.serve(held, t);
                Ended::Quietly
            }
            State::Outlived(mut held) if held.serves(granted) => {
                // The lease has stayed in the store until now, so that no other instance began the same work (see
                // `lost`).
                let loss = held.lease.loss();
                if loss != Some(Loss::NotOurs) {
                    drop(t.release(&mut held));
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

    /// Ends a turn and asks the store whether the lease was held until now: by the release, or by a renewal if the
    /// lease is to be passed on.
    fn end_confirmed(&mut self, mut held: HeldLease, t: &mut Transition<'_>) -> Ended {
        if !held.lease.is_valid(t.now) {
            self.over(held, Loss::Expired, t);
            return Ended::Over(Some(Loss::Expired));
        }
        if self.is_not_passed_on(&held, t) {
            let answer = t.release(&mut held);
            self.start_over(held, t);
            return Ended::Releasing(answer);
        }
        let (confirmation, answer) = oneshot::channel();
        // A renewal that was sent before this moment cannot confirm the end of the turn.
        held.lease.doubt();
        held.lease.between_turns();
        held.renew_now(t);
        self.state = State::Confirming(held, Some(confirmation));
        Ended::Confirming(answer)
    }

    /// Ends a turn whose lease was replaced by a record, and shares the record.
    pub(crate) fn finished(&mut self, granted: &Granted, record: &Bytes, t: &mut Transition<'_>) {
        match std::mem::take(&mut self.state) {
            State::Taken(mut held) | State::Outlived(mut held) if held.serves(granted) => {
                held.unschedule(t);
                self.share(record);
                self.start_over(held, t);
            }
            other => self.state = other,
        }
    }

    /// Restarts the time that the turn may last. Returns whether the turn is under way and its lease valid.
    pub(crate) fn begin_anew(&mut self, granted: &Granted, t: &mut Transition<'_>) -> bool {
        match &mut self.state {
            State::Taken(held) if held.serves(granted) && held.lease.is_valid(t.now) => {
                held.lease.begin_turn(t.now, held.max_hold);
                held.schedule(t);
                true
            }
            _ => false,
        }
    }

    /// Uses a lease that has no turn under way: begins the next turn, confirms the lease first, or releases the
    /// lease.
    pub(super) fn serve(&mut self, mut held: HeldLease, t: &mut Transition<'_>) {
        if !held.lease.is_valid(t.now) {
            self.over(held, Loss::Expired, t);
        } else if self.is_not_passed_on(&held, t) {
            drop(t.release(&mut held));
            self.start_over(held, t);
        } else if !held.lease.is_confirmed() || held.tokens.left() == 0 {
            held.lease.between_turns();
            held.renew_now(t);
            self.state = State::Confirming(held, None);
        } else {
            self.begin_turn(held, t);
        }
    }

    /// Whether the lease must be released rather than serve the next request.
    fn is_not_passed_on(&self, held: &HeldLease, t: &Transition<'_>) -> bool {
        self.waiters.is_empty()
            || held.is_used_up(t)
            || self.wants_other_than(&held.lease.fingerprint)
            // A record was sent and not confirmed, and may have taken the lease's place by now.
            || held.lease.is_recording()
    }

    /// Whether the first request in line has another fingerprint. The lease is not passed on to such a request,
    /// because the store would go on to show the old fingerprint to other instances.
    pub(super) fn wants_other_than(&self, fingerprint: &Option<Bytes>) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| first.request.fingerprint != *fingerprint)
    }

    /// Begins the turn of the first request in line.
    fn begin_turn(&mut self, mut held: HeldLease, t: &mut Transition<'_>) {
        let (Some(next), Some(token)) = (self.waiters.pop_front(), held.tokens.take()) else {
            unreachable!("`serve` has looked at both under the same lock");
        };
        held.turn += 1;
        held.token = Some(token);
        let max_hold = next.request.holding.max_hold;
        held.began = t.now;
        held.max_hold = max_hold.unwrap_or(t.limits.max_hold);
        held.lease.begin_turn(t.now, held.max_hold);
        if held.turn > 1 && !held.is_passed_on {
            held.is_passed_on = true;
            held.renew_soon(t);
        }
        // The turn's time may be over before the lease needs attention for another reason.
        held.schedule(t);
        next.grant(Granted {
            lease: held.lease.clone(),
            number: held.turn,
            token,
        });
        self.state = State::Taken(held);
        self.look_ahead(t);
    }

    /// Requests further tokens before they run out. A turn with a fingerprint most likely ends with a record, and
    /// needs no further tokens.
    pub(super) fn look_ahead(&mut self, t: &mut Transition<'_>) {
        let waiting = self.waiters.len();
        if let State::Taken(held) = &mut self.state
            && held.lease.fingerprint.is_none()
            && held.lacks_tokens(waiting)
            && !held.refill_asked
        {
            held.refill_asked = true;
            held.renew_now(t);
        }
    }

    /// How many tokens to request.
    pub(super) fn block(&self, at_least: u32) -> u32 {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(BLOCK_AT_MOST);
        waiting.clamp(at_least, BLOCK_AT_MOST)
    }

    /// Ends the lease as lost, and the turn with it if there is one.
    pub(super) fn over(&mut self, mut held: HeldLease, loss: Loss, t: &mut Transition<'_>) {
        held.lease.lose(loss);
        t.follow_up.lost = Some((held.lease.clone(), loss));
        // The store may still have the lease.
        drop(t.release(&mut held));
        self.start_over(held, t);
    }

    /// Continues without a lease: requests that wait need a new one.
    pub(super) fn start_over(&mut self, held: HeldLease, t: &mut Transition<'_>) {
        if self.waiters.is_empty() {
            self.state = State::Gone;
            return;
        }
        let contender = t.number();
        // The store has answered for this line before, so the requests that wait survive if the store is away for a
        // while.
        self.state = State::Contending(Contending::new(contender, true, held.away));
        t.follow_up.contend = Some(contender);
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
                    crate::ErrorKind::Unreachable,
                    "the turn has ended, but the line ended before the store confirmed the lease",
                ))
            }),
        }
    }
}
