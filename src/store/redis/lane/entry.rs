//! One call of a lane, and who is told what became of it.

use std::time::Duration;

use redis::{ServerErrorKind, Value};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::super::{
    connection::Peer,
    outcome::{Outcome, Redirect},
    owed::Debt,
    script::{By, Call},
};
use crate::{LockKey, store::Owner};

/// Instead of a point in time that cannot be represented.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// A call to be started.
#[derive(Debug)]
pub(in super::super) struct Start {
    pub(in super::super) key: LockKey,
    pub(in super::super) call: Call,
    /// How the server is told which script is meant. By hash only where the script is loaded with every connection.
    pub(in super::super) by: By,
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

/// What a lane does about a call that failed.
#[derive(Debug)]
pub(in super::super) enum Failure {
    /// Nothing.
    Forget,
    /// The lane releases what the acquire may have taken.
    CleanUp { owner: Owner, owed_for: Duration },
    /// The release is repeated.
    Repeat {
        owner: Owner,
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
    pub(super) key: LockKey,
    pub(super) call: Call,
    pub(super) before: Before,
    pub(super) by: By,
    pub(super) answer: Option<AnswerTo>,
    pub(super) failure: Failure,
    /// When the caller must be answered, or the release is not owed any more: the entry's place in `deadlines`.
    pub(super) due: Instant,
    pub(super) sendings: u32,
    pub(super) is_in_flight: bool,
    pub(super) may_have_taken_effect: bool,
    pub(super) rest: Duration,
}

/// The reply to one call of a message.
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
