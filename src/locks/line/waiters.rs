//! Requests that join the line, leave the line, or are refused.
//!
//! A request joins at the end of the line. These requests are refused at once, because waiting
//! would be pointless:
//!
//! | the request | while | gets |
//! |---|---|---|
//! | wants a permit | the key is locked, or the other way round | [`ErrorKind::Foreign`] |
//! | has a fingerprint | the key is held for other work | [`NoTurn::OtherFingerprint`] |
//! | does not wait, or fails fast | the store is away | [`ErrorKind::Unreachable`] |
//! | does not wait | a turn of another must end before | [`ErrorKind::Held`] |
//! | is one too many | the line is full | [`ErrorKind::LineFull`] |
//!
//! A question that is under way is in nobody's way: requests that fit beside the one that asks wait
//! for the answer. With four permits, of which none is held:
//!
//! ```text
//! permit, now 1   asks for one permit           granted
//! permit, now 2   waits for that answer         2 to 4 ask for three permits in one question: granted
//! permit, now 3   waits for that answer
//! permit, now 4   waits for that answer
//! permit, now 5   refused at once
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{HeldLease, Line, Transition, Turn, held_error, other, recorded_error};
use crate::{
    Error, ErrorKind,
    error::HeldBy,
    store::{InTheWay, Mode},
};

/// The settings of one request in line.
#[derive(Debug, Clone)]
pub(crate) struct WaitRequest {
    /// How many may hold the key beside this request.
    pub(crate) mode: Mode,
    /// The request waits while the key is held.
    pub(crate) patient: bool,
    /// The request fails as soon as the store does.
    pub(crate) fail_fast: bool,
    /// The digest of the work that the key is claimed for, if that work is done once and then
    /// recorded. All requests with the same fingerprint share the record. A plain lock has
    /// none.
    pub(crate) fingerprint: Option<Bytes>,
    /// How long the turn and the lease may last, where that differs from the settings.
    pub(crate) holding: Holding,
}

impl WaitRequest {
    /// A request that waits, with the settings of its [`Locks`](crate::Locks).
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            patient: true,
            fail_fast: false,
            fingerprint: None,
            holding: Holding::default(),
        }
    }
}

/// How long a key is held, where that differs from the settings of its [`Locks`](crate::Locks).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// How long a turn may last.
    pub(crate) max_hold: Option<Duration>,
    /// How long the store keeps a lease that is not renewed. Requests that share a lease share the
    /// length that the first of them asked for.
    pub(crate) lease: Option<Duration>,
}

/// Why a request gets no turn.
///
/// Callers of plain locks get an [`Error`] in every case ([`into_error`](Self::into_error)). The
/// idempotency layer answers a duplicate with the record, and a request with another fingerprint
/// with 422.
#[derive(Debug)]
pub(crate) enum NoTurn {
    /// The request failed.
    Failed(Error),
    /// The work was done before, with this record.
    Recorded(Bytes),
    /// The key is held for other work, with this fingerprint.
    OtherFingerprint(Bytes),
}

