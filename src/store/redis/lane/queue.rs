//! The calls of a lane, in the order in which they were started. The queue knows neither connections nor timers.
//!
//! 1. Ids rise in the order of the calls, and `calls` is sorted by id: calls that are sent again are sent in that order.
//! 2. `unsent` is sorted, too, and every id in it is above the id of every call in flight. It may name calls that are gone, but
//!    not many: while the server is away, callers come and go.
//! 3. A caller is answered once: `answer` is `None` afterwards. A call in flight stays in `calls` until its reply comes or the
//!    connection breaks, whether its caller was answered or not.
//! 4. An acquire that may have taken effect and failed for its caller has its release in the queue, behind the acquire.
//! 5. A release stays, in `calls` or in `resting`, until the server has answered it or its time has passed. Before a later
//!    call for the same key is queued, the key's resting releases are.
//! 6. NOSCRIPT: the call had no effect. Other calls for its key may be in flight behind it, and some of them may run, if another client
//!    loads the scripts in between. So `forgotten` calls wait until nothing is in flight. Those that a later call for the same key
//!    has overtaken by then have failed (without effect); the rest is sent again in front of everything else, by text. Scripts that are
//!    not loaded with every connection are sent by text at once.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    super::{
        calls, explain,
        names::Names,
        outcome::{Answered, Outcome},
        owed::Owed,
        script::By,
    },
    entry::{AnswerTo, Before, Entry, Failure, Reply, Start, after, is_noscript},
};
use crate::{
    Error, LockKey,
    store::{Ending, Owner, Release},
    trace,
};

/// How often a call is sent before it counts as the reason why connections break.
const MAX_SENDINGS: u32 = 3;
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// How many calls that are gone `unsent` may name, besides as many as there are calls.
const MOST_GONE: usize = 64;

pub(super) type Id = u64;

#[derive(Debug)]
pub(super) struct Queue {
    next: Id,
    calls: BTreeMap<Id, Entry>,
    unsent: VecDeque<Id>,
    forgotten: Vec<Id>,
    resting: Vec<Resting>,
    /// When a caller must be answered, or a release is not owed any more.
    deadlines: BTreeSet<(Instant, Id)>,
    names: Names,
    owed: Owed,
}

/// A release that the server has refused.
#[derive(Debug)]
struct Resting {
    until: Instant,
    entry: Entry,
}

impl Queue {
    pub(super) fn new(names: Names, owed: Owed) -> Self {
        Self {
            next: 0,
            calls: BTreeMap::new(),
            unsent: VecDeque::new(),
            forgotten: Vec::new(),
            resting: Vec::new(),
            deadlines: BTreeSet::new(),
            names,
            owed,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.resting.is_empty()
    }

    /// Whether there is anything to connect for.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// When something is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let rested = self.resting.iter().map(|resting| resting.until).min();
        deadline.into_iter().chain(rested).min()
    }

    pub(super) fn push(&mut self, start: Start, answer: Option<AnswerTo>) -> Id {
        let is_of_key = |resting: &Resting| resting.entry.key == start.key;
        if self.resting.iter().any(is_of_key) {
            self.wake(is_of_key);
        }
        let Start {
            key,
            call,
            by,
            before,
            failure,
            deadline,
        } = start;
        let due = match (&answer, &failure) {
            (None, Failure::Repeat { expires, .. }) => *expires,
            _ => deadline,
        };
        let entry = Entry {
            key,
            call,
            before,
            by,
            answer,
            failure,
            due,
            sendings: 0,
            is_in_flight: false,
            may_have_taken_effect: false,
            rest: FIRST_REST,
        };
        self.insert(entry)
    }

    fn insert(&mut self, entry: Entry) -> Id {
        let id = self.next;
        self.next += 1;
        self.deadlines.insert((entry.due, id));
        self.calls.insert(id, entry);
        if self.unsent.len() >= 2 * self.calls.len() + MOST_GONE {
            self.unsent.retain(|id| self.calls.contains_key(id));
        }
        self.unsent.push_back(id);
        id
    }

    fn remove(&mut self, id: Id) -> Option<Entry> {
        let entry = self.calls.remove(&id)?;
        self.deadlines.remove(&(entry.due, id));
        Some(entry)
    }

    /// Queues the release of what an acquire may have taken.
    pub(super) fn clean_up(
        &mut self,
        key: LockKey,
        owner: Owner,
        owed_for: Duration,
        until_expiry: bool,
    ) {
        let release = Release {
            key,
            owner,
            ending: Ending::Free,
            owed_for,
        };
        let expires = after(owed_for);
        let start = Start {
            call: calls::release(&self.names.of(&release.key), &release),
            key: release.key,
            by: By::Hash,
            before: Before::Nothing,
            failure: Failure::Repeat {
                owner,
                expires,
                _debt: self.owed.debt(),
                until_expiry,
            },
            deadline: expires,
        };
        self.push(start, None);
    }

