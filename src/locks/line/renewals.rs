//! Answers to renewals, hints, and losses. Each of them concerns one lease, and has no effect on a line that has
//! another lease by now.

use std::sync::Arc;

use super::{Away, HeldLease, Line, State, Transition, lost};
use crate::{Error, Loss, lease::Lease, store::Tokens, time::Instant};

/// The smallest refill of tokens, so that 32 turns of a short line cost one command.
const REFILL_AT_LEAST: u32 = 32;

/// The store's answer to a renewal.
#[derive(Debug)]
pub(crate) struct Answer {
    /// When the renewal was sent.
    pub(crate) sent: Instant,
    /// How often the lease had been doubted when the renewal was sent.
    pub(crate) doubts: u64,
    /// The tokens of the refill, if one was requested.
    pub(crate) tokens: Option<Tokens>,
    /// Whether other instances wait for the key.
    pub(crate) others_wait: bool,
}

/// The result of reporting a loss to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The lease is lost now.
    Yes,
    /// The lease is still held: its deadline has moved, or its next turn has begun.
    NotYet,
    /// The line does not have this lease.
    NotHere,
}

/// A renewal that is to be sent.
#[derive(Debug)]
pub(crate) struct DueRenewal {
    pub(crate) lease: Arc<Lease>,
    /// How many tokens to request.
    pub(crate) refill: u32,
    /// How often the lease had been doubted before the renewal.
    pub(crate) doubts: u64,
}

impl Line {
    /// Handles a lease whose scheduled time has come: the lease is lost, or is to be renewed.
    pub(crate) fn look(&mut self, t: &mut Transition<'_>) -> Option<DueRenewal> {
        let waiting = self.waiters.len();
        let refill = self.block(REFILL_AT_LEAST);
        let (State::Taken(held) | State::Confirming(held, _)) = &mut self.state else {
            return None;
        };
        held.was_taken_out();
        let lease = held.lease.clone();
        if !lease.is_valid(t.now) {
            self.lost(&lease, Loss::Expired, t);
            return None;
        }
        if t.now >= lease.turn_ends() {
            self.lost(&lease, Loss::MaxHold, t);
            return None;
        }
        let is_due = held.renewal.send_if_due(&t.limits.pace, t.now);
        held.schedule(t);
        is_due.then(|| DueRenewal {
            refill: if held.lacks_tokens(waiting) {
                refill
            } else {
                0
            },
            doubts: lease.doubts(),
            lease,
        })
    }

    /// Doubts the lease and renews the lease at once, because a store that was away may have forgotten the lease.
    pub(crate) fn doubt_lease(&mut self, t: &mut Transition<'_>) {
        if let State::Taken(held) | State::Confirming(held, _) = &mut self.state {
            held.lease.doubt();
            held.renew_now(t);
        }
    }

    /// Handles the answer that the lease is still held.
    ///
    /// The whole answer is applied in one transition. If the next renewal could be sent before the tokens of this
    /// answer are in the line, the higher tokens of that renewal could arrive first.
    pub(crate) fn renewed(&mut self, lease: &Lease, answer: Answer, t: &mut Transition<'_>) {
        let waiting = !self.waiters.is_empty();
        let Some(held) = self.held_lease(lease) else {
            return;
        };
        if lease.doubts() != answer.doubts {
            held.renewal.outdated(t.now);
            return held.schedule(t);
        }
        // An answer after the deadline does not help: a guard may have seen the loss already, and a loss is final.
        if !lease.extend(t.now, answer.sent) {
            self.lost(lease, Loss::Expired, t);
            return;
        }
        lease.settle_doubts(answer.doubts);
        held.renewal.renewed();
        held.away = None;
        held.refill_asked = false;
        held.is_passed_on &= waiting;
        if held.is_passed_on {
            held.renew_soon(t);
        }
        held.schedule(t);
        if let Some(tokens) = answer.tokens {
            // The tokens that are left of the old block are lower than the new ones, and so cannot be used any more.
            held.tokens = tokens;
        }
        if answer.others_wait {
            held.want(t.now);
        } else {
            // A hint that arrived after the renewal was sent is newer than the answer.
            held.wanted.take_if(|(since, _)| *since < answer.sent);
        }
        match std::mem::take(&mut self.state) {
            State::Confirming(held, confirmation) => {
                if let Some(confirmation) = confirmation {
                    let _ = confirmation.send(Ok(()));
                }
                self.serve(held, t);
            }
            other => self.state = other,
        }
    }

