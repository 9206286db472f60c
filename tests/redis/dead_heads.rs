//! Attempts at the head of the queue that never ask again delay a free key only briefly.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tower_distributed_lock::{
    LockKey,
    store::{Acquire, Acquired, Hint, Hints, Owner, Queueing, RedisStore},
};

use crate::{
    server_and_store,
    support::{PATIENCE, eventually, words::*},
};

/// The default of the core, as is `POLL_INTERVAL`.
const HEAD_START: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The longest delay of a free key for each dead head.
const FOR_EACH: Duration = Duration::from_millis(500);
/// The longest delay that a busy machine adds.
const NOISE: Duration = Duration::from_millis(400);

/// The way in which an instance ended.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The subscription of the instance has ended as well.
    Killed,
    /// The subscription of the instance is still there.
    Frozen,
}

/// Waits for the key as the contract demands of a live attempt. Returns the time of the grant.
async fn wait_for(store: &RedisStore, key: &LockKey, owner: Owner, hints: &mut Hints) -> Instant {
    loop {
        let request = Acquire {
            queueing: Queueing::Wait {
                deadline: POLL_INTERVAL * 3,
                head_start: HEAD_START,
            },
            ..attempt(key, owner)
        };
        let mut ask_at = match store.ask_for(request).await.unwrap() {
            Acquired::Granted(_) => return Instant::now(),
            answer => Instant::now() + held(answer).remaining.min(POLL_INTERVAL),
        };
        loop {
            tokio::select! {
                () = sleep_until(ask_at) => break,
                hint = hints.recv() => match hint.unwrap() {
                    Hint::Next(_) => ask_at = ask_at.min(Instant::now() + HEAD_START),
                    _ => break,
                },
            }
        }
    }
}

/// Measures how long a free key stays untaken behind `dead` dead heads.
async fn time_untaken(dead: usize, end: End) -> Duration {
    let (_server, store) = server_and_store().await;
    let (key, holder, live) = (key("k"), owner(), owner());
    store.take(&key, holder).await;
    let mut subscriptions = Vec::new();
    for _ in 0..dead {
        let dead = owner();
        if let End::Frozen = end {
            subscriptions.push(store.watch_for_sure(dead.instance).await);
        }
        held(store.queue(&key, dead).await);
    }
    let mut hints = store.watch_for_sure(live.instance).await;
    let waits = wait_for(&store, &key, live, &mut hints);
    let freed = async {
        eventually("the live attempt is queued", async || {
            store.see(&key).await.queue.len() == dead + 1
        })
        .await;
        let freed = Instant::now();
        store.free(&key, holder).await;
        freed
    };
    let both = async { tokio::join!(waits, freed) };
    let (granted, freed) = timeout(PATIENCE, both)
        .await
        .expect("the live attempt should be granted the key");
    granted - freed
}

#[tokio::test]
async fn a_dead_head_delays_a_free_key_by_half_a_second_at_most() {
    for end in [End::Killed, End::Frozen] {
        for dead in 1..=5 {
            let took = time_untaken(dead, end).await;
            println!("{dead} × {end:?}: {took:?}");
            let limit = FOR_EACH * u32::try_from(dead).unwrap() + NOISE;
            assert!(took < limit, "{dead} × {end:?} cost {took:?}");
        }
    }
}

#[tokio::test]
async fn dead_heads_are_overtaken_where_publish_is_denied() {
    let (server, store) = server_and_store().await;
    let denied = ["ACL", "SETUSER", "default", "-publish"];
    server.send::<String>(&denied).await;
    let (key, holder, live) = (key("k"), owner(), owner());
    store.take(&key, holder).await;
    held(store.queue(&key, owner()).await);
    held(store.queue(&key, owner()).await);
    held(store.queue(&key, live).await);
    store.free(&key, holder).await;
    eventually("the live attempt is granted the key", async || {
        let request = waiting_behind(&key, live, SHORT);
        matches!(store.ask_for(request).await, Ok(Acquired::Granted(_)))
    })
    .await;
    assert_eq!(store.see(&key).await.queue, [], "their places are gone");
}
