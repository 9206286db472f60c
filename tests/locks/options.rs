//! The options of one request: how long the lease and the turn last, and which of them go together.

use std::{pin::pin, time::Duration};

use tokio::time::advance;
use tower_distributed_lock::{
    ErrorKind, Locks, Loss,
    store::{MemoryStore, Mode},
};

use crate::support::{MS, SECOND, fleet, inspect, nothing_left, settle};

#[tokio::test(start_paused = true)]
async fn a_lease_of_its_own_is_what_the_store_keeps() {
    let (store, [a]) = fleet();
    let usual = a.lock("usual").await.unwrap();
    let own = a.lock("own").lease(5 * SECOND).await.unwrap();
    let remaining = async |key| inspect(&store, key).await.holders[0].remaining;
    assert!(remaining("usual").await > 20 * SECOND);
    let own_remains = remaining("own").await;
    assert!(own_remains <= 5 * SECOND, "{own_remains:?}");
    drop((usual, own));
    nothing_left(store, [a]).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_after_its_own_time() {
    let (store, [a]) = fleet();
    let both = a.lock_all(["k", "l"]).max_hold(2 * SECOND).await.unwrap();
    let permit = a.permit("p", 1).max_hold(2 * SECOND).await.unwrap();
    advance(1_900 * MS).await;
    settle().await;
    assert!(both.iter().chain([&permit]).all(|guard| guard.is_held()));
    advance(200 * MS).await;
    for guard in both.iter().chain([&permit]) {
        assert_eq!(guard.lost().await, Loss::MaxHold);
    }
    drop((both, permit));
    nothing_left(store, [a]).await;
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_shared_together() {
    let (store, [a, b]) = fleet();
    let reading = a.lock_all(["k", "l"]).shared().await.unwrap();
    assert!(reading.iter().all(|guard| guard.mode() == Mode::Shared));
    let also = b.lock_all(["l", "k"]).shared().now().await.unwrap();
    assert!(also.is_some());
    assert!(b.lock_all(["l", "m"]).now().await.unwrap().is_none());
    // A guard in hand that shares a key is enough to share it, and not to have it alone.
    let more = a.lock_all(["k", "m"]).shared().with(&reading).await;
    assert_eq!(more.as_ref().unwrap()[0].token(), reading[0].token());
    let error = a.lock_all(["k"]).with(&reading).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    drop((reading, also, more));
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn options_that_cannot_work_are_refused_with_the_reason() {
    let locks = Locks::in_memory();
    let refused = [
        (locks.permit("k", 2).shared().await, "cannot be shared"),
        (locks.permit("k", 0).await, "0 permits"),
        (locks.lock("k").lease(2 * MS).await, "2ms"),
        (
            locks.lock("k").max_hold(Duration::ZERO).await,
            "`max_hold` of 0ns",
        ),
        (
            locks.permit("k", 0).now().await.map(|_| unreachable!()),
            "0 permits",
        ),
    ];
    for (outcome, reason) in refused {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(locks.stats().keys, 0);
}

/// The common interval is longer than the whole lease of the request.
#[tokio::test(start_paused = true)]
async fn a_lease_of_its_own_is_renewed_at_its_own_third() {
    let store = MemoryStore::new();
    let builder = Locks::builder(store).lease(30 * SECOND);
    let locks = builder.renew_every(10 * SECOND).build().unwrap();
    let guard = locks.lock("k").lease(3 * SECOND).await.unwrap();
    for _ in 0..20 {
        advance(500 * MS).await;
        settle().await;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_first_poll() {
    let (store, [a]) = fleet();
    drop(a.lock("k").shared().within(SECOND));
    drop(a.lock_all(["k", "l"]).now());
    assert_eq!(store.calls().acquires, 0);
    nothing_left(store, [a]).await;
}

#[tokio::test(start_paused = true)]
async fn a_future_that_has_failed_and_lives_on_takes_no_turn() {
    let (store, [a]) = fleet();
    {
        let guard = a.lock("k").await.unwrap();
        let mut gives_up = pin!(a.lock("k").within(SECOND));
        assert!(gives_up.as_mut().await.is_err());
        let mut refused = pin!(a.lock("k").now());
        assert!(refused.as_mut().await.unwrap().is_none());
        drop(guard);
        assert!(a.lock("k").within(SECOND).await.is_ok());
    }
    nothing_left(store, [a]).await;
}
