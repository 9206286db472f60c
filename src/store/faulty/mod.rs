//! A store for tests, which fails, hangs, forgets and counts calls on command.

mod fault;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream};

use self::fault::{Faults, Unmade, broken, unreachable};
pub use fault::{Calls, Fault};

use super::{
    Acquire, Acquired, Answer, Expected, Hints, Inspection, Instance, KeyPage, List, MemoryStore,
    Outcome, Owner, Release, Released, Renew, RenewAnswers, Renewed, Store, StoreFuture,
    sealed::Sealed,
};
use crate::{
    Error, ErrorKind, LockKey,
    sync::{Mutex, oneshot, random},
    time::{later, now},
};

/// For how long a late release, or a late question, may still take effect.
const LATE: Duration = Duration::from_secs(10);

/// A [`MemoryStore`] that misbehaves on command, to test how a service copes with a store that
/// does.
///
/// [`set_fault`](FaultyStore::set_fault) simulates a server that is down or that hangs,
/// [`restart`](FaultyStore::restart) simulates a server that has lost its data, and
/// [`calls`](FaultyStore::calls) returns the number of calls. Tests that need no faults can use a
/// [`MemoryStore`]. Time is taken from tokio's clock, so a test on paused time can lose a lease
/// without waiting for its end.
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
    faults: Mutex<Faults>,
}

impl FaultyStore {
    /// Creates an empty store without a fault.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            store: MemoryStore::new(),
            faults: Mutex::default(),
        }))
    }

    /// Starts a fault, or ends the current one with `None`.
    ///
    /// Calls that hang continue when the store works again. Releases that failed are repeated by
    /// [`Locks`](crate::Locks).
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
        let released = self.0.faults.lock().set(fault);
        if released.ends_late {
            while self.make_late(true) {}
        }
        let made = |owners: &[Owner]| self.0.faults.lock().was_made(owners);
        released.happen(&self.0.store, made);
    }

    /// Simulates a server that restarts empty: all leases, queues and records are gone, and each
    /// [`Locks`](crate::Locks) learns that its connection was interrupted. Tokens go on rising, as
    /// they do after a restart of any store.
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
        self.0.faults.lock().restarted = Some(now());
        self.0.store.forget();
        self.0.store.tell_all_reconnected();
    }

    /// Returns the number of calls of each kind so far, including failed ones.
    pub fn calls(&self) -> Calls {
        self.0.faults.lock().calls
    }

    /// Returns whether no lease, no queue and no record is left, and no call waits for the end of a
    /// fault.
    pub fn is_empty(&self) -> bool {
        self.0.faults.lock().is_clear() && self.0.store.is_empty()
    }

    /// The state of a key, whatever the fault.
    #[cfg(shuttle)]
    pub(crate) fn peek(&self, key: &LockKey) -> Inspection {
        self.0.store.inspect_now(key)
    }

    /// Makes a call as the current fault has it, and tells its outcome.
    fn call<T: Send + 'static>(
        &self,
        call: Call,
        count: impl FnOnce(&mut Calls),
        work: impl FnOnce(&MemoryStore) -> Outcome<T> + Send + 'static,
        tell: impl FnOnce(Outcome<T>) + Send + 'static,
    ) {
        let store = &self.0.store;
        let mut faults = self.0.faults.lock();
        count(&mut faults.calls);
        match faults.current {
            None => {
                drop(faults);
                tell(work(store));
            }
            Some(Fault::Unreachable) => {
                drop(faults);
                tell(Outcome::Refused(unreachable()));
            }
            Some(Fault::Hang) => faults.hanging.push_back(Unmade {
                owners: call.asks_for,
                until: later(now(), call.lasts),
                make: Box::new(move |store| {
                    tell(match store {
                        Some(store) => work(store),
                        None => Outcome::Refused(unreachable()),
                    });
                }),
            }),
            Some(Fault::Mute) => {
                drop(faults);
                let outcome = work(store);
                let mut faults = self.0.faults.lock();
                if faults.current == Some(Fault::Mute) {
                    faults.muted.push(Box::new(move || tell(outcome)));
                } else {
                    drop(faults);
                    tell(outcome);
                }
            }
            Some(Fault::Late) => {
                let is_late = random() < 0.5;
                let mut work = Some(work);
                if is_late && let Some(work) = work.take() {
                    faults.late.push(Unmade {
                        owners: call.asks_for,
                        until: later(now(), call.lasts),
                        make: Box::new(move |store| drop(store.map(work))),
                    });
                }
                drop(faults);
                self.make_late(false);
                tell(match work {
                    Some(work) => work(store),
                    None => Outcome::Unknown(broken()),
                });
            }
        }
    }

    /// Makes one of the late calls, or gives it up. Returns whether there was one.
    fn make_late(&self, in_any_case: bool) -> bool {
        let late = self.0.faults.lock().take_late(in_any_case);
        let Some(late) = late else {
            return false;
        };
        let owners = late.make_or_drop(&self.0.store);
        self.0.faults.lock().was_made(&owners);
        true
    }

    /// Makes a call whose caller waits for the outcome.
    fn ask<T: Send + 'static>(
        &self,
        call: Call,
        count: impl FnOnce(&mut Calls),
        work: impl FnOnce(&MemoryStore) -> Outcome<T> + Send + 'static,
    ) -> StoreFuture<Outcome<T>> {
        let (sender, outcome) = oneshot::channel();
        self.call(call, count, work, |outcome| drop(sender.send(outcome)));
        Box::pin(outcome.map(|outcome| outcome.unwrap_or_else(|_| Outcome::Unknown(gone()))))
    }

    /// Makes a call that leaves nothing behind, whatever its outcome.
    fn question<T: Send + 'static>(
        &self,
        work: impl FnOnce(&MemoryStore) -> Result<T, Error> + Send + 'static,
    ) -> StoreFuture<Result<T, Error>> {
        let work = move |store: &MemoryStore| match work(store) {
            Ok(answer) => Outcome::Answered(answer),
            Err(error) => Outcome::Refused(error),
        };
        let outcome = self.ask(Call::default(), |_| {}, work);
        Box::pin(outcome.map(Outcome::into_result))
    }
}

