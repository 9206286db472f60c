//! Outside of runtimes, while they shut down, and over several of them. On real time, as they share
//! no clock.

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
    Background, ErrorKind, LockGuard, Locks, LocksBuilder, Loss, Stats,
    store::{Fault, FaultyStore},
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

/// Renewals come so often that no test waits for one, and leases are so long that a busy machine
/// loses none.
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

/// The background is on the given runtime from here on.
fn background_on(runtime: &Runtime, locks: &Locks) {
    drop(runtime.block_on(locks.lock("unrelated")).unwrap());
}

/// A runtime of one thread stands still between two calls of `block_on`.
#[test]
fn a_request_that_gave_up_on_a_runtime_that_stands_still_leaves_the_key_obtainable() {
    let (driven, idle) = (two_threads(), one_thread());
    for background in [Background::Current, Background::On(driven.handle().clone())] {
        let (store, [locks, other]) = fleet_with(|it| it.background(background.clone()));
        let elsewhere = driven.block_on(other.lock("k")).unwrap();
        if matches!(background, Background::Current) {
            background_on(&driven, &locks);
        }
        let gave_up = idle.block_on(locks.lock("k").within(50 * MS));
        assert_eq!(gave_up.unwrap_err().kind(), ErrorKind::Held);
        drop(elsewhere);
        drop(driven.block_on(promptly(locks.lock("k"))).unwrap());
        driven.block_on(nothing_is_left(&store, &locks));
    }
}

async fn nothing_is_left(store: &FaultyStore, locks: &Locks) {
    eventually(|| locks.stats() == Stats::default()).await;
    eventually(|| store.is_empty()).await;
}

#[test]
fn with_a_thread_of_its_own_no_runtime_has_to_be_driven() {
    let (store, [locks, other]) = fleet_with(|builder| builder.background(Background::Thread));
    let (idle, next) = (one_thread(), one_thread());
    let elsewhere = next.block_on(other.lock("k")).unwrap();
    let gave_up = idle.block_on(locks.lock("k").within(50 * MS));
    assert_eq!(gave_up.unwrap_err().kind(), ErrorKind::Held);
    drop(elsewhere);
    drop(next.block_on(promptly(locks.lock("k"))).unwrap());
    next.block_on(nothing_is_left(&store, &locks));
}

#[test]
fn with_a_thread_of_its_own_a_handler_that_blocks_its_runtime_costs_no_lease() {
    let (store, [locks]) = fleet_with(|builder| {
        let builder = builder.background(Background::Thread);
        builder.lease(2 * SECOND).renew_every(50 * MS)
    });
    one_thread().block_on(async {
        let guard = locks.lock("k").await.unwrap();
        std::thread::sleep(4 * SECOND);
        assert!(guard.is_held());
        guard.release().await.unwrap();
        nothing_is_left(&store, &locks).await;
    });
}

#[test]
fn with_a_thread_of_its_own_a_lease_is_renewed_although_the_runtime_of_its_guard_has_ended() {
    let (store, [locks]) = fleet_with(|builder| often(builder).background(Background::Thread));
    let guard = orphan(&locks);
    let before = store.calls().renewals;
    one_thread().block_on(eventually(|| store.calls().renewals >= before + 3));
    drop(guard);
    one_thread().block_on(nothing_is_left(&store, &locks));
}

#[test]
fn the_work_goes_on_where_it_is_used_if_the_given_runtime_has_ended() {
    let ended = one_thread();
    let background = Background::On(ended.handle().clone());
    drop(ended);
    let (store, [locks, other]) = fleet_with(|it| often(it).background(background.clone()));
    two_threads().block_on(async {
        let guard = locks.lock("k").await.unwrap();
        eventually(|| store.calls().renewals >= 3).await;
        let waiting = tokio::spawn(async move { other.lock("k").await.map(drop) });
        drop(guard);
        promptly(waiting).await.unwrap().unwrap();
        nothing_is_left(&store, &locks).await;
    });
}

#[test]
fn requests_on_a_living_runtime_wait_on_when_the_runtime_of_the_background_ends() {
    for ending in runtimes() {
        let (store, [locks, other]) = fleet();
        let living = two_threads();
        let elsewhere = living.block_on(other.lock("k")).unwrap();
        background_on(&ending, &locks);
        let wait = || {
            let locks = locks.clone();
            async move { locks.lock("k").await.map(drop) }
        };
        // The contender has asked for the first request, and pauses in the background.
        ending.spawn(wait());
        ending.block_on(eventually(|| locks.stats().calls == 1));
        let waiting = [living.spawn(wait()), living.spawn(wait())];
        living.block_on(eventually(|| locks.stats().waiting == 3));
        drop(ending);
        living.block_on(eventually(|| locks.stats().waiting == 2));
        drop(elsewhere);
        for waiting in waiting {
            living.block_on(promptly(waiting)).unwrap().unwrap();
        }
        living.block_on(nothing_is_left(&store, &locks));
    }
}

#[test]
fn a_question_under_way_is_asked_again_when_the_runtime_of_the_background_ends() {
    let (store, [locks]) = fleet();
    let (ending, living) = (one_thread(), two_threads());
    background_on(&ending, &locks);
    store.set_fault(Some(Fault::Hang));
    let wait = || {
        let locks = locks.clone();
        async move { locks.lock("k").await.map(drop) }
    };
    let waiting = [living.spawn(wait()), living.spawn(wait())];
    // The question has moved to the background with the second request.
    ending.block_on(eventually(|| locks.stats().calls == 1));
    drop(ending);
    store.set_fault(None);
    for waiting in waiting {
        living.block_on(promptly(waiting)).unwrap().unwrap();
    }
    living.block_on(nothing_is_left(&store, &locks));
}

#[test]
fn a_request_that_is_not_polled_any_more_does_not_keep_its_question_from_others() {
    let (store, [locks]) = fleet();
    let (driven, idle) = (two_threads(), one_thread());
    background_on(&driven, &locks);
    store.set_fault(Some(Fault::Hang));
    let mut first = pin!(locks.lock("k").shared());
    assert!(idle.block_on(poll_once(first.as_mut())).is_pending());
    let second = driven.spawn({
        let locks = locks.clone();
        async move { locks.lock("k").shared().await.map(drop) }
    });
    driven.block_on(eventually(|| locks.stats().waiting == 2));
    store.set_fault(None);
    driven.block_on(promptly(second)).unwrap().unwrap();
    drop(idle.block_on(first).unwrap());
    driven.block_on(nothing_is_left(&store, &locks));
}

#[test]
fn a_renewal_that_ended_with_its_runtime_does_not_count_as_unanswered() {
    let (store, [locks]) = fleet_with(often);
    let (ending, living) = (one_thread(), two_threads());
    let guard = ending.block_on(locks.lock("k")).unwrap();
    store.set_fault(Some(Fault::Hang));
    ending.block_on(eventually(|| store.calls().renewals >= 1));
    drop(ending);
    store.set_fault(None);
    living.block_on(async {
        drop(locks.lock("unrelated").await.unwrap());
        let before = store.calls().renewals;
        eventually(|| store.calls().renewals >= before + 3).await;
        assert!(guard.is_held(), "{:?}", guard.status());
        drop(guard);
        nothing_is_left(&store, &locks).await;
    });
}
