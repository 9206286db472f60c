//! The store behind Sentinel, as a subject of the conformance suite.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tower_distributed_lock::store::{RedisStore, Store};

use crate::{
    subject::{LABEL, Subject},
    support::{
        redis_server::RedisServer,
        sentinels::{SERVICE, Sentinels},
    },
};

tokio::task_local! {
    static TOPOLOGY: Arc<Sentinels>;
}

/// A store with its own prefix.
pub(crate) struct BehindSentinel {
    topology: Arc<Sentinels>,
    store: RedisStore,
    prefix: String,
}

impl BehindSentinel {
    /// All subjects that `tests` start share their servers.
    pub(crate) async fn within_one(tests: impl Future<Output = ()>) {
        TOPOLOGY
            .scope(Arc::new(Sentinels::start().await), tests)
            .await;
    }

    async fn primary(&self) -> &RedisServer {
        &self.topology.servers[self.topology.primary().await]
    }
}

impl Subject for BehindSentinel {
    async fn start() -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let topology = TOPOLOGY.get();
        let prefix = format!("test{}", STARTED.fetch_add(1, Relaxed));
        let store = RedisStore::sentinel(topology.urls(), SERVICE)
            .prefix(&prefix)
            .label(LABEL);
        Self {
            store: store.connect().await.unwrap(),
            topology,
            prefix,
        }
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn label(&self) -> Option<&str> {
        Some(LABEL)
    }

    async fn is_empty(&self) -> bool {
        let leftovers = self.primary().await.leftovers().await;
        leftovers
            .iter()
            .all(|key| !key.starts_with(&format!("{}:", self.prefix)))
    }

    async fn break_connections(&self) {
        self.primary().await.break_connections().await;
    }

    async fn interrupt_hints(&self) -> bool {
        self.primary().await.interrupt_hints().await;
        true
    }

    async fn refuse_writes(&self, refused: bool) -> bool {
        self.primary().await.refuse_writes(refused).await;
        true
    }
}
