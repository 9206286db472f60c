//! A node of a quorum, with the owners that the node has to forget.
//!
//! The same [`Ends`] as in the core keep every name that was given to the node until its end is
//! confirmed or its time is over. What the quorum gives up it can therefore forget:
//!
//! 1. A question that is dropped, also with its runtime, or whose outcome is not known, becomes an
//!    ending in doubt, and its attempt takes another name. A grant under a name that was given up
//!    meanwhile is ended, too.
//! 2. A release that fails is repeated. A name that is released twice has one ending.
//! 3. Every acquire carries the endings of its key. No acquire asks for a name that ends, or whose
//!    release had an unknown outcome and may come late (`attempts`).
//! 4. A node that does not answer gets no further questions while it has [enough](MOST_ENDINGS) to
//!    forget. It could answer none of them, and each would leave another ending behind.
//! 5. One task repeats. It ends when nothing is left to repeat, or with its runtime; the next
//!    failure, call or `watch` starts another one.

use std::{
    fmt,
    future::ready,
    ops::Deref,
    sync::{Arc, Weak},
};

use super::{
    super::{
        Acquire, Acquired, Answer, Endings, Hints, Instance, Outcome, Owner, Queueing, Release,
        Released, Store, StoreFuture,
        ends::{Callers, Ends, tell},
        home::Home,
    },
    attempts::{Attempt, Names},
    failures::is_answer,
    health::Health,
};
use crate::{
    Error, ErrorKind, LockKey,
    sync::{Mutex, Notify, oneshot},
    time::{now, timeout_at},
    trace,
};

/// How many names a silent node may have to forget before it gets no further questions.
const MOST_ENDINGS: usize = 16;

/// A node of a quorum.
#[derive(Clone)]
pub(super) struct Node(Arc<Inner>);

struct Inner {
    /// The index of the node.
    at: usize,
    store: Arc<dyn Store>,
    health: Arc<Health>,
    names: Names,
    state: Mutex<State>,
    /// Tells the task that repeats that its next round has changed.
    changed: Notify,
    home: Home,
}

#[derive(Default)]
struct State {
    ends: Ends,
    /// The node has answered the last release.
    answers: bool,
    /// Alive while a task repeats the releases that have failed.
    repeater: Weak<()>,
}

/// A question for the part of an attempt. Dropping the question before its answer gives up the
/// name.
struct Question {
    node: Arc<Inner>,
    attempt: Arc<Attempt>,
    name: Owner,
    queueing: Queueing,
    is_answered: bool,
}

impl Node {
    pub(super) fn new(
        at: usize,
        store: Arc<dyn Store>,
        health: Arc<Health>,
        names: Names,
        home: Home,
    ) -> Self {
        Self(Arc::new(Inner {
            at,
            store,
            health,
            names,
            state: Mutex::default(),
            changed: Notify::new(),
            home,
        }))
    }

    /// Asks the node for its part of an attempt, under the name in the request. The call is made
    /// now, and carries the endings of the key beside those that the request names. The answer is
    /// noted in the attempt. A grant that the attempt does not want any more is ended.
    pub(super) fn acquire(
        &self,
        attempt: &Arc<Attempt>,
        mut request: Acquire,
    ) -> StoreFuture<Outcome<Acquired>> {
        let mut question = Question {
            node: self.0.clone(),
            attempt: attempt.clone(),
            name: request.owner,
            queueing: request.queueing,
            is_answered: false,
        };
        let (has_enough, carried) = {
            let state = self.0.state.lock();
            let has_enough = state.ends.len() >= MOST_ENDINGS && !state.answers;
            (has_enough, state.ends.to_carry(&request.key))
        };
        self.0.go_on();
        if has_enough && self.0.health.is_silent(self.0.at) {
            let refused = Outcome::Refused(unreachable("the node does not answer"));
            return Box::pin(ready(question.answered(refused)));
        }
        let is_carried = |owner| carried.iter().any(|end| end.owner == owner);
        request.ends.retain(|end| !is_carried(end.owner));
        request.ends.extend(carried);
        let asking = self.0.store.acquire(request);
        Box::pin(async move { question.answered(asking.await) })
    }

    /// Ends the lease or the place of a name. Returns whether the name held the key until now. The
    /// release goes on if the future is dropped.
    pub(super) fn release(&self, request: Release) -> StoreFuture<Result<bool, Error>> {
        let (caller, outcome) = oneshot::channel();
        self.0.end(request, Callers::from_iter([caller]));
        Box::pin(async move {
            let over = "the lease's time was over before the node has answered the release";
            match outcome.await.unwrap_or_else(|_| Err(unreachable(over))) {
                Err(error) if error.kind() != ErrorKind::Lost => Err(error),
                freed => Ok(freed.is_ok()),
            }
        })
    }

