//! Outside of runtimes, while they shut down, and over several of them. On real time, as they share no clock.

use std::{
    num::NonZeroU32,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use tokio::runtime::{Builder, Runtime};
use tower_distributed_lock::{
    ErrorKind, LockGuard, Locks, LocksBuilder, Loss, Stats, store::Fault,
};

use crate::support::{MS, SECOND, eventually, fleet, fleet_with, poll_once};

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap()
}

fn runtimes() -> [Runtime; 2] {
    [one_thread(), two_threads()]
}

/// Fails instead of waiting for a lease to expire.
async fn promptly<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(10 * SECOND, future)
        .await
        .expect("this should not have to wait for a lease to expire")
}

#[test]
fn a_guard_dropped_outside_of_a_runtime_is_released_by_the_one_that_runs() {
    let runtime = two_threads();
    let (store, [locks]) = fleet();
    let guard = runtime.block_on(locks.lock("k")).unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    runtime.block_on(eventually(|| store.is_empty()));
    runtime.block_on(eventually(|| locks.stats() == Stats::default()));
}

#[test]
fn a_guard_can_outlive_its_runtime() {
    for runtime in runtimes() {
        let (_store, [locks]) = fleet();
        let guard = runtime.block_on(locks.lock("k")).unwrap();
        drop(runtime);
        assert!(guard.is_held());
        drop(guard);
        assert_eq!(locks.stats(), Stats::default());
    }
}

#[test]
fn guards_waiters_and_contenders_dropped_by_a_shutdown_do_not_panic() {
    for runtime in runtimes() {
        let (store, [locks, other]) = fleet();
        runtime.block_on(async {
            let guard = other.lock("elsewhere").await.unwrap();
            for key in ["held", "elsewhere", "hanging"] {
                if key == "hanging" {
                    tokio::task::yield_now().await;
                    store.set_fault(Some(Fault::Hang));
                }
                for _ in 0..5 {
                    let (locks, guard) = (locks.clone(), guard.clone());
                    tokio::spawn(async move {
                        let _both = (locks.lock(key).await, guard);
                        std::future::pending::<()>().await;
                    });
                }
            }
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        // The store cleans up the calls that hang, in order.
        store.set_fault(None);
        assert_eq!(locks.stats(), Stats::default());
        assert_eq!(other.stats(), Stats::default());
    }
}

#[test]
fn outside_of_a_runtime_a_lock_is_refused() {
    let (store, [locks]) = fleet();
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = pin!(locks.lock("k")).poll(&mut context) else {
        panic!("nothing to wait for");
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(store.is_empty());
    assert_eq!(locks.stats(), Stats::default());
}

/// A guard of a runtime that is gone.
fn orphan(locks: &Locks) -> LockGuard {
    one_thread().block_on(locks.lock("k")).unwrap()
}

#[test]
fn locks_that_have_lost_their_runtime_go_on_with_the_next() {
    let (store, [locks, other]) = fleet();
    let guard = orphan(&locks);
    one_thread().block_on(async {
        // The drop is the only use that the instance has of this runtime.
        drop(guard);
        drop(promptly(other.lock("k")).await.unwrap());
        eventually(|| store.is_empty()).await;
    });
}

/// Renewals come so often that no test waits for one, and leases are so long that a busy machine loses none.
fn often(builder: LocksBuilder) -> LocksBuilder {
    builder
        .lease(10 * SECOND)
        .renew_every(20 * MS)
        .give_up_after(NonZeroU32::MIN)
}

#[test]
fn a_guard_that_has_lost_its_runtime_is_renewed_on_the_runtime_of_its_watcher() {
    let (store, [locks]) = fleet_with(often);
    let guard = orphan(&locks);
    one_thread().block_on(async {
        tokio::select! {
            loss = guard.lost() => panic!("lost: {loss}"),
            () = eventually(|| store.calls().renewals >= 3) => {}
        }
        store.set_fault(Some(Fault::Unreachable));
        assert_eq!(promptly(guard.lost()).await, Loss::GaveUp);
        store.set_fault(None);
        drop(guard);
        eventually(|| store.is_empty()).await;
    });
}

#[test]
fn a_watcher_of_a_loss_notices_the_end_of_the_schedulers_runtime() {
    let (store, [locks]) = fleet_with(often);
    let (first, second) = (one_thread(), two_threads());
    let guard = first.block_on(locks.lock("k")).unwrap();
    let watching = Arc::<AtomicBool>::default();
    let told = second.spawn({
        let (guard, watching) = (guard.clone(), watching.clone());
        async move {
            let mut lost = pin!(guard.lost());
            assert!(poll_once(lost.as_mut()).await.is_pending());
            watching.store(true, Ordering::Release);
            lost.await
        }
    });
    second.block_on(eventually(|| watching.load(Ordering::Acquire)));
    drop(first);
    store.set_fault(Some(Fault::Unreachable));
    assert_eq!(second.block_on(promptly(told)).unwrap(), Loss::GaveUp);
    store.set_fault(None);
    drop(guard);
}

#[test]
fn a_renewal_that_ended_with_its_runtime_is_sent_again_by_the_next() {
    let (store, [locks]) = fleet_with(|builder| often(builder).give_up_after(NonZeroU32::MAX));
    let runtime = one_thread();
    let guard = runtime.block_on(async {
        let guard = locks.lock("k").await.unwrap();
        store.set_fault(Some(Fault::Hang));
        eventually(|| store.calls().renewals == 1).await;
        guard
    });
    drop(runtime);
    store.set_fault(None);
    two_threads().block_on(async {
        tokio::select! {
            loss = guard.lost() => panic!("lost: {loss}"),
            () = eventually(|| store.calls().renewals >= 4) => {}
        }
        drop(guard);
        eventually(|| store.is_empty()).await;
    });
}

#[test]
fn a_waiter_on_another_runtime_waits_on_when_the_runtime_of_the_scheduler_ends() {
    let (store, [locks, other]) = fleet();
    let (first, second) = (one_thread(), two_threads());
    let elsewhere = second.block_on(other.lock("k")).unwrap();
    // The scheduler runs on the first runtime from here on.
    drop(first.block_on(locks.lock("unrelated")).unwrap());
    let waiting = second.spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.map(drop) }
    });
    second.block_on(eventually(|| locks.stats().calls == 1));
    drop(first);
    drop(elsewhere);
    second.block_on(promptly(waiting)).unwrap().unwrap();
    second.block_on(eventually(|| store.is_empty()));
}

