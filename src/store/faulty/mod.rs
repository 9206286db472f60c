//! A store for tests, which fails, hangs, forgets and counts calls on command.

mod answer;
mod fault;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream};

use self::{
    answer::{AcquireAnswer, Answer, Owed},
    fault::{Faults, unreachable},
};
pub use fault::{Calls, Fault};

use super::{
    Acquire, Acquired, Ending, Expected, Hints, Inspection, Instance, KeyPage, List, MemoryStore,
    Release, Released, Renew, RenewAnswers, Renewed, Store, StoreFuture, sealed::Sealed,
};
use crate::{
    Error, LockKey,
    sync::{Mutex, oneshot},
    time::{now, sleep_until},
};

/// A [`MemoryStore`] that misbehaves on command, to test how a service copes with a store that does.
///
/// [`set_fault`](FaultyStore::set_fault) simulates a server that is down or that hangs,
/// [`restart`](FaultyStore::restart) simulates a server that has lost its data, and [`calls`](FaultyStore::calls)
/// returns the number of calls. Tests that need no faults can use a [`MemoryStore`]. Time is taken from tokio's
/// clock, so a test on paused time can lose a lease without waiting for its end.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::{Locks, Loss, store::{Fault, FaultyStore}};
///
/// let store = FaultyStore::new();
/// let locks = Locks::builder(store.clone()).build()?;
/// let guard = locks.lock("orders/42").await?;
///
/// // No renewal is answered any more, until the lease of 30 seconds is over.
/// store.set_fault(Some(Fault::Hang));
/// assert_eq!(guard.lost().await, Loss::Expired);
/// assert!(!guard.is_held());
/// assert!(store.calls().renewals > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FaultyStore(Arc<Shared>);

struct Shared {
    store: MemoryStore,
    /// Locked while the store is called, so that no call overtakes one that waits for the end of a fault.
    faults: Mutex<Faults>,
    owed: Arc<Owed>,
}

impl FaultyStore {
    /// Creates an empty store without a fault.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            store: MemoryStore::new(),
            faults: Mutex::default(),
            owed: Arc::default(),
        }))
    }

    /// Starts a fault, or ends the current one with `None`.
    ///
    /// Releases that failed take effect when the store works again, and calls that hang then continue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{ErrorKind, Locks, store::{Fault, FaultyStore}};
    ///
    /// let store = FaultyStore::new();
    /// let locks = Locks::builder(store.clone()).build()?;
    /// store.set_fault(Some(Fault::Unreachable));
    /// assert_eq!(locks.lock("orders/42").await.unwrap_err().kind(), ErrorKind::Unreachable);
    /// store.set_fault(None);
    /// assert!(locks.lock("orders/42").await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.0.faults.lock().set(fault, &self.0.store);
        self.0.owed.changed();
    }

    /// Simulates a server that restarts empty: all leases, queues and records are gone, and each
    /// [`Locks`](crate::Locks) learns that its connection was interrupted. Tokens go on rising, as they
    /// do after a restart of any store.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::{Locks, Loss, store::FaultyStore};
    ///
    /// let store = FaultyStore::new();
    /// let locks = Locks::builder(store.clone()).build()?;
    /// let guard = locks.lock("orders/42").await?;
    /// store.restart();
    /// assert_eq!(guard.lost().await, Loss::NotOurs);
    /// # Ok(())
    /// # }
    /// ```
    pub fn restart(&self) {
        let mut faults = self.0.faults.lock();
        faults.forget_missed();
        faults.restarted = Some(now());
        self.0.store.forget();
        self.0.store.tell_all_reconnected();
        drop(faults);
        self.0.owed.changed();
    }

    /// Returns the number of calls of each kind so far, including failed ones.
    pub fn calls(&self) -> Calls {
        self.0.faults.lock().calls
    }

    /// Returns whether no lease, no queue and no record is left, and no call waits for the end of a fault.
    pub fn is_empty(&self) -> bool {
        self.0.faults.lock().is_clear() && self.0.store.is_empty()
    }

    /// Runs `work` on the store: at once, or when the fault ends. A release that fails is kept, and takes effect
    /// later.
    fn call<T: Send + 'static>(
        &self,
        release: Option<Release>,
        count: impl FnOnce(&mut Calls),
        work: impl FnOnce(&MemoryStore) -> T + Send + 'static,
    ) -> Answer<T> {
        let (store, mut faults) = (&self.0.store, self.0.faults.lock());
        count(&mut faults.calls);
        let owed = || release.as_ref().map(|_| Owed::one(&self.0.owed));
        match faults.current() {
            None => Answer::ready(Ok(work(store))),
            Some(Fault::Unreachable) => {
                release.into_iter().for_each(|release| faults.miss(release));
                Answer::ready(Err(unreachable()))
            }
            Some(Fault::Mute) => {
                let (sender, answer) = oneshot::channel();
                let (owed, outcome) = (owed(), work(store));
                faults.mute(Box::new(move || {
                    drop(owed);
                    let _ = sender.send(Ok(outcome));
                }));
                Answer::waiting(answer)
            }
            Some(Fault::Hang) => {
                let (sender, answer) = oneshot::channel();
                let owed = owed();
                faults.hang(Box::new(move |store| {
                    drop(owed);
                    match store {
                        Ok(store) => {
                            let _ = sender.send(Ok(work(store)));
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

impl Default for FaultyStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore")
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

impl Sealed for FaultyStore {}

impl Store for FaultyStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        let undo = request.owners().map(|owner| Release {
            key: request.key.clone(),
            owner,
            mode: request.mode,
            ending: Ending::Free,
            owed_for: request.lease,
        });
        let undo = undo.collect();
        let answer = self.call(
            None,
            |calls| calls.acquires += 1,
            move |store| store.acquire_now(request),
        );
        Box::pin(AcquireAnswer::new(self.clone(), undo, answer))
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        let asked = requests.len();
        let answer = self.call(
            None,
            |calls| calls.renewals += 1,
            move |store| {
                let renew = |request| store.renew_now(request);
                requests.iter().map(renew).collect::<Vec<_>>()
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
            move |store| store.release_now(release),
        ))
    }

    fn owed(&self) -> usize {
        self.0.faults.lock().missed() + self.0.owed.count()
    }

    fn settled(&self) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            loop {
                let changed = store.0.owed.notified();
                if store.owed() == 0 {
                    return;
                }
                let forgotten = store.0.faults.lock().next_forgotten();
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

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        let raised = self.call(
            None,
            |_| {},
            move |store| store.raise_fence_now(&key, floor),
        );
        Box::pin(raised.map(|raised| raised.and_then(std::convert::identity)))
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        Box::pin(self.call(None, |_| {}, move |store| store.inspect_now(&key)))
    }

    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        let release = move |store: &MemoryStore| store.force_release_now(&key, expected);
        Box::pin(self.call(None, |_| {}, release))
    }

    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>> {
        let page = self.call(None, |_| {}, move |store| store.list_now(&request));
        Box::pin(page.map(|page| page.and_then(std::convert::identity)))
    }

    fn ping(&self) -> StoreFuture<Result<(), Error>> {
        Box::pin(self.call(None, |_| {}, |_| ()))
    }

    fn space(&self) -> Arc<str> {
        self.0.store.space()
    }

    fn uptime(&self) -> Duration {
        let restarted = self.0.faults.lock().restarted;
        restarted.map_or(Duration::MAX, |at| now() - at)
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.0.store.watch(instance)
    }
}
