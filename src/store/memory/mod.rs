//! The store in memory, for one process or for several simulated ones.
//!
//! ```text
//! MemoryStore ──▶ 64 shards, by the key's hash ──▶ Shard: slots by key, a token counter, expiries in order
//!                                                    └──▶ Slot: one key, under the rules of store/rules
//!             ──▶ Watchers: a channel for the hints of each instance
//! ```
//!
//! Every call takes effect within the method, under the mutex of one shard; the futures only carry
//! the answers.

mod listing;
mod shard;
mod watchers;

use std::{fmt, future::ready, sync::Arc, time::Duration};

use futures_util::stream;

use self::{
    shard::{Shard, wall_clock},
    watchers::Watchers,
};
use super::{
    Acquire, Acquired, Answer, Expected, Hints, Inspection, Instance, KeyPage, List, Outcome,
    Release, Released, Renew, RenewAnswers, Renewed, Store, StoreFuture,
    rules::{Moment, Slot, Step},
    sealed::Sealed,
    types::check_floor,
};
use crate::{
    Error, LockKey,
    sync::{Mutex, unique_id},
    time::{Instant, now},
};

/// The number of shards, so that threads which lock different keys rarely wait for the same mutex.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 64 };

/// After this many calls for one shard, all shards remove expired entries, because no caller may
/// ask for those keys again.
const CALLS_BETWEEN_SWEEPS: usize = 1024;

/// A [`Store`] in the memory of this process.
///
/// This store suits a service that runs as one process, and tests: several [`Locks`](crate::Locks)
/// on clones of one store behave like several processes on one server. Time is taken from tokio's
/// clock, which tests can pause. To test a service against a store that fails, hangs or forgets,
/// use `FaultyStore` (feature `test-util`).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, store::MemoryStore};
///
/// let store = MemoryStore::new();
/// let first = Locks::builder(store.clone()).build()?;
/// let second = Locks::builder(store).build()?;
///
/// let guard = first.lock("orders/42").await?;
/// assert!(second.lock("orders/42").now().await?.is_none());
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

/// The state that the clones of a store share.
struct Shared {
    space: Arc<str>,
    /// When the store was created.
    began: Instant,
    /// The same time on the wall clock.
    epoch: Moment,
    shards: Box<[Mutex<Shard>]>,
    watchers: Arc<Watchers>,
}

impl MemoryStore {
    /// Creates an empty store. Tokens start from the wall clock, so that they rise across restarts
    /// of the process, too.
    pub fn new() -> Self {
        let watchers = Arc::new(Watchers::default());
        let epoch = wall_clock();
        let shard = |_| Mutex::new(Shard::new(watchers.clone(), epoch));
        Self(Arc::new(Shared {
            space: format!("memory:{}", unique_id()).into(),
            began: now(),
            epoch,
            shards: (0..SHARDS).map(shard).collect(),
            watchers,
        }))
    }

    /// Returns whether no lease, no queue and no record is left.
    ///
    /// For the end of a test: nothing may be left behind.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let store = MemoryStore::new();
    /// let locks = Locks::builder(store.clone()).build()?;
    /// let guard = locks.lock("orders/42").await?;
    /// assert!(!store.is_empty());
    /// drop(guard);
    /// assert!(store.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.sweep();
        let mut shards = self.0.shards.iter();
        shards.all(|shard| shard.lock().is_empty())
    }

    /// See [`Store::acquire`].
    pub(super) fn acquire_now(&self, request: &Acquire) -> Outcome<Acquired> {
        match self.with(&request.key, |slot, step| slot.acquire(request, step)) {
            Ok(acquired) => Outcome::Answered(acquired),
            Err(error) => Outcome::Refused(error),
        }
    }

    /// See [`Store::renew`].
    pub(super) fn renew_now(&self, request: &Renew) -> Renewed {
        self.with(&request.key, |slot, step| slot.renew(request, step))
    }

    /// See [`Store::release`].
    pub(super) fn release_now(&self, request: &Release) -> Released {
        self.with(&request.key, |slot, step| slot.release(request, step))
    }

    /// See [`Store::raise_fence`].
    pub(super) fn raise_fence_now(&self, key: &LockKey, floor: u64) -> Result<u64, Error> {
        check_floor(floor)?;
        Ok(self.with(key, |_, step| step.fence.raise(floor)))
    }

    /// See [`Store::inspect`].
    pub(super) fn inspect_now(&self, key: &LockKey) -> Inspection {
        self.with(key, |slot, step| slot.inspect(step.fence.last(), step.now))
    }

    /// See [`Store::force_release_if`].
    pub(super) fn force_release_now(&self, key: &LockKey, expected: Expected) -> bool {
        self.with(key, |slot, step| slot.force_release(expected, step))
    }

    /// Removes everything but the token counters.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn forget(&self) {
        self.0.shards.iter().for_each(|shard| shard.lock().forget());
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Sends [`Hint::Reconnected`](super::Hint::Reconnected) to all instances.
    pub(super) fn tell_all_reconnected(&self) {
        self.0.watchers.tell_all_reconnected();
    }

    fn shard(&self, key: &LockKey) -> &Mutex<Shard> {
        // The upper half of the hash: the map of a shard uses the lower half.
        &self.0.shards[(key.map_hash() >> 32) as usize % SHARDS]
    }

    /// The time for the rules.
    fn now(&self) -> Moment {
        self.0.epoch + now().saturating_duration_since(self.0.began)
    }

    /// Runs `work` on the slot of a key, and removes expired entries of all shards now and then.
    fn with<T>(&self, key: &LockKey, work: impl FnOnce(&mut Slot, &mut Step<'_>) -> T) -> T {
        let mut shard = self.shard(key).lock();
        let outcome = shard.with_slot(key, self.now(), work);
        let is_time = shard.count_call().is_multiple_of(CALLS_BETWEEN_SWEEPS);
        drop(shard);
        if is_time {
            self.sweep();
        }
        outcome
    }

    fn sweep(&self) {
        let now = self.now();
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
    fn acquire(&self, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        Box::pin(ready(self.acquire_now(&request)))
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        let answers = requests.iter().map(|request| self.renew_now(request));
        let answers: Vec<Renewed> = answers.collect();
        Box::pin(stream::iter(answers.into_iter().enumerate()))
    }

    fn release(&self, request: Release, answer: Answer) {
        let released = self.release_now(&request);
        answer.give(Outcome::Answered(released));
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        Box::pin(ready(self.raise_fence_now(&key, floor)))
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        Box::pin(ready(Ok(self.inspect_now(&key))))
    }

    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        Box::pin(ready(Ok(self.force_release_now(&key, expected))))
    }

    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>> {
        Box::pin(ready(self.list_now(&request)))
    }

    fn ping(&self) -> StoreFuture<Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    /// What is in the memory of this process is not forgotten before the process is.
    fn uptime(&self) -> Duration {
        Duration::MAX
    }

    fn server_id(&self) -> Option<Arc<str>> {
        None
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.0.watchers.add(instance)
    }
}
