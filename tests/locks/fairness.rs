//! Work that never has to wait lets the other tasks of its runtime run.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::task::{JoinHandle, yield_now};
use tower_distributed_lock::{Locks, store::MemoryStore};

use crate::support::SECOND;

const TURNS: usize = 20_000;

/// Counts the rounds of another task on the same thread.
fn other_task() -> (Arc<AtomicUsize>, JoinHandle<()>) {
    let rounds = Arc::<AtomicUsize>::default();
    let counted = rounds.clone();
    let task = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    });
    (rounds, task)
}

#[tokio::test]
async fn a_loop_of_free_locks_lets_other_tasks_run() {
    let locks = Locks::in_memory();
    let (rounds, task) = other_task();
    for _ in 0..TURNS {
        drop(locks.lock("k").await.unwrap());
    }
    let rounds = rounds.load(Ordering::Relaxed);
    assert!(rounds >= TURNS / 200, "{rounds} rounds in {TURNS} turns");
    task.abort();
}

#[tokio::test]
async fn a_loop_of_confirmations_lets_other_tasks_run() {
    let locks = Locks::in_memory();
    let guard = locks.lock("k").await.unwrap();
    let (rounds, task) = other_task();
    for _ in 0..TURNS {
        guard.confirm().await.unwrap();
    }
    let rounds = rounds.load(Ordering::Relaxed);
    assert!(rounds >= TURNS / 200, "{rounds} rounds in {TURNS} calls");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn renewals_of_many_leases_let_other_tasks_run() {
    let builder = Locks::builder(MemoryStore::new());
    let locks = builder.lease(30 * SECOND).build().unwrap();
    let mut guards = Vec::new();
    for n in 0..1_000 {
        guards.push(locks.lock(format!("k/{n}")).await.unwrap());
    }
    tokio::time::advance(10 * SECOND).await;
    let mut seen = Vec::new();
    for _ in 0..1_000 {
        let renewed =
            |guard: &&_| tower_distributed_lock::LockGuard::remaining(guard) > 25 * SECOND;
        seen.push(guards.iter().filter(renewed).count());
        yield_now().await;
    }
    assert_eq!(seen.last(), Some(&guards.len()), "all leases are renewed");
    assert!(
        seen.iter()
            .any(|renewed| (1..guards.len()).contains(renewed)),
        "all leases were renewed in one poll"
    );
}
