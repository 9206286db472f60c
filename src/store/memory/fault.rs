//! Faults to play, and a count of the calls.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::{Error, ErrorKind};

/// What is wrong with a [`MemoryStore`](super::MemoryStore).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Every call fails at once, and has no effect.
    Unreachable,
    /// No call returns until the fault is over; then they all go on.
    Hang,
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
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            fault: watch::Sender::new(None),
            calls: Mutex::default(),
        }
    }

    /// Says whether that was a change.
    pub(super) fn set(&self, fault: Option<Fault>) -> bool {
        self.fault
            .send_if_modified(|current| std::mem::replace(current, fault) != fault)
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Calls)) {
        add(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn calls(&self) -> Calls {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn pass(&self) -> Result<(), Error> {
        // Subscribing costs; most calls meet no fault.
        if self.fault.borrow().is_none() {
            return Ok(());
        }
        let mut fault = self.fault.subscribe();
        let over = fault.wait_for(|fault| *fault != Some(Fault::Hang)).await;
        match over.map(|fault| *fault) {
            Ok(Some(_)) => Err(Error::new(
                ErrorKind::Unreachable,
                "the memory store plays an unreachable server (`set_fault`)",
            )),
            // The sender lives in the same gate as this call.
            Ok(None) | Err(_) => Ok(()),
        }
    }
}
