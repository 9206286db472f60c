//! A graceful end.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_distributed_lock::{ErrorKind, Loss, Status, store::Fault};

use crate::support::{SECOND, fleet, inspect, nothing_left, poll_once, settle};

#[tokio::test(start_paused = true)]
async fn turns_under_way_may_finish_and_no_further_turn_begins() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("here").await.unwrap();
    let elsewhere = other.lock("there").await.unwrap();
    let waiting = ["here", "here", "there"].map(|key| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock(key).await.unwrap_err().kind() })
    });
    settle().await;

    let began = Instant::now();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(60 * SECOND).await }
    });
    settle().await;
    assert!(locks.is_closed());
    for refused in waiting {
        assert_eq!(refused.await.unwrap(), ErrorKind::Closed);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(
        locks.lock("new").await.unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_eq!(
        locks.lock("new").now().await.unwrap_err().kind(),
        ErrorKind::Closed
    );
    settle().await;
    assert_eq!(inspect(&store, "there").await.queue, []);

    sleep(50 * SECOND).await;
    assert!(guard.is_held(), "renewed all the while");
    assert!(!closing.is_finished());
    drop(guard);
    assert!(closing.await.unwrap().is_complete());
    assert_eq!(began.elapsed(), 50 * SECOND);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn turns_that_do_not_finish_in_time_are_lost_and_then_released() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let told = tokio::spawn({
        let guard = guard.clone();
        async move { guard.lost().await }
    });
    let next = tokio::spawn({
        let other = other.clone();
        async move { other.lock("k").await.unwrap() }
    });
    settle().await;
    let began = Instant::now();
    let closed = locks.close(5 * SECOND).await;
    assert_eq!(began.elapsed(), 5 * SECOND);
    assert!(closed.is_complete(), "{closed:?}");
    assert_eq!(guard.status(), Status::Lost(Loss::Closed));
    assert_eq!(told.await.unwrap(), Loss::Closed);
    drop(next.await.unwrap());
    drop(guard);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_is_reported_before_the_key_is_free() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Hang));
    let mut closing = Box::pin(locks.close(Duration::ZERO));
    while guard.is_held() {
        assert!(poll_once(closing.as_mut()).await.is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(guard.status(), Status::Lost(Loss::Closed));
    drop(closing);
    store.set_fault(None);
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_although_the_store_does_not_answer() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Hang));
    let contender = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("another").await.unwrap_err().kind() }
    });
    settle().await;
    let began = Instant::now();
    let closed = locks.close(5 * SECOND).await;
    assert_eq!(
        began.elapsed(),
        7 * SECOND,
        "the grace, and 2 s for releases"
    );
    assert!(!closed.is_complete());
    assert_eq!((closed.stats.releases, closed.stats.waiting), (1, 0));
    assert_eq!(contender.await.unwrap(), ErrorKind::Closed);
    drop(guard);
    store.set_fault(None);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_granted_after_the_end_is_given_back() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let contender = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.unwrap_err().kind() }
    });
    settle().await;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(5 * SECOND).await }
    });
    settle().await;
    assert!(!store.is_empty(), "granted, but nobody here knows");
    store.set_fault(None);
    closing.await.unwrap();
    assert_eq!(contender.await.unwrap(), ErrorKind::Closed);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn closing_twice_at_once_with_the_shorter_grace_wins() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let began = Instant::now();
    tokio::join!(locks.close(60 * SECOND), locks.close(2 * SECOND));
    assert_eq!(began.elapsed(), 2 * SECOND);
    assert_eq!(guard.status(), Status::Lost(Loss::Closed));
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn closing_that_was_cancelled_can_go_on() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let cut_short = tokio::time::timeout(SECOND, locks.close(60 * SECOND)).await;
    assert!(cut_short.is_err());
    assert!(locks.is_closed());
    assert!(guard.is_held());
    locks.close(Duration::ZERO).await;
    assert_eq!(guard.status(), Status::Lost(Loss::Closed));
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn closing_unused_locks_takes_no_time() {
    let (store, [locks]) = fleet();
    let began = Instant::now();
    locks.close(60 * SECOND).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    nothing_left(store, [locks]).await;
}
