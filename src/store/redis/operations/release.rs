//! To end a lease, or to put a record into its place: `release.lua`, `release_shared.lua` for the other modes, and `release_alone.lua`
//! with one key.
//!
//! The reply is `1` if the lease was freed, and `0` if it is not ours.

use std::sync::Arc;

use redis::RedisWrite;

use super::{
    super::{
        Shared, explain,
        lane::{Before, Failure, Start, after},
        outcome::{Answered, Redirect},
        script::{RELEASE, RELEASE_ALONE, RELEASE_SHARED},
        value,
    },
    Operation, Writer, failed,
    reply::flag,
    writer::millis,
};
use crate::{
    Error,
    store::{Acquire, Ending, Mode, Owner, Queueing, Release, Released, StoreFuture},
};

/// A release, of one owner or of several. Several owners have permits, or may have got them from one acquire that failed.
#[derive(Debug, Clone)]
pub(in super::super) struct ReleaseAll {
    pub(in super::super) release: Release,
    /// The owners besides that of `release`.
    pub(in super::super) more: Vec<Owner>,
}

impl From<Release> for ReleaseAll {
    fn from(release: Release) -> Self {
        Self {
            release,
            more: Vec::new(),
        }
    }
}

/// The release that undoes an acquire: of the leases of all its owners, or of the place in the queue.
pub(in super::super) fn release_of(request: &Acquire) -> ReleaseAll {
    let release = Release {
        key: request.key.clone(),
        owner: request.owner,
        ending: Ending::Free,
        in_doubt: false,
        owed_for: match request.queueing {
            Queueing::Wait { deadline, .. } => request.lease.max(deadline),
            _ => request.lease,
        },
        mode: request.mode,
    };
    ReleaseAll {
        release,
        more: request.more.clone(),
    }
}

impl Shared {
    /// Starts a release, also outside of a runtime. There, a release without a driver waits for [`resume`](Self::resume).
    ///
    /// # Cancel safety
    ///
    /// The release goes on if the future is dropped.
    pub(in super::super) fn release(
        self: &Arc<Self>,
        request: Release,
    ) -> StoreFuture<Result<Released, Error>> {
        if let Some(order) = &self.order {
            return self.release_in_order(order, request);
        }
        let Some(lane) = self.topology.lane_of(&request.key) else {
            return failed(Redirect::Unrouted.error());
        };
        let pending = lane.call(Start {
            before: Before::Nothing,
            failure: Failure::Repeat {
                expires: after(request.owed_for),
                _debt: self.owed.debt(),
                until_expiry: false,
            },
            call: Operation::Release(request.into()).into(),
            deadline: self.deadline(),
        });
        Box::pin(async move { released(pending.await.answered()?) })
    }
}

impl Writer<'_> {
    /// Writes a release of one owner, or of several.
    pub(super) fn release(&mut self, ReleaseAll { release, more }: &ReleaseAll, has_one_key: bool) {
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
}

/// Reads the reply to a release.
pub(in super::super) fn released(answered: Answered) -> Result<Released, Error> {
    if flag(answered.value)? {
        Ok(Released::Freed)
    } else if answered.repeated {
        // The first sending of the release may have freed the key.
        Err(explain::freed_or_lost())
    } else {
        Ok(Released::NotOurs)
    }
}
