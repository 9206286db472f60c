//! The operations of the [`Store`](crate::store::Store) contract, each in a file of its own: starts
//! a call on the lane of its key, writes the call as a command when the lane sends it, and turns
//! the reply into an answer.
//!
//! An acquire of the key `orders/42` for 10 s is sent as:
//!
//! ```text
//! EVALSHA <hash of acquire.lua> 3
//!   tdl:2:{b2089}:lock:orders/42  tdl:2:{b2089}:queue:orders/42  tdl:2:{b2089}:fence
//!   lease:0c6f5e1e-6a1d-4f3b-9d0e-2f8b7c9a4d11:7@web-3  10000  1731756000000000  no
//! ```
//!
//! Each `.lua` file opens with its keys, arguments and replies.

mod acquire;
mod listing;
mod ping;
mod questions;
mod release;
mod renew;
mod reply;
mod writer;

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

pub(super) use self::{
    acquire::acquired,
    release::{NOT_YET, released},
    reply::{read, text},
    writer::{Dialect, millis},
};
use self::{listing::Scan, questions::Inspect, writer::Writer};
use super::{Shared, floors::Floors, names::bucket, script::By};
use crate::{
    LockKey,
    store::{Acquire, Ending, Expected, Holder, Mode, Queueing, Release, Renew},
};

/// The size of a record that every server takes: `proto-max-bulk-len` is at least 1 MiB, the name
/// of the owner included.
const LARGE: usize = 1024 * 1024 - 256;

/// The size of a record that shares a script with others. A longer one takes the server longer than
/// the script.
const SMALL: usize = 16 * 1024;

/// One call.
///
/// A call keeps its operation and is written as a command each time the call is sent, because the
/// floor of the tokens and the version of the script belong to the connection.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) operation: Operation,
    /// Whether ASKING is sent before the call, for a node of a Cluster to which the slot is moving
    /// (ASK).
    pub(super) is_asking: bool,
    /// Whether the call uses the script with one key, if the operation has such a script.
    ///
    /// While a slot of a Cluster moves to another node (TRYAGAIN), only a script with one key is
    /// sure to find all keys on one node. The script with one key answers like the normal
    /// script; or with TRYAGAIN again, and then only the normal script can make the call.
    pub(super) has_one_key: bool,
}

/// An operation of the store that one script carries out.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// `acquire.lua`, or `acquire_shared.lua` for the other modes.
    Acquire(Acquire),
    /// `renew.lua`; `renew_alone.lua` without further tokens, or with one key; `renew_shared.lua`
    /// for the other modes.
    Renew(Renew),
    /// `release.lua`; `release_alone.lua` with one key; `release_shared.lua` for the other modes.
    Release(Release),
    /// `raise_fence.lua`.
    RaiseFence { key: LockKey, above: u64 },
    /// `inspect.lua`.
    Inspect(Inspect),
    /// `force_release.lua`.
    ForceRelease {
        key: LockKey,
        expected: Expected,
        /// The holder that is expected.
        holder: Option<Holder>,
    },
    /// `ping.lua`, at the server of a bucket.
    Ping { bucket: usize },
    /// SCAN, the only call that is not a script.
    Scan(Scan),
}

/// A kind of call of which one script makes several.
///
/// A script that is called costs the server more than what it does for a free key, so the calls of
/// one message share a script (`joint.lua`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joint {
    /// With the arguments that all calls have in common.
    Acquire {
        lease: Duration,
        queueing: Queueing,
    },
    Renew,
    Free,
    Record,
}

impl From<Operation> for Call {
    fn from(operation: Operation) -> Self {
        Self {
            operation,
            is_asking: false,
            has_one_key: false,
        }
    }
}

impl Call {
    fn key(&self) -> Option<&LockKey> {
        match &self.operation {
            Operation::Acquire(Acquire { key, .. })
            | Operation::Renew(Renew { key, .. })
            | Operation::Release(Release { key, .. })
            | Operation::RaiseFence { key, .. }
            | Operation::Inspect(Inspect { key, .. })
            | Operation::ForceRelease { key, .. } => Some(key),
            Operation::Ping { .. } | Operation::Scan(_) => None,
        }
    }

