//! One call in the queue of a lane, and where its outcome goes.

use redis::{ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};

use super::super::{
    connection::Peer,
    explain,
    operations::{Call, Joint, Operation, released},
    script::By,
    topology::is_redirect,
};
use crate::{
    store::{Answer, Outcome, Released},
    trace::{StoreCall, StoreOperation, StoreResult},
};

/// A call in the queue.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) call: Call,
    pub(super) by: By,
    /// The receiver of the outcome, and the time of the call for the telemetry. `None` once the
    /// caller was answered.
    pub(super) answer: Option<(Receiver, StoreCall)>,
    /// When the caller must be answered.
    pub(super) deadline: Instant,
    /// The strays that the server closes right before it runs the call, which is a release in
    /// doubt.
    pub(super) strays: Vec<Peer>,
    /// The script that the call shares with others of its message.
    pub(super) joint: Option<Joint>,
    /// Whether the call has failed in a joint script, and is sent by itself.
    pub(super) is_apart: bool,
    /// Whether that script has taken the key, with a token that is too low. A call that then fails
    /// has had an effect.
    pub(super) has_taken: bool,
}

/// The receiver of a call's outcome.
#[derive(Debug)]
pub(super) enum Receiver {
    One(oneshot::Sender<Outcome<Value>>),
    /// The answer to a release, which is given when the mutex of the lane is free.
    Release(Answer),
}

/// Outcomes of releases. They are given when dropped, because the core may come back to the lane.
#[derive(Debug, Default)]
pub(super) struct Told(SmallVec<[(Answer, Outcome<Released>); 2]>);

impl Entry {
    /// A call that starts now.
    pub(super) fn new(call: Call, deadline: Instant, receiver: Receiver) -> Self {
        Self {
            by: call.by(),
            answer: Some((receiver, call.operation.begin())),
            call,
            deadline,
            strays: Vec::new(),
            joint: None,
            is_apart: false,
            has_taken: false,
        }
    }

    /// Whether the caller has left without an answer.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(&self.answer, Some((Receiver::One(to), _)) if to.is_closed())
    }

    /// Tells the outcome, once. That of a release is left in `told`.
    pub(super) fn tell(&mut self, outcome: Outcome<Value>, told: &mut Told) {
        let Some((receiver, time)) = self.answer.take() else {
            return;
        };
        time.end(result(&outcome));
        let outcome = match outcome {
            Outcome::Refused(error) if self.has_taken => Outcome::Unknown(error),
            Outcome::Answered(Value::ServerError(error)) if self.has_taken => {
                Outcome::Unknown(explain::refused(error.into()))
            }
            outcome => outcome,
        };
        match receiver {
            Receiver::One(to) => drop(to.send(outcome)),
            Receiver::Release(answer) => told.0.push((answer, released(outcome))),
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        for (answer, outcome) in self.0.drain(..) {
            answer.give(outcome);
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

/// The outcome, as the telemetry needs it.
pub(in super::super) fn result(outcome: &Outcome<Value>) -> StoreResult {
    match outcome {
        Outcome::Answered(value) if is_redirect(value) => StoreResult::Redirected,
        Outcome::Answered(Value::ServerError(_)) => StoreResult::Failed,
        Outcome::Answered(_) => StoreResult::Answered,
        Outcome::Refused(_) | Outcome::Unknown(_) => StoreResult::Failed,
    }
}

/// Whether a reply is the error NOSCRIPT: the server does not have the script of the call.
pub(in super::super) fn is_noscript(value: &Value) -> bool {
    match value {
        Value::ServerError(error) => error.kind() == Some(ServerErrorKind::NoScript),
        _ => false,
    }
}
