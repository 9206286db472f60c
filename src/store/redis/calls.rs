//! The store's operations as commands, nearly all of them calls of scripts.
//!
//! An acquire of the key `orders/42` for 10 s is sent as:
//!
//! ```text
//! EVALSHA <hash of acquire.lua> 3
//!   tdl:2:{b2089}:lock:orders/42  tdl:2:{b2089}:queue:orders/42  tdl:2:{b2089}:fence
//!   lease:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3  10000  1731756000000000  no
//! ```
//!
//! Each `.lua` file opens with its keys, arguments and replies; `reply` reads the replies.

use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, RedisWrite};

use super::{
    floors::{Floors, Fraction},
    names::{Names, put_number},
    script::{
        ACQUIRE, ACQUIRE_SHARED, By, FORCE_RELEASE, INSPECT, PING, RAISE_FENCE, RELEASE,
        RELEASE_ALONE, RELEASE_SHARED, RENEW, RENEW_ALONE, RENEW_SHARED, Script,
    },
    value,
};
use crate::{
    LockKey,
    store::{Acquire, Ending, Mode, Owner, Queueing, Release, Renew},
};

/// The longest duration in a command. Redis can add this duration to its clock without an overflow.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// One call.
///
/// A call keeps its operation and is written as a command each time the call is sent, because the floor of the tokens and the version
/// of the script belong to the connection.
#[derive(Debug)]
pub(super) struct Call {
    operation: Operation,
    /// Whether the call uses the script with one key, if the operation has such a script.
    ///
    /// While a slot of a Cluster moves to another node (TRYAGAIN), only a script with one key is sure to find all keys on one node. The
    /// script with one key answers like the normal script; or with TRYAGAIN again, and then only the normal script can make the call.
    has_one_key: bool,
}

/// An operation of the store that one script carries out.
#[derive(Debug)]
pub(super) enum Operation {
    /// `acquire.lua`, or `acquire_shared.lua` for the other modes.
    Acquire(Acquire),
    /// `renew.lua`; `renew_alone.lua` without further tokens, or with one key; `renew_shared.lua` for the other modes.
    Renew(Renew),
    /// `release.lua`; `release_alone.lua` with one key; `release_shared.lua` for the other modes.
    Release(ReleaseAll),
    /// `raise_fence.lua`.
    RaiseFence { key: LockKey, above: u64 },
    /// `inspect.lua`.
    Inspect(LockKey),
    /// `force_release.lua`.
    ForceRelease(LockKey),
    /// `ping.lua`, at the server of a bucket.
    Ping { bucket: usize },
    /// SCAN, the only call that is not a script.
    Scan(Scan),
}

/// One step of a listing.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    /// The server's own cursor, which is zero at the start and at the end.
    pub(super) cursor: u64,
    /// The number of names that the server looks at.
    pub(super) count: usize,
    /// The pattern that names must match.
    pub(super) pattern: Bytes,
}

/// A release, of one owner or of several. Several owners have permits, or may have got them from one acquire that failed.
#[derive(Debug, Clone)]
pub(super) struct ReleaseAll {
    pub(super) release: Release,
    /// The owners besides that of `release`.
    pub(super) more: Vec<Owner>,
}

impl From<Release> for ReleaseAll {
    fn from(release: Release) -> Self {
        Self {
            release,
            more: Vec::new(),
        }
    }
}

/// The settings that all commands on one connection have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect<'a> {
    pub(super) names: &'a Names,
    pub(super) floors: &'a Floors,
    /// Set if tokens follow the server's clock.
    pub(super) fraction: Option<Fraction>,
}

impl From<Operation> for Call {
    fn from(operation: Operation) -> Self {
        Self {
            operation,
            has_one_key: false,
        }
    }
}

impl Call {
    /// Switches to the script with one key.
    pub(super) fn with_one_key(mut self) -> Self {
        self.has_one_key = true;
        self
    }

    /// The operation that the call carries out.
    pub(super) fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The key of the call, whose calls take effect in order. `None` if the call has no key, and so no place in an order.
    pub(super) fn key(&self) -> Option<&LockKey> {
        match &self.operation {
            Operation::Acquire(Acquire { key, .. })
            | Operation::Renew(Renew { key, .. })
            | Operation::Release(ReleaseAll {
                release: Release { key, .. },
                ..
            })
            | Operation::RaiseFence { key, .. }
            | Operation::Inspect(key)
            | Operation::ForceRelease(key) => Some(key),
            Operation::Ping { .. } | Operation::Scan(_) => None,
        }
    }