#[test]
fn a_runtime_without_a_clock_is_refused() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let (store, [locks]) = fleet();
    let error = runtime.block_on(locks.lock("k")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("enable_time"), "{error}");
    assert!(store.is_empty());
    assert_eq!(locks.stats(), Stats::default());
}

/// A runtime of one thread stands still between two calls of `block_on`, and with it the scheduler.
#[test]
fn a_loss_is_reported_while_the_runtime_of_the_scheduler_is_not_driven() {
    let (store, [locks]) = fleet_with(|builder| builder.lease(SECOND).poll_interval(100 * MS));
    let (idle, driven) = (one_thread(), one_thread());
    let guard = idle.block_on(locks.lock("k")).unwrap();
    store.set_fault(Some(Fault::Unreachable));
    assert_eq!(driven.block_on(promptly(guard.lost())), Loss::Expired);
    assert!(!guard.is_held());
    store.set_fault(None);
    drop(guard);
    assert!(store.is_empty());
}

#[test]
fn the_end_of_max_hold_is_reported_while_the_runtime_of_the_scheduler_is_not_driven() {
    let (_store, [locks]) = fleet_with(|builder| builder.max_hold(200 * MS));
    let (idle, driven) = (one_thread(), one_thread());
    let guard = idle.block_on(locks.lock("k")).unwrap();
    assert_eq!(driven.block_on(promptly(guard.lost())), Loss::MaxHold);
}

#[test]
fn a_lease_is_passed_on_while_the_runtime_of_the_scheduler_is_not_driven() {
    let (store, [locks]) = fleet_with(|builder| builder.lease(60 * SECOND));
    let (idle, driven) = (one_thread(), one_thread());
    let guard = idle.block_on(locks.lock("k")).unwrap();
    driven.block_on(async {
        let (waiter, waiting) = (locks.clone(), locks.clone());
        let waiter = tokio::spawn(async move { waiter.lock("k").await });
        while waiting.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        promptly(guard.release()).await.unwrap();
        drop(promptly(waiter).await.unwrap().unwrap());
        assert!(store.is_empty());
        promptly(eventually(|| locks.stats() == Stats::default())).await;
    });
}