    /// The next calls to be sent, which count as in flight from now on.
    pub(super) fn send(&mut self, most: usize) -> Vec<Id> {
        let mut batch = Vec::new();
        while batch.len() < most {
            let Some(id) = self.unsent.pop_front() else {
                break;
            };
            if let Some(entry) = self.calls.get_mut(&id) {
                entry.is_in_flight = true;
                entry.sendings += 1;
                batch.push(id);
            }
        }
        batch
    }

    /// Whether calls wait until nothing is in flight (invariant 6).
    pub(super) fn is_held_back(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Nothing is in flight any more: what the server has forgotten can be sent again.
    pub(super) fn send_forgotten_again(&mut self) {
        for id in std::mem::take(&mut self.forgotten).into_iter().rev() {
            self.unsent.push_front(id);
        }
    }

    pub(super) fn entry(&self, id: Id) -> Option<&Entry> {
        self.calls.get(&id)
    }

    /// The server has answered a call.
    pub(super) fn answered(&mut self, id: Id, reply: Reply) {
        if is_noscript(&reply.value) && self.was_forgotten(id) {
            return;
        }
        let Some(mut entry) = self.remove(id) else {
            return;
        };
        if !self.forgotten.is_empty() {
            self.give_up_forgotten(&entry.key);
        }
        let answer = entry.answer.take();
        let repeated = entry.may_have_taken_effect;
        let outcome = match reply.value.extract_error() {
            Ok(value) => Outcome::Answered(Answered {
                value,
                repeated,
                predecessors_closed: reply.predecessors_closed,
            }),
            Err(error) => match reply.redirect {
                Some(redirect) => Outcome::Redirected {
                    redirect,
                    may_have_taken_effect: repeated,
                },
                None => Outcome::failed(explain::refused(error), repeated),
            },
        };
        let has_run = matches!(outcome, Outcome::Answered(_));
        let is_heard = answer.is_some_and(|answer| answer.send(outcome));
        match entry.failure {
            Failure::CleanUp { owner, owed_for } if is_heard && !has_run && repeated => {
                self.clean_up(entry.key, owner, owed_for, false);
            }
            Failure::Repeat { until_expiry, .. } if !has_run || until_expiry => self.rest(entry),
            _ => {}
        }
    }

    /// Whether a call that the server knows no script for is to be sent again, by text.
    fn was_forgotten(&mut self, id: Id) -> bool {
        match self.calls.get_mut(&id) {
            Some(entry) if matches!(entry.by, By::Hash) => {
                entry.by = By::Text;
                entry.is_in_flight = false;
                self.forgotten.push(id);
                true
            }
            _ => false,
        }
    }

    /// A call for the key has run that was started later than these.
    fn give_up_forgotten(&mut self, key: &LockKey) {
        let (overtaken, rest) = std::mem::take(&mut self.forgotten)
            .into_iter()
            .partition(|id| self.calls.get(id).is_some_and(|entry| entry.key == *key));
        self.forgotten = rest;
        for id in overtaken {
            let Some(mut entry) = self.remove(id) else {
                continue;
            };
            if let Some(answer) = entry.answer.take() {
                let error = explain::script_forgotten();
                answer.send(Outcome::failed(error, entry.may_have_taken_effect));
                if let (Failure::CleanUp { owner, owed_for }, true) =
                    (&entry.failure, entry.may_have_taken_effect)
                {
                    self.clean_up(entry.key.clone(), *owner, *owed_for, false);
                }
            }
            if matches!(entry.failure, Failure::Repeat { .. }) {
                self.rest(entry);
            }
        }
    }

    /// Keeps a release for later, unless its time has passed.
    fn rest(&mut self, mut entry: Entry) {
        let now = Instant::now();
        let Failure::Repeat { expires, .. } = entry.failure else {
            return;
        };
        if now >= expires {
            return;
        }
        entry.answer = None;
        entry.is_in_flight = false;
        let until = (now + entry.rest).min(expires);
        entry.rest = (entry.rest * 2).min(LONGEST_REST);
        self.resting.push(Resting { until, entry });
    }

    /// Queues those of the resting releases that shall be sent now.
    fn wake(&mut self, is_due: impl Fn(&Resting) -> bool) {
        let (due, resting) = std::mem::take(&mut self.resting)
            .into_iter()
            .partition(is_due);
        self.resting = resting;
        for Resting { mut entry, .. } in due {
            if let Failure::Repeat { expires, .. } = entry.failure {
                entry.due = expires;
                self.insert(entry);
            }
        }
    }

    /// Does what is due: answers callers whose time is up, with `why`, and forgets releases whose time has passed.
    pub(super) fn expire(&mut self, now: Instant, why: impl Fn(bool) -> Error) {
        while let Some((at, id)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.remove(&(at, id));
            let Some(entry) = self.calls.get_mut(&id) else {
                continue;
            };
            if entry.answer.is_some() {
                let was_sent = entry.is_in_flight || entry.may_have_taken_effect;
                self.fail(id, why(was_sent));
            } else if let Failure::Repeat { expires, .. } = entry.failure
                && expires <= now
            {
                if entry.is_in_flight {
                    entry.failure = Failure::Forget;
                } else {
                    self.remove(id);
                }
            }
        }
        self.resting.retain(|resting| match resting.entry.failure {
            Failure::Repeat { expires, .. } => expires > now,
            _ => false,
        });
        if self.resting.iter().any(|resting| resting.until <= now) {
            self.wake(|resting| resting.until <= now);
        }
    }

    /// Answers a caller with an error.
    fn fail(&mut self, id: Id, error: Error) {
        let Some(entry) = self.calls.get_mut(&id) else {
            return;
        };
        let Some(answer) = entry.answer.take() else {
            return;
        };
        let was_sent = entry.is_in_flight || entry.may_have_taken_effect;
        match &entry.failure {
            Failure::Repeat { owner, expires, .. } => {
                trace::release_failed(*owner, &error);
                self.deadlines.remove(&(entry.due, id));
                entry.due = *expires;
                self.deadlines.insert((entry.due, id));
            }
            Failure::CleanUp { owner, owed_for } if was_sent => {
                let (key, owner, owed_for) = (entry.key.clone(), *owner, *owed_for);
                self.clean_up(key, owner, owed_for, false);
            }
            _ if entry.is_in_flight => {}
            _ => {
                self.remove(id);
            }
        }
        answer.send(Outcome::failed(error, was_sent));
    }

    /// Answers all callers with an error.
    pub(super) fn fail_all(&mut self, error: &Error) {
        let all: Vec<Id> = self.calls.keys().copied().collect();
        for id in all {
            self.fail(id, error.clone());
        }
    }

    /// The caller of an acquire does not want the answer any more. False if there is an answer already.
    pub(super) fn abandon(&mut self, id: Id) -> bool {
        let Some(entry) = self.calls.get_mut(&id) else {
            return false;
        };
        entry.answer = None;
        let was_sent = entry.is_in_flight || entry.may_have_taken_effect;
        match entry.failure {
            Failure::CleanUp { owner, owed_for } if was_sent => {
                let key = entry.key.clone();
                self.clean_up(key, owner, owed_for, false);
            }
            _ => {
                self.remove(id);
            }
        }
        true
    }

    /// The connection broke: what was in flight may have taken effect, and is to be sent again in the same order.
    pub(super) fn broke(&mut self, error: &Error) {
        self.forgotten.clear();
        let mut given_up = Vec::new();
        for (id, entry) in &mut self.calls {
            entry.may_have_taken_effect |= entry.is_in_flight;
            entry.is_in_flight = false;
            if entry.sendings >= MAX_SENDINGS {
                given_up.push(*id);
            }
        }
        for id in given_up {
            self.fail(id, error.clone());
            if let Some(entry) = self.remove(id) {
                self.rest(entry);
            }
        }
        self.unsent = self.calls.keys().copied().collect();
    }

    /// There is a new connection. `predecessors_closed`: nothing that was sent on an earlier one can still take effect.
    pub(super) fn connected(&mut self, predecessors_closed: bool, error: &Error) {
        if predecessors_closed {
            // An acquire that has no caller any more has its release behind it.
            let deadlines = &mut self.deadlines;
            self.calls.retain(|id, entry| {
                let stays =
                    entry.answer.is_some() || matches!(entry.failure, Failure::Repeat { .. });
                if !stays {
                    deadlines.remove(&(entry.due, *id));
                }
                stays
            });
            return;
        }
        let in_doubt: Vec<Id> = (self.calls.iter())
            .filter(|(_, entry)| {
                entry.may_have_taken_effect && !matches!(entry.failure, Failure::Repeat { .. })
            })
            .map(|(id, _)| *id)
            .collect();
        let mut owners = HashSet::new();
        for id in in_doubt {
            self.fail(id, error.clone());
            if let Some(entry) = self.remove(id)
                && let Failure::CleanUp { owner, .. } = entry.failure
            {
                owners.insert(owner);
            }
        }
        for entry in self.calls.values_mut() {
            if let Failure::Repeat {
                owner,
                until_expiry,
                ..
            } = &mut entry.failure
            {
                *until_expiry |= owners.contains(owner);
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.calls.clear();
        self.unsent.clear();
        self.forgotten.clear();
        self.resting.clear();
        self.deadlines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Instance;

    #[test]
    fn calls_that_were_never_sent_leave_nothing() {
        let names = Names::new("tdl", None);
        let mut queue = Queue::new(names.clone(), Owed::default());
        let key = LockKey::new("k").unwrap();
        for attempt in 0..10_000 {
            let owner = Owner {
                instance: Instance::new(),
                attempt,
            };
            let id = queue.push(
                Start {
                    key: key.clone(),
                    call: calls::inspect(names.of(&key)),
                    by: By::Hash,
                    before: Before::Nothing,
                    failure: Failure::CleanUp {
                        owner,
                        owed_for: Duration::from_secs(1),
                    },
                    deadline: Instant::now(),
                },
                None,
            );
            assert!(queue.abandon(id));
            assert!(queue.unsent.len() <= 2 + MOST_GONE);
        }
        assert!(queue.is_empty() && queue.deadlines.is_empty());
        assert!(queue.send(usize::MAX).is_empty());
    }
}