    /// Ends the lease or the place of a name, whatever the node answers.
    pub(super) fn end(&self, request: Release) {
        self.0.end(request, Callers::new());
    }

    /// Repeats the releases that have failed, because the node is back.
    pub(super) fn hurry(&self) {
        self.0.state.lock().ends.hurry(now());
        self.0.go_on();
    }

    /// See [`Store::watch`].
    pub(super) fn watch(&self, instance: Instance) -> Hints {
        let hints = self.0.store.watch(instance);
        self.0.go_on();
        hints
    }

    /// How many names the node has to forget.
    #[cfg(test)]
    pub(super) fn endings(&self) -> usize {
        self.0.state.lock().ends.len()
    }
}

impl Deref for Node {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.0.store
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.store.fmt(f)
    }
}

impl Inner {
    fn end(self: &Arc<Self>, request: Release, callers: Callers) {
        let release = self.state.lock().ends.add(request, callers, now());
        match release {
            Some(release) => self.send(release),
            None => drop(self.go_on()),
        }
    }

    fn send(self: &Arc<Self>, release: Release) {
        let answer = Answer::to(self.clone(), release.key.clone(), release.owner);
        self.store.release(release, answer);
    }

    /// Sees to it that a task repeats the releases that have failed, if there are any. Returns
    /// whether the task is a new one.
    fn go_on(self: &Arc<Self>) -> bool {
        let alive = {
            let mut state = self.state.lock();
            if state.ends.next().is_none() {
                return false;
            }
            if state.repeater.strong_count() > 0 {
                self.changed.notify_one();
                return false;
            }
            let alive = Arc::new(());
            state.repeater = Arc::downgrade(&alive);
            alive
        };
        self.home.spawn(self.clone().repeat(alive));
        true
    }

    /// Repeats the releases that have failed, until none is left.
    async fn repeat(self: Arc<Self>, alive: Arc<()>) {
        loop {
            let (due, next) = {
                let mut state = self.state.lock();
                let due = state.ends.take_due(now());
                let next = state.ends.next();
                if due.releases.is_empty() && next.is_none() {
                    // Under the lock, so that the next failure finds no task that is about to end.
                    drop(alive);
                    return;
                }
                (due, next)
            };
            // Callers whose endings were dropped learn that from their closed channels.
            drop(due.given_up);
            due.releases
                .into_iter()
                .for_each(|release| self.send(release));
            if let Some(next) = next {
                timeout_at(next, self.changed.notified()).await;
            }
        }
    }
}

impl Endings for Inner {
    fn released(self: Arc<Self>, key: &LockKey, owner: Owner, outcome: Outcome<Released>) {
        if matches!(outcome, Outcome::Unknown(_)) {
            self.names.give_up();
        }
        let mut state = self.state.lock();
        state.answers = matches!(outcome, Outcome::Answered(_));
        let told = state.ends.released(key, owner, outcome, now());
        drop(state);
        if let Some((callers, result)) = told.callers {
            tell(callers, &result);
        }
        let is_first = told.round.is_some() && self.go_on();
        if let Some(error) = told.failed {
            trace::release_failed(owner, &error, is_first);
        }
    }
}

impl Question {
    /// Notes the answer. What the node has granted or queued under a name that was given up
    /// meanwhile is ended, and counts as no answer: the release of the name may have overtaken the
    /// question, or follows it.
    fn answered(&mut self, outcome: Outcome<Acquired>) -> Outcome<Acquired> {
        let (node, attempt) = (&self.node, &self.attempt);
        let is_wanted = attempt.answered(node.at, self.name, self.queueing, &outcome);
        self.is_answered = !matches!(outcome, Outcome::Unknown(_));
        let is_heard = match &outcome {
            Outcome::Answered(_) => true,
            Outcome::Refused(error) | Outcome::Unknown(error) => is_answer(error),
        };
        node.health.heard(node.at, is_heard);
        match outcome {
            Outcome::Answered(Acquired::Granted(_) | Acquired::Held(_)) if !is_wanted => {
                node.end(attempt.end_of(self.name, false), Callers::new());
                Outcome::Refused(unreachable("the question was given up before its answer"))
            }
            outcome => outcome,
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.is_answered {
            let (node, name) = (self.node.at, self.name);
            self.attempt
                .give_up(|at, part| at == node && part.name == name);
            let end = self.attempt.end_of(self.name, true);
            self.node.end(end, Callers::new());
        }
    }
}

fn unreachable(message: &str) -> Error {
    Error::new(ErrorKind::Unreachable, message)
}