    /// Handles a renewal without an answer. The requests that wait go on waiting, for the next renewal or for the end
    /// of the lease.
    ///
    /// Returns whether to give up the lease, or `None` if the line does not have the lease.
    pub(crate) fn renewal_unknown(
        &mut self,
        lease: &Lease,
        error: &Error,
        t: &mut Transition<'_>,
    ) -> Option<bool> {
        let held = self.held_lease(lease)?;
        lease.doubt();
        let gives_up = held.renewal.unknown(&t.limits.pace, t.now);
        held.schedule(t);
        let away = held.away.get_or_insert(Away {
            since: t.now,
            error: None,
        });
        away.error = Some(error.clone());
        if let State::Confirming(_, confirmation) = &mut self.state {
            if let Some(confirmation) = confirmation.take() {
                let _ = confirmation.send(Err(error.clone()));
            }
            if t.limits.fail_fast {
                self.refuse_all(error);
            }
            self.refuse_the_impatient(error);
            self.give_back_if_unwanted(t);
        }
        Some(gives_up)
    }

    /// Releases a lease that waits for its confirmation, if no request is left that waits for the next turn.
    fn give_back_if_unwanted(&mut self, t: &mut Transition<'_>) {
        match std::mem::take(&mut self.state) {
            State::Confirming(mut held, None) if self.waiters.is_empty() => {
                drop(t.release(&mut held));
                self.start_over(held, t);
            }
            other => self.state = other,
        }
    }

    /// Notes that another instance waits for the key.
    pub(crate) fn wanted(&mut self, now: Instant) {
        if let State::Taken(held) | State::Confirming(held, _) = &mut self.state {
            held.want(now);
        }
    }

    /// Ends the lease as lost, if the reason still holds.
    pub(crate) fn lost(&mut self, lease: &Lease, loss: Loss, t: &mut Transition<'_>) -> Lost {
        match std::mem::take(&mut self.state) {
            State::Taken(mut held) if held.is_of(lease) => {
                if !is_due(&held.lease, loss, true, t) {
                    held.schedule(t);
                    self.state = State::Taken(held);
                    return Lost::NotYet;
                }
                if held.lease.fingerprint.is_none() {
                    self.over(held, loss, t);
                    return Lost::Yes;
                }
                // The work of a turn with a fingerprint runs to its end. Until then the lease stays in the store, so
                // that no other instance begins the same work, and local requests with the same fingerprint wait on.
                held.lease.lose(loss);
                held.unschedule(t);
                t.follow_up.lost = Some((held.lease.clone(), loss));
                self.state = State::Outlived(held);
                Lost::Yes
            }
            State::Confirming(mut held, confirmation) if held.is_of(lease) => {
                if !is_due(&held.lease, loss, false, t) {
                    held.schedule(t);
                    self.state = State::Confirming(held, confirmation);
                    return Lost::NotYet;
                }
                if let Some(confirmation) = confirmation {
                    let _ = confirmation.send(Err(lost(Some(loss))));
                }
                self.over(held, loss, t);
                Lost::Yes
            }
            other => {
                self.state = other;
                Lost::NotHere
            }
        }
    }

    /// The lease of this line, if that is the given one.
    fn held_lease(&mut self, lease: &Lease) -> Option<&mut HeldLease> {
        match &mut self.state {
            State::Taken(held) | State::Confirming(held, _) => held.is_of(lease).then_some(held),
            _ => None,
        }
    }
}

/// Whether the reason for a loss holds now. The deadline may have moved, or the next turn may have begun, since the
/// loss was found.
fn is_due(lease: &Lease, loss: Loss, in_turn: bool, t: &Transition<'_>) -> bool {
    match loss {
        Loss::Expired => !lease.is_valid(t.now),
        Loss::MaxHold => in_turn && t.now >= lease.turn_ends(),
        _ => true,
    }
}
