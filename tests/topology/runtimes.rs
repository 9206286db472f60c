//! Locks with a replica, and in a Cluster, on runtimes that end. On real time, as runtimes share no
//! clock.

use redis::Value;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tower_distributed_lock::{Locks, store::RedisStore};

use crate::{
    replicas::{ENOUGH, Pair},
    subject::*,
    support::{PATIENCE, redis_server::RedisServer},
};

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

fn locks_on(store: RedisStore) -> Locks {
    Locks::builder(store).lease(LONG).build().unwrap()
}

/// Asserts that nothing is left in the server after the first use on the next runtime.
fn assert_clean_on_the_next_runtime(locks: &Locks, server: &RedisServer) {
    two_threads().block_on(async {
        let locking = timeout(PATIENCE, locks.lock("other")).await;
        drop(locking.expect("every request is answered").unwrap());
        eventually("nothing is left in the server", async || {
            server.leftovers().await.is_empty()
        })
        .await;
    });
}

#[test]
fn a_lock_that_waits_for_a_replica_when_its_runtime_ends_is_released() {
    let (first, servers) = (two_threads(), two_threads());
    let pair = servers.block_on(Pair::start());
    let store = RedisStore::builder(pair.primary.url()).replicas(1, ENOUGH);
    let store = store.timeout(PATIENCE * 2).build().unwrap();
    let locks = locks_on(store);
    pair.replica.freeze();
    first.spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.map(drop) }
    });
    servers.block_on(eventually("the acquire has run", async || {
        !pair.primary.leftovers().await.is_empty()
    }));
    drop(first);
    pair.replica.thaw();
    assert_clean_on_the_next_runtime(&locks, &pair.primary);
}

#[test]
fn a_lock_in_a_cluster_whose_runtime_ends_is_released() {
    let (first, servers) = (two_threads(), two_threads());
    let node = servers.block_on(cluster_of_one());
    let store = RedisStore::cluster([node.url()]).timeout(PATIENCE * 2);
    let locks = locks_on(store.build().unwrap());
    drop(first.block_on(locks.lock("k")).unwrap());
    let send = |words: &[&str]| {
        let _: Value = servers.block_on(node.send(words));
    };
    send(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    first.spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.map(drop) }
    });
    servers.block_on(eventually("the acquire waits at the node", async || {
        let clients: String = node.send(&["CLIENT", "LIST"]).await;
        clients.contains("flags=b")
    }));
    drop(first);
    send(&["CLIENT", "UNPAUSE"]);
    assert_clean_on_the_next_runtime(&locks, &node);
}

#[test]
fn guards_that_are_dropped_after_their_runtime_are_released() {
    let servers = two_threads();
    let pair = servers.block_on(Pair::start());
    let node = servers.block_on(cluster_of_one());
    let with_replica = RedisStore::builder(pair.primary.url()).replicas(1, ENOUGH);
    let in_cluster = RedisStore::cluster([node.url()]);
    for (store, server) in [(with_replica, &pair.primary), (in_cluster, &node)] {
        let locks = locks_on(store.timeout(PATIENCE * 2).build().unwrap());
        let runtime = two_threads();
        let guard = runtime.block_on(locks.lock("k")).unwrap();
        drop(runtime);
        drop(guard);
        assert_clean_on_the_next_runtime(&locks, server);
    }
}

/// A node that has all slots.
async fn cluster_of_one() -> RedisServer {
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
    let slots: Vec<String> = (0..16384).map(|slot: u16| slot.to_string()).collect();
    let mut add_slots = vec!["CLUSTER", "ADDSLOTS"];
    add_slots.extend(slots.iter().map(String::as_str));
    let _: Value = node.send(&add_slots).await;
    eventually("the Cluster works", async || {
        let info: String = node.send(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    node
}
