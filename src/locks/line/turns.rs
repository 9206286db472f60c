//! Turns that are under way: their ends, a new begin of their time, and downgrades.
//!
//! Every end is followed by [`Line::serve`], which passes the lease on or releases it.

use std::{mem::take, sync::Arc};

use bytes::Bytes;

use super::{Granted, HeldLease, Line, Transition, Turn, lost_error};
use crate::{
    Loss,
    store::{
        Ending,
        ends::{Caller, Callers},
    },
    time::Instant,
};

impl Line {
    /// Ends a turn. `caller` is told whether the lease was held until now: by the answer to the
    /// release, or to a renewal if the lease goes on.
    pub(crate) fn end(
        &mut self,
        granted: &Granted,
        caller: Option<Caller>,
        t: &mut Transition<'_>,
    ) {
        let Some(held) = self.leases.of_turn(granted) else {
            return t.tell(
                caller.into_iter().collect(),
                Err(lost_error(granted.lease.loss())),
            );
        };
        held.end(granted.number);
        let is_awaited = caller.is_some();
        held.callers.extend(caller);
        let is_outlived = held.is_outlived;
        let lease = granted.lease.owner.attempt;
        self.leases.sort(lease);
        if is_outlived {
            self.end_outlived(lease, t);
        }
        self.serve(t);
        if is_awaited && let Some(held) = self.leases.get(lease) {
            held.renew_now(t);
        }
    }

    /// Ends the turn of a lease that was lost before. The lease has stayed in the store until now,
    /// so that no other instance began the same work (see `lost`).
    fn end_outlived(&mut self, lease: u64, t: &mut Transition<'_>) {
        if let Some(mut held) = self.leases.remove(lease) {
            let loss = held.lease.loss();
            t.tell(take(&mut held.callers), Err(lost_error(loss)));
            if loss != Some(Loss::NotOurs) {
                t.release(held);
            }
        }
    }

    /// Asks the store whether it has the lease of a turn.
    pub(crate) fn confirm(&mut self, granted: &Granted, caller: Caller, t: &mut Transition<'_>) {
        match self.valid_lease_of(granted, t.now) {
            Some(held) => held.confirm(caller, t),
            None => t.tell(
                Callers::from_iter([caller]),
                Err(lost_error(granted.lease.loss())),
            ),
        }
    }

    /// Ends a turn whose lease was replaced by a record, and shares the record, unless the store
    /// may have another one.
    ///
    /// Without a confirmation of the store, a record that was sent goes on as an ending; and a
    /// lease without one is left in the store, so that the work is not begun again before its
    /// time is over.
    pub(crate) fn finished(
        &mut self,
        granted: &Granted,
        record: &Bytes,
        is_confirmed: bool,
        t: &mut Transition<'_>,
    ) {
        if self.leases.of_turn(granted).is_none() {
            return;
        }
        let lease = &granted.lease;
        if let Some(mut held) = self.leases.remove(lease.owner.attempt) {
            held.unschedule(t);
            t.tell(take(&mut held.callers), Ok(()));
            if !is_confirmed && let Some((content, retain)) = lease.recording() {
                let mut release = lease.release();
                release.ending = Ending::Record { content, retain };
                t.end(release, Callers::new());
            }
            if !lease.may_be_kept_by_program() {
                self.share(record, t);
            }
            self.serve(t);
        }
    }

    /// Restarts the time that the turn may last. Returns whether the turn is under way and its
    /// lease valid.
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

    /// Makes the exclusive lease of a turn a shared one, and lets in the readers at the head of the
    /// line. The renewal that answers the caller tells the store.
    pub(crate) fn downgrade(
        &mut self,
        turn: &Arc<Turn>,
        granted: &Granted,
        caller: Caller,
        t: &mut Transition<'_>,
    ) {
        let held = self.valid_lease_of(granted, t.now);
        if let Some(held) = held.filter(|held| held.mode().is_alone()) {
            held.downgrade(turn.clone(), t);
            self.serve(t);
        }
        self.confirm(granted, caller, t);
    }

    /// The lease of a turn, if the turn is under way and the lease valid.
    fn valid_lease_of(&mut self, granted: &Granted, now: Instant) -> Option<&mut HeldLease> {
        let held = self.leases.of_turn(granted)?;
        (!held.is_outlived && held.lease.is_valid(now)).then_some(held)
    }

    /// Ends a lease as lost, and the turns under it.
    pub(super) fn over(&mut self, lease: u64, loss: Loss, t: &mut Transition<'_>) {
        if let Some(mut held) = self.leases.remove(lease) {
            held.lose(loss, t);
            // The store may still have the lease.
            t.release(held);
        }
    }
}
