//! Answers to renewals, hints, and losses. Each of them is about one lease, and means nothing to a line that has another by now.

use super::{Away, HeldLease, Line, State, Transition, lost, turns::lacks_tokens};
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

impl Line {
    /// How many tokens the next renewal of this lease shall bring.
    pub(crate) fn needs(&self, lease: &Lease) -> u32 {
        match &self.state {
            State::Taken(held) | State::Confirming(held, _)
                if held.is_of(lease) && lacks_tokens(held, self.waiters.len()) =>
            {
                self.block(REFILL_AT_LEAST)
            }
            _ => 0,
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
            return t.scheduler.outdated(lease);
        }
        // An answer that comes too late does not help: a guard may have seen the loss already, and a loss is final.
        if !lease.extend(t.now, answer.sent) {
            self.lost(lease, Loss::Expired, t);
            return;
        }
        lease.settle_doubts(answer.doubts);
        t.scheduler.renewed(lease);
        held.away = None;
        held.refill_asked = false;
        held.quickened &= waiting;
        if held.quickened {
            t.scheduler.quicken(lease);
        }
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
    pub(crate) fn renewal_unknown(&mut self, lease: &Lease, error: &Error, t: &mut Transition<'_>) {
        let Some(held) = self.held_lease(lease) else {
            return;
        };
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
    }

    /// Releases a lease that waits for its confirmation, if nobody waits for its next turn any more.
    fn give_back_if_unwanted(&mut self, t: &mut Transition<'_>) {
        match std::mem::take(&mut self.state) {
            State::Confirming(held, None) if self.waiters.is_empty() => {
                drop(t.release(&held.lease));
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
            State::Taken(held) if held.is_of(lease) => {
                if !is_due(&held.lease, loss, true, t) {
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
                t.scheduler.untrack(lease);
                t.after.lost = Some((held.lease.clone(), loss));
                self.state = State::Outlived(held);
                Lost::Yes
            }
            State::Confirming(held, confirmation) if held.is_of(lease) => {
                if !is_due(&held.lease, loss, false, t) {
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
