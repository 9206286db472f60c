//! A loss is reported once and for good, to every guard of the lost turn and to no other.

use std::pin::pin;

use futures_util::StreamExt;
use tokio::time::{Instant, sleep, timeout};
use tower_distributed_lock::{
    ErrorKind, LockGuard, Loss, Status,
    store::{
        Acquire, Acquired, Ending, Fault, Instance, Mode, Owner, Queueing, Release, Released,
        Renew, Renewed, Store,
    },
};

use crate::support::{
    MS, SECOND, VALIDITY, Words, fleet, fleet_with, holder, inspect, key, nothing_left,
    pause_of_the_process, poll_once, settle,
};

async fn is_told_nothing(guard: &LockGuard) -> bool {
    settle().await;
    poll_once(pin!(guard.lost())).await.is_pending()
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_deleted_in_the_store_is_lost_at_the_next_renewal() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    assert!(store.force_release(key("k")).await.unwrap());
    let began = Instant::now();
    assert_eq!(guard.lost().await, Loss::NotOurs);
    assert!(began.elapsed() <= 10 * SECOND + MS);
    assert!(!guard.is_held());
    assert!(guard.remaining().is_zero());
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_taken_over_is_lost_and_its_new_holder_keeps_it() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let old_owner = holder(&store, "k").await;
    store.force_release(key("k")).await.unwrap();
    let taken = other.lock("k").await.unwrap();
    let new_owner = holder(&store, "k").await;
    assert_ne!(old_owner, new_owner);
    assert!(taken.token() > guard.token());

    assert_eq!(guard.lost().await, Loss::NotOurs);
    // The release that follows a loss, and that of the guard, are the old owner's.
    drop(guard);
    settle().await;
    assert_eq!(holder(&store, "k").await, new_owner);
    assert!(taken.is_held());
    taken.release().await.unwrap();
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn late_calls_of_an_old_owner_change_nothing_and_bring_no_tokens() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let old = holder(&store, "k").await;
    drop(guard);
    let guard = other.lock("k").await.unwrap();
    let before = inspect(&store, "k").await;

    let renewal = Renew {
        key: key("k"),
        owner: old,
        lease: 600 * SECOND,
        refill: 32,
        mode: Mode::Exclusive,
    };
    assert!(matches!(
        store.renew(vec![renewal]).next().await,
        Some((0, Renewed::NotOurs))
    ));
    for ending in [
        Ending::Free,
        Ending::Record {
            content: "x".into(),
            retain: SECOND,
        },
    ] {
        let release = Release {
            key: key("k"),
            owner: old,
            ending,
            in_doubt: false,
            lasts: SECOND,
            mode: Mode::Exclusive,
        };
        assert_eq!(store.end(release).await.unwrap(), Released::NotOurs);
    }
    assert_eq!(inspect(&store, "k").await, before);
    guard.release().await.unwrap();
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_lost_lease_that_come_through_late_leave_the_next_holder_alone() {
    let (store, [locks, other]) = fleet();
    let lost = locks.lock("k").await.unwrap();
    sleep(5 * SECOND).await;
    store.set_fault(Some(Fault::Hang));
    // Its renewal hangs; then the next holder's call does; then its loss is told, and its release
    // hangs.
    sleep(15 * SECOND).await;
    let next = Acquire {
        key: key("k"),
        owner: Owner {
            instance: Instance::new(),
            attempt: 1,
        },
        lease: 30 * SECOND,
        block: 1,
        queueing: Queueing::No,
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    };
    let mut acquire = store.ask_for(next.clone());
    assert!(poll_once(acquire.as_mut()).await.is_pending());
    assert_eq!(lost.lost().await, Loss::Expired);
    sleep(SECOND).await;
    // They come through in the order in which they came.
    store.set_fault(None);
    assert!(matches!(acquire.await, Ok(Acquired::Granted(_))));
    let before = inspect(&store, "k").await;
    drop(lost);
    settle().await;
    assert_eq!(inspect(&store, "k").await, before);
    store
        .end(Release {
            key: key("k"),
            owner: next.owner,
            ending: Ending::Free,
            in_doubt: false,
            lasts: SECOND,
            mode: Mode::Exclusive,
        })
        .await
        .unwrap();
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn every_clone_learns_of_a_loss_for_good() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let clones = [guard.clone(), guard.clone()];
    let waiting = clones
        .clone()
        .map(|clone| tokio::spawn(async move { clone.lost().await }));
    store.force_release(key("k")).await.unwrap();
    for told in waiting {
        assert_eq!(told.await.unwrap(), Loss::NotOurs);
    }
    // A later reason changes nothing.
    locks.close(std::time::Duration::ZERO).await;
    for clone in &clones {
        assert_eq!(clone.status(), Status::Lost(Loss::NotOurs));
        assert_eq!(clone.lost().await, Loss::NotOurs);
    }
    drop((guard, clones));
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn releasing_a_lost_turn_fails_and_does_not_hide_the_loss_from_its_clones() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let clone = guard.clone();
    store.force_release(key("k")).await.unwrap();
    clone.lost().await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(clone.status(), Status::Lost(Loss::NotOurs));
    assert_eq!(
        poll_once(pin!(clone.lost())).await,
        std::task::Poll::Ready(Loss::NotOurs)
    );
    assert_eq!(clone.release().await.unwrap_err().kind(), ErrorKind::Lost);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn release_asks_the_store_whether_the_lease_was_ours() {
    for waiters in [0, 1] {
        let (store, [locks]) = fleet();
        let guard = locks.lock("k").await.unwrap();
        let waiting: Vec<_> = (0..waiters)
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move { locks.lock("k").await.map(drop) })
            })
            .collect();
        settle().await;
        store.force_release(key("k")).await.unwrap();
        let error = guard.release().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{waiters} waiters");
        for waiter in waiting {
            waiter.await.unwrap().unwrap();
        }
        nothing_left(store, [locks]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_confirmed_by_a_renewal_from_before() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Mute));
    sleep(10 * SECOND).await; // a renewal took effect, and its answer is on its way
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.map(drop) }
    });
    settle().await;
    let mut release = Box::pin(guard.release());
    sleep(SECOND).await;
    assert!(poll_once(release.as_mut()).await.is_pending());
    store.set_fault(None);
    store.force_release(key("k")).await.unwrap();
    assert_eq!(release.await.unwrap_err().kind(), ErrorKind::Lost);
    waiting.await.unwrap().unwrap();
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_normally_is_no_loss() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let clone = guard.clone();
    guard.release().await.unwrap();
    assert_eq!(clone.status(), Status::Released);
    assert!(!clone.is_held());
    assert!(is_told_nothing(&clone).await);
    assert!(
        clone.clone().release().await.is_ok(),
        "another clone was told"
    );
    sleep(700 * SECOND).await;
    assert!(is_told_nothing(&clone).await);
    drop(clone);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_the_next_turn_is_not_reported_to_a_turn_that_was_passed_on() {
    let (store, [locks]) = fleet();
    let first = locks.lock("k").await.unwrap();
    let old = first.clone();
    let mut second = Box::pin(locks.lock("k"));
    assert!(poll_once(second.as_mut()).await.is_pending());
    settle().await;
    let (released, second) = tokio::join!(first.release(), second);
    released.unwrap();
    let second = second.unwrap();
    assert_eq!(store.calls().acquires, 1, "one lease serves both turns");
    store.force_release(key("k")).await.unwrap();
    assert_eq!(second.lost().await, Loss::NotOurs);
    assert_eq!(old.status(), Status::Released);
    assert!(is_told_nothing(&old).await);
    drop((old, second));
    nothing_left(store, [locks]).await;
}

