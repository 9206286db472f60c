//! News of the lease. Each of these is about one lease, and means nothing to a line that has another by now.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Effect, Effects, Limits, Line, State, Tenure, lost};
use crate::{Error, lease::Lease, store::Tokens};

/// How many tokens a refill brings at least: so many turns of a short line cost one command.
const REFILL_AT_LEAST: u32 = 32;

impl Line {
    /// How many tokens the next renewal of this lease shall bring.
    pub(crate) fn needs(&self, lease: &Lease) -> u32 {
        match &self.state {
            State::Taken(tenure) | State::Confirming(tenure, _)
                if tenure.is_of(lease) && self.lacks_tokens(tenure) =>
            {
                self.block(REFILL_AT_LEAST)
            }
            _ => 0,
        }
    }

    /// A renewal that was sent at `sent` was answered: the lease is ours.
    pub(crate) fn renewed(
        &mut self,
        lease: &Lease,
        (sent, tokens, others_wait): (Instant, Option<Tokens>, bool),
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) {
        let waiting = !self.waiters.is_empty();
        let Some(tenure) = self.tenure_of(lease) else {
            return;
        };
        tenure.refill_asked = false;
        tenure.quickened &= waiting;
        if tenure.quickened {
            out.push(Effect::Quicken(tenure.lease.clone()));
        }
        if let Some(tokens) = tokens {
            // What is left of the old block is lower, and so of no use any more.
            tenure.tokens = tokens;
        }
        if others_wait {
            tenure.want(now);
        } else {
            // A hint that came after the question knows better than its answer.
            tenure.wanted.take_if(|(since, _)| *since < sent);
        }
        match std::mem::take(&mut self.state) {
            State::Confirming(tenure, Some((ask, since))) if sent < since => {
                // It was on its way when the turn ended, so it says nothing about that end.
                out.push(Effect::Renew(tenure.lease.clone()));
                self.state = State::Confirming(tenure, Some((ask, since)));
            }
            State::Confirming(tenure, ask) => {
                out.extend(ask.map(|(ask, _)| Effect::Confirm(ask, Ok(()))));
                self.serve(tenure, limits, now, out);
            }
            other => self.state = other,
        }
    }

    /// A renewal was not answered. Those who wait for it would wait for every further one too.
    pub(crate) fn renewal_unknown(&mut self, lease: &Lease, error: &Error, out: &mut Effects) {
        match std::mem::take(&mut self.state) {
            State::Confirming(tenure, ask) if tenure.is_of(lease) => {
                out.extend(ask.map(|(ask, _)| Effect::Confirm(ask, Err(error.clone()))));
                self.refuse_all(error, out);
                self.release(tenure.lease, None, out);
            }
            other => self.state = other,
        }
    }

    /// Another instance waits for the key.
    pub(crate) fn wanted(&mut self, now: Instant) {
        if let State::Taken(tenure) | State::Confirming(tenure, _) | State::Parked(tenure) =
            &mut self.state
        {
            tenure.want(now);
        }
    }

    /// The lease is lost.
    pub(crate) fn lost(&mut self, lease: &Lease, out: &mut Effects) {
        if self.tenure_of(lease).is_none() {
            return;
        }
        if let State::Confirming(_, Some((ask, _))) = std::mem::take(&mut self.state) {
            out.push(Effect::Confirm(ask, Err(lost(lease.loss()))));
        }
        self.start_over(&lease.key, out);
    }

    /// Takes the lease out to be released, if nobody has wanted it since it was parked.
    pub(crate) fn unpark(&mut self, lease: &Lease) -> bool {
        match std::mem::take(&mut self.state) {
            State::Parked(tenure) if tenure.is_of(lease) => {
                self.state = State::Releasing(tenure.lease);
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }

    /// The release has ended, one way or another.
    pub(crate) fn released(&mut self, lease: &Lease, out: &mut Effects) {
        if matches!(&self.state, State::Releasing(current) if current.owner == lease.owner) {
            self.start_over(&lease.key, out);
        }
    }

    /// The lease under which a turn is, or is about to be.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        match &self.state {
            State::Taken(tenure) | State::Confirming(tenure, _) => Some(&tenure.lease),
            _ => None,
        }
    }

    /// Whether a turn is under way under this lease.
    pub(crate) fn serves(&self, lease: &Lease) -> bool {
        matches!(&self.state, State::Taken(tenure) if tenure.is_of(lease))
    }

    fn tenure_of(&mut self, lease: &Lease) -> Option<&mut Tenure> {
        match &mut self.state {
            State::Taken(tenure) | State::Confirming(tenure, _) | State::Parked(tenure) => {
                tenure.is_of(lease).then_some(tenure)
            }
            _ => None,
        }
    }
}
