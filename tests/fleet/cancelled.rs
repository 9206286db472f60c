//! Requests that go away at any moment, and processes that do.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tower_distributed_lock::{Stats, store::RedisStore};

use crate::{
    instance,
    processes::Client,
    support::{eventually, redis_server::RedisServer, replica::Replica, words::*},
};

/// A number that looks random, and is the same in every run.
fn noise(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_cancelled_at_any_moment_leave_nothing_behind() {
    let server = RedisServer::start().await;
    let fleet = [instance(&server).await, instance(&server).await];
    let mut requests = tokio::task::JoinSet::new();
    for n in 0..2_000 {
        let locks = fleet[n as usize % 2].clone();
        requests.spawn(async move {
            let patience = Duration::from_micros(noise(n) % 100_000);
            let key = format!("k/{}", noise(n + 7) % 5);
            // Dropped in line, in the store's queue, in the middle of a question, or with the guard
            // in hand.
            let held = timeout(patience, locks.lock(key)).await;
            tokio::task::yield_now().await;
            held.is_ok()
        });
    }
    let granted = requests
        .join_all()
        .await
        .into_iter()
        .filter(|held| *held)
        .count();
    println!("{granted} of 2,000 had their turn");
    for locks in &fleet {
        eventually("nothing is left", async || {
            locks.stats() == Stats::default()
        })
        .await;
    }
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_killed_delays_the_others_by_its_deadline_at_most() {
    let server = RedisServer::start().await;
    let (url, store) = (
        server.url(),
        RedisStore::connect(server.url()).await.unwrap(),
    );
    let settings = [("STORE", &*url), ("WAIT_MS", "60000")];
    let [first, mut second, third] = [(); 3].map(|()| Replica::start(&settings));
    let account = key("account,tenant=acme,id=a");
    let queued = async |places: usize| {
        eventually("it is queued", async || {
            store.see(&account).await.queue.len() == places
        })
        .await;
    };
    let holding = tokio::spawn(first.deposit("a", 2_000));
    eventually("it is held", async || {
        store.holder(&account).await.is_some()
    })
    .await;
    let killed = tokio::spawn(second.deposit("a", 0));
    queued(1).await;
    let waiting = tokio::spawn(third.deposit("a", 0));
    queued(2).await;
    second.kill();
    assert!(killed.await.unwrap().is_none());

    assert_eq!(holding.await.unwrap().unwrap().status, 200);
    let freed = Instant::now();
    assert_eq!(waiting.await.unwrap().unwrap().status, 200);
    // The deadline is 3 s, the poll interval 1 s, and the machine may be busy.
    assert!(
        freed.elapsed() < Duration::from_secs(8),
        "{:?}",
        freed.elapsed()
    );
}
