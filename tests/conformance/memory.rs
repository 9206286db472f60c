//! The memory store, on tokio's paused clock.

#[cfg(feature = "test-util")]
use tower_distributed_lock::store::{Fault, FaultyStore};
use tower_distributed_lock::store::{MemoryStore, Store};

use crate::subject::Subject;

pub(crate) struct Memory(MemoryStore);

impl Subject for Memory {
    async fn start() -> Self {
        Self(MemoryStore::new())
    }

    fn store(&self) -> &dyn Store {
        &self.0
    }

    async fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    async fn break_connections(&self) {}

    async fn interrupt_hints(&self) -> bool {
        false
    }

    async fn refuse_writes(&self, _refused: bool) -> bool {
        false
    }
}

/// Without a fault, the store that plays faults is a store like any other.
#[cfg(feature = "test-util")]
pub(crate) struct Faulty(FaultyStore);

#[cfg(feature = "test-util")]
impl Subject for Faulty {
    async fn start() -> Self {
        Self(FaultyStore::new())
    }

    fn store(&self) -> &dyn Store {
        &self.0
    }

    async fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    async fn break_connections(&self) {}

    async fn interrupt_hints(&self) -> bool {
        self.0.restart();
        true
    }

    async fn refuse_writes(&self, refused: bool) -> bool {
        self.0.set_fault(refused.then_some(Fault::Unreachable));
        true
    }
}
