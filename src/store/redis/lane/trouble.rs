//! Handles the calls of a lane when time passes, callers leave or the connection breaks.
//!
//! | event | acquire | release | other call |
//! |---|---|---|---|
//! | deadline, or two failed connects | error; if sent, its release follows | error; goes on until it is not owed any more | error |
//! | the caller leaves | dropped; if sent, its release follows | goes on | goes on |
//! | the connection breaks | sent again, up to three times in all | sent again; after three sendings, rests first | as an acquire; a forced release is not sent again: error |
//! | the next connection cannot close its predecessors | error if sent, its release is repeated until its expiry | sent again | error if sent |

use std::collections::HashSet;

use tokio::time::Instant;

use super::{
    super::{
        explain,
        operations::{Call, Operation},
        outcome::Outcome,
    },
    entry::{Entry, Failure},
    order::Id,
    queue::Queue,
};
use crate::Error;

/// The number of sendings after which a call counts as the reason why connections break.
const MAX_SENDINGS: u32 = 3;

impl Entry {
    /// How often the call may be sent. A second forced release could end a lease that was granted after the first one.
    fn max_sendings(&self) -> u32 {
        match self.call.operation() {
            Operation::ForceRelease { .. } => 1,
            _ => MAX_SENDINGS,
        }
    }
}

impl Queue {
    /// Answers callers whose deadline has passed with the error of `why`, drops releases that are not owed any more, and queues releases
    /// that have rested. The argument of `why` is whether the call was sent.
    pub(super) fn expire(&mut self, now: Instant, why: impl Fn(bool) -> Error) {
        while let Some(id) = self.deadlines.pop(now) {
            let Some(entry) = self.calls.get_mut(id) else {
                continue;
            };
            if entry.answer.is_some() {
                let error = why(entry.was_sent());
                self.fail(id, error);
            } else if let Failure::Repeat { expires, .. } = entry.failure
                && expires <= now
            {
                if entry.is_in_flight {
                    entry.failure = Failure::GiveUp;
                } else if let Some(entry) = self.remove(id) {
                    self.rest(entry, false);
                }
            }
        }
        let rested = self.resting.take_due(now);
        self.wake(rested);
    }

    /// Answers a caller with an error.
    fn fail(&mut self, id: Id, error: Error) {
        let Some(entry) = self.calls.get_mut(id) else {
            return;
        };
        let Some(answer) = entry.answer.take() else {
            return;
        };
        let (was_sent, is_in_flight) = (entry.was_sent(), entry.is_in_flight);
        if let Failure::Repeat { expires, .. } = entry.failure {
            let due = std::mem::replace(&mut entry.due, expires);
            self.deadlines.remove(due, id);
            self.deadlines.insert(expires, id);
        } else if was_sent && let Some(release) = entry.undo() {
            self.clean_up(release, false);
        } else if !is_in_flight {
            self.remove(id);
        }
        answer.send(Outcome::failed(error, was_sent), &mut self.told);
    }

    /// Answers all callers with an error.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for id in self.ids_of(|_| true) {
            self.fail(id, error.clone());
        }
    }

    /// Handles the drop of an acquire's future. Returns false if the acquire is answered already.
    pub(super) fn abandon(&mut self, id: Id) -> bool {
        let Some(entry) = self.calls.get_mut(id) else {
            return false;
        };
        entry.answer = None;
        match entry.undo() {
            Some(release) if entry.was_sent() => self.clean_up(release, false),
            _ => {
                self.remove(id);
            }
        }
        true
    }

    /// Handles the end of the connection: the calls in flight may have taken effect, and are sent again in the same order.
    pub(super) fn broke(&mut self, error: &Error) {
        self.forgotten.clear();
        self.in_flight = 0;
        let mut given_up = Vec::new();
        for (id, entry) in self.calls.iter_mut() {
            entry.may_have_taken_effect |= std::mem::take(&mut entry.is_in_flight);
            if entry.sendings >= entry.max_sendings() {
                given_up.push(id);
            }
        }
        for id in given_up {
            let call = self.calls.get_mut(id).map(|entry| &entry.call);
            let is_large = call.is_some_and(Call::is_large);
            let too_large = is_large.then(explain::record_too_large);
            self.fail(id, too_large.unwrap_or_else(|| error.clone()));
            if let Some(entry) = self.remove(id) {
                self.rest(entry, true);
            }
        }
        self.unsent = self.calls.first_id();
    }

    /// Handles a new connection. `predecessors_closed`: no call on an earlier connection can still take effect.
    pub(super) fn connected(&mut self, predecessors_closed: bool, error: &Error) {
        let is_release = |entry: &Entry| matches!(entry.failure, Failure::Repeat { .. });
        if predecessors_closed {
            // An acquire without a caller has its release in the queue (invariant 4 of `queue`), and any other call without a caller is
            // of no use.
            for id in self.ids_of(|entry| entry.answer.is_none() && !is_release(entry)) {
                if let Some(entry) = self.remove(id) {
                    self.rest(entry, false);
                }
            }
            return;
        }
        let mut owners = HashSet::new();
        for id in self.ids_of(|entry| entry.may_have_taken_effect && !is_release(entry)) {
            self.fail(id, error.clone());
            if let Some(entry) = self.remove(id)
                && matches!(entry.failure, Failure::CleanUp)
            {
                owners.extend(entry.owner());
            }
        }
        for (_, entry) in self.calls.iter_mut() {
            let owner = entry.owner();
            if let Failure::Repeat { until_expiry, .. } = &mut entry.failure {
                *until_expiry |= owner.is_some_and(|owner| owners.contains(&owner));
            }
        }
    }

    fn ids_of(&mut self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<Id> {
        let calls = self.calls.iter_mut();
        let wanted = calls.filter(|(_, entry)| is_wanted(entry));
        wanted.map(|(id, _)| id).collect()
    }
}
