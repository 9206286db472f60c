//! Several keys at once.

use std::{mem, pin::Pin};

use tokio::time::{Instant, sleep, timeout};
use tower_distributed_lock::{
    ErrorKind, LockAll, LockGuard, Locks, Loss, Status,
    store::{Fault, Store},
};

use crate::support::{MS, SECOND, fleet, fleet_with, key, nothing_left, poll_once, settle};

/// Lets a call go on until it waits.
async fn until_it_waits(all: &mut Pin<Box<LockAll<'_>>>) {
    for _ in 0..8 {
        assert!(poll_once(all.as_mut()).await.is_pending());
        settle().await;
    }
}

/// Lets a call for `a` and `b` fail so often that it locks one after the other: it has `a`, and
/// waits for `b`, whose guard is returned.
async fn until_it_waits_in_order(all: &mut Pin<Box<LockAll<'_>>>, other: &Locks) -> LockGuard {
    let mut held = other.lock("a").await.unwrap();
    for key in ["b", "a", "b"] {
        until_it_waits(all).await;
        drop(mem::replace(&mut held, other.lock(key).await.unwrap()));
    }
    until_it_waits(all).await;
    assert!(other.lock("a").now().await.unwrap().is_none());
    held
}

/// Fault: keys that were locked first were not looked at again after the wait for later ones.
#[tokio::test(start_paused = true)]
async fn no_guard_that_lock_all_returns_is_lost() {
    let (store, [locks, other]) = fleet();
    let mut all = Box::pin(locks.lock_all(["a", "b"]));
    let elsewhere = until_it_waits_in_order(&mut all, &other).await;
    // The store forgets everything during the wait for the second key.
    store.restart();
    drop(elsewhere);
    let guards = all.await.unwrap();
    assert!(guards.iter().all(|guard| guard.is_held()), "{guards:?}");
    drop(guards);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn max_hold_of_the_first_key_begins_after_the_wait_for_the_later_keys() {
    let (store, [locks, other]) = fleet_with(|builder| builder.max_hold(10 * SECOND));
    let mut all = Box::pin(locks.lock_all(["b", "a"]).within(60 * SECOND));
    let elsewhere = until_it_waits_in_order(&mut all, &other).await;
    sleep(9 * SECOND).await;
    drop(elsewhere);
    let guards = all.await.unwrap();
    sleep(9 * SECOND).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    sleep(SECOND + MS).await;
    assert_eq!(guards[1].lost().await, Loss::MaxHold);
    drop(guards);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_first_key_that_is_lost_during_the_wait_is_locked_again() {
    let (store, [locks, other]) = fleet();
    let all = locks.lock_all(["a", "b"]).max_hold(10 * SECOND);
    let mut all = Box::pin(all.within(60 * SECOND));
    let elsewhere = until_it_waits_in_order(&mut all, &other).await;
    sleep(11 * SECOND).await;
    assert!(other.lock("a").now().await.unwrap().is_some(), "it is lost");
    drop(elsewhere);
    let guards = all.await.unwrap();
    assert!(guards.iter().all(|guard| guard.is_held()), "{guards:?}");
    drop(guards);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn one_limit_is_for_all_keys_together() {
    let (store, [locks, other]) = fleet();
    let elsewhere = [
        other.lock("a").await.unwrap(),
        other.lock("b").await.unwrap(),
    ];
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock_all(["b", "a"]).within(10 * SECOND).await }
    });
    let began = Instant::now();
    sleep(6 * SECOND).await;
    let [first, second] = elsewhere;
    drop(first);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(began.elapsed() < 11 * SECOND, "{:?}", began.elapsed());
    drop(second);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn all_keys_are_taken_or_none() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("b").await.unwrap();
    assert!(locks.lock_all(["a", "b"]).now().await.unwrap().is_none());
    assert!(other.lock("a").now().await.unwrap().is_some(), "a is free");
    drop(elsewhere);
    let both = locks.lock_all(["a", "b"]).now().await.unwrap().unwrap();
    assert_eq!(both.len(), 2);
    drop(both);
    nothing_left(store, [locks, other]).await;
}