/// Fault: the caller of an awaited release was told of a loss that only the next turn had.
#[tokio::test(start_paused = true)]
async fn the_loss_of_the_next_turn_does_not_answer_a_release_from_before() {
    for loss in [Loss::MaxHold, Loss::Closed, Loss::Expired] {
        let (store, [locks]) = fleet_with(|builder| match loss {
            Loss::MaxHold => builder.max_hold(12 * SECOND),
            _ => builder,
        });
        let first = locks.lock("k").await.unwrap();
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").await }
        });
        settle().await;
        // From now on, calls take effect, and are not answered.
        store.set_fault(Some(Fault::Mute));
        sleep(10 * SECOND).await;
        let release = tokio::spawn(first.release());
        let second = timeout(SECOND, waiting).await.unwrap().unwrap().unwrap();
        if loss == Loss::Closed {
            assert!(!locks.close(SECOND).await.is_complete());
        }
        assert_eq!(second.lost().await, loss);
        settle().await;
        assert!(!release.is_finished(), "only the store knows: {loss:?}");
        store.set_fault(None);
        release.await.unwrap().unwrap();
        drop(second);
        nothing_left(store, [locks]).await;
    }
}

/// Fault: the failure of a renewal that was sent before the end was the answer.
#[tokio::test(start_paused = true)]
async fn the_failure_of_a_renewal_from_before_does_not_answer_a_release() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.unwrap() }
    });
    settle().await;
    store.set_fault(Some(Fault::Hang));
    sleep(10 * SECOND).await; // a renewal is under way
    let release = tokio::spawn(guard.release());
    let next = next.await.unwrap();
    store.set_fault(Some(Fault::Unreachable)); // the renewal fails
    store.set_fault(None);
    release.await.unwrap().unwrap();
    drop(next);
    nothing_left(store, [locks]).await;
}

