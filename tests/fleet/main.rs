//! Several instances of `Locks`, and several processes, on one real Redis.

mod cancelled;
mod from_set_nx;
mod frozen;
mod handover;
mod hot_key;
mod ledger;
mod many_leases;
mod modes;
mod outage;
mod processes;
mod reports;
mod shutdown;
#[cfg(feature = "tls-rustls")]
mod tls;
mod waiting;

use test_support as support;

use tower_distributed_lock::{Locks, store::RedisStore};

use support::redis_server::RedisServer;

/// An instance with the defaults, on connections of its own, like a process of its own.
async fn instance(server: &RedisServer) -> Locks {
    Locks::redis(server.url()).await.unwrap()
}

/// An instance whose store can be asked besides.
async fn instance_and_store(server: &RedisServer) -> (Locks, RedisStore) {
    let store = RedisStore::connect(server.url()).await.unwrap();
    (
        Locks::builder(store.clone())
            .wait_forever()
            .build()
            .unwrap(),
        store,
    )
}
