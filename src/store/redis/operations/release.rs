//! To end a lease, or to put a record into its place: `release.lua`, `release_shared.lua` for the other modes, and `release_alone.lua`
//! with one key.
//!
//! The reply is `1` if the lease was freed, and `0` if it is not ours.

use std::sync::Arc;

use redis::RedisWrite;

use super::{
    super::{
        Shared, explain,
        lane::{Before, Failure, Start},
        outcome::{Outcome, Redirect},
        script::{RELEASE, RELEASE_ALONE, RELEASE_SHARED},
        value,
    },
    Operation, Writer,
    reply::flag,
    writer::millis,
};
use crate::store::{self, Acquire, Answer, Ending, Mode, Owner, Queueing, Release, Released};

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
    /// Starts a release, also outside of a runtime: there, it is refused if no driver runs.
    pub(in super::super) fn release(self: &Arc<Self>, request: Release, answer: Answer) {
        if let Some(order) = &self.order {
            let released = self.release_in_order(order, request);
            self.home.spawn(async move {
                answer.give(match released.await {
                    Ok(released) => store::Outcome::Answered(released),
                    Err(error) => store::Outcome::Unknown(error),
                });
            });
            return;
        }
        let Some(lane) = self.topology.lane_of(&request.key) else {
            return answer.give(store::Outcome::Refused(Redirect::Unrouted.error()));
        };
        let in_doubt = request.in_doubt;
        let start = Start {
            before: Before::Nothing,
            failure: Failure::GiveUp,
            call: Operation::Release(request.into()).into(),
            deadline: self.deadline(),
        };
        lane.release(start, answer, in_doubt);
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

/// The outcome of a release.
pub(in super::super) fn released(outcome: Outcome, in_doubt: bool) -> store::Outcome<Released> {
    let answered = match outcome {
        Outcome::Answered(answered) => answered,
        Outcome::Refused(error) => return store::Outcome::Refused(error),
        Outcome::MayHaveTakenEffect(error) => return store::Outcome::Unknown(error),
        Outcome::Redirected { redirect, .. } => return store::Outcome::Unknown(redirect.error()),
    };
    match flag(answered.value) {
        Ok(true) => store::Outcome::Answered(Released::Freed),
        // The first sending of the release may have freed the key.
        Ok(false) if answered.repeated => store::Outcome::Unknown(explain::freed_or_lost()),
        Ok(false) if in_doubt && !answered.predecessors_closed => {
            store::Outcome::Answered(Released::NotYet)
        }
        Ok(false) => store::Outcome::Answered(Released::NotOurs),
        Err(error) => store::Outcome::Unknown(error),
    }
}
