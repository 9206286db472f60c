//! Requests that join the line, leave the line, or are refused.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Line, State, Transition, Turn, differ, held, recorded};
use crate::{Error, ErrorKind};

/// The settings of one request in line.
#[derive(Debug, Clone)]
pub(crate) struct WaitRequest {
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
            Self::Recorded(_) | Self::OtherFingerprint => recorded(),
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
        if let State::Taken(held) | State::Confirming(held, _) | State::Outlived(held) = &self.state
            && differ(&request.fingerprint, &held.lease.fingerprint)
        {
            return Err(NoTurn::OtherFingerprint);
        }
        // The work may be recorded already. Only the store knows, and is being asked.
        let is_being_asked =
            request.fingerprint.is_some() && matches!(self.state, State::Contending(_));
        if (!request.patient || request.fail_fast)
            && let Some(away) = self.away(t.now)
        {
            return Err(away.into_error(t.now, "others wait for this key").into());
        }
        if !request.patient && !is_being_asked {
            return Err(held(self.holder(t.now)).into());
        }
        if self.waiters.len() >= t.limits.longest_line {
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
        self.look_ahead(t);
        Ok(())
    }

    /// Removes a request that does not wait any longer.
    pub(crate) fn leave(&mut self, id: u64) {
        if let Ok(at) = self.waiters.binary_search_by_key(&id, |turn| turn.id) {
            self.waiters.remove(at);
        }
        if self.waiters.is_empty() {
            self.wake_contender();
        }
    }

    /// Refuses all requests that wait. The turn under way goes on.
    pub(crate) fn refuse_all(&mut self, error: &Error) {
        for turn in self.waiters.drain(..) {
            turn.refuse(error.clone());
        }
        self.wake_contender();
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Refuses the requests for which `why` returns a reason, and keeps the others in their order.
    pub(super) fn turn_away(&mut self, why: impl Fn(&WaitRequest) -> Option<NoTurn>) {
        let is_turned_away = |turn: &Arc<Turn>| why(&turn.request).is_some();
        if !self.waiters.iter().any(is_turned_away) {
            return;
        }
        self.waiters.retain(|turn| match why(&turn.request) {
            Some(why) => {
                turn.refuse(why);
                false
            }
            None => true,
        });
    }

    /// Gives the record to all requests that have claimed the key.
    pub(super) fn share(&mut self, record: &Bytes) {
        self.turn_away(|request| {
            request
                .fingerprint
                .is_some()
                .then(|| NoTurn::Recorded(record.clone()))
        });
    }
}
