//! What operators see and do through `Locks`.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_distributed_lock::{
    ErrorKind, HeldKey, Locks, Loss, Status,
    store::{Fault, List, Mode},
};

use crate::support::{SECOND, fleet, holder, nothing_left, settle};

#[tokio::test(start_paused = true)]
async fn a_guard_the_held_keys_and_the_store_name_the_same_owner() {
    let (store, [locks, other]) = fleet();
    assert_ne!(locks.instance(), other.instance());
    assert_eq!(locks.clone().instance(), locks.instance());
    let guard = locks.lock("k").await.unwrap();
    assert_eq!(guard.owner().instance, locks.instance());
    assert_eq!(guard.owner(), holder(&store, "k").await);

    let [HeldKey { key, leases, .. }] = &locks.held()[..] else {
        panic!("one key is held: {:?}", locks.held());
    };
    assert_eq!(key.as_str(), "k");
    assert_eq!(leases[0].owner, guard.owner());
    assert_eq!(leases[0].token, Some(guard.token()));
    assert_eq!((leases[0].mode, leases[0].turns), (Mode::Exclusive, 1));
    assert_eq!(leases[0].loss, None);
    assert_eq!(other.held(), []);
    // The fleet's view is the same from everywhere.
    let seen = other.inspect("k").await.unwrap();
    assert_eq!(seen.holder().unwrap().owner, guard.owner());
    drop(guard);
    assert_eq!(locks.held(), []);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn held_tells_the_longest_of_several_turns_of_a_shared_lease() {
    let (store, [locks, other]) = fleet();
    let held_for = || locks.held()[0].leases[0].held_for;
    let first = locks.lock("k").shared().await.unwrap();
    sleep(2 * SECOND).await;
    let second = locks.lock("k").shared().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(held_for(), 3 * SECOND);
    let refused = locks.lock("k").within(SECOND).await.unwrap_err();
    assert!(refused.to_string().contains("for 4000 ms"), "{refused}");
    drop(first);
    assert_eq!(held_for(), 2 * SECOND);
    drop(second);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn held_tells_how_long_the_turn_and_the_first_request_last() {
    let (store, [locks, other]) = fleet();
    let first = locks.lock("k").await.unwrap();
    let waiting = ["k", "k"].map(|key| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock(key).await.unwrap() })
    });
    let elsewhere = {
        let other = other.clone();
        tokio::spawn(async move { other.lock("k").await.unwrap() })
    };
    settle().await;
    sleep(3 * SECOND).await;
    let held = locks.held();
    assert_eq!(
        (held[0].waiting, held[0].longest_wait),
        (2, Some(3 * SECOND))
    );
    assert_eq!(held[0].leases[0].held_for, 3 * SECOND);
    assert!(held[0].leases[0].remaining > 26 * SECOND);
    let only_waits = other.held();
    assert_eq!(only_waits[0].leases, []);
    assert_eq!(only_waits[0].waiting, 1);

    let [second, third] = waiting;
    drop(first);
    let second = second.await.unwrap();
    let held = locks.held();
    assert_eq!(held[0].leases[0].held_for, Duration::ZERO, "another turn");
    assert_eq!(held[0].leases[0].token, Some(second.token()));
    assert_eq!(held[0].waiting, 1);
    drop(second);
    drop(elsewhere.await.unwrap());
    drop(third.await.unwrap());
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn held_has_the_token_of_the_turn_under_way() {
    let (store, [locks]) = fleet();
    let first = locks.lock("k").await.unwrap();
    let next = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock("k").await.unwrap() })
    };
    settle().await;
    let owner = first.owner();
    drop(first);
    let next = next.await.unwrap();
    assert_eq!(next.owner(), owner, "the lease was passed on");
    assert_eq!(locks.held()[0].leases[0].token, Some(next.token()));
    drop(next);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_is_a_loss_for_the_holder_and_a_turn_for_the_next() {
    let (store, [locks, other]) = fleet();
    assert!(!other.force_release("k").await.unwrap(), "the key is free");
    let guard = locks.lock("k").await.unwrap();
    let next = {
        let other = other.clone();
        tokio::spawn(async move { other.lock("k").await.unwrap() })
    };
    settle().await;
    assert!(other.force_release("k").await.unwrap());
    let next = next.await.unwrap();
    assert!(guard.is_held(), "the holder is told at its next renewal");
    assert!(next.token() > guard.token(), "only tokens tell them apart");
    assert_eq!(guard.lost().await, Loss::NotOurs);
    assert_eq!(guard.status(), Status::Lost(Loss::NotOurs));
    assert!(next.is_held());
    drop((guard, next));
    nothing_left(store, [locks, other]).await;
}

/// Fault: the lease was passed on for up to a third of its length, beside the next holder.
#[tokio::test(start_paused = true)]
async fn a_forced_release_of_a_key_that_the_same_instance_holds_is_a_loss_at_once() {
    let (store, [locks, other]) = fleet();
    let (guard, unrelated) = (
        locks.lock("k").await.unwrap(),
        locks.lock("unrelated").await.unwrap(),
    );
    let waiting = |locks: &Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock("k").await.unwrap() })
    };
    let elsewhere = waiting(&other);
    settle().await;
    let here = waiting(&locks);
    settle().await;
    let renewals = store.calls().renewals;
    assert!(locks.force_release("k").await.unwrap());
    // The turn ends before the loss is known, and the lease must not be passed on.
    let began = Instant::now();
    drop(guard);
    let elsewhere = elsewhere.await.unwrap();
    settle().await;
    assert!(!here.is_finished() && elsewhere.is_held());
    assert!(unrelated.is_held());
    assert_eq!(store.calls().renewals, renewals + 1, "one key is concerned");
    drop(elsewhere);
    drop(here.await.unwrap());
    assert_eq!(began.elapsed(), Duration::ZERO);

    let guard = locks.lock("k").await.unwrap();
    assert!(locks.force_release("k").await.unwrap());
    assert_eq!(guard.lost().await, Loss::NotOurs);
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop((guard, unrelated));
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_no_key_is_refused() {
    let (store, [locks]) = fleet();
    for error in [
        locks.inspect("").await.unwrap_err(),
        locks.force_release("a\nb").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
    }
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_ping_tells_whether_turns_can_be_had() {
    let (store, [locks]) = fleet();
    locks.ping().await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let error = locks.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let listed = locks.list(List::all()).await;
    assert_eq!(listed.unwrap_err().kind(), ErrorKind::Unreachable);
    store.set_fault(None);
    locks.ping().await.unwrap();
    locks.close(SECOND).await;
    let error = locks.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_listing_has_the_keys_of_the_whole_fleet() {
    let (store, [locks, other]) = fleet();
    let here = locks.lock("orders/1").await.unwrap();
    let there = other.lock("orders/2").await.unwrap();
    let unwanted = other.lock("users/1").await.unwrap();
    let page = locks.list(List::starting_with("orders/")).await.unwrap();
    let keys: Vec<&str> = page.keys.iter().map(|key| key.as_str()).collect();
    assert_eq!(keys, ["orders/1", "orders/2"]);
    assert_eq!(page.next, None);
    drop((here, there, unwanted));
    nothing_left(store, [locks, other]).await;
}
