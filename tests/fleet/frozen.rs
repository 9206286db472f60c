//! Instances that stand still while they wait.

use std::time::{Duration, Instant};

use tower_distributed_lock::{Locks, store::RedisStore};

use crate::{
    instance,
    support::{eventually, redis_server::RedisServer, words::*},
};

/// Queues an instance for the key and then never runs it again: its connections stay open, as those
/// of a process that is stopped.
fn queue_and_freeze(url: String, place: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = runtime.block_on(async {
        let store = RedisStore::connect(url).await.unwrap();
        let locks = Locks::builder(store.clone())
            .wait_forever()
            .build()
            .unwrap();
        tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").await.map(drop) }
        });
        eventually("it is queued", async || {
            store.see(&key("k")).await.queue.len() == place
        })
        .await;
        locks
    });
    std::mem::forget((runtime, locks));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_frozen_waiters_hold_up_a_free_key_for_two_seconds_at_most() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(server.url()).await.unwrap();
    let holder = instance(&server).await;
    let held = holder.lock("k").await.unwrap();
    for place in 1..=3 {
        let url = server.url();
        let frozen = tokio::task::spawn_blocking(move || {
            let thread = std::thread::spawn(move || queue_and_freeze(url, place));
            thread.join()
        });
        frozen.await.unwrap().unwrap();
    }
    let live = instance(&server).await;
    let waiting = tokio::spawn(async move {
        let guard = live.lock("k").await.unwrap();
        (Instant::now(), guard)
    });
    eventually("the live one is queued", async || {
        store.see(&key("k")).await.queue.len() == 4
    })
    .await;
    let freed = Instant::now();
    held.release().await.unwrap();
    let (granted, guard) = waiting.await.unwrap();
    guard.release().await.unwrap();
    let took = granted - freed;
    println!("the key stood still for {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}
