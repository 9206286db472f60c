//! Reads the replies of the scripts. Each `.lua` file opens with the replies of its script.
//!
//! | script | reply | meaning |
//! |---|---|---|
//! | acquire | `1731756000000003` | granted; the last token of the block |
//! | acquire | `["granted", 43, 2, 1]` | granted, two permits, and others wait |
//! | acquire | `["held", 8214, nil, "web-3"]` | held for another 8,214 ms, by `web-3` |
//! | acquire | `["record", "…"]` | a record is in the lease's place |
//! | renew | `[1, 75]` | renewed; others wait; the last token of the refill |
//! | renew, release | `0` | not ours |
//! | release | `1` | freed |

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use redis::Value;

use super::{
    explain,
    floors::{END_OF_TOKENS, Floor},
    value::{self, Named, Stored},
};
use crate::{
    Error, ErrorKind, LockKey,
    store::{Acquired, Grant, Held, Hint, Holder, Inspection, Mode, Renewed, Tokens},
};

/// The remaining time of a lease without an expiry, which only an operator can make (PERSIST).
const NEVER: Duration = Duration::from_secs(60 * 60);

/// Reads the reply of `acquire.lua` or `acquire_shared.lua`.
pub(super) fn acquired(reply: Value, block: u32, floor: Floor<'_>) -> Result<Acquired, Error> {
    let grant = |last, count, others_wait| {
        Some(Acquired::Granted(Grant {
            tokens: tokens(last, block, floor)?,
            count,
            others_wait,
        }))
    };
    let answer = match reply {
        Value::Int(last) => grant(last, 1, false),
        Value::Array(parts) => match <[Value; 4]>::try_from(parts) {
            Ok(
                [
                    kind,
                    Value::Int(last),
                    Value::Int(count),
                    Value::Int(others_wait),
                ],
            ) if text(&kind) == Some("granted") => {
                let count = u32::try_from(count).ok();
                count.and_then(|count| grant(last, count, others_wait == 1))
            }
            Ok(parts) => held(parts).map(Acquired::Held),
            Err(parts) => recorded(parts).map(Acquired::Recorded),
        },
        _ => None,
    };
    answer.ok_or_else(explain::unexpected_reply)
}

fn held(parts: [Value; 4]) -> Option<Held> {
    let [kind, Value::Int(remaining), fingerprint, label] = parts else {
        return None;
    };
    let fingerprint = match fingerprint {
        Value::Nil => None,
        Value::BulkString(fingerprint) => Some(fingerprint.into()),
        _ => return None,
    };
    (text(&kind) == Some("held")).then(|| Held {
        remaining: millis(remaining),
        fingerprint,
        label: text(&label).map(Arc::from),
    })
}

fn recorded(parts: Vec<Value>) -> Option<Bytes> {
    let [kind, Value::BulkString(content)] = <[Value; 2]>::try_from(parts).ok()? else {
        return None;
    };
    (text(&kind) == Some("record")).then(|| content.into())
}

/// Reads the reply of `renew.lua`, `renew_alone.lua` or `renew_shared.lua`.
pub(super) fn renewed(reply: Value, refill: u32, floor: Floor<'_>) -> Renewed {
    match reply {
        Value::Int(0) => Renewed::NotOurs,
        Value::Array(parts) => match parts[..] {
            [Value::Int(others_wait), Value::Int(last)] => Renewed::Renewed {
                tokens: tokens(last, refill, floor),
                others_wait: others_wait == 1,
            },
            _ => Renewed::Unknown(explain::unexpected_reply()),
        },
        _ => Renewed::Unknown(explain::unexpected_reply()),
    }
}

/// Reads a reply of 1 or 0.
pub(super) fn flag(reply: Value) -> Result<bool, Error> {
    match reply {
        Value::Int(flag) => Ok(flag == 1),
        _ => Err(explain::unexpected_reply()),
    }
}

/// The reply to SCAN.
pub(super) struct Scanned {
    /// The cursor of the next step, or zero at the end.
    pub(super) next: u64,
    pub(super) names: Vec<Value>,
}

