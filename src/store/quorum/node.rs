//! A node of a quorum, with the owners that the node has to forget.
//!
//! The same [`Ends`] as in the core keep every name that was given to the node until its end is
//! confirmed or its time is over: a question that is dropped or fails becomes an ending, and a
//! release that fails is repeated. What the quorum gives up it can therefore forget.

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::super::{
    Acquire, Acquired, Answer, Endings, Mode, Outcome, Owner, Queueing, Release, Released, Store,
    StoreFuture,
    ends::{Confirmation, Ends, NewEnd},
    home::Home,
};
use crate::{
    Error, ErrorKind, LockKey,
    sync::{Mutex, oneshot},
    time::{now, sleep_until},
    trace,
};

/// A node of a quorum.
#[derive(Clone)]
pub(super) struct Node(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    ends: Mutex<Ends>,
    /// A task repeats the releases that have failed.
    repeats: AtomicBool,
    home: Home,
}

impl Node {
    pub(super) fn new(store: Arc<dyn Store>, home: Home) -> Self {
        Self(Arc::new(Inner {
            store,
            ends: Mutex::default(),
            repeats: AtomicBool::new(false),
            home,
        }))
    }

    /// Asks the node for a key. A question that is dropped, or whose outcome is not known, is ended.
    pub(super) fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        let place = match request.queueing {
            Queueing::Wait { deadline, .. } => deadline,
            Queueing::No | Queueing::Skip => Duration::ZERO,
        };
        let question = Question {
            node: self.0.clone(),
            key: request.key.clone(),
            owner: request.owner,
            mode: request.mode,
            lasts: request.lease.max(place),
            is_settled: false,
        };
        let ends = self.0.ends.lock().to_carry(&request.key);
        let asking = self.0.store.acquire(Acquire { ends, ..request });
        Box::pin(async move {
            let mut question = question;
            let outcome = asking.await;
            question.is_settled = !matches!(outcome, Outcome::Unknown(_));
            outcome.into_result()
        })
    }

    /// Ends the lease or the place of a name. The release goes on if the future is dropped.
    pub(super) fn release(
        &self,
        request: Release,
    ) -> impl Future<Output = Result<Released, Error>> + Send + use<> {
        let (confirmation, outcome) = oneshot::channel();
        self.0.end(request, Some(confirmation));
        async move {
            match outcome.await {
                Ok(Ok(())) => Ok(Released::Freed),
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => Ok(Released::NotOurs),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Error::new(
                    ErrorKind::Unreachable,
                    "the lease's time was over before the node has answered the release",
                )),
            }
        }
    }

    /// Ends the lease or the place of a name, whatever the node answers.
    pub(super) fn end(&self, request: Release) {
        self.0.end(request, None);
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
        let release = self.ends.lock().add(&request.key, end, now());
        self.send(release);
    }

    fn send(self: &Arc<Self>, release: Release) {
        let answer = Answer::to(self.clone(), release.key.clone(), release.owner);
        self.store.release(release, answer);
    }

    /// Repeats the releases that have failed, until none is left.
    async fn repeat(self: Arc<Self>) {
        let _repeating = Repeating(self.clone());
        loop {
            let next = self.ends.lock().next();
            let Some(next) = next else {
                return;
            };
            sleep_until(next).await;
            let due = self.ends.lock().take_due(now());
            due.into_iter().for_each(|release| self.send(release));
        }
    }
}

/// Lets the next failure start another task.
struct Repeating(Arc<Inner>);

impl Drop for Repeating {
    fn drop(&mut self) {
        self.0.repeats.store(false, Ordering::Release);
    }
}

impl Endings for Inner {
    fn released(self: Arc<Self>, key: &LockKey, owner: Owner, outcome: Outcome<Released>) {
        let told = self.ends.lock().released(key, owner, outcome, now());
        if let Some((caller, result)) = told.caller {
            let _ = caller.send(result);
        }
        if let Some(error) = told.failed {
            trace::release_failed(owner, &error, false);
        }
        if told.round.is_some() && !self.repeats.swap(true, Ordering::AcqRel) {
            let home = self.home.clone();
            home.spawn(self.repeat());
        }
    }
}

/// A name that the node is being asked for.
struct Question {
    node: Arc<Inner>,
    key: LockKey,
    owner: Owner,
    mode: Mode,
    lasts: Duration,
    /// The node's answer is known.
    is_settled: bool,
}

impl Drop for Question {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let request = Release {
            key: self.key.clone(),
            owner: self.owner,
            mode: self.mode,
            ending: super::super::Ending::Free,
            in_doubt: true,
            owed_for: self.lasts,
        };
        self.node.end(request, None);
    }
}
