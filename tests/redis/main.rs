//! The Redis store on real servers that are stopped, cut off, filled and killed.

mod acl;
mod clock;
mod connecting;
mod credentials;
mod dead_heads;
mod foreign;
mod format;
mod joint;
mod joint_in_use;
mod left_behind;
mod listening;
mod modes;
mod operators;
mod outcomes;
#[cfg(feature = "tls-rustls")]
mod provider;
mod queue;
mod races;
mod reconnect;
mod runtimes;
#[cfg(feature = "tls-rustls")]
mod tls;
mod tokens;
mod traffic;
mod trouble;

use test_support as support;

use std::time::Duration;

use tower_distributed_lock::{LockKey, store::RedisStore};

use support::{
    eventually,
    redis_server::{RedisServer, pass},
    words::key,
};

/// A short time limit, in which a slow machine can still answer a call.
const LIMIT: Duration = Duration::from_millis(250);

/// A server, and a store with the defaults.
async fn server_and_store() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    (server, store)
}

/// A store with a short time limit.
async fn impatient(url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).timeout(LIMIT);
    let mut store = None;
    // The first connect has the same time limit.
    eventually("the store is connected", async || {
        store = builder.clone().connect().await.ok();
        store.is_some()
    })
    .await;
    store.unwrap()
}

/// So many keys that every lane has some.
fn keys() -> Vec<LockKey> {
    (0..32).map(|n| key(&format!("k/{n}"))).collect()
}

/// Asserts that nothing is left in Redis, now and a little later.
async fn assert_clean(server: &RedisServer) {
    eventually("nothing is left in the server", async || {
        server.leftovers().await.is_empty()
    })
    .await;
    pass(300).await;
    assert_eq!(
        server.leftovers().await,
        [""; 0],
        "a name came back after its release"
    );
}
