//! A node of a quorum, with the owners that the node has to forget.
//!
//! The same [`Ends`] as in the core keep every name that was given to the node until its end is
//! confirmed or its time is over. What the quorum gives up it can therefore forget:
//!
//! 1. A question that is dropped, or whose outcome is not known, becomes an ending in doubt.
//! 2. A release that fails is repeated. A name that is released twice has one ending.
//! 3. Every acquire carries the endings of its key. No acquire asks for a name that ends
//!    ([`unused_name`](Node::unused_name)).
//! 4. A node that does not answer gets no further questions while it has [enough](MOST_ENDINGS)
//!    to forget. It could answer none of them, and each would leave another ending behind.
//! 5. One task repeats. It ends when nothing is left to repeat, or with its runtime; the next
//!    failure, call or `watch` starts another one.

use std::{
    fmt,
    future::ready,
    iter::successors,
    ops::Deref,
    sync::{Arc, Weak},
};

use super::{
    super::{
        Acquire, Acquired, Answer, Ending, Endings, Hints, Instance, Outcome, Owner, Queueing,
        Release, Released, Store, StoreFuture,
        ends::{Confirmation, Ends, NewEnd},
        home::Home,
    },
    attempts::next_name,
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
    store: Arc<dyn Store>,
    state: Mutex<State>,
    /// Tells the task that repeats that its next round has changed.
    changed: Notify,
    home: Home,
}

#[derive(Default)]
struct State {
    ends: Ends,
    /// Alive while a task repeats the releases that have failed.
    repeater: Weak<()>,
}

/// A name that the node is asked for. Dropping the question before its answer gives up the name.
struct Question {
    node: Arc<Inner>,
    /// Ends the name.
    end: Release,
    is_answered: bool,
}

impl Node {
    pub(super) fn new(store: Arc<dyn Store>, home: Home) -> Self {
        Self(Arc::new(Inner {
            store,
            state: Mutex::default(),
            changed: Notify::new(),
            home,
        }))
    }

    /// The first name of an attempt that the node need not forget.
    pub(super) fn unused_name(&self, key: &LockKey, owner: Owner) -> Owner {
        let ends = &self.0.state.lock().ends;
        let names = successors(Some(owner), |name| Some(next_name(*name)));
        let mut unused = names.skip_while(|name| ends.contains(key, *name));
        unused.next().unwrap_or(owner)
    }

    /// Asks the node for a key. The call is made now, and carries the endings of the key beside
    /// those that the request names. `is_silent`: the node has not answered its last call.
    pub(super) fn acquire(
        &self,
        mut request: Acquire,
        is_silent: bool,
    ) -> StoreFuture<Outcome<Acquired>> {
        let (has_enough, carried) = {
            let ends = &self.0.state.lock().ends;
            (ends.len() >= MOST_ENDINGS, ends.to_carry(&request.key))
        };
        self.0.go_on();
        if is_silent && has_enough {
            let error = Error::new(ErrorKind::Unreachable, "the node does not answer");
            return Box::pin(ready(Outcome::Refused(error)));
        }
        let is_carried = |owner| carried.iter().any(|end| end.owner == owner);
        request.ends.retain(|end| !is_carried(end.owner));
        request.ends.extend(carried);
        let mut question = Question {
            node: self.0.clone(),
            end: end_of(&request, request.owner, true),
            is_answered: false,
        };
        let asking = self.0.store.acquire(request);
        Box::pin(async move {
            let outcome = asking.await;
            question.answered(&outcome);
            outcome
        })
    }

    /// Ends the lease or the place of a name. The release goes on if the future is dropped.
    pub(super) fn release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        let (confirmation, outcome) = oneshot::channel();
        self.0.end(request, Some(confirmation));
        Box::pin(async move {
            match outcome.await {
                Ok(Ok(())) => Ok(Released::Freed),
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => Ok(Released::NotOurs),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Error::new(
                    ErrorKind::Unreachable,
                    "the lease's time was over before the node has answered the release",
                )),
            }
        })
    }

    /// Ends the lease or the place of a name, whatever the node answers.
    pub(super) fn end(&self, request: Release) {
        self.0.end(request, None);
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
    fn end(self: &Arc<Self>, request: Release, waiting: Option<Confirmation>) {
        let end = NewEnd {
            owner: request.owner,
            mode: request.mode,
            ending: request.ending,
            in_doubt: request.in_doubt,
            lasts: request.owed_for,
            waiting,
        };
        let release = self.state.lock().ends.add(&request.key, end, now());
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
                if due.is_empty() && next.is_none() {
                    // Under the lock, so that the next failure finds no task that is about to end.
                    drop(alive);
                    return;
                }
                (due, next)
            };
            due.into_iter().for_each(|release| self.send(release));
            if let Some(next) = next {
                timeout_at(next, self.changed.notified()).await;
            }
        }
    }
}

impl Endings for Inner {
    fn released(self: Arc<Self>, key: &LockKey, owner: Owner, outcome: Outcome<Released>) {
        let told = self.state.lock().ends.released(key, owner, outcome, now());
        if let Some((caller, result)) = told.caller {
            let _ = caller.send(result);
        }
        let is_first = told.round.is_some() && self.go_on();
        if let Some(error) = told.failed {
            trace::release_failed(owner, &error, is_first);
        }
    }
}

impl Question {
    fn answered(&mut self, outcome: &Outcome<Acquired>) {
        self.is_answered = !matches!(outcome, Outcome::Unknown(_));
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.is_answered {
            self.node.end(self.end.clone(), None);
        }
    }
}

/// Ends what a node may have of an attempt under this name.
pub(super) fn end_of(request: &Acquire, name: Owner, in_doubt: bool) -> Release {
    // How long a lease, or a place in a queue, lasts without a release.
    let owed_for = match request.queueing {
        Queueing::Wait { deadline, .. } => request.lease.max(deadline),
        Queueing::No | Queueing::Skip => request.lease,
    };
    Release {
        key: request.key.clone(),
        owner: name,
        mode: request.mode,
        ending: Ending::Free,
        in_doubt,
        owed_for,
    }
}