/// Fault: the keys that came first in order were held during the wait for the later ones.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_hot_key_leaves_the_others_free() {
    for mode in ["exclusive", "shared"] {
        let (store, [locks, other]) = fleet();
        let hot = other.lock("hot").await.unwrap();
        let keys = locks.lock_all(["cold", "hot", "warm"]);
        let mut all = Box::pin(if mode == "shared" {
            keys.shared()
        } else {
            keys
        });
        for _ in 0..8 {
            assert!(poll_once(all.as_mut()).await.is_pending());
            settle().await;
        }
        for key in ["cold", "warm"] {
            assert!(other.lock(key).now().await.unwrap().is_some(), "{key}");
            assert!(locks.lock(key).now().await.unwrap().is_some(), "{key}");
        }
        // The others are asked for when the hot key is granted, and waited for if they are held.
        let warm = other.lock("warm").await.unwrap();
        let began = Instant::now();
        drop(hot);
        for _ in 0..8 {
            settle().await;
            assert!(poll_once(all.as_mut()).await.is_pending());
        }
        assert!(other.lock("hot").now().await.unwrap().is_some());
        drop(warm);
        let guards = all.await.unwrap();
        assert!(guards.iter().all(LockGuard::is_held));
        assert!(began.elapsed() < 100 * MS, "{:?}", began.elapsed());
        drop(guards);
        nothing_left(store, [locks, other]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_with_crossed_keys_do_not_wait_for_each_other() {
    let (store, [locks, other]) = fleet();
    let calls = |locks: &Locks, keys: [&'static str; 3]| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                let guards = locks.lock_all(keys).await.unwrap();
                tokio::task::yield_now().await;
                assert!(guards.iter().all(LockGuard::is_held));
                sleep(MS).await;
            }
        })
    };
    let began = Instant::now();
    let calls = [
        calls(&locks, ["a", "b", "c"]),
        calls(&locks, ["c", "b", "a"]),
        calls(&other, ["b", "c", "a"]),
        calls(&other, ["d", "c", "b"]),
    ];
    for call in calls {
        call.await.unwrap();
    }
    assert!(began.elapsed() < 60 * SECOND, "{:?}", began.elapsed());
    nothing_left(store, [locks, other]).await;
}

/// One of the keys is held at every moment. A call that never held one while it waits for the other
/// would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_call_gets_its_keys_although_they_are_never_free_at_the_same_time() {
    let (store, [locks, other]) = fleet();
    let alternating = tokio::spawn(async move {
        let mut held = other.lock("a").await.ok();
        for key in ["b", "a"].into_iter().cycle().take(200) {
            sleep(10 * MS).await;
            // The old guard is dropped after that, even if the call has the key by now.
            held = other.lock(key).now().await.unwrap();
        }
        drop(held);
        other
    });
    settle().await;
    let before = Instant::now();
    for _ in 0..5 {
        drop(locks.lock_all(["b", "a"]).await.unwrap());
    }
    assert!(before.elapsed() < SECOND, "{:?}", before.elapsed());
    let other = alternating.await.unwrap();
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn free_keys_cost_one_question_each_and_a_refusal_gives_them_back() {
    let (store, [locks, other]) = fleet();
    drop(locks.lock_all(["a", "b", "c"]).await.unwrap());
    settle().await;
    assert_eq!((store.calls().acquires, store.calls().releases), (3, 3));
    let elsewhere = other.lock("b").await.unwrap();
    let before = store.calls();
    assert!(
        locks
            .lock_all(["a", "b", "c"])
            .now()
            .await
            .unwrap()
            .is_none()
    );
    settle().await;
    assert_eq!(store.calls().acquires, before.acquires + 3, "asked once");
    assert_eq!(store.calls().releases, before.releases + 2);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn the_limit_also_ends_the_wait_for_a_store_that_hangs() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Hang));
    let began = Instant::now();
    let error = locks.lock_all(["a", "b"]).within(2 * SECOND).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(began.elapsed().as_secs(), 2);
    store.set_fault(None);
    nothing_left(store, [locks]).await;
}

/// Fault: the first key was asked for once more, and a store that does not answer took twice as long.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_asked_once_for_each_key() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Unreachable));
    let error = locks.lock_all(["a", "b"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(store.calls().acquires, 2);
    store.set_fault(None);
    nothing_left(store, [locks]).await;
}

/// As with one key: the store has answered before for a key that others wait for.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_waited_for_where_others_wait() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("a").await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("a").await.map(drop) }
    });
    settle().await;
    store.set_fault(Some(Fault::Hang));
    sleep(2 * SECOND).await;
    let mut all = Box::pin(locks.lock_all(["a", "b"]));
    assert!(poll_once(all.as_mut()).await.is_pending());
    sleep(SECOND).await;
    store.set_fault(None);
    drop(elsewhere);
    assert_eq!(all.await.unwrap().len(), 2);
    waiting.await.unwrap().unwrap();
    nothing_left(store, [locks, other]).await;
}

