//! The order in which waiting attempts are served, even if some of them die.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};
use tower_distributed_lock::store::{
    Acquire, Acquired, Hint, Mode, Owner, Queueing, RedisStore, Store,
};

use crate::{
    server_and_store,
    support::{
        PATIENCE, eventually,
        redis_server::{RedisServer, pass},
        words::*,
    },
};

fn keeps_place_for(keep: Duration, request: Acquire) -> Acquire {
    Acquire {
        queueing: Queueing::Wait {
            deadline: keep,
            head_start: LONG,
        },
        ..request
    }
}

#[tokio::test]
async fn the_order_of_arrival_outlives_the_crash_of_the_holder() {
    let (server, store) = server_and_store().await;
    let key = key("k");
    let crashes = Acquire {
        lease: Duration::from_millis(300),
        ..attempt(&key, owner())
    };
    granted(store.ask_for(crashes).await.unwrap());
    let waiters: Vec<Owner> = (0..5).map(|_| owner()).collect();
    for waiter in &waiters {
        held(store.queue(&key, *waiter).await);
    }
    let mut served = Vec::new();
    let until = Instant::now() + PATIENCE;
    while served.len() < waiters.len() {
        assert!(Instant::now() < until, "served so far: {served:?}");
        // The last attempt asks first, so that only the queue can bring the attempts into order.
        for waiter in waiters
            .iter()
            .rev()
            .filter(|w| !served.contains(*w))
            .copied()
            .collect::<Vec<_>>()
        {
            if let Acquired::Granted(_) = store.queue(&key, waiter).await {
                served.push(waiter);
                store.free(&key, waiter).await;
            }
        }
    }
    assert_eq!(served, waiters);
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn a_waiter_that_died_delays_the_others_by_its_deadline_at_most() {
    let (_server, store) = server_and_store().await;
    let (key, a, dead, c) = (key("k"), owner(), owner(), owner());
    let deadline = Duration::from_millis(600);
    store.take(&key, a).await;
    let asked = Instant::now();
    held(
        store
            .ask_for(keeps_place_for(deadline, attempt(&key, dead)))
            .await
            .unwrap(),
    );
    held(store.queue(&key, c).await);
    store.free(&key, a).await;
    if let Acquired::Held(held) = store.ask(&key, owner()).await {
        assert!(held.remaining <= deadline);
    }
    eventually("the next is served", async || {
        matches!(store.queue(&key, c).await, Acquired::Granted(_))
    })
    .await;
    assert!(asked.elapsed() >= deadline, "its place was kept");
}

#[tokio::test]
async fn a_waiter_that_asks_within_its_deadline_is_never_skipped() {
    let (_server, store) = server_and_store().await;
    let key = key("k");
    let deadline = Duration::from_secs(1);
    for round in 0.. {
        assert!(round < 10, "this machine never asks in time");
        let (a, patient, greedy) = (owner(), owner(), owner());
        store.take(&key, a).await;
        held(
            store
                .ask_for(keeps_place_for(deadline, attempt(&key, patient)))
                .await
                .unwrap(),
        );
        let slowest = keep_asking(&store, deadline, patient, greedy).await;
        store.free(&key, a).await;
        let first = store.queue(&key, greedy).await;
        let answer = store.queue(&key, patient).await;
        store.free(&key, patient).await;
        store.free(&key, greedy).await;
        // If the machine stalled for longer than the deadline, the round proves nothing.
        if slowest < deadline / 2 {
            held(first);
            granted(answer);
            return;
        }
    }
}

/// Lets both attempts ask for longer than the deadline. Returns the longest time between two
/// questions of the first attempt.
async fn keep_asking(
    store: &RedisStore,
    deadline: Duration,
    patient: Owner,
    greedy: Owner,
) -> Duration {
    let key = key("k");
    let until = Instant::now() + deadline * 2;
    let mut slowest = Duration::ZERO;
    let mut last = Instant::now();
    while Instant::now() < until {
        held(
            store
                .ask_for(keeps_place_for(deadline, attempt(&key, patient)))
                .await
                .unwrap(),
        );
        held(store.queue(&key, greedy).await);
        pass(100).await;
        slowest = slowest.max(last.elapsed());
        last = Instant::now();
    }
    slowest
}

#[tokio::test]
async fn an_attempt_that_gave_up_delays_no_other() {
    let (_server, store) = server_and_store().await;
    let (key, a, b, c) = (key("k"), owner(), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    store.free(&key, b).await;
    store.free(&key, a).await;
    granted(store.queue(&key, c).await);
}

#[tokio::test]
async fn two_stores_on_one_server_are_one_fleet() {
    let (server, one) = server_and_store().await;
    let two = RedisStore::connect(server.url()).await.unwrap();
    assert_eq!(one.space(), two.space());
    let (key, a, b) = (key("k"), owner(), owner());
    let mut hints = two.watch_for_sure(b.instance).await;
    one.take(&key, a).await;
    held(two.queue(&key, b).await);
    one.free(&key, a).await;
    hinted(
        &mut hints,
        tower_distributed_lock::store::Hint::Free(key.clone()),
    )
    .await;
    granted(two.queue(&key, b).await);
}

#[tokio::test]
async fn prefixes_keep_fleets_apart() {
    let (server, one) = server_and_store().await;
    let other = RedisStore::builder(server.url()).prefix("other");
    let other = other.connect().await.unwrap();
    assert_ne!(one.space(), other.space());
    let key = key("k");
    one.take(&key, owner()).await;
    other.take(&key, owner()).await;
    let leftovers = server.leftovers().await;
    assert!(leftovers[0].starts_with("other:2:{b") && leftovers[1].starts_with("tdl:2:{b"));
}

#[tokio::test]
async fn an_attempt_that_finds_a_record_leaves_the_queue() {
    let (server, store) = server_and_store().await;
    let (key, a, b) = (key("k"), owner(), owner());
    let claim = |owner| Acquire {
        fingerprint: Some(Bytes::from_static(b"1")),
        ..waiting(&key, owner)
    };
    granted(store.ask_for(claim(a)).await.unwrap());
    held(store.ask_for(claim(b)).await.unwrap());
    store.record(&key, a, b"done").await;
    assert_eq!(server.leftovers().await.len(), 2);
    let found = store.ask_for(claim(b)).await.unwrap();
    assert_eq!(found, Acquired::Recorded(Bytes::from_static(b"done")));
    assert_eq!(server.leftovers().await.len(), 1);
}

/// A store that makes many calls at once, also on a slow machine.
async fn server_and_patient_store() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(server.url()).timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    (server, store)
}

/// Lets many attempts queue for a key, with one behind them, and then lets all places but the last
/// one expire.
async fn expired_places(store: &RedisStore, mode: Mode, last: Owner) {
    let queued = (0..300).map(|_| {
        let request = in_mode(mode, attempt(&key("k"), owner()));
        store.ask_for(keeps_place_for(Duration::from_secs(1), request))
    });
    for answer in join_all(queued).await {
        held(answer.unwrap());
    }
    held(store.queue_as(mode, &key("k"), last).await);
    pass(1100).await;
}

/// One call removes some of the expired places only. Those that are left are in nobody's way.
#[tokio::test]
async fn a_free_key_is_granted_however_many_places_have_expired() {
    let (_server, store) = server_and_patient_store().await;
    let (key, holder, last) = (key("k"), owner(), owner());
    let permit = Mode::Permit { of: 1 };
    granted(store.ask_as(permit, &key, holder).await);
    expired_places(&store, permit, last).await;
    store.free_as(permit, &key, last).await;
    store.free_as(permit, &key, holder).await;
    granted(store.ask(&key, owner()).await);
}

#[tokio::test]
async fn an_attempt_behind_many_expired_places_is_told_of_the_free_key() {
    let (server, store) = server_and_patient_store().await;
    let (key, holder, live) = (key("k"), owner(), owner());
    let mut hints = store.watch_for_sure(live.instance).await;
    store.take(&key, holder).await;
    expired_places(&store, Mode::Exclusive, live).await;
    store.free(&key, holder).await;
    let told = async { while !matches!(hints.recv().await.unwrap(), Hint::Free(_)) {} };
    timeout(PATIENCE, told).await.expect("the attempt is told");
    // Each question removes more of the places, and is followed by the next one at once.
    while let Acquired::Held(held) = store.queue(&key, live).await {
        assert_eq!(held.remaining, Duration::ZERO);
    }
    store.free(&key, live).await;
    assert_eq!(server.leftovers().await, [""; 0]);
}

#[tokio::test]
async fn an_inspection_lists_the_first_thousand_in_their_order() {
    let (_server, store) = server_and_patient_store().await;
    let (key, writer) = (key("k"), owner());
    let readers: Vec<Owner> = (0..1010).map(|_| owner()).collect();
    let asks = |reader: &Owner| {
        let request = in_mode(Mode::Shared, attempt(&key, *reader));
        store.ask_for(keeps_place_for(LONG, request))
    };
    store.take(&key, writer).await;
    for answer in join_all(readers.iter().map(asks)).await {
        held(answer.unwrap());
    }
    let seen = store.see(&key).await;
    assert_eq!(seen.holders.len(), 1, "the writer is listed once");
    assert_eq!(seen.queue, readers[..1000]);
    store.free(&key, writer).await;
    for page in readers.chunks(30) {
        for answer in join_all(page.iter().map(asks)).await {
            granted(answer.unwrap());
        }
    }
    held(store.queue(&key, writer).await);
    let seen = store.see(&key).await;
    let holders: Vec<Owner> = seen.holders.iter().map(|holder| holder.owner).collect();
    // Leases that end in the same millisecond have no order of their own.
    assert_eq!(holders.len(), 1000);
    assert!(holders.iter().all(|holder| readers.contains(holder)));
    let mut sorted = sorted(holders);
    sorted.dedup();
    assert_eq!(sorted.len(), 1000, "each holder is listed once");
    assert_eq!(seen.queue, [writer]);
}
