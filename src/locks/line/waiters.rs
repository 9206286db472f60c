//! Waiters: entering, leaving, being turned away.

use std::time::Duration;

use bytes::Bytes;

use super::{Line, State, Transition, differ, held, recorded};
use crate::{Error, ErrorKind, sync::oneshot};

use super::turns::Granted;

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

/// Where a waiter is told what became of its waiting,
pub(crate) type Ticket = oneshot::Sender<Result<Granted, NoTurn>>;
/// and where it learns of it.
pub(crate) type Answer = oneshot::Receiver<Result<Granted, NoTurn>>;

/// A waiter's place in line.
pub(crate) struct Place {
    pub(crate) id: u64,
    pub(crate) answer: Answer,
}

#[derive(Debug)]
pub(super) struct Waiting {
    /// Rises from the head of the line to its end.
    id: u64,
    pub(super) request: WaitRequest,
    ticket: Ticket,
}

impl Waiting {
    /// Tells the waiter why it gets no turn. One that has gone away need not know.
    pub(super) fn refuse(self, why: impl Into<NoTurn>) {
        let _ = self.ticket.send(Err(why.into()));
    }

    /// Hands a turn to the waiter. Says whether the waiter is still there.
    pub(super) fn grant(self, granted: Granted) -> bool {
        self.ticket.send(Ok(granted)).is_ok()
    }
}

impl Line {
    /// Enters the line, if there is any point in waiting.
    pub(crate) fn join(
        &mut self,
        id: u64,
        request: WaitRequest,
        t: &mut Transition<'_>,
    ) -> Result<Place, NoTurn> {
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
        let place = self.enter(id, request);
        self.look_ahead(t);
        Ok(place)
    }

    pub(super) fn enter(&mut self, id: u64, request: WaitRequest) -> Place {
        let (ticket, answer) = oneshot::channel();
        self.waiters.push_back(Waiting {
            id,
            request,
            ticket,
        });
        Place { id, answer }
    }

    /// A waiter goes away before it was told anything.
    pub(crate) fn leave(&mut self, id: u64) {
        if let Ok(at) = self.waiters.binary_search_by_key(&id, |waiting| waiting.id) {
            self.waiters.remove(at);
        }
        if self.waiters.is_empty() {
            self.wake_contender();
        }
    }

    /// All who wait are told that they wait in vain; the turn under way is left alone.
    pub(crate) fn refuse_all(&mut self, error: &Error) {
        for waiting in self.waiters.drain(..) {
            waiting.refuse(error.clone());
        }
        self.wake_contender();
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Tells those for whom there is a reason why they get no turn, and keeps the others, in their order.
    pub(super) fn turn_away(&mut self, why: impl Fn(&WaitRequest) -> Option<NoTurn>) {
        if !self
            .waiters
            .iter()
            .any(|waiting| why(&waiting.request).is_some())
        {
            return;
        }
        for waiting in std::mem::take(&mut self.waiters) {
            match why(&waiting.request) {
                Some(why) => waiting.refuse(why),
                None => self.waiters.push_back(waiting),
            }
        }
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