/// The call is dropped after each number of steps, while it asks, gives back and waits.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_step_leaves_nothing_behind() {
    for steps in 0..40 {
        let (store, [locks, other]) = fleet();
        let mut hot = other.lock("b").await.ok();
        let mut cold = None;
        let mut all = Box::pin(locks.lock_all(["a", "b", "c"]));
        for step in 0..steps {
            if poll_once(all.as_mut()).await.is_ready() {
                break;
            }
            match step {
                5 => store.set_fault(Some(Fault::Mute)),
                8 => store.set_fault(None),
                12 => cold = other.lock("c").await.ok(),
                13 => drop(hot.take()),
                20 => drop(cold.take()),
                _ => tokio::task::yield_now().await,
            }
        }
        drop(all);
        store.set_fault(None);
        drop((hot, cold));
        settle().await;
        nothing_left(store, [locks, other]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_in_hand_is_not_waited_for() {
    let (store, [locks]) = fleet();
    let in_hand = locks.lock("a").await.unwrap();
    let both = locks
        .lock_all(["b", "a"])
        .with(std::slice::from_ref(&in_hand))
        .await
        .unwrap();
    assert_eq!(both[1].token(), in_hand.token());
    drop((both, in_hand));
    nothing_left(store, [locks]).await;
}

/// Fault: the call went round and round, without an `await` in between.
#[tokio::test(start_paused = true)]
async fn a_key_in_hand_that_a_clone_has_released_is_locked_again() {
    let (store, [locks]) = fleet();
    let in_hand = locks.lock("a").await.unwrap();
    in_hand.clone().release().await.unwrap();
    let both = locks
        .lock_all(["b", "a"])
        .with(std::slice::from_ref(&in_hand))
        .await
        .unwrap();
    assert!(both.iter().all(|guard| guard.is_held()), "{both:?}");
    assert!(both[1].token() > in_hand.token());
    drop((both, in_hand));
    nothing_left(store, [locks]).await;
}

/// Fault: a reader's guard, or a permit, was passed off as an exclusive lock.
#[tokio::test(start_paused = true)]
async fn a_guard_in_hand_that_is_not_exclusive_is_refused_at_once() {
    let (store, [locks, other]) = fleet();
    let downgraded = locks.lock("c").await.unwrap();
    downgraded.downgrade().await.unwrap();
    let in_hand = [
        locks.lock("b").shared().await.unwrap(),
        downgraded,
        locks.permit("d", 2).await.unwrap(),
    ];
    // The keys that sort before the key in hand are not waited for.
    let elsewhere = other.lock("a").await.unwrap();
    for guard in &in_hand {
        let keys = ["a", guard.key().as_str()];
        let locking = locks.lock_all(keys).with(&in_hand);
        let error = timeout(SECOND, locking).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(guard.is_held());
    }
    drop(elsewhere);
    // A guard for none of the keys does not matter.
    let locked = locks.lock_all(["a"]).with(&in_hand).await.unwrap();
    drop((locked, in_hand));
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_downgraded_during_the_wait_for_another_key_is_refused() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("b").await.unwrap();
    let in_hand = [locks.lock("a").await.unwrap()];
    let mut locking = Box::pin(locks.lock_all(["a", "b"]).with(&in_hand));
    assert!(poll_once(locking.as_mut()).await.is_pending());
    in_hand[0].downgrade().await.unwrap();
    drop(elsewhere);
    let error = locking.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    drop(in_hand);
    nothing_left(store, [locks, other]).await;
}

/// Fault: each call restarted the time of the guards in hand, so that a handler which calls in a
/// loop had no limit.
#[tokio::test(start_paused = true)]
async fn max_hold_of_a_key_in_hand_goes_on() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(10 * SECOND));
    let in_hand = [locks.lock("a").await.unwrap()];
    for _ in 0..3 {
        sleep(3 * SECOND).await;
        drop(locks.lock_all(["a", "b"]).with(&in_hand).await.unwrap());
    }
    sleep(SECOND + MS).await;
    assert_eq!(in_hand[0].status(), Status::Lost(Loss::MaxHold));
    let error = locks.lock_all(["a", "b"]).with(&in_hand).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(in_hand);
    nothing_left(store, [locks]).await;
}

/// Fault: the call failed with the loss of a guard that it was given, but did not need.
#[tokio::test(start_paused = true)]
async fn the_loss_of_a_guard_for_another_key_does_not_matter() {
    let (store, [locks, other]) = fleet_with(|builder| builder.lease(3 * SECOND));
    let in_hand = [locks.lock("unrelated").await.unwrap()];
    store.force_release(key("unrelated")).await.unwrap();
    in_hand[0].confirm().await.unwrap_err();
    let mut locking = Box::pin(locks.lock_all(["a", "b"]).with(&in_hand));
    let elsewhere = until_it_waits_in_order(&mut locking, &other).await;
    // The guard of `a` is lost during the wait for `b`, so the call starts over.
    store.force_release(key("a")).await.unwrap();
    let freeing = async {
        sleep(2 * SECOND).await;
        drop(elsewhere);
    };
    let (guards, ()) = tokio::join!(locking, freeing);
    assert!(guards.unwrap().iter().all(LockGuard::is_held));
    drop(in_hand);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn two_holders_that_wait_for_each_other_fail_after_the_usual_limit() {
    let locks = Locks::in_memory();
    let cross = |first: &'static str, second: &'static str| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let _first = locks.lock(first).await.unwrap();
            tokio::task::yield_now().await;
            locks.lock(second).await.map(drop)
        })
    };
    let began = Instant::now();
    let (one, other) = (cross("a", "b"), cross("b", "a"));
    let outcomes = [one.await.unwrap(), other.await.unwrap()];
    assert!(outcomes.iter().any(Result::is_err));
    assert!(began.elapsed() <= 11 * SECOND);
}
