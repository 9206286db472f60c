//! Nothing outlives its use.

use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower_distributed_lock::{
    Locks, Stats,
    store::{Fault, FaultyStore},
};

use crate::support::{SECOND, fleet, nothing_left, settle};

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_keys_leave_nothing_behind() {
    let (store, [locks]) = fleet();
    for number in 0..100_000 {
        drop(locks.lock(format!("k/{number}")).await.unwrap());
        if number % 64 == 0 {
            tokio::task::yield_now().await;
            assert!(locks.stats().keys <= 65);
        }
    }
    let calls = store.calls();
    assert_eq!((calls.acquires, calls.renewals), (100_000, 0));
    settle().await;
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_keys_held_at_once_leave_nothing_behind() {
    let (store, [locks]) = fleet();
    let mut guards = Vec::new();
    for number in 0..100_000 {
        guards.push(locks.lock(format!("k/{number}")).await.unwrap());
    }
    assert_eq!(locks.stats().leases, 100_000);
    sleep(15 * SECOND).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    drop(guards);
    while locks.stats() != Stats::default() {
        tokio::task::yield_now().await;
    }
    nothing_left(store, [locks]).await;
}

/// What a store has to forget is kept for as long as the leases last, and costs the same however
/// much it is.
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_endings_leave_nothing_behind_while_the_store_is_away_for_an_hour() {
    let (store, [locks]) = fleet();
    let mut guards = Vec::new();
    for number in 0..100_000 {
        guards.push(locks.lock(format!("k/{number}")).await.unwrap());
    }
    store.set_fault(Some(Fault::Unreachable));
    drop(guards);
    assert_eq!(locks.stats().releases, 100_000);
    let before = store.calls().releases;
    sleep(32 * SECOND).await;
    assert_eq!(locks.stats(), Stats::default());
    // Each of 64 shards repeats 16 of its endings at a time, and pauses for up to a second.
    let repeated = store.calls().releases - before;
    assert!(repeated < 64 * 16 * 45, "{repeated} calls");
    sleep(3600 * SECOND).await;
    assert_eq!(store.calls().releases - before, repeated);
    store.set_fault(None);
    settle().await;
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_has_one_task_for_any_number_of_leases() {
    let (store, [locks]) = fleet();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 0, "none before its first use");
    let guards = locks
        .lock_all((0..100).map(|n| format!("k/{n}")))
        .await
        .unwrap();
    sleep(30 * SECOND).await;
    assert_eq!(tasks(), 1);
    drop(guards);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_guard_keeps_the_lease_alive_when_the_handles_are_gone() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    drop(locks);
    sleep(100 * SECOND).await;
    assert!(guard.is_held());
    drop(guard);
    nothing_left(store, []).await;
}

#[tokio::test(start_paused = true)]
async fn pending_releases_outlive_the_last_handle() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Hang));
    drop(guard);
    drop(locks);
    settle().await;
    assert!(!store.is_empty());
    store.set_fault(None);
    nothing_left(store, []).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_that_are_dropped_with_the_last_handle_leave_the_queue() {
    let (store, [locks, other]) = fleet();
    let guard = other.lock("k").await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        let locks = locks.clone();
        waiting.spawn(async move { locks.lock("k").await.map(drop) });
    }
    settle().await;
    drop(locks);
    waiting.shutdown().await;
    settle().await;
    assert_eq!(crate::support::inspect(&store, "k").await.queue, []);
    drop(guard);
    nothing_left(store, [other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_forgets_the_lease_of_a_crashed_holder() {
    let store = FaultyStore::new();
    let began = Instant::now();
    {
        // An instance whose task is never heard of again.
        let locks = Locks::builder(store.clone())
            .wait_forever()
            .build()
            .unwrap();
        let crashing = std::thread::spawn({
            let locks = locks.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .start_paused(true)
                    .build()
                    .unwrap();
                std::mem::forget(runtime.block_on(locks.lock("k")).unwrap());
            }
        });
        crashing.join().unwrap();
        std::mem::forget(locks);
    }
    let survivor = Locks::builder(store.clone())
        .wait_forever()
        .build()
        .unwrap();
    assert!(survivor.lock("k").now().await.unwrap().is_none());
    drop(survivor.lock("k").await.unwrap());
    assert!(began.elapsed() <= 31 * SECOND);
    nothing_left(store, [survivor]).await;
}
