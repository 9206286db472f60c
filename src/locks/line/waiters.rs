//! Waiters: entering, leaving, being turned away.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Line, State, Transition, Turn, differ, held, recorded};
use crate::{Error, ErrorKind};

/// What a waiter wants.
#[derive(Debug, Clone)]
pub(crate) struct WaitRequest {
    /// The waiter stays while the key is held.
    pub(crate) patient: bool,
    /// The waiter is told at once when the store fails.
    pub(crate) fail_fast: bool,
    /// What the key is wanted for, if that is done once and then recorded: a digest of it. All waiters of one fingerprint
    /// share the record. A plain lock has none.
    pub(crate) fingerprint: Option<Bytes>,
    /// How long its turn may last, and the store keep its lease, where that differs from what is usual.
    pub(crate) holding: Holding,
}

/// How long a key is held, where that differs from the settings of its [`Locks`](crate::Locks).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// How long a turn may last.
    pub(crate) max_hold: Option<Duration>,
    /// How long the store keeps a lease that is not renewed. Local requests that share a lease have that of the first of them.
    pub(crate) lease: Option<Duration>,
}

/// Why a waiter gets no turn.
#[derive(Debug)]
pub(crate) enum NoTurn {
    /// There is none to be had.
    Failed(Error),
    /// What the key is wanted for was done before, with this record.
    Recorded(Bytes),
    /// The key is held for something else.
    OtherFingerprint,
}

impl NoTurn {
    /// For a plain lock, which can miss its turn only by a failure.
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
    /// Enters the line, if there is any point in waiting.
    pub(crate) fn join(&mut self, turn: &Arc<Turn>, t: &mut Transition<'_>) -> Result<(), NoTurn> {
        let request = &turn.request;
        if let State::Taken(held) | State::Confirming(held, _) | State::Outlived(held) = &self.state
            && differ(&request.fingerprint, &held.lease.fingerprint)
        {
            return Err(NoTurn::OtherFingerprint);
        }
        // What the key is wanted for may be recorded already: only the store can tell, and is being asked.
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
            let message = format!("{waiting} requests wait for this key already");
            return Err(Error::new(ErrorKind::LineFull, message).into());
        }
        if !request.patient {
            self.wake_contender();
        }
        self.waiters.push_back(turn.clone());
        self.look_ahead(t);
        Ok(())
    }

    /// A waiter goes away before it was told anything.
    pub(crate) fn leave(&mut self, id: u64) {
        if let Ok(at) = self.waiters.binary_search_by_key(&id, |turn| turn.id) {
            self.waiters.remove(at);
        }
        if self.waiters.is_empty() {
            self.wake_contender();
        }
    }

    /// All who wait are told that they wait in vain; the turn under way is left alone.
    pub(crate) fn refuse_all(&mut self, error: &Error) {
        for turn in self.waiters.drain(..) {
            turn.refuse(error.clone());
        }
        self.wake_contender();
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Tells those for whom there is a reason why they get no turn, and keeps the others, in their order.
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

    /// Gives the record to all who want the key for what was recorded.
    pub(super) fn share(&mut self, record: &Bytes) {
        self.turn_away(|request| {
            request
                .fingerprint
                .is_some()
                .then(|| NoTurn::Recorded(record.clone()))
        });
    }
}
