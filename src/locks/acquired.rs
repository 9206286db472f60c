//! The outcome of a request for a turn, as the telemetry needs it.

use super::{LockGuard, NoTurn};
use crate::{
    ErrorKind,
    trace::{Acquired, TurnOutcome},
};

pub(super) fn describe(outcome: &Result<LockGuard, NoTurn>) -> Acquired<'_> {
    let no_turn = match outcome {
        Ok(guard) => return guard.acquired(),
        Err(no_turn) => no_turn,
    };
    Acquired::No(match no_turn {
        NoTurn::Recorded(_) => TurnOutcome::Recorded,
        NoTurn::OtherFingerprint => TurnOutcome::OtherRequest,
        NoTurn::Failed(error) => match error.kind() {
            ErrorKind::Held => TurnOutcome::Held,
            ErrorKind::LineFull => TurnOutcome::LineFull,
            ErrorKind::TooManyKeys => TurnOutcome::TooManyKeys,
            ErrorKind::Unreachable => TurnOutcome::Unreachable,
            ErrorKind::Closed => TurnOutcome::Closed,
            _ => TurnOutcome::Failed,
        },
    })
}