    /// How the first sending names the script. The scripts for operators are too rarely used to be loaded with every connection.
    pub(super) fn by(&self) -> By {
        match self.operation {
            Operation::Acquire(_) | Operation::Renew(_) | Operation::Release(_) => By::Hash,
            _ => By::Text,
        }
    }

    /// Writes the call into an empty command.
    pub(super) fn write(&self, by: By, dialect: Dialect<'_>, command: &mut Cmd) {
        let mut to = Writer {
            by,
            dialect,
            command,
        };
        match &self.operation {
            Operation::Acquire(request) => to.acquire(request),
            Operation::Renew(request) => to.renew(request, self.has_one_key),
            Operation::Release(request) => to.release(request, self.has_one_key),
            Operation::RaiseFence { key, above } => {
                to.script(&RAISE_FENCE, 1);
                to.fence(key);
                // Tokens that this process has seen count as handed out, even if the server has lost its counter.
                to.number((*above).max(dialect.floors.of(key).get()));
            }
            Operation::Inspect(key) => {
                to.script(&INSPECT, 3);
                to.lock(key);
                to.queue(key);
                to.fence(key);
            }
            Operation::ForceRelease(key) => {
                to.script(&FORCE_RELEASE, 2);
                to.lock(key);
                to.queue(key);
            }
            Operation::Ping { bucket } => {
                to.script(&PING, 1);
                let mut name = to.command.bufmut_for_next_arg(0);
                dialect.names.ping(*bucket, &mut name);
            }
            Operation::Scan(scan) => to.scan(scan),
        }
    }
}

/// Writes a command argument by argument, as bytes and without `fmt`, because every lock pays for this.
struct Writer<'a> {
    by: By,
    dialect: Dialect<'a>,
    command: &'a mut Cmd,
}

