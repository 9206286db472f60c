//! How many turns a key has that several instances want, with a node that is frozen or late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use tower_distributed_lock::{
    Locks,
    store::{QuorumStore, RedisStore},
};

use crate::{
    Fleet,
    support::{
        proxy::Proxy,
        redis_server::{RedisServer, pass},
    },
};

/// How long turns are counted, in ms.
const MEASURED: u64 = 1_000;
/// How long instances have to notice that a node was frozen or is back, in ms.
const SETTLING: u64 = 1_000;

/// Another instance, with the node timeout that is the default.
fn instance(urls: &[String]) -> Locks {
    let node = |url: &String| RedisStore::builder(url).build().unwrap();
    let store = QuorumStore::new(urls.iter().map(node)).unwrap();
    Locks::builder(store).lease(crate::LEASE).build().unwrap()
}

/// Instances that all want one key, each as soon as its last turn is over.
struct Crowd {
    turns: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    contenders: JoinSet<()>,
}

impl Crowd {
    fn start(urls: &[String], instances: usize) -> Self {
        let (turns, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut contenders = JoinSet::new();
        for _ in 0..instances {
            let locks = instance(urls);
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

fn urls(fleet: &Fleet) -> Vec<String> {
    fleet.servers.iter().map(RedisServer::url).collect()
}

/// How often a node is frozen, at most.
const ROUNDS: usize = 10;
/// How often a frozen node must have cost less than half of the turns. Other work on the machine
/// slows down any of the windows, so two rounds are enough; a key that stops does so in every
/// round.
const GOOD_ROUNDS: usize = 2;
/// How many scripts a turn takes at a node, at most: one to queue, one to take the key and one to
/// release it. The rest is for a few votes that are split.
const SCRIPTS_PER_TURN: u64 = 5;
/// How many scripts an instance runs in a window without a turn: it asks in each poll interval, and
/// may renew a lease.
const SCRIPTS_BESIDE: u64 = 2 + 2;

/// Compares turns while all nodes are well with turns while one is frozen.
async fn compare(instances: usize, frozen_node: usize) {
    let fleet = Fleet::start_not_young(3).await;
    let crowd = Crowd::start(&urls(&fleet), instances);
    let (mut rounds, mut good_rounds) = (Vec::new(), 0);
    let (mut all_turns, mut all_scripts) = (0, 0);
    while rounds.len() < ROUNDS && good_rounds < GOOD_ROUNDS {
        pass(SETTLING).await;
        let healthy = crowd.turns().await;
        fleet.servers[frozen_node].freeze();
        pass(SETTLING).await;
        fleet.servers[1].reset_stats().await;
        let frozen = crowd.turns().await;
        let scripts = fleet.servers[1].commands().await["evalsha"];
        fleet.servers[frozen_node].thaw();
        println!(
            "{instances} instances: {healthy} turns; with node {frozen_node} frozen {frozen}, and {scripts} scripts"
        );
        (all_turns, all_scripts) = (all_turns + frozen, all_scripts + scripts);
        good_rounds += usize::from(frozen * 2 >= healthy);
        rounds.push((healthy, frozen));
    }
    crowd.stop().await;
    assert_eq!(
        good_rounds, GOOD_ROUNDS,
        "{instances} instances: turns, and turns with a frozen node: {rounds:?}"
    );
    let beside = SCRIPTS_BESIDE * (instances * rounds.len()) as u64;
    assert!(
        all_scripts <= SCRIPTS_PER_TURN * all_turns + beside,
        "{instances} instances: {all_scripts} scripts for {all_turns} turns"
    );
}

/// The two live nodes had queues in different order, so each free key was offered to two attempts,
/// and votes were split.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_does_not_stop_a_key_that_several_instances_want() {
    for instances in [3, 5, 10] {
        compare(instances, 2).await;
    }
}

/// The first node leads while it is well, so the second one has to take over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_first_node_does_not_stop_a_key_that_several_instances_want() {
    for instances in [3, 5, 10] {
        compare(instances, 0).await;
    }
}

/// A node whose replies are late leads no votes, because each turn would wait for its hint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_first_node_does_not_slow_down_a_key_that_several_instances_want() {
    let fleet = Fleet::start_not_young(3).await;
    let delay = Duration::from_millis(200);
    let late = Proxy::start_late(fleet.servers[0].port(), delay).await;
    let in_time = urls(&fleet);
    let mut with_late = in_time.clone();
    with_late[0] = late.url();
    let (mut rounds, mut good_rounds) = (Vec::new(), 0);
    while rounds.len() < ROUNDS && good_rounds < GOOD_ROUNDS {
        let mut turns = [0; 2];
        for (urls, turns) in [&in_time, &with_late].into_iter().zip(&mut turns) {
            let crowd = Crowd::start(urls, 3);
            pass(SETTLING).await;
            *turns = crowd.turns().await;
            crowd.stop().await;
        }
        println!(
            "3 instances: {} turns; with a late node {}",
            turns[0], turns[1]
        );
        good_rounds += usize::from(turns[1] * 2 >= turns[0]);
        rounds.push(turns);
    }
    assert_eq!(
        good_rounds, GOOD_ROUNDS,
        "turns, and turns with a late node: {rounds:?}"
    );
}
