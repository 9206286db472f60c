//! The calls of a lane, in the order in which they were started. The queue knows neither connections nor timers.
//!
//! ```text
//!   push ──> unsent ──> in flight ──> answered, and gone
//!              ^  ^         │
//!              │  │         ├─ NOSCRIPT ──> forgotten ──> unsent, by text
//!              │  │         └─ the connection breaks ───> unsent
//!              │  └──── a later call for the key, or the end of the pause
//!              └─ resting <── a release that was refused, or is repeated until its expiry (`resting`)
//! ```
//!
//! 1. `calls` has the order in which the calls were started. Calls are sent in that order, and sent again in that order.
//! 2. No call from `unsent` on has been sent on this connection. Each call before `unsent` is in flight or `forgotten`.
//! 3. A caller is answered once: `answer` is `None` afterwards. A call in flight stays in `calls` until its reply comes or the
//!    connection breaks, even if its caller was answered before. The next reply therefore belongs to the first call in flight.
//! 4. An acquire with [`Failure::CleanUp`] that may have taken effect and failed for its caller has its release in the queue, behind the
//!    acquire.
//! 5. A release with [`Failure::Repeat`] stays, in `calls` or in `resting`, until the server has carried it out or its time has passed;
//!    with `until_expiry`, until its time has passed. Before a later call for the same key is queued, the key's resting releases are.
//! 6. A call that is answered with NOSCRIPT had no effect. Other calls for its key may be in flight behind the call, and some of them may
//!    run, if another client loads the scripts meanwhile. `forgotten` calls therefore wait until nothing is in flight. A forgotten call
//!    that a later call for the same key has overtaken by then has failed without effect, and rests if it is a release. The others are
//!    sent again in front of everything else, by text. Scripts that are not loaded with every connection are sent by text at once.
//!
//! The module `trouble` handles deadlines, callers that leave and broken connections.

use tokio::time::Instant;

use super::{
    super::{
        explain,
        operations::{Operation, ReleaseAll},
        outcome::{Answered, Outcome},
        owed::Owed,
        script::By,
    },
    deadlines::Deadlines,
    entry::{AnswerTo, Before, Entry, Failure, Reply, Start, Told, after, is_noscript},
    order::{Id, Order},
    resting::Resting,
};
use crate::{Error, ErrorKind};

/// The calls of a lane.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) calls: Order<Entry>,
    /// The id of the first call that was not sent on this connection.
    pub(super) unsent: Id,
    /// The number of calls in flight.
    pub(super) in_flight: usize,
    /// The calls that were answered with NOSCRIPT and will be sent by text.
    pub(super) forgotten: Vec<Id>,
    /// The releases that wait for their next sending: the server has refused them, or their acquires may still take effect.
    pub(super) resting: Resting,
    /// Whether the last call that was sent is [large](super::super::operations::Call::is_large).
    last_is_large: bool,
    /// The times at which callers must be answered, or releases are not owed any more.
    pub(super) deadlines: Deadlines,
    /// The outcomes of releases, which are given when the mutex is free.
    pub(super) told: Told,
    pub(super) owed: Owed,
}

impl Queue {
    pub(super) fn new(owed: Owed) -> Self {
        Self {
            calls: Order::new(),
            unsent: 0,
            in_flight: 0,
            forgotten: Vec::new(),
            resting: Resting::default(),
            last_is_large: false,
            deadlines: Deadlines::default(),
            told: Told::default(),
            owed,
        }
    }

