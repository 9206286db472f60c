//! The memory store, on tokio's paused clock.

#[cfg(feature = "test-util")]
use tower_distributed_lock::store::FaultyStore;
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
}
