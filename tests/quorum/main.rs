//! A quorum of real servers that are taken, frozen, killed and restarted empty; and of memory
//! stores, where time is to stand still.

mod asked_again;
mod away;
mod build;
mod contenders;
mod cost;
mod foreign;
mod frozen;
mod healing;
mod majority;
mod modes;
mod operators;
mod patterns;
mod rates;
mod records;
mod restarts;
mod tokens;
mod votes;
mod young;

use test_support as support;

use std::time::Duration;

use futures_util::future::join_all;
use tower_distributed_lock::{
    LockKey, Locks,
    store::{Acquire, FaultyStore, Instance, QuorumStore, RedisStore, Store},
};

use support::{
    PATIENCE, eventually,
    redis_server::RedisServer,
    words::{Words, attempt, key, owner},
};

/// Short enough to wait for a node to be that old, and still enough for a slow machine to be
/// granted one.
const LEASE: Duration = Duration::from_millis(700);
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// Servers of a test's own, and one instance's view of them.
struct Fleet {
    servers: Vec<RedisServer>,
    nodes: Vec<RedisStore>,
    store: QuorumStore,
}

impl Fleet {
    async fn start(nodes: usize) -> Self {
        let servers = join_all((0..nodes).map(|_| RedisServer::start())).await;
        let (nodes, store) = instance(&servers);
        Self {
            servers,
            nodes,
            store,
        }
    }

    /// A view with such long time limits that no node counts as unreachable, however slow the
    /// machine is.
    async fn start_patient(nodes: usize) -> Self {
        let servers = join_all((0..nodes).map(|_| RedisServer::start())).await;
        let node = |server: &RedisServer| RedisStore::builder(server.url()).timeout(PATIENCE);
        let nodes = servers.iter().map(|server| node(server).build().unwrap());
        let nodes: Vec<RedisStore> = nodes.collect();
        let store = QuorumStore::builder(nodes.clone()).node_timeout(PATIENCE);
        Self {
            servers,
            nodes,
            store: store.build().unwrap(),
        }
    }

    /// Servers that are older than a lease, so that a majority of them is enough.
    async fn start_not_young(nodes: usize) -> Self {
        let fleet = Self::start(nodes).await;
        fleet.until_none_is_young().await;
        fleet
    }

    /// Waits until every server that is up is older than a lease, and says so to new connections:
    /// in whole seconds.
    async fn until_none_is_young(&self) {
        let is_not_young = async |node: &RedisStore| {
            let is_up = node.inspect(key("anything")).await.is_ok();
            !is_up || node.uptime() >= LEASE
        };
        eventually("no node is young", async || {
            let (fresh, _) = instance(&self.servers);
            let nodes = self.nodes.iter().chain(&fresh);
            let not_young = join_all(nodes.map(is_not_young)).await;
            not_young.into_iter().all(|is_so| is_so)
        })
        .await;
    }

    /// Another instance on the same servers.
    fn locks(&self) -> Locks {
        let (_, store) = instance(&self.servers);
        Locks::builder(store)
            .wait_forever()
            .lease(LEASE)
            .build()
            .unwrap()
    }

    /// The names that are left on each of the servers, which must be up.
    async fn leftovers(&self) -> Vec<Vec<String>> {
        join_all(self.servers.iter().map(RedisServer::leftovers)).await
    }

    async fn is_empty(&self) -> bool {
        self.leftovers().await.iter().all(Vec::is_empty)
    }
}

fn instance(servers: &[RedisServer]) -> (Vec<RedisStore>, QuorumStore) {
    let node = |server: &RedisServer| RedisStore::builder(server.url()).lanes(1).build().unwrap();
    let nodes: Vec<RedisStore> = servers.iter().map(node).collect();
    let store = QuorumStore::builder(nodes.clone()).node_timeout(NODE_TIMEOUT);
    (nodes, store.build().unwrap())
}

/// Memory stores, and a quorum of them.
fn memory<const N: usize>() -> ([FaultyStore; N], QuorumStore) {
    let nodes = std::array::from_fn(|_| FaultyStore::new());
    let store = QuorumStore::new(nodes.clone()).unwrap();
    (nodes, store)
}

/// The instances of the holders that a node knows, sorted. A lease that was healed has another name
/// there than its owner.
async fn holders_at(node: &FaultyStore, key: &LockKey) -> Vec<Instance> {
    let holders = node.holders(key).await;
    holders.into_iter().map(|owner| owner.instance).collect()
}

/// An attempt of a new owner, for one lease.
fn short(key: &LockKey) -> Acquire {
    Acquire {
        lease: LEASE,
        ..attempt(key, owner())
    }
}

/// Lets the nodes repeat the releases that have failed.
async fn rounds() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

/// Lets the background tasks come to their end.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
