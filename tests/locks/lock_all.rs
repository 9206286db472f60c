//! Several keys at once.

use tokio::time::sleep;
use tower_distributed_lock::{Loss, store::Fault};

use crate::support::{MS, SECOND, fleet, fleet_with, nothing_left, settle};

/// Fault: keys that were locked first were not looked at again after the wait for later ones.
#[tokio::test(start_paused = true)]
async fn no_guard_that_lock_all_returns_is_lost() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("b").await.unwrap();
    let all = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock_all(["a", "b"]).await.unwrap() }
    });
    settle().await;
    // While it waits for the second key, the store forgets everything.
    store.restart();
    drop(elsewhere);
    let guards = all.await.unwrap();
    assert!(guards.iter().all(|guard| guard.is_held()), "{guards:?}");
    drop(guards);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_later_keys_does_not_count_for_how_long_the_first_may_be_held() {
    let (store, [locks, other]) = fleet_with(|builder| builder.max_hold(10 * SECOND));
    let elsewhere = other.lock("b").await.unwrap();
    let all = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock_all(["a", "b"]).await.unwrap() }
    });
    sleep(9 * SECOND).await;
    drop(elsewhere);
    let guards = all.await.unwrap();
    sleep(9 * SECOND).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    sleep(SECOND + MS).await;
    assert_eq!(guards[0].lost().await, Loss::MaxHold);
    drop(guards);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_first_key_that_is_lost_during_the_wait_is_locked_again() {
    let (store, [locks, other]) = fleet_with(|builder| builder.max_hold(10 * SECOND));
    let elsewhere = other.lock("b").await.unwrap();
    let all = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock_all(["a", "b"]).await.unwrap() }
    });
    // The store hangs for longer than the lease of the first key lasts.
    sleep(SECOND).await;
    store.set_fault(Some(Fault::Hang));
    sleep(40 * SECOND).await;
    store.set_fault(None);
    drop(elsewhere);
    let guards = all.await.unwrap();
    assert!(guards.iter().all(|guard| guard.is_held()), "{guards:?}");
    drop(guards);
    nothing_left(store, [locks, other]).await;
}
