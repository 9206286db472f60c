//! Turns that are under way: their ends, a new begin of their time, and downgrades.
//!
//! Every end is followed by [`Line::serve`], which passes the lease on or releases it.

use std::sync::Arc;

use bytes::Bytes;

use super::{Granted, HeldLease, Inner, Line, Transition, Turn, lost_error};
use crate::{
    Error, ErrorKind, Loss,
    lease::Lease,
    store::{Ending, Mode, ends::NewEnd},
    sync::oneshot,
    time::Instant,
};

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
    /// The answer to the release tells whether the lease was held until now.
    Releasing(oneshot::Receiver<Result<(), Error>>),
    /// The answer to a renewal tells that, before the lease is passed on.
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
        let Some(held) = self.leases.of_turn(granted) else {
            return Ended::Over(granted.lease.loss());
        };
        held.end(granted.number);
        let (is_outlived, is_idle) = (held.is_outlived(), held.is_idle());
        let lease = granted.lease.owner.attempt;
        self.leases.sort(lease);
        let ended = if is_outlived {
            self.end_outlived(lease, t)
        } else if confirm && is_idle {
            self.end_confirmed(lease, t)
        } else {
            Ended::Quietly
        };
        self.serve(t);
        ended
    }

    /// Ends the turn of a lease that was lost before. The lease has stayed in the store until now,
    /// so that no other instance began the same work (see `lost`).
    fn end_outlived(&mut self, lease: u64, t: &mut Transition<'_>) -> Ended {
        let held = self.leases.remove(lease);
        let loss = held.as_ref().and_then(|held| held.lease.loss());
        if let Some(held) = held
            && loss != Some(Loss::NotOurs)
        {
            t.release(held, None);
        }
        Ended::Over(loss)
    }

    /// Asks the store whether the lease was held until now: by the release, or by a renewal if the
    /// lease is to be passed on.
    fn end_confirmed(&mut self, lease: u64, t: &mut Transition<'_>) -> Ended {
        let is_passed_on = self.is_passed_on(lease, t);
        let Some(held) = self.leases.get(lease) else {
            return Ended::Quietly;
        };
        if !held.lease.is_valid(t.now) {
            self.over(lease, Loss::Expired, t);
            return Ended::Over(Some(Loss::Expired));
        }
        let (confirmation, answer) = oneshot::channel();
        if is_passed_on {
            // A renewal that was sent before this moment cannot confirm the end of the turn.
            held.lease.doubt();
            held.confirm(Some(confirmation), t);
            return Ended::Confirming(answer);
        }
        if let Some(held) = self.leases.remove(lease) {
            t.release(held, Some(confirmation));
        }
        Ended::Releasing(answer)
    }

    /// Ends a turn whose lease was replaced by a record, and shares the record.
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
            if !is_confirmed && let Some((content, retain)) = lease.recording() {
                t.end(
                    &lease.key,
                    NewEnd {
                        owner: lease.owner,
                        mode: Mode::Exclusive,
                        ending: Ending::Record { content, retain },
                        in_doubt: false,
                        lasts: lease.length,
                        waiting: None,
                    },
                );
            }
            self.share(record, t);
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
    /// line. Returns whether the turn is under way and its lease valid.
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
            held.downgrade(turn.clone(), t);
        }
        self.serve(t);
        true
    }

    /// The lease of a turn, if the turn is under way and the lease valid.
    fn valid_lease_of(&mut self, granted: &Granted, now: Instant) -> Option<&mut HeldLease> {
        let held = self.leases.of_turn(granted)?;
        (!held.is_outlived() && held.lease.is_valid(now)).then_some(held)
    }

    /// Ends a lease as lost, and the turns under it.
    pub(super) fn over(&mut self, lease: u64, loss: Loss, t: &mut Transition<'_>) {
        if let Some(held) = self.leases.remove(lease) {
            held.lease.lose(loss);
            t.follow_up.lost.push((held.lease.clone(), loss));
            // The store may still have the lease.
            t.release(held, None);
        }
    }
}

impl Ended {
    /// Waits for the store's answer, if one is due: whether the lease was held until the end of the
    /// turn.
    pub(crate) async fn confirmed(self, inner: &Arc<Inner>, lease: &Lease) -> Result<(), Error> {
        let outcome = match self {
            Self::Quietly => return Ok(()),
            Self::Over(loss) => return Err(lost_error(loss)),
            Self::Releasing(answer) => answer.await,
            Self::Confirming(mut answer) => loop {
                let told = lease.loss_told();
                // Looked at after that: whoever ends the background wakes the watchers of all
                // leases.
                inner.scheduler.start(inner);
                tokio::select! {
                    biased;
                    outcome = &mut answer => break outcome,
                    () = told => {}
                }
            },
        };
        outcome.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unreachable,
                "the turn has ended, but the locks ended before the store confirmed the lease",
            ))
        })
    }
}