    /// Whether nothing is left to do, not even for a resting release.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.resting.is_empty()
    }

    /// Whether there are calls that need a connection.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// When the next call is due, or the next release has rested.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = self.deadlines.first();
        first.into_iter().chain(self.resting.next_at()).min()
    }

    /// Appends a call.
    pub(super) fn push(&mut self, start: Start, answer: Option<AnswerTo>) -> Id {
        if !self.resting.is_empty()
            && let Some(key) = start.call.key()
        {
            let earlier = self.resting.take(key);
            self.wake(earlier);
        }
        let due = match (&answer, &start.failure) {
            (None, Failure::Repeat { expires, .. }) => *expires,
            _ => start.deadline,
        };
        self.insert(Entry {
            by: start.call.by(),
            call: start.call,
            before: start.before,
            answer,
            failure: start.failure,
            due,
            sendings: 0,
            is_in_flight: false,
            has_command_before: false,
            may_have_taken_effect: false,
            is_repeated: false,
        })
    }

    fn insert(&mut self, entry: Entry) -> Id {
        let due = entry.due;
        let id = self.calls.push(entry);
        self.deadlines.insert(due, id);
        id
    }

    /// Removes a call, with its deadline.
    pub(super) fn remove(&mut self, id: Id) -> Option<Entry> {
        let entry = self.calls.remove(id)?;
        self.deadlines.remove(entry.due, id);
        if entry.is_in_flight {
            self.in_flight -= 1;
        }
        Some(entry)
    }

    /// Queues the release of an acquire that may have taken effect.
    pub(super) fn clean_up(&mut self, release: ReleaseAll, until_expiry: bool) {
        let expires = after(release.release.owed_for);
        let start = Start {
            call: Operation::Release(release).into(),
            before: Before::Nothing,
            failure: Failure::Repeat {
                expires,
                _debt: self.owed.debt(),
                until_expiry,
            },
            deadline: expires,
        };
        self.push(start, None);
    }

    /// The number of calls that can be sent now, or a larger one.
    pub(super) fn unsent_at_most(&self) -> usize {
        if self.forgotten.is_empty() {
            self.calls.at_most_from(self.unsent)
        } else {
            self.calls.at_most_from(self.calls.first_id())
        }
    }

    /// The next call to be sent, which counts as in flight from now on. A large call is in flight alone.
    pub(super) fn next_unsent(&mut self) -> Option<&mut Entry> {
        if !self.forgotten.is_empty() {
            if self.in_flight > 0 {
                return None;
            }
            // Nothing is in flight, so all calls in the queue are unsent, and the forgotten ones come first.
            self.forgotten.clear();
            self.unsent = self.calls.first_id();
        }
        let (id, entry) = self.calls.first_from(self.unsent)?;
        let is_large = entry.call.is_large();
        if self.in_flight > 0 && (is_large || self.last_is_large) {
            return None;
        }
        self.last_is_large = is_large;
        self.unsent = id + 1;
        self.in_flight += 1;
        entry.is_in_flight = true;
        entry.sendings += 1;
        Some(entry)
    }

    /// The first call in flight, whose reply comes next.
    pub(super) fn first_in_flight(&mut self) -> Option<(Id, &Entry)> {
        let mut calls = self.calls.iter_mut();
        let (id, entry) = calls.find(|(_, entry)| entry.is_in_flight)?;
        Some((id, entry))
    }

    /// Handles the server's answer to a call.
    pub(super) fn answered(&mut self, id: Id, reply: Reply) {
        if is_noscript(&reply.value) && self.was_forgotten(id) {
            return;
        }
        if !self.forgotten.is_empty() {
            self.give_up_forgotten_before(id);
        }
        let Some(entry) = self.calls.get_mut(id) else {
            return;
        };
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
        let error = outcome.error();
        let (has_run, failed) = (error.is_none(), error.as_ref().map(Error::kind));
        let answer = entry.answer.take();
        let is_heard = answer.is_some_and(|answer| answer.send(outcome, &mut self.told));
        match entry.failure {
            Failure::CleanUp if is_heard && !has_run && repeated => {
                if let Some(entry) = self.remove(id)
                    && let Some(release) = entry.undo()
                {
                    self.clean_up(release, false);
                }
            }
            // A release that cannot work is not repeated.
            Failure::Repeat { until_expiry, .. }
                if (!has_run || until_expiry) && failed != Some(ErrorKind::InvalidConfig) =>
            {
                if let Some(entry) = self.remove(id) {
                    // A key with foreign data says nothing about the others.
                    self.rest(entry, failed == Some(ErrorKind::Unreachable));
                }
            }
            _ => {
                let is_repeated = entry.is_repeated;
                self.deadlines.remove(entry.due, id);
                self.in_flight -= 1;
                self.calls.discard(id);
                if is_repeated {
                    self.resting.ended(Instant::now());
                }
            }
        }
    }

    /// Marks a call that was answered with NOSCRIPT as forgotten. Returns false if the call was sent by text already.
    fn was_forgotten(&mut self, id: Id) -> bool {
        match self.calls.get_mut(id) {
            Some(entry) if matches!(entry.by, By::Hash) => {
                entry.by = By::Text;
                entry.is_in_flight = false;
                self.in_flight -= 1;
                self.forgotten.push(id);
                true
            }
            _ => false,
        }
    }

    /// Fails the forgotten calls for the key of a call that the server has answered. They were started earlier, and must not run after that
    /// call.
    fn give_up_forgotten_before(&mut self, later: Id) {
        let later = self.calls.get_mut(later);
        let Some(key) = later.and_then(|it| it.call.key().cloned()) else {
            return;
        };
        for id in std::mem::take(&mut self.forgotten) {
            let is_overtaken = |entry: &mut Entry| entry.call.key() == Some(&key);
            if !self.calls.get_mut(id).is_some_and(is_overtaken) {
                self.forgotten.push(id);
                continue;
            }
            let Some(mut entry) = self.remove(id) else {
                continue;
            };
            if let Some(answer) = entry.answer.take() {
                let failed =
                    Outcome::failed(explain::script_forgotten(), entry.may_have_taken_effect);
                answer.send(failed, &mut self.told);
                if entry.may_have_taken_effect
                    && let Some(release) = entry.undo()
                {
                    self.clean_up(release, false);
                }
            }
            self.rest(entry, false);
        }
    }

    /// Keeps a release for later, unless its time has passed. `refused`: the server would refuse other releases, too.
    pub(super) fn rest(&mut self, entry: Entry, refused: bool) {
        let now = Instant::now();
        match entry.failure {
            Failure::Repeat { expires, .. } if now < expires => {
                self.resting.add(entry, refused, now);
            }
            _ if entry.is_repeated => self.resting.ended(now),
            _ => {}
        }
    }

    /// Queues releases that have rested.
    pub(super) fn wake(&mut self, rested: Vec<Entry>) {
        for mut entry in rested {
            if let Failure::Repeat { expires, .. } = entry.failure {
                entry.due = expires;
                self.insert(entry);
            }
        }
    }

    /// Drops all calls.
    pub(super) fn clear(&mut self) {
        self.fail_all(&explain::connection_ended());
        self.calls.clear();
        self.unsent = self.calls.first_id();
        self.in_flight = 0;
        self.forgotten.clear();
        self.resting = Resting::default();
        self.deadlines.clear();
    }
}