    /// The bucket of the call's key.
    pub(super) fn bucket(&self) -> usize {
        match &self.operation {
            Operation::Ping { bucket } => *bucket,
            // A step of a listing names its node instead.
            _ => self.key().map_or(0, bucket),
        }
    }

    /// The script that the call can share with others: that of an exclusive lease, with the usual
    /// arguments.
    pub(super) fn joint(&self) -> Option<Joint> {
        if self.is_asking || self.has_one_key || self.is_in_doubt() || self.is_large() {
            return None;
        }
        match &self.operation {
            Operation::Acquire(it) => {
                let is_usual = it.block <= 1 && it.ends.is_empty();
                (it.mode == Mode::Exclusive && is_usual).then_some(Joint::Acquire {
                    lease: it.lease,
                    queueing: it.queueing,
                })
            }
            Operation::Renew(it) => {
                (it.mode == Mode::Exclusive && it.refill == 0).then_some(Joint::Renew)
            }
            Operation::Release(it) => match &it.ending {
                Ending::Record { content, .. } => (content.len() <= SMALL).then_some(Joint::Record),
                Ending::Free => (it.mode == Mode::Exclusive).then_some(Joint::Free),
            },
            _ => None,
        }
    }

    /// Whether a joint script has granted the key with a token that is too low. The call is then
    /// made again, by the same owner, with the floor of its own counter.
    pub(super) fn is_granted_too_low(&self, reply: &Value, floors: &Floors) -> bool {
        match &self.operation {
            Operation::Acquire(it) => acquire::is_too_low(reply, floors.of(&it.key)),
            _ => false,
        }
    }

    /// Whether the call is the release of an owner whose acquire may still take effect.
    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(&self.operation, Operation::Release(release) if release.in_doubt)
    }

    /// Whether the call has a record that may be larger than the server takes. The server then
    /// closes the connection, and the calls around the record should not suffer.
    pub(super) fn is_large(&self) -> bool {
        match &self.operation {
            Operation::Release(Release {
                ending: Ending::Record { content, .. },
                ..
            }) => content.len() > LARGE,
            _ => false,
        }
    }

    /// How the first sending names the script. The scripts for operators, and `release_alone.lua`,
    /// are too rarely used to be loaded with every connection.
    pub(super) fn by(&self) -> By {
        match self.operation {
            Operation::Release(_) if self.has_one_key => By::Text,
            Operation::Acquire(_) | Operation::Renew(_) | Operation::Release(_) => By::Hash,
            _ => By::Text,
        }
    }

    /// Writes the call into an empty command, together with others of the same [`Joint`].
    pub(super) fn write(
        &self,
        others: &[&Self],
        by: By,
        dialect: Dialect<'_>,
        command: &mut Cmd,
        scratch: &mut Vec<u8>,
    ) {
        let mut to = Writer {
            by,
            dialect,
            others,
            command,
            scratch,
        };
        match &self.operation {
            Operation::Acquire(request) => to.acquire(request),
            Operation::Renew(request) => to.renew(request, self.has_one_key),
            Operation::Release(request) => to.release(request, self.has_one_key),
            Operation::RaiseFence { key, above } => to.raise_fence(key, *above),
            Operation::Inspect(page) => to.inspect(page),
            Operation::ForceRelease {
                key,
                expected,
                holder,
            } => to.force_release(key, *expected, holder.as_ref()),
            Operation::Ping { bucket } => to.ping(*bucket),
            Operation::Scan(scan) => to.scan(scan),
        }
        for call in others {
            match &call.operation {
                Operation::Acquire(request) => to.lease_for(request),
                Operation::Renew(request) => to.renew_arguments(request, true),
                Operation::Release(request) => to.release_arguments(request),
                _ => {}
            }
        }
    }
}

impl Shared {
    /// The deadline of a call that starts now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }
}
