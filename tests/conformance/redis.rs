//! The Redis store, on a server of each test's own.

use tower_distributed_lock::store::{RedisStore, Store};

use crate::{
    subject::{LABEL, Subject},
    support::redis_server::RedisServer,
};

pub(crate) struct Redis {
    server: RedisServer,
    store: RedisStore,
}

impl Subject for Redis {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let store = RedisStore::builder(server.url()).label(LABEL);
        let store = store.connect().await.unwrap();
        Self { server, store }
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn label(&self) -> Option<&str> {
        Some(LABEL)
    }

    async fn is_empty(&self) -> bool {
        self.server.leftovers().await.is_empty()
    }

    async fn break_connections(&self) {
        self.server.break_connections().await;
    }

    async fn interrupt_hints(&self) -> bool {
        self.server.interrupt_hints().await;
        true
    }

    async fn refuse_writes(&self, refused: bool) -> bool {
        self.server.refuse_writes(refused).await;
        true
    }
}
