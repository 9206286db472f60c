//! Operations that leave nothing to be done when they fail: to inspect a key, to end its lease by force, to raise its tokens.

use std::sync::Arc;

use redis::Value;

use super::{
    super::{
        Shared, explain,
        floors::Floor,
        script::{FORCE_RELEASE, INSPECT, RAISE_FENCE},
        value::{self, Named, Stored},
    },
    Operation, Writer, failed,
    reply::{flag, read, remaining, text},
};
use crate::{
    Error, LockKey,
    store::{Expected, Holder, Inspection, Mode, StoreFuture, types::check_floor},
};

impl Shared {
    /// Raises the tokens of a key above a number. Fails for a number that Lua and JSON cannot represent exactly.
    pub(in super::super) fn raise_fence(
        self: &Arc<Self>,
        key: LockKey,
        above: u64,
    ) -> StoreFuture<Result<u64, Error>> {
        if let Err(error) = check_floor(above) {
            return failed(error);
        }
        let shared = self.clone();
        let value = self.question(Operation::RaiseFence {
            key: key.clone(),
            above,
        });
        Box::pin(async move { token(value.await?, shared.floors.of(&key)) })
    }

    /// Reads the state of a key.
    pub(in super::super) fn inspect(
        self: &Arc<Self>,
        key: LockKey,
    ) -> StoreFuture<Result<Inspection, Error>> {
        let shared = self.clone();
        let value = self.question(Operation::Inspect(key.clone()));
        Box::pin(async move { inspection(value.await?, shared.floors.of(&key)) })
    }

    /// Ends the leases of a key, or removes its record, if that is expected. Returns whether there
    /// was one.
    pub(in super::super) fn force_release(
        self: &Arc<Self>,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        let value = self.question(Operation::ForceRelease { key, expected });
        Box::pin(async move { flag(value.await?) })
    }

    /// Makes a call that leaves nothing to be done when it fails.
    fn question(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Value, Error>> + Send + use<> {
        let called = self.topology.call(operation.into(), self.deadline());
        async { read(called.await, Ok).into_result() }
    }
}

impl Writer<'_> {
    pub(super) fn raise_fence(&mut self, key: &LockKey, above: u64) {
        self.script(&RAISE_FENCE, 1);
        self.fence(key);
        // Tokens that this process has seen count as handed out, even if the server has lost its counter.
        self.number(above.max(self.dialect.floors.of(key).get()));
    }

    pub(super) fn inspect(&mut self, key: &LockKey) {
        self.script(&INSPECT, 3);
        self.lock(key);
        self.queue(key);
        self.fence(key);
    }

    pub(super) fn force_release(&mut self, key: &LockKey, expected: Expected) {
        self.script(&FORCE_RELEASE, 2);
        self.lock(key);
        self.queue(key);
        match expected {
            Expected::Anything => {}
            Expected::Holder(owner) => drop(self.command.arg(owner.to_string())),
            Expected::Record => drop(self.command.arg("record")),
        }
    }
}

/// Reads the reply of `raise_fence.lua`.
fn token(reply: Value, floor: Floor<'_>) -> Result<u64, Error> {
    let token = match reply {
        Value::Int(token) => u64::try_from(token).ok(),
        _ => None,
    };
    let token = token.ok_or_else(explain::unexpected_reply)?;
    floor.raise(token);
    Ok(token)
}

/// Reads the reply of `inspect.lua`.
fn inspection(reply: Value, floor: Floor<'_>) -> Result<Inspection, Error> {
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
        match value::read(&stored).ok_or_else(explain::foreign)? {
            Stored::Record(content) => {
                seen.record = Some(content);
                seen.record_remaining = Some(remaining(ttl));
            }
            Stored::Lease {
                owner,
                label,
                fingerprint,
            } => {
                seen.holders.push(Holder {
                    owner,
                    mode: Mode::Exclusive,
                    remaining: remaining(ttl),
                    fingerprint,
                    label,
                });
            }
        }
    }
    let named = |name: &Value| value::read_name(text(name)?);
    for holder in holders.chunks(2) {
        let (Some(Named { owner, mode, label }), Some(Value::Int(ms))) =
            (named(&holder[0]), holder.get(1))
        else {
            return Err(explain::foreign());
        };
        seen.holders.push(Holder {
            owner,
            mode,
            remaining: remaining(*ms),
            fingerprint: None,
            label,
        });
    }
    let queue: Option<Vec<Named>> = queue.iter().map(named).collect();
    let queue = queue.ok_or_else(explain::foreign)?;
    seen.queue = queue.into_iter().map(|attempt| attempt.owner).collect();
    if let Some(counter) = text(&fence) {
        let counter: u64 = counter.parse().map_err(|_| explain::foreign())?;
        seen.fence = seen.fence.max(counter);
    }
    Ok(seen)
}
