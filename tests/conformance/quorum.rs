//! The quorum store: of memory stores on tokio's paused clock, and of Redis servers of each test's
//! own.
//!
//! No test is left out, not even those of fairness: with calls one after another, all nodes have
//! the same queue.

#[cfg(feature = "redis")]
use futures_util::future::join_all;
#[cfg(feature = "redis")]
use tower_distributed_lock::store::RedisStore;
use tower_distributed_lock::store::{MemoryStore, QuorumStore, Store};

#[cfg(feature = "redis")]
use crate::subject::LABEL;
use crate::subject::Subject;
#[cfg(feature = "redis")]
use crate::support::redis_server::RedisServer;

/// The other nodes follow a majority soon.
async fn soon(mut is_so: impl AsyncFnMut() -> bool) -> bool {
    for _ in 0..100 {
        if is_so().await {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    false
}

pub(crate) struct OfMemory {
    nodes: [MemoryStore; 3],
    store: QuorumStore,
}

impl Subject for OfMemory {
    async fn start() -> Self {
        let nodes = std::array::from_fn(|_| MemoryStore::new());
        let store = QuorumStore::new(nodes.clone()).unwrap();
        Self { nodes, store }
    }

    fn has_one_node(&self) -> bool {
        false
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn is_empty(&self) -> bool {
        soon(async || self.nodes.iter().all(MemoryStore::is_empty)).await
    }

    async fn break_connections(&self) {}

    async fn interrupt_hints(&self) -> bool {
        false
    }

    async fn refuse_writes(&self, _refused: bool) -> bool {
        false
    }
}

#[cfg(feature = "redis")]
pub(crate) struct OfRedis<const N: usize> {
    nodes: Vec<RedisServer>,
    store: QuorumStore,
}

#[cfg(feature = "redis")]
impl<const N: usize> Subject for OfRedis<N> {
    async fn start() -> Self {
        let nodes = join_all((0..N).map(|_| RedisServer::start())).await;
        let mut stores = Vec::new();
        for node in &nodes {
            let store = RedisStore::builder(node.url()).label(LABEL);
            stores.push(store.connect().await.unwrap());
        }
        // Two cores and a hundred servers: slow is not dead.
        let patient = QuorumStore::builder(stores).node_timeout(std::time::Duration::from_secs(5));
        let store = patient.build().unwrap();
        Self { nodes, store }
    }

    fn has_one_node(&self) -> bool {
        false
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn label(&self) -> Option<&str> {
        Some(LABEL)
    }

    async fn is_empty(&self) -> bool {
        soon(async || {
            let left = join_all(self.nodes.iter().map(RedisServer::leftovers)).await;
            left.iter().all(Vec::is_empty)
        })
        .await
    }

    async fn break_connections(&self) {
        join_all(self.nodes.iter().map(RedisServer::break_connections)).await;
    }

    async fn interrupt_hints(&self) -> bool {
        join_all(self.nodes.iter().map(RedisServer::interrupt_hints)).await;
        true
    }

    async fn refuse_writes(&self, refused: bool) -> bool {
        join_all(self.nodes.iter().map(|node| node.refuse_writes(refused))).await;
        true
    }
}
