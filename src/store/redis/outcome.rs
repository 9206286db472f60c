//! What became of a call, as far as is known.

use std::sync::Arc;

use redis::Value;

use super::explain;
use crate::Error;

/// What became of a call.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The script ran and returned this.
    Answered(Answered),
    /// A node of a Cluster sent the call away.
    Redirected {
        redirect: Redirect,
        /// An earlier sending of the same call may have taken effect.
        may_have_taken_effect: bool,
    },
    /// The call failed, and certainly has no effect: it was never sent, or every sending was refused.
    Refused(Error),
    /// The call failed, and may have taken effect, or may still do so.
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

/// Why a node of a Cluster has done nothing, and what to do about it.
#[derive(Debug)]
pub(super) enum Redirect {
    /// Another node has the slot.
    Moved(Arc<str>),
    /// The slot is on its way to another node, which may have the key already.
    Ask(Arc<str>),
    /// The slot is on its way to another node, and that node has some of the keys of the call.
    TryAgain,
    /// A fail-over is under way, or no node has the slot.
    Down,
    /// The call was not sent to any node yet, because the slot map is not known.
    Unrouted,
}

impl Outcome {
    /// The reply, or why there is none.
    pub(super) fn answered(self) -> Result<Answered, Error> {
        match self {
            Self::Answered(answered) => Ok(answered),
            Self::Redirected { redirect, .. } => Err(redirect.error()),
            Self::Refused(error) | Self::MayHaveTakenEffect(error) => Err(error),
        }
    }

    /// The value of the reply, or why there is none.
    pub(super) fn value(self) -> Result<Value, Error> {
        self.answered().map(|answered| answered.value)
    }

    /// A failure, of which it is known whether anything was sent that may have taken effect.
    pub(super) fn failed(error: Error, may_have_taken_effect: bool) -> Self {
        if may_have_taken_effect {
            Self::MayHaveTakenEffect(error)
        } else {
            Self::Refused(error)
        }
    }
}

impl Redirect {
    pub(super) fn error(&self) -> Error {
        match self {
            Self::Moved(_) | Self::Ask(_) | Self::TryAgain => explain::slot_is_moving(),
            Self::Down => explain::cluster_is_down(),
            Self::Unrouted => explain::no_owner(),
        }
    }
}
