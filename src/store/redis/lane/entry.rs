//! One call in the queue of a lane.
//!
//! | the call | `failure` | `before` |
//! |---|---|---|
//! | an acquire | `CleanUp`: its release follows | `Nothing` |
//! | a release | `Repeat`: until answered, or not owed any more | `Nothing` |
//! | an acquire or a release of `in_order`, whose job makes the call again | `GiveUp` | `Nothing`; `Asking` in a Cluster; `Close` for the release of an acquire on another connection |
//! | a renewal, a question | `GiveUp` | `Nothing`, or `Asking` in a Cluster |

use std::time::Duration;

use redis::{Cmd, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::super::{
    connection::{Connection, Peer},
    operations::{Call, Operation, ReleaseAll, release_of, released},
    outcome::{Outcome, Redirect},
    owed::Debt,
    script::By,
};
use crate::{
    store::{self, Acquire, Answer, Owner, Released},
    trace::{StoreCall, StoreOperation},
};

/// Stands for a duration whose end cannot be represented as an `Instant`.
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

/// A command that is sent right before a call.
#[derive(Debug, Default)]
pub(in super::super) enum Before {
    #[default]
    Nothing,
    /// ASKING, which lets one call run at a node to which the slot is moving.
    Asking,
    /// CLIENT KILL of a connection that is not the lane's own.
    Close(Peer),
}

impl Before {
    /// The command, if there is one for the server of this connection.
    pub(super) fn command(&self, connection: &Connection) -> Option<Cmd> {
        match self {
            Self::Asking => Some(redis::cmd("ASKING")),
            Self::Close(peer) if peer.is_to(&connection.address) => Some(peer.kill()),
            Self::Close(_) | Self::Nothing => None,
        }
    }
}

/// How a lane handles the failure of a call.
#[derive(Debug)]
pub(in super::super) enum Failure {
    /// The call is given up, and nothing follows.
    GiveUp,
    /// The call is an acquire, and its release follows.
    CleanUp,
    /// The call is a release, and is repeated.
    Repeat {
        /// When the release is not owed any more.
        expires: Instant,
        /// Counts the release as owed until the entry is dropped.
        _debt: Debt,
        /// Whether the release is repeated even after an answer, because its acquire may still take effect.
        until_expiry: bool,
    },
}

impl Failure {
    /// The release that must follow if this call fails, for an acquire with [`Failure::CleanUp`].
    pub(super) fn undo(&self, call: &Call) -> Option<ReleaseAll> {
        match (self, call.operation()) {
            (Self::CleanUp, Operation::Acquire(request)) => Some(release_of(request)),
            _ => None,
        }
    }
}

/// The receiver of a call's outcome.
#[derive(Debug)]
pub(super) struct AnswerTo {
    receiver: Receiver,
    /// The time of the call, for the telemetry.
    time: StoreCall,
}

#[derive(Debug)]
enum Receiver {
    One(oneshot::Sender<Outcome>),
    /// A channel for the outcomes of several calls, each with its index.
    Batch(usize, mpsc::UnboundedSender<(usize, Outcome)>),
    /// The answer to a release, which is given when the mutex of the lane is free.
    Release {
        answer: Answer,
        in_doubt: bool,
    },
}

/// Outcomes of releases. They are given when dropped, because the core may come back to the lane.
#[derive(Debug, Default)]
pub(super) struct Told(SmallVec<[(Answer, store::Outcome<Released>); 2]>);

impl Drop for Told {
    fn drop(&mut self) {
        for (answer, outcome) in self.0.drain(..) {
            answer.give(outcome);
        }
    }
}

/// A call in the queue.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) call: Call,
    pub(super) before: Before,
    pub(super) by: By,
    /// `None` once the caller was answered, or has left.
    pub(super) answer: Option<AnswerTo>,
    pub(super) failure: Failure,
    /// When the caller must be answered, or when the release is not owed any more. `deadlines` has the same time.
    pub(super) due: Instant,
    /// How often the call was sent.
    pub(super) sendings: u32,
    pub(super) is_in_flight: bool,
    /// Whether `before` was sent, and so has a reply in front of the call's reply.
    pub(super) has_command_before: bool,
    /// An earlier sending of the call may have taken effect.
    pub(super) may_have_taken_effect: bool,
    /// Whether the release is repeated in a round of `resting`.
    pub(super) is_repeated: bool,
}

impl Entry {
    /// Whether the call has taken effect, or may have.
    pub(super) fn was_sent(&self) -> bool {
        self.is_in_flight || self.may_have_taken_effect
    }

    /// The release that must follow if the call fails, for an acquire with [`Failure::CleanUp`].
    pub(super) fn undo(&self) -> Option<ReleaseAll> {
        self.failure.undo(&self.call)
    }

    /// The owner of an acquire or a release.
    pub(super) fn owner(&self) -> Option<Owner> {
        match self.call.operation() {
            Operation::Acquire(Acquire { owner, .. }) => Some(*owner),
            Operation::Release(releasing) => Some(releasing.release.owner),
            _ => None,
        }
    }
}

/// The reply to a call.
pub(super) struct Reply {
    pub(super) value: Value,
    pub(super) redirect: Option<Redirect>,
    pub(super) predecessors_closed: bool,
}

impl AnswerTo {
    /// The receiver of the outcome of a call that starts now.
    pub(super) fn one(call: &Call, to: oneshot::Sender<Outcome>) -> Self {
        Self {
            receiver: Receiver::One(to),
            time: call.operation().begin(),
        }
    }

    /// The receiver of the outcome of one of several calls that start now.
    pub(super) fn batch(
        call: &Call,
        index: usize,
        to: mpsc::UnboundedSender<(usize, Outcome)>,
    ) -> Self {
        Self {
            receiver: Receiver::Batch(index, to),
            time: call.operation().begin(),
        }
    }

    /// The receiver of the outcome of a release that starts now.
    pub(super) fn release(call: &Call, answer: Answer, in_doubt: bool) -> Self {
        Self {
            receiver: Receiver::Release { answer, in_doubt },
            time: call.operation().begin(),
        }
    }

    /// Sends the outcome, or leaves it in `told`. Returns whether the caller still waits.
    pub(super) fn send(self, outcome: Outcome, told: &mut Told) -> bool {
        self.time.end(outcome.result());
        match self.receiver {
            Receiver::One(to) => to.send(outcome).is_ok(),
            Receiver::Batch(index, to) => to.send((index, outcome)).is_ok(),
            Receiver::Release { answer, in_doubt } => {
                told.0.push((answer, released(outcome, in_doubt)));
                true
            }
        }
    }
}

impl Operation {
    /// Begins to measure a call.
    pub(in super::super) fn begin(&self) -> StoreCall {
        StoreCall::begin(match self {
            Self::Acquire(_) => StoreOperation::Acquire,
            Self::Renew(_) => StoreOperation::Renew,
            Self::Release(_) => StoreOperation::Release,
            _ => StoreOperation::Other,
        })
    }
}

/// The time after a duration, which may be `Duration::MAX`.
pub(in super::super) fn after(duration: Duration) -> Instant {
    Instant::now() + duration.min(FAR)
}

/// Whether a reply is the error NOSCRIPT: the server does not have the script of the call.
pub(in super::super) fn is_noscript(value: &Value) -> bool {
    match value {
        Value::ServerError(error) => error.kind() == Some(ServerErrorKind::NoScript),
        _ => false,
    }
}
