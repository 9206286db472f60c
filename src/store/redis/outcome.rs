//! The outcome of a call, as far as the client can know.

use std::sync::Arc;

use redis::Value;

use super::explain;
use crate::{Error, trace::StoreResult};

/// The outcome of a call.
///
/// The variants differ in whether the call can have changed anything on the server, because that decides whether an acquire must be
/// released and whether a call may be made again elsewhere.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The script ran and returned a value.
    Answered(Answered),
    /// A node of a Cluster has not run the call, and says where or when to make the call again.
    Redirected {
        redirect: Redirect,
        /// An earlier sending of the same call may have taken effect.
        may_have_taken_effect: bool,
    },
    /// The call failed and certainly has no effect: the call was never sent, or every sending was refused.
    Refused(Error),
    /// The call failed and may have taken effect, or may still do so.
    MayHaveTakenEffect(Error),
}

/// The reply to a call.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) value: Value,
    /// An earlier sending of the same call may have taken effect, too.
    pub(super) repeated: bool,
    /// Nothing that was sent before this call, on a connection that the lane has given up, can still take effect.
    pub(super) predecessors_closed: bool,
}

/// Why a node of a Cluster has not run a call.
#[derive(Debug)]
pub(super) enum Redirect {
    /// Another node has the slot.
    Moved(Arc<str>),
    /// The slot is moving to another node, which may have the key already.
    Ask(Arc<str>),
    /// The slot is moving to another node, which has some of the call's keys.
    TryAgain,
    /// A fail-over is under way, or no node has the slot.
    Down,
    /// The call was not sent to any node yet, because the slot map is not known.
    Unrouted,
}

impl Outcome {
    /// The outcome, as the telemetry needs it.
    pub(super) fn result(&self) -> StoreResult {
        match self {
            Self::Answered(_) => StoreResult::Answered,
            Self::Redirected { .. } => StoreResult::Redirected,
            Self::Refused(_) | Self::MayHaveTakenEffect(_) => StoreResult::Failed,
        }
    }

    /// The reason why there is no reply. `None` if there is one.
    pub(super) fn error(&self) -> Option<Error> {
        match self {
            Self::Answered(_) => None,
            Self::Redirected { redirect, .. } => Some(redirect.error()),
            Self::Refused(error) | Self::MayHaveTakenEffect(error) => Some(error.clone()),
        }
    }

    /// The reply, or the reason why there is none.
    pub(super) fn answered(self) -> Result<Answered, Error> {
        match self {
            Self::Answered(answered) => Ok(answered),
            Self::Redirected { redirect, .. } => Err(redirect.error()),
            Self::Refused(error) | Self::MayHaveTakenEffect(error) => Err(error),
        }
    }

    /// The value of the reply, or the reason why there is none.
    pub(super) fn value(self) -> Result<Value, Error> {
        self.answered().map(|answered| answered.value)
    }

    /// A failure. `may_have_taken_effect`: the call was sent, and some sending was not refused.
    pub(super) fn failed(error: Error, may_have_taken_effect: bool) -> Self {
        if may_have_taken_effect {
            Self::MayHaveTakenEffect(error)
        } else {
            Self::Refused(error)
        }
    }
}

impl Redirect {
    /// The error of a call that could not follow the redirect in time.
    pub(super) fn error(&self) -> Error {
        match self {
            Self::Moved(_) | Self::Ask(_) | Self::TryAgain => explain::slot_is_moving(),
            Self::Down => explain::cluster_is_down(),
            Self::Unrouted => explain::no_owner(),
        }
    }
}
