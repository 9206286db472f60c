//! Renewals keep a lease alive.

use std::num::NonZeroU32;

use tokio::time::{Instant, sleep};
use tower_distributed_lock::{LockGuard, Locks, Loss, Status, store::Fault};

use crate::support::{
    MS, SECOND, VALIDITY, fleet, fleet_with, nothing_left, pause_of_the_process, poll_once, settle,
};

#[tokio::test(start_paused = true)]
async fn a_turn_of_ten_leases_keeps_its_lease() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    for _ in 0..300 {
        sleep(SECOND).await;
        assert!(guard.is_held());
        assert!(guard.remaining() > 19 * SECOND);
        assert!(other.lock("k").now().await.unwrap().is_none());
    }
    // A renewal is due at a third of the lease. Leases that are due soon are renewed with it.
    let renewals = store.calls().renewals;
    assert!((29..=32).contains(&renewals), "renewed {renewals} times");
    guard.release().await.unwrap();
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_due_together_are_renewed_together() {
    let (store, [locks]) = fleet();
    let mut guards = Vec::new();
    for number in 0..1_000 {
        guards.push(locks.lock(format!("k/{number}")).await.unwrap());
    }
    sleep(95 * SECOND).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    let renewals = store.calls().renewals;
    assert!((9..=10).contains(&renewals), "renewed {renewals} times");
    drop(guards);
    settle().await;
    sleep(MS).await; // a thousand releases take more than a moment
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn renewals_without_an_answer_are_survived_until_the_deadline() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let granted = Instant::now();
    store.set_fault(Some(Fault::Unreachable));
    sleep(VALIDITY - MS).await;
    assert!(guard.is_held());
    let retries = store.calls().renewals;
    assert!(retries > 10, "only {retries} renewals were tried");
    store.set_fault(None);
    settle().await;
    assert!(
        guard.remaining() > VALIDITY - SECOND,
        "confirmed at once when the store is back"
    );
    sleep(60 * SECOND).await;
    assert_eq!(guard.status(), Status::Held);
    assert_eq!(granted.elapsed(), VALIDITY - MS + 60 * SECOND);
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_any_answer_is_lost_at_the_deadline_and_not_before() {
    for fault in [Fault::Unreachable, Fault::Hang, Fault::Mute] {
        let (store, [locks]) = fleet();
        let guard = locks.lock("k").await.unwrap();
        let granted = Instant::now();
        store.set_fault(Some(fault));
        assert_eq!(guard.lost().await, Loss::Expired);
        let after = granted.elapsed();
        // The one renewal that took effect in the store without an answer counts for nothing.
        assert!(
            after >= VALIDITY && after <= VALIDITY + 2 * MS,
            "{fault:?}: {after:?}"
        );
        assert_eq!(guard.status(), Status::Lost(Loss::Expired));
        store.set_fault(None);
        drop(guard);
        nothing_left(store, [locks]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_before_the_key_was_asked_for() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let asking = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.unwrap() }
    });
    sleep(5 * SECOND).await;
    store.set_fault(None);
    let guard = asking.await.unwrap();
    assert_eq!(guard.remaining(), VALIDITY - 5 * SECOND);
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_before_the_renewal_was_sent() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Mute));
    sleep(15 * SECOND).await; // the renewal was sent at a third of the lease, and took effect
    assert!(guard.remaining() < 15 * SECOND);
    store.set_fault(None);
    settle().await;
    let until = guard.remaining() + 15 * SECOND;
    assert!(
        until > 39 * SECOND && until <= 10 * SECOND + VALIDITY,
        "{until:?}"
    );
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_past_the_deadline_does_not_revive_a_lease() {
    // A timer and an answer that are both ready after a pause run in either order: several rounds
    // see both orders.
    for _ in 0..32 {
        let (store, [locks]) = fleet();
        let guard = locks.lock("k").await.unwrap();
        store.set_fault(Some(Fault::Mute));
        sleep(15 * SECOND).await; // a renewal is on its way, and has taken effect
        store.set_fault(None);
        pause_of_the_process(15 * SECOND).await; // past the first deadline, not past that of the renewal
        assert_eq!(guard.status(), Status::Lost(Loss::Expired));
        settle().await;
        assert_eq!(guard.status(), Status::Lost(Loss::Expired));
        assert_eq!(guard.lost().await, Loss::Expired);
        drop(guard);
        nothing_left(store, [locks]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_up_early_with_give_up_after() {
    let (store, [locks]) = fleet_with(|builder| builder.give_up_after(NonZeroU32::new(3).unwrap()));
    let guard = locks.lock("k").await.unwrap();
    let granted = Instant::now();
    store.set_fault(Some(Fault::Unreachable));
    assert_eq!(guard.lost().await, Loss::GaveUp);
    assert!(granted.elapsed() < 13 * SECOND, "{:?}", granted.elapsed());
    store.set_fault(None);
    drop(guard);
    nothing_left(store, [locks]).await;
}

/// Takes `turns` turns of 100 ms, one after another, with always one more in line. Returns the
/// last.
async fn keep_passing(locks: &Locks, mut guard: LockGuard, turns: usize) -> LockGuard {
    for _ in 0..turns {
        let mut next = Box::pin(locks.lock("k"));
        assert!(poll_once(next.as_mut()).await.is_pending());
        sleep(100 * MS).await;
        drop(guard);
        guard = next.await.unwrap();
    }
    guard
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_passed_on_is_renewed_every_poll_interval() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let last = keep_passing(&locks, guard, 50).await;
    // Five seconds; and twice for tokens.
    let renewals = store.calls().renewals;
    assert!((5..=7).contains(&renewals), "renewed {renewals} times");
    assert_eq!(store.calls().acquires, 1);
    drop(last);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_passed_on_lease_is_renewed_every_poll_interval_after_the_answer_of_an_older_renewal() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let guard = keep_passing(&locks, guard, 1).await; // has got tokens for some turns to come
    sleep(5 * SECOND).await;
    store.set_fault(Some(Fault::Mute));
    let before = store.calls().renewals;
    sleep(10 * SECOND).await;
    assert_eq!(
        store.calls().renewals,
        before + 1,
        "on its way while nobody waits"
    );
    let guard = keep_passing(&locks, guard, 1).await;
    let mut next = Box::pin(locks.lock("k"));
    assert!(poll_once(next.as_mut()).await.is_pending());
    store.set_fault(None);
    settle().await;
    drop(guard);
    let before = store.calls().renewals;
    let guard = keep_passing(&locks, next.await.unwrap(), 25).await;
    let renewals = store.calls().renewals - before;
    assert!(
        (2..=4).contains(&renewals),
        "renewed {renewals} times in two and a half seconds"
    );
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn tokens_that_are_needed_during_a_renewal_are_asked_for_right_after_it() {
    let (store, [locks]) = fleet();
    let first = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Mute));
    sleep(10 * SECOND).await;
    settle().await;
    assert_eq!(store.calls().renewals, 1);
    // The renewal on its way was sent before anyone needed a token.
    let mut second = Box::pin(locks.lock("k"));
    assert!(poll_once(second.as_mut()).await.is_pending());
    settle().await;
    assert_eq!(store.calls().renewals, 1);
    store.set_fault(None);
    settle().await;
    assert_eq!(store.calls().renewals, 2);
    drop(first);
    assert!(poll_once(second.as_mut()).await.is_ready());
    assert_eq!(store.calls().acquires, 1);
    drop(second);
    nothing_left(store, [locks]).await;
}
