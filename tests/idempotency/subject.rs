//! The stores that the table runs over.

use std::time::Duration;

use tower_distributed_lock::{
    LocksBuilder,
    store::{Fault, FaultyStore, QuorumStore, Store},
};
#[cfg(feature = "redis")]
use {crate::support::redis_server::RedisServer, tower_distributed_lock::store::RedisStore};

pub(crate) trait Subject {
    async fn start() -> Self;
    /// One more replica.
    fn replica(&self) -> LocksBuilder;
    fn store(&self) -> &dyn Store;
    /// Cuts the store off, or restores it.
    fn cut_off(&self, is_so: bool);
    /// The number of calls to the store so far.
    async fn asked(&self) -> u64;
}

pub(crate) struct Memory(FaultyStore);

impl Subject for Memory {
    async fn start() -> Self {
        Self(FaultyStore::new())
    }

    fn replica(&self) -> LocksBuilder {
        tower_distributed_lock::Locks::builder(self.0.clone())
    }

    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn cut_off(&self, is_so: bool) {
        self.0.set_fault(is_so.then_some(Fault::Unreachable));
    }

    async fn asked(&self) -> u64 {
        let calls = self.0.calls();
        calls.acquires + calls.renewals + calls.releases
    }
}

/// A quorum with one node that is down from the beginning.
pub(crate) struct Quorum {
    nodes: [FaultyStore; 3],
    store: QuorumStore,
}

impl Subject for Quorum {
    async fn start() -> Self {
        let nodes = std::array::from_fn(|_| FaultyStore::new());
        let store = QuorumStore::new(nodes.clone()).unwrap();
        nodes[2].set_fault(Some(Fault::Unreachable));
        Self { nodes, store }
    }

    fn replica(&self) -> LocksBuilder {
        tower_distributed_lock::Locks::builder(self.store.clone())
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn cut_off(&self, is_so: bool) {
        self.nodes[1].set_fault(is_so.then_some(Fault::Unreachable));
    }

    async fn asked(&self) -> u64 {
        let calls = self.nodes[0].calls();
        calls.acquires + calls.renewals + calls.releases
    }
}

#[cfg(feature = "redis")]
pub(crate) struct Redis {
    pub(crate) server: RedisServer,
    store: RedisStore,
}

#[cfg(feature = "redis")]
impl Subject for Redis {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        // Soon over when the server is cut off, and still enough for a slow machine to answer a
        // healthy call in.
        let builder = RedisStore::builder(server.url()).timeout(Duration::from_millis(500));
        let store = builder.connect().await.unwrap();
        Self { server, store }
    }

    fn replica(&self) -> LocksBuilder {
        tower_distributed_lock::Locks::builder(self.store.clone())
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn cut_off(&self, is_so: bool) {
        match is_so {
            true => self.server.freeze(),
            false => self.server.thaw(),
        }
    }

    async fn asked(&self) -> u64 {
        let commands = self.server.commands().await;
        commands.get("evalsha").copied().unwrap_or(0) + commands.get("eval").copied().unwrap_or(0)
    }
}

/// Longer than any step of a test, and the time for which a test watches that something does not
/// happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);
