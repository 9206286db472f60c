//! Nodes that are killed and come back empty.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{Acquire, Acquired},
};

use crate::{
    Fleet, LEASE,
    support::{eventually, redis_server::pass, words::*},
};

/// So many ms after a restart, every instance takes a node for one that remembers: after a lease,
/// and a second more because Redis counts its uptime in seconds.
const FORGOTTEN: u64 = LEASE.as_millis() as u64 + 1100;

/// The resource that a key protects. Counts its visitors, so that a second one is noticed.
#[derive(Default)]
struct Room {
    is_taken: AtomicBool,
    highest: Mutex<u64>,
    turns: AtomicU64,
}

impl Room {
    async fn visit(&self, token: u64) {
        assert!(
            !self.is_taken.swap(true, Ordering::SeqCst),
            "two are inside"
        );
        {
            let mut highest = self.highest.lock().unwrap();
            assert!(token > *highest, "{token} after {highest}");
            *highest = token;
        }
        pass(1 + token % 3).await;
        self.is_taken.store(false, Ordering::SeqCst);
        self.turns.fetch_add(1, Ordering::SeqCst);
    }
}

async fn visit_again_and_again(locks: Locks, rooms: Arc<[Room; 2]>, stop: Arc<AtomicBool>) {
    let mut turn = 0;
    while !stop.load(Ordering::SeqCst) {
        turn += 1;
        let room = turn % 2;
        match locks.lock(format!("room/{room}")).within(5 * LEASE).await {
            Ok(guard) => rooms[room].visit(guard.token()).await,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Held, "{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_restart_one_after_another_under_load_cost_no_exclusion() {
    let mut fleet = Fleet::start_not_young(3).await;
    let (rooms, stop) = (Arc::new(<[Room; 2]>::default()), Arc::default());
    let instances: Vec<Locks> = (0..3).map(|_| fleet.locks()).collect();
    let mut visitors = JoinSet::new();
    for locks in &instances {
        for _ in 0..2 {
            visitors.spawn(visit_again_and_again(
                locks.clone(),
                rooms.clone(),
                Arc::clone(&stop),
            ));
        }
    }
    let turns = || -> u64 {
        let turns = rooms.iter().map(|room| room.turns.load(Ordering::SeqCst));
        turns.sum()
    };
    pass(FORGOTTEN).await;
    for node in 0..3 {
        let before = turns();
        fleet.servers[node].kill();
        pass(100).await;
        eventually("it goes on without the node", async || {
            turns() > before + 20
        })
        .await;
        fleet.servers[node].restart().await;
        let before = turns();
        eventually("it goes on with the node", async || turns() > before + 20).await;
        pass(FORGOTTEN).await;
    }
    stop.store(true, Ordering::SeqCst);
    while let Some(visitor) = visitors.join_next().await {
        visitor.unwrap();
    }
    for locks in instances {
        locks.close(Duration::from_secs(5)).await;
    }
    eventually("nothing is left", async || fleet.is_empty().await).await;
}

#[tokio::test]
async fn two_restarts_within_one_lease_lead_to_no_second_grant() {
    let mut fleet = Fleet::start_not_young(3).await;
    let (key, a, b) = (key("k"), owner(), owner());
    let lease = Duration::from_secs(3);
    let request = |owner| Acquire {
        lease,
        ..attempt(&key, owner)
    };
    let asked = Instant::now();
    granted(fleet.store.ask_for(request(a)).await.unwrap());
    fleet.servers[0].restart().await;
    fleet.servers[1].restart().await;

    let mut refused = 0;
    loop {
        let sent = Instant::now();
        match fleet.store.ask_for(request(b)).await {
            Ok(Acquired::Granted(_)) => {
                let since = sent - asked;
                assert!(
                    since > lease * 9 / 10,
                    "granted after {since:?} of {lease:?}"
                );
                break;
            }
            Ok(other) => drop(held(other)),
            Err(error) => panic!("all nodes are up: {error}"),
        }
        refused += 1;
        pass(20).await;
    }
    assert!(refused > 10);
}

#[tokio::test]
async fn a_lease_outlives_all_of_its_nodes_one_after_another() {
    let mut fleet = Fleet::start_not_young(3).await;
    let locks = fleet.locks();
    let guard = locks.lock("k").await.unwrap();
    for node in 0..3 {
        fleet.servers[node].restart().await;
        let is_healed = async || fleet.nodes[node].holder(&key("k")).await.is_some();
        eventually("the node is healed", is_healed).await;
        assert!(guard.is_held());
    }
    guard.release().await.unwrap();
    eventually("nothing is left", async || fleet.is_empty().await).await;
}
