//! Turns, one after another.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Confirmation, Contention, Effect, Effects, Granted, Limits, Line, State, Tenure, held, lost,
};
use crate::{LockKey, Loss, lease::Lease};

/// How many tokens are reserved at once at most, however long the line.
const BLOCK_AT_MOST: u32 = 1024;
/// A refill is asked for before fewer than so many are left, if so many wait.
const TOKENS_AHEAD: usize = 16;

impl Line {
    /// A turn ends. With a confirmation, the store is asked whether the lease was ours until now.
    pub(crate) fn end(
        &mut self,
        granted: &Granted,
        confirmation: Option<Confirmation>,
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) {
        let tenure = match std::mem::take(&mut self.state) {
            State::Taken(tenure) if tenure.is(granted) => tenure,
            other => {
                self.state = other;
                out.extend(
                    confirmation.map(|ask| Effect::Confirm(ask, Err(lost(granted.lease.loss())))),
                );
                return;
            }
        };
        let Some(ask) = confirmation else {
            return self.serve(tenure, limits, now, out);
        };
        if !tenure.lease.is_valid(now) {
            out.push(Effect::Lose(tenure.lease.clone(), Loss::Expired));
            self.state = State::Confirming(tenure, Some((ask, now)));
        } else if self.waiters.is_empty() || tenure.is_used_up(limits, now) {
            self.release(tenure.lease, Some(ask), out);
        } else {
            out.push(Effect::Renew(tenure.lease.clone()));
            self.state = State::Confirming(tenure, Some((ask, now)));
        }
    }

    /// A turn has ended with a record in the lease's place.
    pub(crate) fn finished(&mut self, granted: &Granted, record: &Bytes, out: &mut Effects) {
        match std::mem::take(&mut self.state) {
            State::Taken(tenure) if tenure.is(granted) => {
                self.share(record, out);
                self.start_over(&granted.lease.key, out);
            }
            other => self.state = other,
        }
    }

    /// Finds the best use for a lease that serves no turn now.
    pub(super) fn serve(
        &mut self,
        tenure: Tenure,
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) {
        let lease = tenure.lease.clone();
        if !lease.is_valid(now) {
            self.state = State::Confirming(tenure, None);
            out.push(Effect::Lose(lease, Loss::Expired));
        } else if self.waiters.is_empty() {
            self.state = State::Parked(tenure);
            out.push(Effect::Unpark(lease));
        } else if tenure.is_used_up(limits, now)
            || self.wants_other_than(&tenure.claim)
            // Whoever was to record something has gone away meanwhile, and the record may be there by now.
            || lease.is_recording()
        {
            self.release(lease, None, out);
        } else if !lease.is_confirmed() || tenure.tokens.left() == 0 {
            self.state = State::Confirming(tenure, None);
            out.push(Effect::Renew(lease));
        } else {
            self.begin_turn(tenure, now, out);
        }
    }

    /// Whether the first who waits wants the key for something else than this. Then it is not passed on: the store
    /// would tell others what it was claimed for before.
    pub(super) fn wants_other_than(&self, claim: &Option<Bytes>) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| first.wish.claim != *claim)
    }

    fn begin_turn(&mut self, mut tenure: Tenure, now: Instant, out: &mut Effects) {
        let (Some(next), Some(token)) = (self.waiters.pop_front(), tenure.tokens.take()) else {
            unreachable!("`serve` has looked at both under the same lock");
        };
        self.turn_away(
            |waiting| (!waiting.wish.patient).then(|| held().into()),
            out,
        );
        tenure.turn += 1;
        let lease = tenure.lease.clone();
        lease.begin_turn(now);
        if tenure.turn > 1 && !tenure.quickened {
            tenure.quickened = true;
            out.push(Effect::Quicken(lease.clone()));
        }
        let turn = tenure.turn;
        out.push(Effect::Tell(
            next.ticket,
            Ok(Granted { lease, turn, token }),
        ));
        self.look_ahead(&mut tenure, out);
        self.state = State::Taken(tenure);
    }

    /// Asks for tokens before they run out. Not for a claim: it most likely ends with a record, and needs no more.
    pub(super) fn look_ahead(&self, tenure: &mut Tenure, out: &mut Effects) {
        if tenure.claim.is_none() && self.lacks_tokens(tenure) && !tenure.refill_asked {
            tenure.refill_asked = true;
            out.push(Effect::Renew(tenure.lease.clone()));
        }
    }

    pub(super) fn lacks_tokens(&self, tenure: &Tenure) -> bool {
        (tenure.tokens.left() as usize) < self.waiters.len().min(TOKENS_AHEAD)
    }

    pub(super) fn block(&self, at_least: u32) -> u32 {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(BLOCK_AT_MOST);
        waiting.clamp(at_least, BLOCK_AT_MOST)
    }

    pub(super) fn release(
        &mut self,
        lease: Arc<Lease>,
        ask: Option<Confirmation>,
        out: &mut Effects,
    ) {
        self.state = State::Releasing(lease.clone());
        out.push(Effect::Release(lease, ask));
    }

    /// The lease is gone. Those who wait need a new one.
    pub(super) fn start_over(&mut self, key: &LockKey, out: &mut Effects) {
        if self.waiters.is_empty() {
            self.state = State::Gone;
            return;
        }
        let contention = Arc::<Contention>::default();
        self.state = State::Contending(contention.clone());
        out.push(Effect::Contend(contention, key.clone()));
    }
}