/// A caller is told of the loss of its own turn at once, even if the store hangs.
#[tokio::test(start_paused = true)]
async fn confirm_does_not_outlast_its_turn() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(5 * SECOND));
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Hang));
    let began = Instant::now();
    let error = guard.confirm().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(began.elapsed().as_secs(), 5);
    store.set_fault(None);
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn two_clones_released_at_once_end_one_turn() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let (one, other) = tokio::join!(guard.clone().release(), guard.release());
    one.unwrap();
    other.unwrap();
    assert_eq!(store.calls().releases, 1);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_at_max_hold_although_its_lease_could_go_on() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let next = tokio::spawn({
        let other = other.clone();
        async move { other.lock("k").await.unwrap() }
    });
    let began = Instant::now();
    assert_eq!(guard.lost().await, Loss::MaxHold);
    let after = began.elapsed();
    assert!(
        after >= 600 * SECOND && after <= 600 * SECOND + 2 * MS,
        "{after:?}"
    );
    drop(next.await.unwrap());
    drop(guard);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_for_each_turn_of_a_lease() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(20 * SECOND));
    let first = locks.lock("k").await.unwrap();
    let mut second = Box::pin(locks.lock("k"));
    assert!(poll_once(second.as_mut()).await.is_pending());
    sleep(15 * SECOND).await;
    drop(first);
    let second = second.await.unwrap();
    assert_eq!(store.calls().acquires, 1);
    let began = Instant::now();
    assert_eq!(second.lost().await, Loss::MaxHold);
    assert!(began.elapsed() >= 20 * SECOND);
    drop(second);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn the_clock_counts_before_any_timer_has_fired() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    pause_of_the_process(VALIDITY - MS).await;
    assert!(guard.is_held());
    pause_of_the_process(MS).await;
    assert_eq!(guard.status(), Status::Lost(Loss::Expired));
    assert!(guard.remaining().is_zero());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn the_release_after_a_loss_outlives_the_last_handle() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(5 * SECOND));
    let guard = locks.lock("k").await.unwrap();
    drop(locks);
    store.set_fault(Some(Fault::Hang));
    assert_eq!(guard.lost().await, Loss::MaxHold);
    drop(guard);
    settle().await;
    assert!(!store.is_empty());
    store.set_fault(None);
    nothing_left(store, []).await;
}

/// The scheduler has no other reason to look at the lease in that time.
#[tokio::test(start_paused = true)]
async fn a_turns_time_ends_long_before_the_next_renewal() {
    let (store, [locks]) = fleet_with(|builder| builder.lease(600 * SECOND).max_hold(50 * MS));
    for _ in 0..2 {
        let guard = locks.lock("k").await.unwrap();
        let began = Instant::now();
        assert_eq!(guard.lost().await, Loss::MaxHold);
        assert!(began.elapsed() <= 51 * MS, "{:?}", began.elapsed());
        drop(guard);
    }
    nothing_left(store, [locks]).await;
}
