//! One call of a lane, and who is told what became of it.

use std::time::Duration;

use redis::{Cmd, ServerErrorKind, Value};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::super::{
    calls::{Call, Operation},
    connection::{Connection, Peer},
    outcome::{Outcome, Redirect},
    owed::Debt,
    script::By,
};
use crate::store::{Acquire, Ending, Owner, Queueing, Release};

/// Instead of a point in time that cannot be represented.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// A call to be started.
#[derive(Debug)]
pub(in super::super) struct Start {
    pub(in super::super) call: Call,
    pub(in super::super) before: Before,
    pub(in super::super) failure: Failure,
    /// When the caller must be answered.
    pub(in super::super) deadline: Instant,
}

/// What is sent right before a call.
#[derive(Debug, Default)]
pub(in super::super) enum Before {
    #[default]
    Nothing,
    /// ASKING, which lets one call pass at a node that is about to get the slot.
    Asking,
    /// CLIENT KILL of a connection beside the lane.
    Close(Peer),
}

impl Before {
    pub(super) fn command(&self, connection: &Connection) -> Option<Cmd> {
        match self {
            Self::Asking => Some(redis::cmd("ASKING")),
            Self::Close(peer) if peer.is_to(&connection.address) => Some(peer.kill()),
            Self::Close(_) | Self::Nothing => None,
        }
    }
}

/// What a lane does about a call that failed.
#[derive(Debug)]
pub(in super::super) enum Failure {
    /// Nothing.
    Forget,
    /// The lane releases what the acquire may have taken.
    CleanUp,
    /// The release is repeated.
    Repeat {
        expires: Instant,
        /// Counts as owed until the entry is gone.
        _debt: Debt,
        /// An answer does not settle the release: its acquire may still take effect.
        until_expiry: bool,
    },
}

/// Who is told what became of a call.
#[derive(Debug)]
pub(super) enum AnswerTo {
    One(oneshot::Sender<Outcome>),
    Batch(usize, mpsc::UnboundedSender<(usize, Outcome)>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) call: Call,
    pub(super) before: Before,
    pub(super) by: By,
    pub(super) answer: Option<AnswerTo>,
    pub(super) failure: Failure,
    /// When the caller must be answered, or the release is not owed any more: the entry's place in `deadlines`.
    pub(super) due: Instant,
    pub(super) sendings: u32,
    pub(super) is_in_flight: bool,
    /// Another command was sent right before the call, and has a reply of its own.
    pub(super) has_command_before: bool,
    /// An earlier sending of the call may have taken effect.
    pub(super) may_have_taken_effect: bool,
    /// How long the release rests when it is refused the next time.
    pub(super) rest: Duration,
}

impl Entry {
    /// Whether the call has taken effect, or may have.
    pub(super) fn was_sent(&self) -> bool {
        self.is_in_flight || self.may_have_taken_effect
    }

    /// The release of what the call may have taken, if it is to be released.
    pub(super) fn undo(&self) -> Option<Release> {
        match (&self.failure, self.call.operation()) {
            (Failure::CleanUp, Operation::Acquire(request)) => Some(release_of(request)),
            _ => None,
        }
    }

    /// Whose acquire or release it is.
    pub(super) fn owner(&self) -> Option<Owner> {
        match self.call.operation() {
            Operation::Acquire(Acquire { owner, .. })
            | Operation::Release(Release { owner, .. }) => Some(*owner),
            _ => None,
        }
    }
}

/// The release of what an acquire may have taken.
pub(in super::super) fn release_of(request: &Acquire) -> Release {
    Release {
        key: request.key.clone(),
        owner: request.owner,
        ending: Ending::Free,
        owed_for: match request.queueing {
            Queueing::Wait { deadline, .. } => request.lease.max(deadline),
            _ => request.lease,
        },
    }
}

/// The reply to a call.
pub(super) struct Reply {
    pub(super) value: Value,
    pub(super) redirect: Option<Redirect>,
    pub(super) predecessors_closed: bool,
}

impl AnswerTo {
    /// Says whether there is somebody to hear it.
    pub(super) fn send(self, outcome: Outcome) -> bool {
        match self {
            Self::One(to) => to.send(outcome).is_ok(),
            Self::Batch(index, to) => to.send((index, outcome)).is_ok(),
        }
    }
}

/// The point in time after a duration that may be without end.
pub(in super::super) fn after(duration: Duration) -> Instant {
    Instant::now() + duration.min(FAR)
}

pub(in super::super) fn is_noscript(value: &Value) -> bool {
    match value {
        Value::ServerError(error) => error.kind() == Some(ServerErrorKind::NoScript),
        _ => false,
    }
}
