//! To take a key: `acquire.lua`, or `acquire_shared.lua` for the other modes.
//!
//! | reply | meaning |
//! |---|---|
//! | `1731756000000003` | granted; the last token of the block |
//! | `["granted", 43, 2, 1, 8]` | granted, two permits, others wait, and the block has eight tokens |
//! | `["held", 8214, nil, "web-3"]` | held for another 8,214 ms, by `web-3` |
//! | `["record", "…"]` | a record is in the lease's place |

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use redis::Value;

use super::{
    super::{
        Shared, explain,
        floors::Floor,
        names::{Name, put_number},
        script::{ACQUIRE, ACQUIRE_SHARED},
        value,
    },
    Dialect, Operation, Writer,
    reply::{read, remaining, text, tokens},
    writer::millis,
};
use crate::{
    Error,
    store::{Acquire, Acquired, End, Grant, Held, Mode, Outcome, Queueing, StoreFuture},
};

impl Shared {
    /// Takes a key. The call is started when the method returns, and the future only waits for the
    /// answer; with replicas, the future makes the call.
    ///
    /// # Cancel safety
    ///
    /// The key may be taken if the future is dropped.
    pub(in super::super) fn acquire(
        self: &Arc<Self>,
        request: Acquire,
    ) -> StoreFuture<Outcome<Acquired>> {
        let (shared, key, block) = (self.clone(), request.key.clone(), request.block.max(1));
        let deadline = self.deadline();
        if self.replicated.is_some() {
            return Box::pin(async move { shared.acquire_replicated(request, deadline).await });
        }
        let call = Operation::Acquire(request).into();
        let called = self.topology.call(call, deadline);
        Box::pin(async move {
            let outcome = called.await;
            read(outcome, |reply| {
                acquired(reply, block, shared.floors.of(&key))
            })
        })
    }
}

impl Writer<'_> {
    /// Writes an acquire.
    pub(super) fn acquire(&mut self, request: &Acquire) {
        let is_exclusive = request.mode == Mode::Exclusive;
        let script = if is_exclusive {
            &ACQUIRE
        } else {
            &ACQUIRE_SHARED
        };
        // Where a slot moves, a name that is deleted by the ends cannot be written again in the
        // same step.
        let names = &[Name::Lock, Name::Queue, Name::Fence, Name::None];
        let names = &names[..if request.ends.is_empty() { 3 } else { 4 }];
        self.script(script, &request.key, names);
        if !self.others.is_empty() {
            self.number(millis(request.lease));
            let Dialect {
                floors, fraction, ..
            } = self.dialect;
            self.arg(|to| floors.write_least(fraction, to));
            self.queueing(request.queueing, &[]);
            return self.lease_for(request);
        }
        if is_exclusive {
            self.lease_for(request);
        } else {
            self.holder(request.owner, request.mode);
        }
        self.number(millis(request.lease));
        self.floor(&request.key);
        self.queueing(request.queueing, &request.ends);
        let more = if request.mode.is_permit() {
            &request.more[..]
        } else {
            &[]
        };
        if request.block > 1 || !more.is_empty() {
            self.number(request.block.max(1).into());
        }
        for owner in more {
            self.holder(*owner, request.mode);
        }
    }

    pub(super) fn lease_for(&mut self, request: &Acquire) {
        let (label, fingerprint) = (self.dialect.names.label(), request.fingerprint.as_ref());
        self.arg(|to| value::lease(request.owner, label, fingerprint, to));
    }

    /// Writes the argument that says whether an attempt queues: `no`, `skip`, or `<ms of the place>
    /// <ms of the head start>`. The owners that are ended first follow, each after a semicolon:
    /// the script looks at them only if the key is in use.
    fn queueing(&mut self, queueing: Queueing, ends: &[End]) {
        self.arg(|to| {
            match queueing {
                Queueing::No => to.put_slice(b"no"),
                Queueing::Skip => to.put_slice(b"skip"),
                Queueing::Wait {
                    deadline,
                    head_start,
                } => {
                    put_number(millis(deadline), to);
                    to.put_u8(b' ');
                    put_number(millis(head_start), to);
                }
            }
            for end in ends {
                to.put_u8(b';');
                value::attempt(end.owner, end.mode, to);
            }
        });
    }
}

/// Whether a token in the reply of a joint script is below the floor of its counter. The server has
/// lost the counter then, and its clock was set back.
pub(in super::super) fn is_too_low(reply: &Value, floor: Floor<'_>) -> bool {
    let last = match reply {
        Value::Int(last) => Some(last),
        Value::Array(parts) => match &parts[..] {
            [_, Value::Int(last), _, _, _] => Some(last),
            _ => None,
        },
        _ => None,
    };
    last.is_some_and(|last| u64::try_from(*last).is_ok_and(|last| last <= floor.get()))
}

/// Reads the reply of `acquire.lua` or `acquire_shared.lua`.
pub(in super::super) fn acquired(
    reply: Value,
    block: u32,
    floor: Floor<'_>,
) -> Result<Acquired, Error> {
    let answer = match reply {
        Value::Int(last) => tokens(last, block, floor).map(|tokens| {
            Acquired::Granted(Grant {
                tokens,
                count: 1,
                others_wait: false,
            })
        }),
        Value::Array(parts) => match parts.len() {
            5 => granted(&parts, floor).map(Acquired::Granted),
            4 => held(parts).map(Acquired::Held),
            _ => recorded(parts).map(Acquired::Recorded),
        },
        _ => None,
    };
    answer.ok_or_else(explain::unexpected_reply)
}

fn granted(parts: &[Value], floor: Floor<'_>) -> Option<Grant> {
    let [
        kind,
        Value::Int(last),
        Value::Int(count),
        Value::Int(others_wait),
        Value::Int(block),
    ] = parts
    else {
        return None;
    };
    (text(kind) == Some("granted")).then_some(())?;
    Some(Grant {
        tokens: tokens(*last, u32::try_from(*block).ok()?, floor)?,
        count: u32::try_from(*count).ok()?,
        others_wait: *others_wait == 1,
    })
}

fn held(parts: Vec<Value>) -> Option<Held> {
    let [kind, Value::Int(ms), fingerprint, label] = <[Value; 4]>::try_from(parts).ok()? else {
        return None;
    };
    let fingerprint = match fingerprint {
        Value::Nil => None,
        Value::BulkString(fingerprint) => Some(fingerprint.into()),
        _ => return None,
    };
    (text(&kind) == Some("held")).then(|| Held {
        remaining: remaining(ms),
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
