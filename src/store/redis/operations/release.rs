//! To end a lease, or to put a record into its place: `release.lua`, `release_shared.lua` for the
//! other modes, and `release_alone.lua` with one key.
//!
//! | reply | meaning |
//! |---|---|
//! | `1` | the lease was freed |
//! | `0` | not ours |
//! | `nil` | not yet: the lane puts it in the place of `0` while the acquire that is in doubt may still take effect |

use std::sync::Arc;

use redis::{RedisWrite, Value};

use super::{
    super::{
        Shared, explain,
        names::Name,
        script::{RELEASE, RELEASE_ALONE, RELEASE_SHARED},
        topology::Topology,
        value,
    },
    Call, Operation, Writer,
    reply::{flag, read},
    writer::millis,
};
use crate::store::{Answer, Ending, Mode, Outcome, Release, Released};

/// The reply in the place of `0`, while a stray connection is left.
pub(in super::super) const NOT_YET: Value = Value::Nil;

impl Shared {
    /// Starts a release, also outside of a runtime. A release that may be redirected, or waits for
    /// replicas, takes a task.
    pub(in super::super) fn release(self: &Arc<Self>, request: Release, answer: Answer) {
        let deadline = self.deadline();
        let is_record = matches!(request.ending, Ending::Record { .. });
        if self.replicated.is_some() && is_record {
            let shared = self.clone();
            let recording = async move { shared.record_replicated(request, deadline).await };
            return self.tell(answer, recording);
        }
        let call: Call = Operation::Release(request).into();
        match &*self.topology {
            Topology::Primary { lanes, .. } => {
                lanes.of(call.bucket()).release(call, deadline, answer);
            }
            Topology::Cluster(_) => {
                let topology = self.topology.clone();
                let releasing = async move { released(topology.call(call, deadline).await) };
                self.tell(answer, releasing);
            }
        }
    }

    /// Tells an outcome from a task. Refused without a runtime.
    fn tell(
        &self,
        answer: Answer,
        outcome: impl Future<Output = Outcome<Released>> + Send + 'static,
    ) {
        match self.home.runtime() {
            Some(runtime) => drop(runtime.spawn(async move { answer.give(outcome.await) })),
            None => answer.give(Outcome::Refused(explain::no_runtime())),
        }
    }
}

impl Writer<'_> {
    pub(super) fn release(&mut self, release: &Release, has_one_key: bool) {
        // Only an exclusive lease ends with a record.
        let is_shared = release.mode != Mode::Exclusive && release.ending == Ending::Free;
        let (script, names): (_, &[Name]) = match (is_shared, has_one_key) {
            (true, false) => (&RELEASE_SHARED, &[Name::Lock, Name::Queue, Name::None]),
            (true, true) => (&RELEASE_SHARED, &[Name::Lock]),
            (false, false) if !self.others.is_empty() => (&RELEASE, &[Name::Lock]),
            (false, false) => (&RELEASE, &[Name::Lock, Name::Queue]),
            (false, true) => (&RELEASE_ALONE, &[Name::Lock]),
        };
        self.script(script, &release.key, names);
        self.release_arguments(release);
    }

    pub(super) fn release_arguments(&mut self, release: &Release) {
        if release.mode != Mode::Exclusive && release.ending == Ending::Free {
            return self.holder(release.owner, release.mode);
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

/// Reads the outcome of a release.
pub(in super::super) fn released(outcome: Outcome<Value>) -> Outcome<Released> {
    read(outcome, |reply| {
        if reply == NOT_YET {
            return Ok(Released::NotYet);
        }
        flag(reply).map(|was_held| {
            if was_held {
                Released::Freed
            } else {
                Released::NotOurs
            }
        })
    })
}
