//! Answers to renewals, hints, and losses. Each of them concerns one lease, and has no effect on a
//! line that does not have that lease any more.
//!
//! | event | effect |
//! |---|---|
//! | the scheduled time has come (`look`) | the lease is lost, or a renewal is to be sent |
//! | renewed | the deadline moves, doubts are settled, new tokens arrive, a turn may begin |
//! | renewed, but without the tokens that were requested | the same, and the next renewal, which requests them again, follows soon |
//! | renewed, but doubted since the renewal was sent | the next renewal is due at once |
//! | a connection broke | the lease is doubted, and the next renewal is due at once, a few times in a row |
//! | unknown | the lease is doubted, and the next renewal follows soon; requests that wait for this lease, and not for a store that is away, fail |
//! | interrupted: a runtime has ended before the answer came | the lease is doubted, and the next renewal is due at once |
//! | wanted (a hint, or the answer to a renewal) | the lease serves a few more turns only |
//! | lost | the turns end, and the store is told to release what may be left |

use std::sync::Arc;

use super::{Away, HeldLease, Line, Transition};
use crate::{Error, ErrorKind, Loss, lease::Lease, store::Tokens, time::Instant};

/// The smallest refill of tokens, so that 32 turns of a short line cost one command.
const REFILL_AT_LEAST: u32 = 32;

/// The store's answer to a renewal.
#[derive(Debug)]
pub(crate) struct Answer {
    /// When the renewal was sent.
    pub(crate) sent: Instant,
    /// Whether a refill of tokens was requested.
    pub(crate) refill_asked: bool,
    /// The tokens of the refill. A store that cannot reach its counter at the moment renews the
    /// lease without them.
    pub(crate) tokens: Option<Tokens>,
    /// Whether other instances wait for the key.
    pub(crate) others_wait: bool,
}

/// A renewal that is to be sent.
#[derive(Debug)]
pub(crate) struct DueRenewal {
    pub(crate) lease: Arc<Lease>,
    /// How many tokens to request.
    pub(crate) refill: u32,
}

impl Line {
    /// Handles a lease whose scheduled time has come: the lease is lost, or is to be renewed.
    /// `attempt` is the number of the lease's attempt.
    pub(crate) fn look(&mut self, attempt: u64, t: &mut Transition<'_>) -> Option<DueRenewal> {
        let waiting = self.waiters.len();
        let refill = self.block(REFILL_AT_LEAST);
        let held = self.leases.get(attempt).filter(|held| !held.is_outlived)?;
        held.was_taken_out();
        let lease = held.lease.clone();
        if !lease.is_valid(t.now) {
            self.lost(&lease, Loss::Expired, t);
            return None;
        }
        if held.is_past_its_time(t.now) {
            self.lost(&lease, Loss::MaxHold, t);
            return None;
        }
        let is_due = held.renewal.send_if_due(t.pace, t.now);
        held.schedule(t);
        if !is_due {
            return None;
        }
        held.asked = held.callers.len();
        held.is_doubted_anew = false;
        Some(DueRenewal {
            refill: if held.lacks_tokens(waiting, t) {
                refill.min(held.turns_left(t) as u32)
            } else {
                0
            },
            lease,
        })
    }

    /// Doubts the leases and renews them at once, because a store that was away may have forgotten
    /// them.
    pub(crate) fn doubt_leases(&mut self, t: &mut Transition<'_>) {
        for held in self.leases.iter_mut().filter(|held| !held.is_outlived) {
            held.doubt();
            held.renew_now(t);
        }
    }

