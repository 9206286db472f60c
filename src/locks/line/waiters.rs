//! Requests that join the line, leave the line, or are refused.
//!
//! A request joins at the end of the line. These requests are refused at once, because waiting would be pointless:
//!
//! | the request | while | gets |
//! |---|---|---|
//! | wants a permit | the key is locked, or the other way round | [`ErrorKind::Foreign`] |
//! | has a fingerprint | the key is held for other work | [`NoTurn::OtherFingerprint`] |
//! | does not wait, or fails fast | the store is away | [`ErrorKind::Unreachable`] |
//! | does not wait | the key is held | [`ErrorKind::Held`] |
//! | is one too many | the line is full | [`ErrorKind::LineFull`] |

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{HeldLease, Line, Transition, Turn, differ, held_error, recorded_error};
use crate::{Error, ErrorKind, error::HeldBy, store::Mode};

/// The settings of one request in line.
#[derive(Debug, Clone)]
pub(crate) struct WaitRequest {
    /// How many may hold the key beside this request.
    pub(crate) mode: Mode,
    /// The request waits while the key is held.
    pub(crate) patient: bool,
    /// The request fails as soon as the store does.
    pub(crate) fail_fast: bool,
    /// The digest of the work that the key is claimed for, if that work is done once and then recorded. All requests
    /// with the same fingerprint share the record. A plain lock has none.
    pub(crate) fingerprint: Option<Bytes>,
    /// How long the turn and the lease may last, where that differs from the settings.
    pub(crate) holding: Holding,
}

/// How long a key is held, where that differs from the settings of its [`Locks`](crate::Locks).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// How long a turn may last.
    pub(crate) max_hold: Option<Duration>,
    /// How long the store keeps a lease that is not renewed. Requests that share a lease share the length that the
    /// first of them asked for.
    pub(crate) lease: Option<Duration>,
}

/// Why a request gets no turn.
///
/// Callers of plain locks get an [`Error`] in every case ([`into_error`](Self::into_error)). The idempotency layer
/// answers a duplicate with the record, and a request with another fingerprint with 422.
#[derive(Debug)]
pub(crate) enum NoTurn {
    /// The request failed.
    Failed(Error),
    /// The work was done before, with this record.
    Recorded(Bytes),
    /// The key is held for other work.
    OtherFingerprint,
}

impl NoTurn {
    /// The error of a plain lock.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Recorded(_) | Self::OtherFingerprint => recorded_error(),
        }
    }

    /// Names the permits that are in the way of a request in this mode.
    pub(crate) fn in_mode(self, mode: Mode) -> Self {
        match (self, mode) {
            (Self::Failed(error), Mode::Permit { of }) if error.kind() == ErrorKind::Held => {
                let message = format!("all {of} permits are in use: {error}");
                Self::Failed(Error::held(HeldBy::Permits(of), message))
            }
            (no_turn, _) => no_turn,
        }
    }
}

impl From<Error> for NoTurn {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Line {
    /// Adds a request to the line, unless waiting would be pointless.
    pub(crate) fn join(&mut self, turn: &Arc<Turn>, t: &mut Transition<'_>) -> Result<(), NoTurn> {
        let request = &turn.request;
        if self.is_for_other_kind(request.mode) {
            return Err(wrong_kind(request.mode).into());
        }
        let is_for_other_work =
            |held: &HeldLease| differ(&request.fingerprint, &held.lease.fingerprint);
        if self.leases.iter().any(is_for_other_work) {
            return Err(NoTurn::OtherFingerprint);
        }
        // The work may be recorded already. Only the store knows, and is being asked.
        let is_being_asked = request.fingerprint.is_some() && self.contending.is_some();
        if (!request.patient || request.fail_fast)
            && let Some(away) = self.away(t.now)
        {
            return Err(away.into_error(t.now, "others wait for this key").into());
        }
        if !request.patient && !is_being_asked && !self.may_have_room(request, t) {
            return Err(held_error(self.holder(t.now)).into());
        }
        // A request that does not have to wait for others has room in every line, even with a limit of zero.
        if self.waiters.len() >= t.limits.longest_line && !self.may_have_room(request, t) {
            let waiting = self.waiters.len();
            let message = format!(
                "{waiting} requests already wait for this key: see `LocksBuilder::longest_line`"
            );
            return Err(Error::new(ErrorKind::LineFull, message).into());
        }
        if !request.patient {
            self.wake_contender();
        }
        self.waiters.push_back(turn.clone());
        self.serve(t);
        Ok(())
    }

    /// Whether a request that does not wait can have its turn at once, or the store must be asked to know.
    ///
    /// A contender may be there without a request: the request that it asked for has left. Its answer, or the one to its next
    /// question, is then for this request (see `held`).
    fn may_have_room(&self, request: &WaitRequest, t: &Transition<'_>) -> bool {
        let mut leases = self.leases.iter();
        let is_asked_for = self.needs_lease(request)
            && (request.mode != Mode::Exclusive || self.leases.is_empty());
        self.waiters.is_empty() && (is_asked_for || leases.any(|held| held.can_serve(request, t)))
    }

    /// Whether the key is in use for locks and the mode is for permits, or the other way round.
    fn is_for_other_kind(&self, mode: Mode) -> bool {
        let leases = self.leases.iter().map(|held| held.mode());
        let waiters = self.waiters.iter().map(|turn| turn.request.mode);
        let mut in_use = leases.chain(waiters);
        in_use
            .next()
            .is_some_and(|in_use| in_use.is_permit() != mode.is_permit())
    }

    /// Removes a request that does not wait any longer.
    pub(crate) fn leave(&mut self, id: u64, t: &mut Transition<'_>) {
        let Ok(at) = self.waiters.binary_search_by_key(&id, |turn| turn.id) else {
            return;
        };
        self.waiters.remove(at);
        if at == 0 {
            // The next request may need another lease than the contender asks for, or none.
            self.wake_contender();
            self.serve(t);
        }
    }

    /// Refuses all requests that wait. The turn under way goes on.
    pub(crate) fn refuse_all(&mut self, error: &Error) {
        for turn in self.waiters.drain(..) {
            turn.refuse(error.clone());
        }
        self.wake_contender();
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Refuses the requests for which `why` returns a reason, and keeps the others in their order.
    pub(super) fn refuse_if(&mut self, why: impl Fn(&Turn) -> Option<NoTurn>) {
        let is_refused = |turn: &Arc<Turn>| why(turn).is_some();
        if !self.waiters.iter().any(is_refused) {
            return;
        }
        self.waiters.retain(|turn| match why(turn) {
            Some(why) => {
                turn.refuse(why);
                false
            }
            None => true,
        });
    }

    /// Gives the record to all requests that have claimed the key.
    pub(super) fn share(&mut self, record: &Bytes) {
        self.refuse_if(|turn| {
            let has_claimed = turn.request.fingerprint.is_some();
            has_claimed.then(|| NoTurn::Recorded(record.clone()))
        });
    }
}

/// The error of a request for a key that is in use for the other kind of leases.
fn wrong_kind(mode: Mode) -> Error {
    let message = if mode.is_permit() {
        "the key is locked: use another key for permits"
    } else {
        "permits of this key are in use: use another key for locks"
    };
    Error::new(ErrorKind::Foreign, message)
}