impl NoTurn {
    /// The error of a plain lock.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Recorded(_) | Self::OtherFingerprint(_) => recorded_error(),
        }
    }

    /// Whether the turn of another is in the way.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Failed(error) if error.kind() == ErrorKind::Held)
    }

    /// Names the permits that are in the way of a request in this mode.
    pub(crate) fn in_mode(self, mode: Mode) -> Self {
        match (self, mode) {
            (Self::Failed(error), Mode::Permit { of }) if error.kind() == ErrorKind::Held => {
                let message = format!("all {of} permits are in use: {error}");
                Self::Failed(Error::held(HeldBy::Permits(of), message))
            }
            (no_turn, Mode::Exclusive | Mode::Shared | Mode::Permit { .. }) => no_turn,
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
            return Err(request.mode.wrong_kind().into());
        }
        let other = |held: &HeldLease| other(&request.fingerprint, &held.lease.fingerprint);
        if let Some(other) = self.leases.iter_open().find_map(other) {
            return Err(NoTurn::OtherFingerprint(other));
        }
        // The work may be recorded already. Only the store knows, and is being asked.
        let is_being_asked = request.fingerprint.is_some() && self.contending.is_some();
        let away = self.away(t.now);
        let waits_long = !self.waiters.is_empty() && (away.is_some() || self.is_queued());
        if (!request.patient || request.fail_fast || t.config.fail_fast)
            && let Some(away) = away
        {
            return Err(away.into_error(t.now, "others wait for this key").into());
        }
        if !request.patient && !is_being_asked && !self.may_have_room(request) {
            return Err(held_error(self.holder(t.now)).into());
        }
        // A request that waits for no turn of another has room in every line, even with a limit of
        // zero.
        let waits_for_turns = || (request.patient && waits_long) || !self.may_have_room(request);
        if self.waiters.len() >= t.config.longest_line && waits_for_turns() {
            let waiting = self.waiters.len();
            let message = format!(
                "{waiting} requests already wait for this key: see `LocksBuilder::longest_line`"
            );
            return Err(Error::new(ErrorKind::LineFull, message).into());
        }
        if !request.patient {
            self.some_are_impatient = true;
            self.ask_if_queued();
        }
        self.not_alone(t);
        self.waiters.push_back(turn.clone());
        self.serve(t);
        Ok(())
    }

    /// Whether a request may get its turn without the end of another's: at once, or after the
    /// answer to a question or to a renewal that is under way.
    ///
    /// The requests ahead must leave room as well, if they are granted what they ask for. An
    /// exclusive request that does not wait is no obstacle for readers: it may be refused.
    fn may_have_room(&self, request: &WaitRequest) -> bool {
        let mode = request.mode;
        let in_turn = || self.leases.iter_open().filter(|held| !held.is_idle());
        let is_permit = mode.permits().is_some();
        let way = InTheWay {
            leased: in_turn()
                .map(HeldLease::mode)
                .max_by_key(|mode| mode.is_alone()),
            held: if is_permit {
                self.leases.busy()
            } else {
                in_turn().count()
            },
            ahead: self.waiters.len(),
            all_share: mode.shares_turns()
                && self.all_ahead(|_, ahead| ahead.mode.shares_turns() || !ahead.patient),
        };
        let has_room = |at, ahead: &WaitRequest| ahead.mode.room(InTheWay { ahead: at, ..way }) > 0;
        mode.room(way) > 0 && (!is_permit || self.all_ahead(has_room))
    }

    /// Whether the requests in line have a property, each with its place. A request that does not
    /// wait was let in because all requests ahead of it have that property, so those need not
    /// be looked at.
    fn all_ahead(&self, holds: impl Fn(usize, &WaitRequest) -> bool) -> bool {
        let waiters = self.waiters.iter().map(|turn| &turn.request);
        for (at, ahead) in waiters.enumerate().rev() {
            if !holds(at, ahead) {
                return false;
            }
            if !ahead.patient && ahead.fingerprint.is_none() {
                return true;
            }
        }
        true
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
        let left = self.waiters.remove(at);
        if at == 0 {
            let mode = |turn: &Arc<Turn>| turn.request.mode;
            if self.waiters.front().map(mode) != left.as_ref().map(mode) {
                // The place in the store's queue is for one mode.
                self.ask_if_queued();
            }
            self.serve(t);
        }
    }

    /// Refuses all requests that wait. The turn under way goes on.
    pub(crate) fn refuse_all(&mut self, error: &Error, t: &mut Transition<'_>) {
        for turn in self.waiters.drain(..) {
            t.follow_up.wakers.extend(turn.refuse(error.clone()));
        }
        self.wake_contender();
    }

    /// The requests that wait.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Arc<Turn>> {
        self.waiters.iter()
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Refuses the requests that do not wait, because a turn has begun that all others wait for.
    pub(super) fn refuse_those_who_would_wait(&mut self, t: &mut Transition<'_>) {
        if std::mem::take(&mut self.some_are_impatient) {
            self.refuse_if(t, |turn| {
                (!turn.request.patient).then(|| held_error(None).into())
            });
        }
    }

    /// Refuses the requests for which `why` returns a reason, and keeps the others in their order.
    /// `why` is asked once for each request, in order.
    pub(super) fn refuse_if(
        &mut self,
        t: &mut Transition<'_>,
        mut why: impl FnMut(&Turn) -> Option<NoTurn>,
    ) {
        let wakers = &mut t.follow_up.wakers;
        self.waiters.retain(|turn| match why(turn) {
            Some(why) => {
                wakers.extend(turn.refuse(why));
                false
            }
            None => true,
        });
    }

    /// Gives the record to all requests that have claimed the key.
    pub(super) fn share(&mut self, record: &Bytes, t: &mut Transition<'_>) {
        self.refuse_if(t, |turn| {
            let has_claimed = turn.request.fingerprint.is_some();
            has_claimed.then(|| NoTurn::Recorded(record.clone()))
        });
    }
}
