//! The parts that the replies of several scripts have in common. Each `.lua` file opens with the
//! replies of its script.

use std::time::Duration;

use redis::Value;

use super::super::{explain, floors::Floor};
use crate::{
    Error,
    store::{Outcome, Tokens, types::END_OF_TOKENS},
};

/// The remaining time of a lease without an expiry, which only an operator can make (PERSIST).
const NEVER: Duration = Duration::from_secs(60 * 60);

/// Reads the reply to a call. An error of the server means that the call has had no effect, and of
/// a reply that no script gives, nothing is known.
pub(in super::super) fn read<T>(
    outcome: Outcome<Value>,
    reply: impl FnOnce(Value) -> Result<T, Error>,
) -> Outcome<T> {
    let value = match outcome {
        Outcome::Answered(value) => value.extract_error().map_err(explain::refused),
        Outcome::Refused(error) => Err(error),
        Outcome::Unknown(error) => return Outcome::Unknown(error),
    };
    match value.map(reply) {
        Ok(Ok(answer)) => Outcome::Answered(answer),
        Ok(Err(error)) => Outcome::Unknown(error),
        Err(error) => Outcome::Refused(error),
    }
}

/// Reads a reply of 1 or 0.
pub(super) fn flag(reply: Value) -> Result<bool, Error> {
    match reply {
        Value::Int(flag) => Ok(flag == 1),
        _ => Err(explain::unexpected_reply()),
    }
}

/// The block of tokens that ends with `last`. Raises the floor to `last`, because this process has
/// seen these tokens now.
pub(super) fn tokens(last: i64, block: u32, floor: Floor<'_>) -> Option<Tokens> {
    let last = u64::try_from(last).ok()?;
    if last >= END_OF_TOKENS {
        return None;
    }
    let before = last.checked_sub(u64::from(block))?;
    floor.raise(last);
    (block > 0 && last > 0).then(|| Tokens::new(before + 1, block))
}

/// The text of a reply, if the reply is a text.
pub(in super::super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// A time that the server gives in milliseconds. A negative number stands for no expiry.
pub(super) fn remaining(millis: i64) -> Duration {
    u64::try_from(millis).map_or(NEVER, Duration::from_millis)
}
