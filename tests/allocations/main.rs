//! The allocations of an uncontended lock. These tests have a binary to themselves, because the
//! allocator counts for the whole process.

mod layers;

use test_support as support;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::sync::Mutex;
use tower_distributed_lock::{LockKey, Locks};

use support::{eventually, redis_server::RedisServer};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Each test holds this mutex, because the allocator counts for the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The most allocations of a lock and its release, redis-rs and tokio included: the measured
/// figure, 15.9, with some room for tokio's own work. Lower the bound with every change that saves
/// allocations.
const MOST: f64 = 17.0;

/// The number of locks in one measurement: so many that the growth of a vector does not show.
const LOCKS: usize = 2_000;
/// The number of keys, which are locked one after another, in several rounds.
const KEYS: usize = 64;

/// The runtime has one thread and there is no tracing subscriber, so only the locks allocate.
#[tokio::test]
async fn an_uncontended_lock_and_its_release_allocate_no_more_than_before() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start().await;
    let locks = Locks::redis(server.url()).await.unwrap();
    let keys: Vec<LockKey> = (0..KEYS)
        .map(|n| LockKey::new(format!("account/{n}")).unwrap())
        .collect();
    // The first locks make the connections, scripts, maps and buffers.
    lock_and_drop(&locks, &keys).await;

    let region = Region::new(ALLOCATOR);
    lock_and_drop(&locks, &keys).await;
    let used = region.change();

    let each = (used.allocations + used.reallocations) as f64 / LOCKS as f64;
    let bytes = used.bytes_allocated / LOCKS;
    println!("{each:.1} allocations and {bytes} bytes for a lock and its release");
    assert!(
        each <= MOST,
        "a lock and its release make {each:.1} allocations, at most {MOST} are allowed"
    );
}

/// Returns when all releases have been answered.
async fn lock_and_drop(locks: &Locks, keys: &[LockKey]) {
    for key in keys.iter().cycle().take(LOCKS) {
        drop(locks.lock(key).await.unwrap());
    }
    eventually("all releases are answered", async || {
        let stats = locks.stats();
        stats.keys == 0 && stats.releases == 0
    })
    .await;
}
