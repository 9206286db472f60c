//! A node of a quorum, with the owners that the node has to forget.
//!
//! The same [`Ends`] as in the core keep every name that was given to the node until its end is
//! confirmed or its time is over. What the quorum gives up it can therefore forget:
//!
//! 1. A [`Question`] that is dropped, or whose outcome is not known, becomes an ending in doubt.
//! 2. A release that fails is repeated. A name that is released twice has one ending.
//! 3. Every acquire carries the endings of its key, and no acquire asks for a name that ends.
//! 4. A node that does not answer gets no further questions while it has [enough](MOST_ENDINGS)
//!    to forget. It could answer none of them, and each would leave another ending behind.
//! 5. One task repeats. It ends when nothing is left to repeat, or with its runtime; the next
//!    failure, call or `watch` starts another one.

use std::{
    fmt,
    future::{poll_fn, ready},
    ops::Deref,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
};

use super::super::{
    Acquire, Acquired, Answer, Ending, Endings, Hints, Instance, Outcome, Owner, Queueing, Release,
    Released, Store, StoreFuture,
    ends::{Confirmation, Ends, NewEnd},
    home::Home,
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

/// An acquire at a node. Dropping an unanswered question gives up its name: the node ends the name
/// before `drop` returns.
pub(super) struct Question {
    node: Arc<Inner>,
    /// Ends the name.
    end: Release,
    call: Mutex<Call>,
}

struct Call {
    /// Set until the node has answered.
    asking: Option<StoreFuture<Outcome<Acquired>>>,
    listener: Option<Waker>,
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

    /// Asks the node for a key. The call is made now, and carries the endings of the key beside
    /// those that the request names. `is_silent`: the node has not answered its last call.
    pub(super) fn acquire(&self, mut request: Acquire, is_silent: bool) -> Arc<Question> {
        let lasts = match request.queueing {
            Queueing::Wait { deadline, .. } => request.lease.max(deadline),
            Queueing::No | Queueing::Skip => request.lease,
        };
        let end = Release {
            key: request.key.clone(),
            owner: request.owner,
            mode: request.mode,
            ending: Ending::Free,
            in_doubt: true,
            owed_for: lasts,
        };
        let (refused, carried) = {
            let ends = &self.0.state.lock().ends;
            let refused = if ends.contains(&request.key, request.owner) {
                Some("the node has to forget this name, which cannot be asked for again")
            } else if is_silent && ends.len() >= MOST_ENDINGS {
                Some("the node does not answer")
            } else {
                None
            };
            (refused, ends.to_carry(&request.key))
        };
        let is_carried = |owner| carried.iter().any(|end| end.owner == owner);
        request.ends.retain(|end| !is_carried(end.owner));
        request.ends.extend(carried);
        let asking = match refused {
            Some(why) => {
                let refused = Outcome::Refused(Error::new(ErrorKind::Unreachable, why));
                Box::pin(ready(refused))
            }
            None => self.0.store.acquire(request),
        };
        self.0.go_on();
        Arc::new(Question {
            node: self.0.clone(),
            end,
            call: Mutex::new(Call {
                asking: Some(asking),
                listener: None,
            }),
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
    /// The name that the node is asked for.
    pub(super) fn name(&self) -> Owner {
        self.end.owner
    }

    /// The node's answer, or `None` once the question was dropped. The answer does not keep the
    /// question.
    pub(super) fn answer(self: &Arc<Self>) -> StoreFuture<Option<Outcome<Acquired>>> {
        let question = Arc::downgrade(self);
        Box::pin(poll_fn(move |cx| match question.upgrade() {
            Some(question) => question.poll(cx).map(Some),
            None => Poll::Ready(None),
        }))
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Outcome<Acquired>> {
        let mut call = self.call.lock();
        call.listener = Some(cx.waker().clone());
        let Some(asking) = &mut call.asking else {
            return Poll::Pending; // answered before
        };
        let Poll::Ready(outcome) = asking.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        call.asking = None;
        drop(call);
        if matches!(outcome, Outcome::Unknown(_)) {
            self.node.end(self.end.clone(), None);
        }
        Poll::Ready(outcome)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let (asking, listener) = {
            let mut call = self.call.lock();
            (call.asking.take(), call.listener.take())
        };
        if asking.is_none() {
            return;
        }
        drop(asking);
        self.node.end(self.end.clone(), None);
        if let Some(listener) = listener {
            listener.wake();
        }
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Question").field(&self.name()).finish()
    }
}