    /// Handles the answer that the lease is still held.
    ///
    /// The whole answer is applied in one transition. If the next renewal could be sent before the
    /// tokens of this answer are in the line, the higher tokens of that renewal could arrive
    /// first.
    pub(crate) fn renewed(&mut self, lease: &Lease, answer: Answer, t: &mut Transition<'_>) {
        let waiting = !self.waiters.is_empty();
        let Some(held) = self.held_lease(lease) else {
            return;
        };
        if held.is_doubted_anew {
            held.renewal.outdated(t.now);
            return held.schedule(t);
        }
        // An answer after the deadline does not help: a guard may have seen the loss already, and a
        // loss is final.
        if !lease.extend(t.now, answer.sent) {
            self.lost(lease, Loss::Expired, t);
            return;
        }
        held.is_doubted = false;
        held.renewal.renewed();
        held.away = None;
        let confirmed = held.take_asked();
        if !held.callers.is_empty() {
            held.renewal.renew_now(t.now);
        }
        t.tell(confirmed, Ok(()));
        let waits_for_tokens = answer.refill_asked && answer.tokens.is_none();
        if waiting && held.served > 1 {
            held.renewal.renew_soon(t.pace, t.now);
        }
        if waits_for_tokens {
            // Not at once: the store would answer the same as fast as it can.
            held.renewal.put_off(t.pace, t.now);
        }
        held.schedule(t);
        if let Some(tokens) = answer.tokens {
            // The tokens that are left of the old block are lower than the new ones, and so cannot
            // be used any more.
            held.tokens = tokens;
            held.block = tokens.left();
        }
        if answer.others_wait {
            held.want(t.now);
        } else {
            // A hint that arrived after the renewal was sent is newer than the answer.
            held.wanted.take_if(|(since, _)| *since < answer.sent);
        }
        if waits_for_tokens && held.tokens.left() == 0 {
            self.refuse_the_impatient(&no_tokens(), t);
        }
        self.serve(t);
    }

    /// Handles a renewal without an answer. The requests that wait go on waiting, for the next
    /// renewal or for the end of the lease.
    ///
    /// Returns whether to give up the lease, or `None` if the next renewal follows at once, or the
    /// line does not have the lease.
    pub(crate) fn renewal_unknown(
        &mut self,
        lease: &Lease,
        error: &Error,
        t: &mut Transition<'_>,
    ) -> Option<bool> {
        let held = self.held_lease(lease)?;
        held.doubt();
        // The end of a runtime is no failure of the store, and the next renewal is sent on the next
        // runtime.
        if error.is_interrupted() || (error.is_broken() && held.renewal.repeats_at_once()) {
            held.renewal.outdated(t.now);
            held.schedule(t);
            return None;
        }
        t.tell(held.take_asked(), Err(error.clone()));
        let gives_up = held.renewal.unknown(t.pace, t.now);
        held.schedule(t);
        let away = held.away.get_or_insert(Away {
            since: t.now,
            error: None,
        });
        away.error = Some(error.clone());
        if held.awaits_renewal() {
            if t.config.fail_fast {
                self.refuse_all(error, t);
            }
            self.refuse_the_impatient(error, t);
            self.serve(t);
        }
        Some(gives_up)
    }

    /// Notes that another instance waits for the key.
    pub(crate) fn wanted(&mut self, now: Instant) {
        self.leases.want(now);
    }

    /// Ends the lease as lost, if the reason still holds. Of a shared lease, only the turns that
    /// have lasted too long are lost by [`Loss::MaxHold`].
    pub(crate) fn lost(&mut self, lease: &Lease, loss: Loss, t: &mut Transition<'_>) {
        let Some(held) = self.held_lease(lease) else {
            return;
        };
        if !is_due(held, loss, t) {
            return held.schedule(t);
        }
        if loss == Loss::MaxHold && held.mode().shares_turns() {
            for turn in held.readers.take_due(t.now) {
                turn.lose(loss);
                t.follow_up.lost.push((held.lease.clone(), loss));
            }
            held.schedule(t);
        } else if held.lease.fingerprint.is_some() && !held.is_idle() {
            // The work of a turn with a fingerprint runs to its end. Until then the lease stays in
            // the store, so that no other instance begins the same work, and local
            // requests with the same fingerprint wait on.
            held.lose(loss, t);
            held.unschedule(t);
            held.is_outlived = true;
        } else {
            self.over(lease.owner.attempt, loss, t);
        }
        self.serve(t);
    }

    /// The given lease, if this line has it and it is not lost.
    fn held_lease(&mut self, lease: &Lease) -> Option<&mut HeldLease> {
        let held = self.leases.get(lease.owner.attempt);
        held.filter(|held| !held.is_outlived)
    }
}

/// The error of a request that does not wait until the store can hand out a token.
fn no_tokens() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the store has confirmed the lease, but cannot hand out a token for the next turn at the moment",
    )
}

/// Whether the reason for a loss holds now. The deadline may have moved, or the next turn may have
/// begun, since the loss was found.
fn is_due(held: &HeldLease, loss: Loss, t: &Transition<'_>) -> bool {
    match loss {
        Loss::Expired => !held.lease.is_valid(t.now),
        Loss::MaxHold => held.is_past_its_time(t.now),
        Loss::NotOurs | Loss::GaveUp | Loss::Closed => true,
    }
}