/// Reads the reply to SCAN.
pub(super) fn scanned(reply: Value) -> Result<Scanned, Error> {
    let parts = match reply {
        Value::Array(parts) => <[Value; 2]>::try_from(parts).ok(),
        _ => None,
    };
    let Some([next, Value::Array(names)]) = parts else {
        return Err(explain::unexpected_reply());
    };
    let next = text(&next).and_then(|next| next.parse().ok());
    let next = next.ok_or_else(explain::unexpected_reply)?;
    Ok(Scanned { next, names })
}

/// Reads the reply of `raise_fence.lua`.
pub(super) fn token(reply: Value, floor: Floor<'_>) -> Result<u64, Error> {
    let token = match reply {
        Value::Int(token) => u64::try_from(token).ok(),
        _ => None,
    };
    let token = token.ok_or_else(explain::unexpected_reply)?;
    floor.raise(token);
    Ok(token)
}

/// Reads the reply of `inspect.lua`.
pub(super) fn inspection(reply: Value, floor: Floor<'_>) -> Result<Inspection, Error> {
    let parts = match reply {
        Value::Array(parts) => <[Value; 5]>::try_from(parts).ok(),
        _ => None,
    };
    let Some(
        [
            stored,
            Value::Int(ttl),
            Value::Array(holders),
            Value::Array(queue),
            fence,
        ],
    ) = parts
    else {
        return Err(explain::unexpected_reply());
    };
    let mut seen = Inspection {
        fence: floor.get(),
        ..Inspection::default()
    };
    if let Value::BulkString(stored) = stored {
        match value::read(&stored).ok_or_else(foreign)? {
            Stored::Record(content) => {
                seen.record = Some(content);
                seen.record_remaining = Some(millis(ttl));
            }
            Stored::Lease {
                owner,
                label,
                fingerprint,
            } => {
                seen.holders.push(Holder {
                    owner,
                    mode: Mode::Exclusive,
                    remaining: millis(ttl),
                    fingerprint,
                    label,
                });
            }
        }
    }
    let named = |name: &Value| value::read_name(text(name)?);
    for holder in holders.chunks(2) {
        let (Some(Named { owner, mode, label }), Some(Value::Int(remaining))) =
            (named(&holder[0]), holder.get(1))
        else {
            return Err(foreign());
        };
        seen.holders.push(Holder {
            owner,
            mode,
            remaining: millis(*remaining),
            fingerprint: None,
            label,
        });
    }
    let queue: Option<Vec<Named>> = queue.iter().map(named).collect();
    let queue = queue.ok_or_else(foreign)?;
    seen.queue = queue.into_iter().map(|attempt| attempt.owner).collect();
    if let Some(counter) = text(&fence) {
        let counter: u64 = counter.parse().map_err(|_| foreign())?;
        seen.fence = seen.fence.max(counter);
    }
    Ok(seen)
}

fn foreign() -> Error {
    let message = "Redis holds a value that this crate did not write where the lock or its token counter would be";
    Error::new(ErrorKind::Foreign, message)
}

/// The block of tokens that ends with `last`. Raises the floor to `last`, because this process has seen these tokens now.
fn tokens(last: i64, block: u32, floor: Floor<'_>) -> Option<Tokens> {
    let last = u64::try_from(last).ok()?;
    if last >= END_OF_TOKENS {
        return None;
    }
    let before = last.checked_sub(u64::from(block))?;
    floor.raise(last);
    (block > 0 && last > 0).then(|| Tokens::new(before + 1, block))
}

/// The text of a reply, if the reply is a text.
fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

/// A time that the server gives in milliseconds. A negative number stands for no expiry.
fn millis(millis: i64) -> Duration {
    u64::try_from(millis).map_or(NEVER, Duration::from_millis)
}

/// Reads a message on an instance's channel: the kind of hint, a space, and the key, as in `free orders/42`.
pub(super) fn hint(message: &[u8]) -> Option<Hint> {
    let (kind, key) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    let key = LockKey::new(key).ok()?;
    match kind {
        "free" => Some(Hint::Free(key)),
        "next" => Some(Hint::Next(key)),
        "wanted" => Some(Hint::Wanted(key)),
        _ => None,
    }
}
