//! Faults to play, and a count of the calls.

use std::sync::{Mutex, PoisonError};

use tokio::{
    sync::{Mutex as FairMutex, MutexGuard as Turn, watch},
    task::unconstrained,
};

use crate::{Error, ErrorKind};

/// What is wrong with a [`MemoryStore`](super::MemoryStore).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Every call fails at once, and has no effect. When it is over, each [`Locks`](crate::Locks) is told that the
    /// store is back, and confirms its leases.
    Unreachable,
    /// No call returns until the fault is over; then they all go on, in the order in which they came.
    Hang,
    /// Every call takes effect at once, but its answer does not come until the fault is over.
    Mute,
}

/// How often a [`MemoryStore`](super::MemoryStore) was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// Calls of `acquire`.
    pub acquires: u64,
    /// Calls of `renew`, each for a whole batch.
    pub renewals: u64,
    /// Calls of `release`.
    pub releases: u64,
}

/// What every call has to pass.
pub(super) struct Gate {
    fault: watch::Sender<Option<Fault>>,
    calls: Mutex<Calls>,
    /// Calls take effect in the order in which they came, also after they have hung.
    order: FairMutex<()>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            fault: watch::Sender::new(None),
            calls: Mutex::default(),
            order: FairMutex::default(),
        }
    }

    /// Returns what it was before.
    pub(super) fn set(&self, fault: Option<Fault>) -> Option<Fault> {
        self.fault.send_replace(fault)
    }

    pub(super) fn is_open(&self) -> bool {
        self.fault.borrow().is_none()
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Calls)) {
        add(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn calls(&self) -> Calls {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way in. The call takes effect before it gives its turn back.
    pub(super) async fn pass(&self) -> Result<Turn<'_, ()>, Error> {
        // A task that has used up its budget would not even be put in line.
        let turn = unconstrained(self.order.lock()).await;
        match self.other_than(Fault::Hang).await {
            Some(Fault::Unreachable) => Err(Error::new(
                ErrorKind::Unreachable,
                "the memory store plays an unreachable server (`set_fault`)",
            )),
            _ => Ok(turn),
        }
    }

    /// The way out.
    pub(super) async fn answer(&self) {
        self.other_than(Fault::Mute).await;
    }

    /// Waits until this is not the fault, and says which is.
    async fn other_than(&self, fault: Fault) -> Option<Fault> {
        // Subscribing costs; most calls meet no fault.
        let current = *self.fault.borrow();
        if current != Some(fault) {
            return current;
        }
        let mut changes = self.fault.subscribe();
        let over = changes.wait_for(|current| *current != Some(fault)).await;
        // The sender lives in the same gate as this call, so there is an end to wait for.
        over.map_or(None, |current| *current)
    }
}
