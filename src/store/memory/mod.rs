//! The embedded store: one process, or a fleet played in one process.

mod fault;
mod state;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::mpsc, time::Instant};
use uuid::Uuid;

pub use fault::{Calls, Fault};

use self::{fault::Gate, state::State};
use super::{
    Acquire, Acquired, Hints, Inspection, Instance, Release, Released, Renew, Renewed, Store,
    StoreFuture, sealed::Sealed,
};
use crate::{Error, LockKey};

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
    state: Mutex<State>,
    gate: Gate,
}

impl MemoryStore {
    /// An empty store. Its tokens go on from the wall clock, so that they rise over restarts of the process too.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            space: format!("memory:{}", Uuid::new_v4()).into(),
            state: Mutex::new(State::new()),
            gate: Gate::new(),
        }))
    }

    /// Lets every call fail or hang from now on, or work again with `None`.
    ///
    /// Releases that failed are made up for when the store works again; calls that hang then go on.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let before = self.0.gate.set(fault);
        if fault.is_none() && before == Some(Fault::Unreachable) {
            let mut state = self.state();
            state.settle_missed_releases(Instant::now());
            state.tell_everybody_reconnected();
        }
    }

    /// Plays a server that restarts empty: all leases, queues and records are gone, and each [`Locks`](crate::Locks) is
    /// told that the store is back. Tokens go on rising, as they do after a restart of any store.
    pub fn restart(&self) {
        let mut state = self.state();
        state.restart(Instant::now());
        state.tell_everybody_reconnected();
    }

    /// How many calls of each kind there were so far, failed ones included.
    pub fn calls(&self) -> Calls {
        self.0.gate.calls()
    }

    /// Whether no lease, no queue and no record is left.
    pub fn is_empty(&self) -> bool {
        self.state().is_empty(Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every method of `State` leaves it consistent before it can panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the gate, then works on the state.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State, Instant) -> T + Send + 'static,
    ) -> StoreFuture<Result<T, Error>> {
        let store = self.clone();
        Box::pin(async move {
            let turn = store.0.gate.pass().await?;
            let outcome = work(&mut store.state(), Instant::now());
            drop(turn);
            store.0.gate.answer().await;
            Ok(outcome)
        })
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
        self.0.gate.count(|calls| calls.acquires += 1);
        self.call(move |state, now| state.acquire(request, now))
    }

    fn renew(&self, requests: Vec<Renew>) -> StoreFuture<Vec<Renewed>> {
        self.0.gate.count(|calls| calls.renewals += 1);
        let asked = requests.len();
        let call = self.call(move |state, now| {
            let renew = |request| state.renew(&request, now);
            requests.into_iter().map(renew).collect()
        });
        Box::pin(async move {
            call.await
                .unwrap_or_else(|error| vec![Renewed::Unknown(error); asked])
        })
    }

    fn release(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        self.0.gate.count(|calls| calls.releases += 1);
        let store = self.clone();
        let missed = request.clone();
        let call = self.call(move |state, now| state.release(request, now));
        Box::pin(async move {
            let outcome = call.await;
            if outcome.is_err() {
                let mut state = store.state();
                state.miss_release(missed);
                if store.0.gate.is_open() {
                    state.settle_missed_releases(Instant::now()); // the fault ended just now
                }
            }
            outcome
        })
    }

    fn raise_fence(&self, _key: LockKey, floor: u64) -> StoreFuture<Result<u64, Error>> {
        self.call(move |state, _| state.raise_fence(floor))
    }

    fn inspect(&self, key: LockKey) -> StoreFuture<Result<Inspection, Error>> {
        self.call(move |state, now| state.inspect(&key, now))
    }

    fn force_release(&self, key: LockKey) -> StoreFuture<Result<bool, Error>> {
        self.call(move |state, now| state.force_release(&key, now))
    }

    fn space(&self) -> Arc<str> {
        self.0.space.clone()
    }

    fn uptime(&self) -> Duration {
        self.state().uptime(Instant::now())
    }

    fn watch(&self, instance: Instance) -> Hints {
        let (sender, hints) = mpsc::unbounded_channel();
        self.state().watch(instance, sender);
        hints
    }
}
