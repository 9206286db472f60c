//! Operations that leave nothing to be done when they fail: to inspect a key, to end its lease by
//! force, to raise its tokens.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use redis::{RedisWrite, Value};
use tokio::time::Instant;

use super::{
    super::{
        Shared, explain,
        floors::Floor,
        names::Name,
        script::{FORCE_RELEASE, INSPECT, RAISE_FENCE},
        value::{self, Named, Stored},
    },
    Operation, Writer,
    reply::{flag, read, remaining, text},
};
use crate::{
    Error, LockKey,
    store::{
        Expected, Holder, Inspection, Mode, StoreFuture,
        types::{LISTED, check_floor},
    },
};

/// The number of holders, and of attempts, on one page of an inspection (`LISTED` in
/// `inspect.lua`).
const PAGE: usize = 25;

impl Shared {
    /// Raises the tokens of a key above a number. Fails for a number that Lua and JSON cannot
    /// represent exactly.
    pub(in super::super) fn raise_fence(
        self: &Arc<Self>,
        key: LockKey,
        above: u64,
    ) -> StoreFuture<Result<u64, Error>> {
        let raise = Operation::RaiseFence {
            key: key.clone(),
            above,
        };
        let asked = check_floor(above).map(|()| self.question(raise, self.deadline()));
        let shared = self.clone();
        Box::pin(async move { token(asked?.await?, shared.floors.of(&key)) })
    }

    /// Reads the state of a key, in pages of its holders and of its queue.
    pub(in super::super) fn inspect(
        self: &Arc<Self>,
        key: LockKey,
    ) -> StoreFuture<Result<Inspection, Error>> {
        let shared = self.clone();
        let deadline = self.deadline();
        let mut page = Inspect::first(key);
        let mut asked = self.question(Operation::Inspect(page.clone()), deadline);
        Box::pin(async move {
            let mut seen = Inspection::default();
            for further in (0..LISTED / PAGE).rev() {
                if !page.add(asked.await?, &mut seen)? || further == 0 {
                    break;
                }
                asked = shared.question(Operation::Inspect(page.clone()), deadline);
            }
            seen.fence = seen.fence.max(shared.floors.of(&page.key).get());
            Ok(seen)
        })
    }

    /// Ends the leases of a key, or removes its record, if that is expected. Returns whether there
    /// was one.
    pub(in super::super) fn force_release(
        self: &Arc<Self>,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        let shared = self.clone();
        let deadline = self.deadline();
        Box::pin(async move {
            let mut holder = None;
            if let Expected::Holder(owner) = expected {
                // The server finds a holder among many by its whole name, with the mode and the
                // label.
                let mut holders = shared.inspect(key.clone()).await?.holders.into_iter();
                holder = holders.find(|holder| holder.owner == owner);
                if holder.is_none() {
                    return Ok(false);
                }
            }
            let force = Operation::ForceRelease {
                key,
                expected,
                holder,
            };
            flag(shared.question(force, deadline).await?)
        })
    }

    /// Makes a call that leaves nothing to be done when it fails.
    fn question(
        &self,
        operation: Operation,
        deadline: Instant,
    ) -> impl Future<Output = Result<Value, Error>> + Send + use<> {
        let called = self.topology.call(operation.into(), deadline);
        async { read(called.await, Ok).into_result() }
    }
}

impl Writer<'_> {
    pub(super) fn raise_fence(&mut self, key: &LockKey, above: u64) {
        self.script(&RAISE_FENCE, key, &[Name::Fence]);
        // Tokens that this process has seen count as handed out, even if the server has lost its
        // counter.
        self.number(above.max(self.dialect.floors.of(key).get()));
    }

    pub(super) fn inspect(&mut self, page: &Inspect) {
        self.script(&INSPECT, &page.key, &[Name::Lock, Name::Queue, Name::Fence]);
        for part in &page.after {
            self.command.write_arg(part);
        }
    }

    pub(super) fn force_release(
        &mut self,
        key: &LockKey,
        expected: Expected,
        holder: Option<&Holder>,
    ) {
        self.script(&FORCE_RELEASE, key, &[Name::Lock, Name::Queue]);
        match expected {
            Expected::Anything => {}
            Expected::Holder(owner) => drop(self.command.arg(owner.to_string())),
            Expected::Record => drop(self.command.arg("record")),
        }
        if let Some(holder) = holder {
            let (owner, label) = (holder.owner, holder.label.as_deref());
            self.arg(|to| value::holder(owner, holder.mode, label, to));
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

/// A page of the holders and of the queue of a key.
#[derive(Debug, Clone)]
pub(in super::super) struct Inspect {
    pub(super) key: LockKey,
    /// Where the page before ended, as the server says it. Empty for the first page.
    after: Vec<Bytes>,
}

impl Inspect {
    fn first(key: LockKey) -> Self {
        Self {
            key,
            after: Vec::new(),
        }
    }

    /// Reads the reply of `inspect.lua`, and goes on to the next page. Returns whether there is
    /// one.
    fn add(&mut self, reply: Value, seen: &mut Inspection) -> Result<bool, Error> {
        let parts = match reply {
            Value::Array(parts) => <[Value; 7]>::try_from(parts).ok(),
            _ => None,
        };
        let Some(
            [
                stored,
                Value::Int(ttl),
                Value::Int(now),
                Value::Array(holders),
                Value::Array(queue),
                fence,
                next,
            ],
        ) = parts
        else {
            return Err(explain::unexpected_reply());
        };
        if let Value::BulkString(stored) = stored {
            read_stored(&stored, remaining(ttl), seen)?;
        }
        let named = |name: &Value| value::read_name(text(name)?);
        let left = |until: &Value| Some(text(until)?.parse::<i64>().ok()? - now);
        for holder in holders.chunks(2) {
            let (Some(Named { owner, mode, label }), Some(left)) =
                (named(&holder[0]), holder.get(1).and_then(left))
            else {
                return Err(explain::foreign());
            };
            // A lease that was renewed meanwhile is on a later page as well.
            if left > 0 && seen.holders.iter().all(|seen| seen.owner != owner) {
                seen.holders.push(Holder {
                    owner,
                    mode,
                    remaining: remaining(left),
                    fingerprint: None,
                    label,
                });
            }
        }
        for place in queue.chunks(2) {
            let (Some(attempt), Some(left)) = (named(&place[0]), place.get(1).and_then(left))
            else {
                return Err(explain::foreign());
            };
            if left > 0 {
                seen.queue.push(attempt.owner);
            }
        }
        if let Some(counter) = text(&fence) {
            let counter: u64 = counter.parse().map_err(|_| explain::foreign())?;
            seen.fence = seen.fence.max(counter);
        }
        let Value::Array(next) = next else {
            return Ok(false);
        };
        let bytes = |part| match part {
            Value::BulkString(bytes) => Some(bytes.into()),
            _ => None,
        };
        self.after = next.into_iter().filter_map(bytes).collect();
        Ok(true)
    }
}

/// Adds the lock of a key that is held exclusively, or has a record.
fn read_stored(stored: &[u8], left: Duration, seen: &mut Inspection) -> Result<(), Error> {
    match value::read(stored).ok_or_else(explain::foreign)? {
        Stored::Record(content) => {
            seen.record = Some(content);
            seen.record_remaining = Some(left);
        }
        Stored::Lease {
            owner,
            label,
            fingerprint,
        } => seen.holders.push(Holder {
            owner,
            mode: Mode::Exclusive,
            remaining: left,
            fingerprint,
            label,
        }),
    }
    Ok(())
}
