//! The embedded store: one process, or a fleet played in one process.

mod answer;
mod fault;
mod state;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream};

use self::{
    answer::{AcquireAnswer, Answer, Owed},
    fault::{Faults, unreachable},
    state::State,
};
pub use fault::{Calls, Fault};

use super::{
    Acquire, Acquired, Ending, Hints, Inspection, Instance, Release, Released, Renew, RenewAnswers,
    Renewed, Store, StoreFuture, sealed::Sealed,
};
use crate::{
    Error, LockKey,
    sync::{Mutex, MutexGuard, mpsc, oneshot, unique_id},
    time::{Instant, now, sleep_until},
};

/// A [`Store`] in this process's memory.
///
/// Good for a service that runs as one process, and for tests: give clones of one store to several
/// [`Locks`](crate::Locks), and they behave like several processes on one server. It keeps time by tokio's clock, so
/// that a test can pause it; [`set_fault`](MemoryStore::set_fault) plays a server that is gone or that hangs,
/// [`restart`](MemoryStore::restart) one that has forgotten everything, and [`calls`](MemoryStore::calls) tells what it
/// was asked.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    space: Arc<str>,
    memory: Mutex<Memory>,
    owed: Arc<Owed>,
}

struct Memory {
    state: State,
    faults: Faults,
}

impl MemoryStore {
    /// An empty store. Its tokens go on from the wall clock, so that they rise over restarts of the process too.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            space: format!("memory:{}", unique_id()).into(),
            memory: Mutex::new(Memory {
                state: State::new(),
                faults: Faults::default(),
            }),
            owed: Arc::default(),
        }))
    }

    /// Lets every call fail or hang from now on, or work again with `None`.
    ///
    /// Releases that failed take effect when the store works again; calls that hang then go on.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let Memory { state, faults } = &mut *self.memory();
        faults.set(fault, state);
        self.0.owed.changed();
    }

    /// Plays a server that restarts empty: all leases, queues and records are gone, and each [`Locks`](crate::Locks) is
    /// told that the store is back. Tokens go on rising, as they do after a restart of any store.
    pub fn restart(&self) {
        let Memory { state, faults } = &mut *self.memory();
        faults.forget_missed();
        state.restart(now());
        state.tell_everybody_reconnected();
        self.0.owed.changed();
    }

    /// How many calls of each kind there were so far, failed ones included.
    pub fn calls(&self) -> Calls {
        self.memory().faults.calls
    }

    /// Whether no lease, no queue and no record is left.
    pub fn is_empty(&self) -> bool {
        let Memory { state, faults } = &mut *self.memory();
        state.is_empty(now()) && faults.is_clear()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock()
    }

    /// Works on the state: now, or when the fault that is played ends. A release is missed where it fails.
    fn call<T: Send + 'static>(
        &self,
        release: Option<Release>,
        count: impl FnOnce(&mut Calls),
        work: impl FnOnce(&mut State, Instant) -> T + Send + 'static,
    ) -> Answer<T> {
        let Memory { state, faults } = &mut *self.memory();
        count(&mut faults.calls);
        let owed = || release.as_ref().map(|_| Owed::one(&self.0.owed));
        match faults.current() {
            None => Answer::ready(Ok(work(state, now()))),
            Some(Fault::Unreachable) => {
                release.into_iter().for_each(|release| faults.miss(release));
                Answer::ready(Err(unreachable()))
            }
            Some(Fault::Mute) => {
                let (sender, answer) = oneshot::channel();
                let (owed, outcome) = (owed(), work(state, now()));
                faults.mute(Box::new(move || {
                    drop(owed);
                    let _ = sender.send(Ok(outcome));
                }));
                Answer::waiting(answer)
            }
            Some(Fault::Hang) => {
                let (sender, answer) = oneshot::channel();
                let owed = owed();
                faults.hang(Box::new(move |state| {
                    drop(owed);
                    match state {
                        Ok(state) => {
                            let _ = sender.send(Ok(work(state, now())));
                            None
                        }
                        Err(error) => {
                            let _ = sender.send(Err(error));
                            release
                        }
                    }
                }));
                Answer::waiting(answer)
            }
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

impl Sealed for MemoryStore {}

impl Store for MemoryStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        let undo = Release {
            key: request.key.clone(),
            owner: request.owner,
            ending: Ending::Free,
            owed_for: request.lease,
        };
        let answer = self.call(
            None,
            |calls| calls.acquires += 1,
            move |state, now| state.acquire(request, now),
        );
        Box::pin(AcquireAnswer::new(self.clone(), undo, answer))
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        let asked = requests.len();
        let answer = self.call(
            None,
            |calls| calls.renewals += 1,
            move |state, now| {
                let renew = |request| state.renew(&request, now);
                requests.into_iter().map(renew).collect::<Vec<_>>()
            },
        );
        let answers = answer.map(move |answers| {
            let answers = answers.unwrap_or_else(|error| vec![Renewed::Unknown(error); asked]);
            stream::iter(answers.into_iter().enumerate())
        });
        Box::pin(answers.into_stream().flatten())
    }

    fn start_release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        let release = request.clone();
        Box::pin(self.call(
            Some(request),
            |calls| calls.releases += 1,
            move |state, now| state.release(release, now),
        ))
    }

    fn owed(&self) -> usize {
        self.memory().faults.missed() + self.0.owed.count()
    }

    fn settled(&self) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            loop {
                let changed = store.0.owed.notified();
                if store.owed() == 0 {
                    return;
                }
                let forgotten = store.memory().faults.next_forgotten();
                match forgotten {
                    None => changed.await,
                    Some(at) => {
                        let forgotten = std::pin::pin!(sleep_until(at));
                        futures_util::future::select(std::pin::pin!(changed), forgotten).await;
                    }
                }
            }
        })
    }

    fn raise_fence(&self, _key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        Box::pin(self.call(None, |_| {}, move |state, _| state.raise_fence(floor)))
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        Box::pin(self.call(None, |_| {}, move |state, now| state.inspect(&key, now)))
    }

    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        Box::pin(self.call(
            None,
            |_| {},
            move |state, now| state.force_release(&key, now),
        ))
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    fn uptime(&self) -> Duration {
        self.memory().state.uptime(now())
    }

    fn watch(&self, instance: Instance) -> Hints {
        let (sender, hints) = mpsc::unbounded_channel();
        self.memory().state.watch(instance, sender);
        hints
    }
}
