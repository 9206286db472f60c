//! How many allocations an uncontended lock makes. Alone in its binary: the allocator counts whatever the process does.

mod layers;
#[path = "../support/mod.rs"]
mod support;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::sync::Mutex;
use tower_distributed_lock::{LockKey, Locks};

use support::{eventually, redis_server::RedisServer};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Held by each test, since the allocator counts for the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The most allocations that a lock and its release may make, redis-rs and tokio included: the figure that was measured
/// when this was written, 15.9, with some room for what tokio does by itself. Lower the bound with every change that saves some.
const MOST: f64 = 17.0;

/// Locks in one measurement: enough that a vector which grows once does not show.
const LOCKS: usize = 2_000;
/// Keys that are locked one after another, and then again.
const KEYS: usize = 64;

/// The runtime has one thread and there is no tracing subscriber: only the locks allocate.
#[tokio::test]
async fn an_uncontended_lock_and_its_release_allocate_no_more_than_before() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start().await;
    let locks = Locks::redis(server.url()).await.unwrap();
    let keys: Vec<LockKey> = (0..KEYS)
        .map(|n| LockKey::new(format!("account/{n}")).unwrap())
        .collect();
    // Connections, scripts, maps and buffers are there after the first locks.
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
