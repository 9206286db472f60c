//! Contending.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Contention, Demand, Effect, Effects, Limits, Line, Miss, State, Tenure, Waiting, held, recorded,
};
use crate::{Error, lease::Lease, store::Grant};

impl Line {
    /// Something has changed that the contender may want to know.
    pub(crate) fn wake_contender(&mut self, out: &mut Effects) {
        if let State::Contending(contention) = &self.state {
            out.push(Effect::Wake(contention.clone()));
        }
    }

    /// Whether the store is being asked and has not answered once.
    pub(crate) fn is_store_silent(&self) -> bool {
        matches!(&self.state, State::Contending(contention) if !contention.answered.load(Ordering::Relaxed))
    }

    /// What to ask the store for, if anybody still wants the key.
    pub(crate) fn demand(&self) -> Option<Demand> {
        (!self.waiters.is_empty()).then(|| Demand {
            patient: self.waiters.iter().any(|waiting| waiting.wish.patient),
            block: self.block(1),
            claim: self
                .waiters
                .front()
                .and_then(|first| first.wish.claim.clone()),
        })
    }

    /// Whether this is the contention that the line is in.
    pub(crate) fn is_contended_by(&self, contention: &Arc<Contention>) -> bool {
        matches!(&self.state, State::Contending(current) if Arc::ptr_eq(current, contention))
    }

    pub(crate) fn granted(
        &mut self,
        lease: Arc<Lease>,
        (grant, claim): (Grant, Option<Bytes>),
        limits: &Limits,
        now: Instant,
        out: &mut Effects,
    ) {
        if !self.wants_other_than(&claim) {
            self.turn_away(
                |waiting| waiting.differs(&claim).then_some(Miss::OtherClaim),
                out,
            );
        }
        let tenure = Tenure {
            lease,
            claim,
            tokens: grant.tokens,
            turn: 0,
            wanted: grant.others_wait.then_some((now, 0)),
            refill_asked: false,
            quickened: false,
        };
        self.serve(tenure, limits, now, out);
    }

    /// The key is held, for this claim: those who do not wait are told so, and those who claim it for something else.
    /// Says whether anybody is left.
    pub(crate) fn held(&mut self, claim: &Option<Bytes>, out: &mut Effects) -> bool {
        if let State::Contending(contention) = &self.state {
            contention.answered.store(true, Ordering::Relaxed);
        }
        let miss = |waiting: &Waiting| match waiting.differs(claim) {
            true => Some(Miss::OtherClaim),
            false => (!waiting.wish.patient).then(|| held().into()),
        };
        self.turn_away(miss, out);
        !self.waiters.is_empty()
    }

    /// What would be claimed was done before. Only a claim can have been meant.
    pub(crate) fn recorded(&mut self, record: &Bytes, out: &mut Effects) {
        self.state = State::Gone;
        self.share(record, out);
        self.refuse_all(&recorded(), out);
    }

    /// Gives the record to all who claim it.
    pub(super) fn share(&mut self, record: &Bytes, out: &mut Effects) {
        let claims = |waiting: &Waiting| waiting.wish.claim.is_some();
        self.turn_away(
            |waiting| claims(waiting).then(|| Miss::Recorded(record.clone())),
            out,
        );
    }

    /// Tells those who miss their turn why, and keeps the others, in their order.
    pub(super) fn turn_away(&mut self, miss: impl Fn(&Waiting) -> Option<Miss>, out: &mut Effects) {
        for waiting in std::mem::take(&mut self.waiters) {
            match miss(&waiting) {
                Some(miss) => out.push(waiting.tell(miss)),
                None => self.waiters.push_back(waiting),
            }
        }
    }

    /// The store failed: so it would for everybody, one after another.
    pub(crate) fn failed(&mut self, error: &Error, out: &mut Effects) {
        self.state = State::Gone;
        self.refuse_all(error, out);
    }

    /// The contender has left the store's queue, as nobody waited. Says whether that is still so.
    pub(crate) fn gave_up(&mut self) -> bool {
        let nobody = self.waiters.is_empty();
        if nobody {
            self.state = State::Gone;
        }
        nobody
    }
}
