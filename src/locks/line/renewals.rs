//! Answers to renewals, hints, and losses. Each of them is about one lease, and means nothing to a line that has another by now.

use std::sync::Arc;

use super::{Away, HeldLease, Line, State, Transition, lost};
use crate::{Error, Loss, lease::Lease, store::Tokens, time::Instant};

/// How many tokens a refill brings at least: so many turns of a short line cost one command.
const REFILL_AT_LEAST: u32 = 32;

/// What a renewal has brought.
#[derive(Debug)]
pub(crate) struct Answer {
    /// When the renewal was sent,
    pub(crate) sent: Instant,
    /// and how often the lease had been doubted by then.
    pub(crate) doubts: u64,
    /// The further tokens, if any were asked for.
    pub(crate) tokens: Option<Tokens>,
    /// Whether other instances wait for the key.
    pub(crate) others_wait: bool,
}

/// Whether a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The lease is lost now.
    Yes,
    /// The lease is still held: its deadline has moved, or its next turn has begun.
    NotYet,
    /// The line does not have the lease.
    NotHere,
}

/// A renewal that is to be sent.
#[derive(Debug)]
pub(crate) struct DueRenewal {
    pub(crate) lease: Arc<Lease>,
    /// How many tokens it shall bring.
    pub(crate) refill: u32,
    /// How often the lease had been doubted before.
    pub(crate) doubts: u64,
}

impl Line {
    /// The time has come that the lease was scheduled for: it is over, or to be renewed.
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

    /// The store was away and is back, and may have forgotten the lease: it is doubted, and renewed at once.
    pub(crate) fn doubt_lease(&mut self, t: &mut Transition<'_>) {
        if let State::Taken(held) | State::Confirming(held, _) = &mut self.state {
            held.lease.doubt();
            held.renew_now(t);
        }
    }

    /// A renewal was answered: the lease is ours.
    ///
    /// All that this means happens in one transition. If the next renewal could be sent before this one's tokens are in the line, that
    /// renewal's higher tokens could get there first.
    pub(crate) fn renewed(&mut self, lease: &Lease, answer: Answer, t: &mut Transition<'_>) {
        let waiting = !self.waiters.is_empty();
        let Some(held) = self.held_lease(lease) else {
            return;
        };
        if lease.doubts() != answer.doubts {
            held.renewal.outdated(t.now);
            return held.schedule(t);
        }
        // An answer that comes too late does not help: a guard may have seen the loss already, and a loss is final.
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
            // What is left of the old block is lower, and so of no use any more.
            held.tokens = tokens;
        }
        if answer.others_wait {
            held.want(t.now);
        } else {
            // A hint that came after the question knows better than its answer.
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

    /// A renewal was not answered. Those who wait go on waiting: for the next renewal, or for the end of the lease.
    /// Says whether to give the lease up; nothing if the line does not have it.
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

    /// Releases a lease that waits for its confirmation, if nobody waits for its next turn any more.
    fn give_back_if_unwanted(&mut self, t: &mut Transition<'_>) {
        match std::mem::take(&mut self.state) {
            State::Confirming(mut held, None) if self.waiters.is_empty() => {
                drop(t.release(&mut held));
                self.start_over(held, t);
            }
            other => self.state = other,
        }
    }

    /// Another instance waits for the key.
    pub(crate) fn wanted(&mut self, now: Instant) {
        if let State::Taken(held) | State::Confirming(held, _) = &mut self.state {
            held.want(now);
        }
    }

    /// A lease is lost, if it is: the reason may be out of date by now.
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
                // What is done once goes on to its end. Until then the store is left alone, so that its lease keeps others from
                // beginning the same, and those who wait here for the same wait on.
                held.lease.lose(loss);
                held.unschedule(t);
                t.after.lost = Some((held.lease.clone(), loss));
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

    fn held_lease(&mut self, lease: &Lease) -> Option<&mut HeldLease> {
        match &mut self.state {
            State::Taken(held) | State::Confirming(held, _) => held.is_of(lease).then_some(held),
            _ => None,
        }
    }
}

/// Whether the reason for a loss holds now: time may have been given to the lease, or to its next turn, since it was found.
fn is_due(lease: &Lease, loss: Loss, in_turn: bool, t: &Transition<'_>) -> bool {
    match loss {
        Loss::Expired => !lease.is_valid(t.now),
        Loss::MaxHold => in_turn && t.now >= lease.turn_ends(),
        _ => true,
    }
}