/// What a call may leave behind if it takes effect later.
struct Call {
    asks_for: Vec<Owner>,
    lasts: Duration,
}

impl Default for Call {
    fn default() -> Self {
        Self {
            asks_for: Vec::new(),
            lasts: LATE,
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unreachable, "the store is gone")
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
    fn acquire(&self, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
        let call = Call {
            asks_for: request.owners().collect(),
            lasts: request.lease,
        };
        self.ask(
            call,
            |calls| calls.acquires += 1,
            move |store| store.acquire_now(&request),
        )
    }

    fn renew(&self, requests: Vec<Renew>) -> RenewAnswers {
        let asked = requests.len();
        // Not made late: a renewal after the end of its lease's ending would be found by nobody.
        let call = Call {
            lasts: Duration::ZERO,
            ..Call::default()
        };
        let answer = self.ask(
            call,
            |calls| calls.renewals += 1,
            move |store| {
                let renew = |request| store.renew_now(request);
                Outcome::Answered(requests.iter().map(renew).collect::<Vec<_>>())
            },
        );
        let answers = answer.map(move |answers| {
            let answers = answers.into_result();
            let answers = answers.unwrap_or_else(|error| vec![Renewed::Unknown(error); asked]);
            stream::iter(answers.into_iter().enumerate())
        });
        Box::pin(answers.into_stream().flatten())
    }

    fn release(&self, request: Release, answer: Answer) {
        let shared = self.0.clone();
        let work = move |store: &MemoryStore| {
            // Looked at first: an acquire that is made in between is then ended by this release.
            let owner = request.owner;
            let may_come = request.in_doubt && shared.faults.lock().may_come_late(owner);
            let released = store.release_now(&request);
            Outcome::Answered(if released == Released::NotOurs && may_come {
                Released::NotYet
            } else {
                released
            })
        };
        let count = |calls: &mut Calls| calls.releases += 1;
        self.call(Call::default(), count, work, |outcome| match outcome {
            Outcome::Answered(_) | Outcome::Refused(_) => answer.give(outcome),
            // As a store does whose connection ends: the drop tells the same.
            Outcome::Unknown(_) => drop(answer),
        });
    }

    fn raise_fence(&self, key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.question(move |store| store.raise_fence_now(&key, floor))
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.question(move |store| Ok(store.inspect_now(&key)))
    }

    fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> StoreFuture<Result<bool, Error>> {
        self.question(move |store| Ok(store.force_release_now(&key, expected)))
    }

    fn list(&self, request: List) -> StoreFuture<Result<KeyPage, Error>> {
        self.question(move |store| store.list_now(&request))
    }

    fn ping(&self) -> StoreFuture<Result<(), Error>> {
        self.question(|_| Ok(()))
    }

    fn space(&self) -> Arc<str> {
        self.0.store.space()
    }

    fn uptime(&self) -> Duration {
        let restarted = self.0.faults.lock().restarted;
        restarted.map_or(Duration::MAX, |at| now() - at)
    }

    fn server_id(&self) -> Option<Arc<str>> {
        None
    }

    fn watch(&self, instance: Instance) -> Hints {
        self.0.store.watch(instance)
    }
}
