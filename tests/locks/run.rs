//! Futures that run under a guard, and losses that are watched without holding the key.

use std::{pin::pin, task::Poll};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use tower_distributed_lock::{
    ErrorKind, LockGuard, Loss,
    store::{Fault, Store},
};

use crate::support::{
    SECOND, VALIDITY, fleet, key, nothing_left, pause_of_the_process, poll_once, settle,
};

#[tokio::test(start_paused = true)]
async fn a_future_runs_to_its_end_while_the_lease_is_held() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let work = async {
        sleep(100 * SECOND).await;
        "done"
    };
    assert_eq!(guard.run(work).await.unwrap(), "done");
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_ends_the_future() {
    let (store, [locks]) = fleet();
    let guards = locks.lock_all(["a", "b"]).await.unwrap();
    store.force_release(key("b")).await.unwrap();
    let forever = std::future::pending::<()>();
    let error = LockGuard::run_with(&guards, forever).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    // A lost guard begins no further future.
    let begun = async { unreachable!("begun under a lost lease") };
    let error = guards[1].run(begun).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(guards);
    nothing_left(store, [locks]).await;
}

/// Fault: the future went on beside the next holder.
#[tokio::test(start_paused = true)]
async fn a_release_by_a_clone_ends_the_future() {
    let (store, [locks]) = fleet();
    for is_shared in [false, true] {
        let guard = locks.lock("k").await.unwrap();
        if is_shared {
            guard.downgrade().await.unwrap();
        }
        let clone = guard.clone();
        let running = tokio::spawn(async move {
            let forever = std::future::pending::<()>();
            guard.run(forever).await.unwrap_err().kind()
        });
        settle().await;
        clone.release().await.unwrap();
        let ended = timeout(SECOND, running).await.expect("the future goes on");
        assert_eq!(ended.unwrap(), ErrorKind::Lost);
    }
    let guard = locks.lock("k").await.unwrap();
    guard.clone().release().await.unwrap();
    let begun = async { unreachable!("begun after the release") };
    let error = guard.run(begun).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(guard);
    nothing_left(store, [locks]).await;
}

/// Fault: a future that was woken before the scheduler went on for one more step.
#[tokio::test(start_paused = true)]
async fn a_future_woken_after_a_pause_of_the_process_makes_no_further_step() {
    let (store, [locks]) = fleet();
    let guards = locks.lock_all(["a", "b"]).await.unwrap();
    let (wake, woken) = oneshot::channel();
    let mut running = Box::pin(LockGuard::run_with(&guards, async {
        woken.await.unwrap();
        unreachable!("the leases have expired")
    }));
    assert!(poll_once(running.as_mut()).await.is_pending());
    pause_of_the_process(VALIDITY).await;
    wake.send(()).unwrap();
    let Poll::Ready(Err::<(), _>(error)) = poll_once(running.as_mut()).await else {
        panic!("the future goes on");
    };
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(running);
    drop(guards);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_is_awaited_is_found_by_the_clock_before_any_timer_has_fired() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    {
        let mut lost = pin!(guard.lost());
        assert!(poll_once(lost.as_mut()).await.is_pending());
        pause_of_the_process(VALIDITY).await;
        let loss = poll_once(lost.as_mut()).await;
        assert_eq!(loss, Poll::Ready(Loss::Expired));
    }
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_watcher_does_not_hold_the_key() {
    let (store, [locks]) = fleet();
    {
        let guard = locks.lock("k").await.unwrap();
        let mut lost = pin!(guard.watch());
        assert!(poll_once(lost.as_mut()).await.is_pending());
        drop(guard);
        drop(
            locks
                .lock("k")
                .now()
                .await
                .unwrap()
                .expect("the key is free"),
        );
    }

    let guard = locks.lock("k").await.unwrap();
    let lost = guard.watch();
    store.force_release(key("k")).await.unwrap();
    assert_eq!(lost.await, Loss::NotOurs);
    assert_eq!(guard.confirm().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    nothing_left(store, [locks]).await;
}

/// Fault: a lease that had run out locally counted as one that the store had given to another
/// owner.
#[tokio::test(start_paused = true)]
async fn a_confirmation_that_comes_after_the_lease_has_expired_says_expired() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Mute));
    let confirming = tokio::spawn({
        let guard = guard.clone();
        async move { guard.confirm().await }
    });
    sleep(VALIDITY).await;
    store.set_fault(None);
    let error = confirming.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("before its deadline"), "{error}");
    assert_eq!(guard.lost().await, Loss::Expired);
    drop(guard);
    nothing_left(store, [locks]).await;
}
