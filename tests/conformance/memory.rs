//! The memory store, on tokio's paused clock.

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
