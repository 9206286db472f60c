//! The embedded store: one process, or a fleet played in one process.

mod slot;
mod state;
mod watchers;

use std::{
    fmt,
    future::ready,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::stream;

use self::{state::State, watchers::Watchers};
use super::{
    Acquire, Acquired, Ending, Hints, Inspection, Instance, Release, Released, Renew, RenewAnswers,
    Renewed, Store, StoreFuture, sealed::Sealed,
};
use crate::{
    Error, LockKey,
    sync::{Mutex, unique_id},
    time::{Instant, now},
};

/// Keys are split into so many shards, so that threads which lock different keys rarely meet.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 64 };

/// After so many calls for one shard, all shards forget what has expired: no caller may ask for a key of theirs again.
const CALLS_BETWEEN_SWEEPS: usize = 1024;

/// A [`Store`] in this process's memory.
///
/// Good for a service that runs as one process, and for tests: give clones of one store to several
/// [`Locks`](crate::Locks), and they behave like several processes on one server. It keeps time by tokio's clock, so
/// that a test can pause it. For tests of what happens when a store fails, hangs or forgets, see `FaultyStore` (behind the feature
/// `test-util`).
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    space: Arc<str>,
    shards: Box<[Arc<Shard>]>,
    watchers: Arc<Watchers>,
}

type Shard = Mutex<State>;

impl MemoryStore {
    /// An empty store. Its tokens go on from the wall clock, so that they rise over restarts of the process too.
    pub fn new() -> Self {
        let watchers = Arc::new(Watchers::default());
        let shard = |_| Arc::new(Mutex::new(State::new(watchers.clone())));
        Self(Arc::new(Shared {
            space: format!("memory:{}", unique_id()).into(),
            shards: (0..SHARDS).map(shard).collect(),
            watchers,
        }))
    }

    /// Whether no lease, no queue and no record is left.
    pub fn is_empty(&self) -> bool {
        self.sweep();
        let mut shards = self.0.shards.iter();
        shards.all(|shard| shard.lock().is_empty())
    }

    /// See [`Store::acquire`].
    pub(super) fn acquire_now(&self, request: Acquire) -> Acquired {
        self.with(&request.key.clone(), |state, now| {
            state.acquire(request, now)
        })
    }

    /// See [`Store::renew`].
    pub(super) fn renew_now(&self, request: &Renew) -> Renewed {
        self.with(&request.key, |state, now| state.renew(request, now))
    }

    /// See [`Store::start_release`].
    pub(super) fn release_now(&self, request: Release) -> Released {
        self.with(&request.key.clone(), |state, now| {
            state.release(request, now)
        })
    }

    /// See [`Store::raise_fence`].
    pub(super) fn raise_fence_now(&self, key: &LockKey, floor: u64) -> u64 {
        self.with(key, |state, _| state.raise_fence(floor))
    }

    /// See [`Store::inspect`].
    pub(super) fn inspect_now(&self, key: &LockKey) -> Inspection {
        self.with(key, |state, now| state.inspect(key, now))
    }

    /// See [`Store::force_release`].
    pub(super) fn force_release_now(&self, key: &LockKey) -> bool {
        self.with(key, |state, now| state.force_release(key, now))
    }

    /// Forgets everything but the tokens.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn forget(&self) {
        self.0.shards.iter().for_each(|shard| shard.lock().forget());
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn tell_all_reconnected(&self) {
        self.0.watchers.tell_all_reconnected();
    }

    fn shard(&self, key: &LockKey) -> &Arc<Shard> {
        // The upper half: the map of a shard goes by the lower one.
        &self.0.shards[(key.map_hash() >> 32) as usize % SHARDS]
    }

    fn with<T>(&self, key: &LockKey, work: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.shard(key).lock();
        let outcome = work(&mut state, now());
        let is_time = state.count_call().is_multiple_of(CALLS_BETWEEN_SWEEPS);
        drop(state);
        if is_time {
            self.sweep();
        }
        outcome
    }

    fn sweep(&self) {
        let now = now();
        let shards = self.0.shards.iter();
        shards.for_each(|shard| shard.lock().forget_expired(now));
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
            .field("space", &self.0.space)
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
        Box::pin(AcquireAnswer {
            shard: self.shard(&request.key).clone(),
            answer: Some((self.acquire_now(request), undo)),
        })
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        let answers = requests.iter().map(|request| self.renew_now(request));
        let answers: Vec<Renewed> = answers.collect();
        Box::pin(stream::iter(answers.into_iter().enumerate()))
    }

    fn start_release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        Box::pin(ready(Ok(self.release_now(request))))
    }

    fn owed(&self) -> usize {
        0
    }

    fn settled(&self) -> StoreFuture<()> {
        Box::pin(ready(()))
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        Box::pin(ready(Ok(self.raise_fence_now(&key, floor))))
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        Box::pin(ready(Ok(self.inspect_now(&key))))
    }

    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        Box::pin(ready(Ok(self.force_release_now(&key))))
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.0.watchers.add(instance)
    }
}

/// The answer to an acquire. Dropped before the answer was taken, it undoes what the acquire did.
struct AcquireAnswer {
    /// Not the whole store, so that threads with different keys do not meet at its reference count.
    shard: Arc<Shard>,
    answer: Option<(Acquired, Release)>,
}

impl Future for AcquireAnswer {
    type Output = Result<Acquired, Error>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let (answer, _) = self.answer.take().expect("polled after it was ready");
        Poll::Ready(Ok(answer))
    }
}

impl Drop for AcquireAnswer {
    fn drop(&mut self) {
        if let Some((_, undo)) = self.answer.take() {
            self.shard.lock().release(undo, now());
        }
    }
}