impl Writer<'_> {
    fn acquire(&mut self, request: &Acquire) {
        let is_exclusive = request.mode == Mode::Exclusive;
        if is_exclusive {
            self.script(&ACQUIRE, 3);
        } else {
            self.script(&ACQUIRE_SHARED, 3);
        }
        self.lock(&request.key);
        self.queue(&request.key);
        self.fence(&request.key);
        if is_exclusive {
            let mut lease = self.command.bufmut_for_next_arg(0);
            let (label, fingerprint) = (self.dialect.names.label(), request.fingerprint.as_ref());
            value::lease(request.owner, label, fingerprint, &mut lease);
        } else {
            self.holder(request.owner, request.mode);
        }
        self.number(millis(request.lease));
        self.floor(&request.key);
        self.queueing(request.queueing);
        if request.block > 1 || !is_exclusive {
            self.number(request.block.max(1).into());
        }
        if request.mode.is_permit() {
            for owner in &request.more {
                self.holder(*owner, request.mode);
            }
        }
    }

    /// Writes a renewal. In a moving slot, a lease that is renewed without further tokens is better than a lost one.
    fn renew(&mut self, request: &Renew, has_one_key: bool) {
        if request.mode != Mode::Exclusive {
            return self.renew_shared(request, has_one_key);
        }
        let is_alone = has_one_key || request.refill == 0;
        if is_alone {
            self.script(&RENEW_ALONE, 1);
            self.lock(&request.key);
        } else {
            self.script(&RENEW, 3);
            self.lock(&request.key);
            self.queue(&request.key);
            self.fence(&request.key);
        }
        self.lease(request.owner);
        self.number(millis(request.lease));
        if !is_alone {
            self.floor(&request.key);
            self.number(request.refill.into());
        }
    }

    /// Writes the renewal of a shared lease or of a permit. The name that never exists keeps the script from running in a moving slot.
    fn renew_shared(&mut self, request: &Renew, has_one_key: bool) {
        self.script(&RENEW_SHARED, if has_one_key { 1 } else { 4 });
        self.lock(&request.key);
        if !has_one_key {
            self.queue(&request.key);
            self.fence(&request.key);
            self.none(&request.key);
        }
        self.holder(request.owner, request.mode);
        self.number(millis(request.lease));
        if !has_one_key {
            self.floor(&request.key);
            self.number(request.refill.into());
        }
    }

    /// Writes a release of one owner, or of several.
    fn release(&mut self, ReleaseAll { release, more }: &ReleaseAll, has_one_key: bool) {
        // Only an exclusive lease ends with a record.
        let is_shared = release.mode != Mode::Exclusive && release.ending == Ending::Free;
        let (script, keys) = match (is_shared, has_one_key) {
            (true, false) => (&RELEASE_SHARED, 3),
            (true, true) => (&RELEASE_SHARED, 1),
            (false, false) => (&RELEASE, 2),
            (false, true) => (&RELEASE_ALONE, 1),
        };
        self.script(script, keys);
        self.lock(&release.key);
        if keys > 1 {
            self.queue(&release.key);
        }
        if keys > 2 {
            self.none(&release.key);
        }
        if is_shared {
            self.holder(release.owner, release.mode);
            for owner in more {
                self.holder(*owner, release.mode);
            }
            return;
        }
        self.lease(release.owner);
        if let Ending::Record { content, retain } = &release.ending {
            let mut record = self.command.bufmut_for_next_arg(0);
            value::record(release.owner, content, &mut record);
            drop(record);
            self.number(millis(*retain));
        }
    }

    fn scan(&mut self, scan: &Scan) {
        self.command.write_arg(b"SCAN");
        self.number(scan.cursor);
        self.command.write_arg(b"MATCH");
        self.command.write_arg(&scan.pattern);
        self.command.write_arg(b"COUNT");
        self.number(scan.count as u64);
    }

    /// Starts the command.
    fn script(&mut self, script: &Script, keys: u8) {
        let by_clock = self.dialect.fraction.is_some();
        script.call(self.by, by_clock, keys, self.command);
    }

    fn lock(&mut self, key: &LockKey) {
        let mut to = self.command.bufmut_for_next_arg(0);
        self.dialect.names.lock(key, &mut to);
    }

    fn queue(&mut self, key: &LockKey) {
        let mut to = self.command.bufmut_for_next_arg(0);
        self.dialect.names.queue(key, &mut to);
    }

    fn fence(&mut self, key: &LockKey) {
        let mut to = self.command.bufmut_for_next_arg(0);
        self.dialect.names.fence(key, &mut to);
    }

    /// Writes the name that never exists.
    fn none(&mut self, key: &LockKey) {
        let mut to = self.command.bufmut_for_next_arg(0);
        self.dialect.names.none(key, &mut to);
    }

    /// Writes the floor of a key's tokens at the time of the sending. A call that is repeated on another connection must carry the
    /// floor which that connection has raised.
    fn floor(&mut self, key: &LockKey) {
        let Dialect {
            floors, fraction, ..
        } = self.dialect;
        floors.write(key, fraction, &mut self.command.bufmut_for_next_arg(0));
    }

    /// Writes a lease without its fingerprint.
    fn lease(&mut self, owner: Owner) {
        let label = self.dialect.names.label();
        let mut to = self.command.bufmut_for_next_arg(0);
        value::lease(owner, label, None, &mut to);
    }

    /// Writes a holder of a key that is shared or counted.
    fn holder(&mut self, owner: Owner, mode: Mode) {
        let label = self.dialect.names.label();
        let mut to = self.command.bufmut_for_next_arg(0);
        value::holder(owner, mode, label, &mut to);
    }

    /// Writes the argument that says whether an attempt queues: `no`, `skip`, or `<ms of the place> <ms of the head start>`.
    fn queueing(&mut self, queueing: Queueing) {
        match queueing {
            Queueing::No => self.command.write_arg(b"no"),
            Queueing::Skip => self.command.write_arg(b"skip"),
            Queueing::Wait {
                deadline,
                head_start,
            } => {
                let mut to = self.command.bufmut_for_next_arg(0);
                put_number(millis(deadline), &mut to);
                bytes::BufMut::put_u8(&mut to, b' ');
                put_number(millis(head_start), &mut to);
            }
        }
    }

    fn number(&mut self, number: u64) {
        put_number(number, &mut self.command.bufmut_for_next_arg(0));
    }
}

/// Converts to milliseconds, rounded up, because the store must not end a lease before the holder does.
fn millis(duration: Duration) -> u64 {
    let duration = duration.min(FAR);
    let below_a_second = duration.subsec_nanos().div_ceil(1_000_000);
    (duration.as_secs() * 1000 + u64::from(below_a_second)).max(1)
}
