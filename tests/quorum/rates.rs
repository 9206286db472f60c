//! How many turns a key has that several instances want, with a node that is frozen.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::task::JoinSet;
use tower_distributed_lock::{
    Locks,
    store::{QuorumStore, RedisStore},
};

use crate::{
    Fleet,
    support::redis_server::{RedisServer, pass},
};

/// How long turns are counted, in ms.
const MEASURED: u64 = 2_000;

/// Another instance, with the node timeout that is the default.
fn instance(servers: &[RedisServer]) -> Locks {
    let node = |server: &RedisServer| RedisStore::builder(server.url()).build().unwrap();
    let store = QuorumStore::new(servers.iter().map(node)).unwrap();
    Locks::builder(store).lease(crate::LEASE).build().unwrap()
}

/// Instances that all want one key, each as soon as its last turn is over.
struct Crowd {
    turns: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    contenders: JoinSet<()>,
}

impl Crowd {
    fn start(fleet: &Fleet, instances: usize) -> Self {
        let (turns, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut contenders = JoinSet::new();
        for _ in 0..instances {
            let locks = instance(&fleet.servers);
            let (turns, stop) = (turns.clone(), stop.clone());
            contenders.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(guard) = locks.lock("hot").await {
                        turns.fetch_add(1, Ordering::SeqCst);
                        let _ = guard.release().await;
                    }
                }
            });
        }
        Self {
            turns,
            stop,
            contenders,
        }
    }

    /// Turns in the next seconds.
    async fn turns(&self) -> u64 {
        let before = self.turns.load(Ordering::SeqCst);
        pass(MEASURED).await;
        self.turns.load(Ordering::SeqCst) - before
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while self.contenders.join_next().await.is_some() {}
    }
}

/// Each vote was split between the two live nodes, for as long as the third was frozen: no turns at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_does_not_stop_a_key_that_several_instances_want() {
    for instances in [3, 5, 10] {
        let fleet = Fleet::start_mature(3).await;
        let crowd = Crowd::start(&fleet, instances);
        pass(500).await;
        let healthy = crowd.turns().await;
        fleet.servers[2].freeze();
        pass(500).await;
        // Other work on the machine may slow down any of the windows.
        let mut best = 0;
        for _ in 0..3 {
            let frozen = crowd.turns().await;
            println!("{instances} instances: {healthy} turns, {frozen} with a frozen node");
            best = best.max(frozen);
            if best * 2 >= healthy {
                break;
            }
        }
        assert!(best * 4 >= healthy, "{best} of {healthy} turns");
        fleet.servers[2].thaw();
        crowd.stop().await;
    }
}
