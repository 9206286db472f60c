//! A hot key: passed on in a process, shared between processes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tower_distributed_lock::{Locks, Stats};

use crate::{
    instance,
    support::{eventually, redis_server::RedisServer},
};

/// Watches the turns at one key: one at a time, with rising tokens.
#[derive(Default)]
struct Witness {
    inside: AtomicBool,
    last: AtomicU64,
}

impl Witness {
    fn enter(&self, token: u64) {
        assert!(!self.inside.swap(true, SeqCst), "two turns at once");
        assert!(self.last.swap(token, SeqCst) < token, "tokens must rise");
    }

    fn leave(&self) {
        self.inside.store(false, SeqCst);
    }
}

async fn one_turn(locks: &Locks, witness: &Witness) {
    let guard = locks.lock("hot").await.unwrap();
    witness.enter(guard.token());
    tokio::task::yield_now().await;
    witness.leave();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_turns_of_one_instance_cost_at_most_a_tenth_of_a_command_each() {
    let server = RedisServer::start().await;
    let locks = instance(&server).await;
    let witness = Arc::new(Witness::default());
    drop(locks.lock("warm").await.unwrap());
    eventually("it is released", async || locks.stats() == Stats::default()).await;
    server.reset_stats().await;
    let tasks = (0..100).map(|_| {
        let (locks, witness) = (locks.clone(), witness.clone());
        tokio::spawn(async move {
            for _ in 0..100 {
                one_turn(&locks, &witness).await;
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    eventually("it is released", async || locks.stats() == Stats::default()).await;
    let commands: u64 = server.commands().await.values().sum();
    println!("10,000 turns took {commands} commands");
    assert!(commands <= 1000, "{commands} commands for 10,000 turns");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_share_a_hot_key() {
    let server = RedisServer::start().await;
    let fleet = [instance(&server).await, instance(&server).await];
    let witness = Arc::new(Witness::default());
    let turns = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..16)
        .map(|at| {
            let which = at % 2;
            let locks = fleet[which].clone();
            let (witness, turns, over) = (witness.clone(), turns.clone(), over.clone());
            tokio::spawn(async move {
                while !over.load(SeqCst) {
                    one_turn(&locks, &witness).await;
                    turns[which].fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    over.store(true, SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let [a, b] = [0, 1].map(|which| turns[which].load(SeqCst));
    println!("{a} and {b} turns in 2 s");
    let least = (a + b) * 3 / 10;
    assert!(a.min(b) >= least, "{a} and {b} turns are not shared fairly");
}
