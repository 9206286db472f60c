//! When the store fails.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_distributed_lock::{
    ErrorKind, LockKey, Locks,
    store::{Acquire, Ending, Fault, Instance, Mode, Owner, Queueing, Release},
};

use crate::support::{MS, SECOND, VALIDITY, Words, fleet, fleet_with, key, nothing_left, settle};

fn waiting(locks: &Locks, count: usize) -> Vec<tokio::task::JoinHandle<ErrorKind>> {
    let wait = |locks: Locks| async move { locks.lock("k").await.unwrap_err().kind() };
    (0..count)
        .map(|_| tokio::spawn(wait(locks.clone())))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn with_fail_fast_a_failing_store_fails_the_whole_line_at_once() {
    let (store, [locks, other]) = fleet_with(|builder| builder.fail_fast(true));
    let elsewhere = other.lock("k").await.unwrap();
    let line = waiting(&locks, 100);
    settle().await;
    store.set_fault(Some(Fault::Unreachable));
    let (before, began) = (store.calls().acquires, Instant::now());
    for waiter in line {
        assert_eq!(waiter.await.unwrap(), ErrorKind::Unreachable);
    }
    assert!(began.elapsed() <= SECOND, "at the next question");
    assert_eq!(
        store.calls().acquires,
        before + 1,
        "not one contender after another"
    );
    store.set_fault(None);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_from_the_start_fails_every_call_at_once() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Unreachable));
    for outcome in [
        locks.lock("k").await.map(drop),
        locks.lock("k").within(SECOND).await.map(drop),
        locks.lock("k").now().await.map(drop),
        locks.lock_all(["a", "b"]).await.map(drop),
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unreachable);
    }
    store.set_fault(None);
    assert!(locks.lock("k").await.is_ok());
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn lock_all_gives_back_its_first_keys_when_the_store_fails() {
    let (store, [locks, other]) = fleet_with(|builder| builder.fail_fast(true));
    let elsewhere = other.lock("b").await.unwrap();
    let all = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock_all(["a", "b"]).await.unwrap_err().kind() }
    });
    settle().await;
    assert_eq!(locks.stats().keys, 1, "the one that is waited for");
    store.set_fault(Some(Fault::Unreachable));
    assert_eq!(all.await.unwrap(), ErrorKind::Unreachable);
    store.set_fault(None);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

/// Fault: the store had answered once, so that its silence counted as a key that is held.
#[tokio::test(start_paused = true)]
async fn a_store_that_falls_silent_later_is_distinguished_from_a_held_key() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").within(20 * SECOND).await.unwrap_err() }
    });
    settle().await;
    store.set_fault(Some(Fault::Hang));
    let error = waiting.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("19."), "since when: {error}");
    store.set_fault(None);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_distinguished_from_a_held_key() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Hang));
    let silent = locks.lock("k").within(SECOND).await.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::Unreachable);
    store.set_fault(None);
    settle().await;
    let guard = locks.lock("k").await.unwrap();
    let held = locks.lock("k").within(SECOND).await.unwrap_err();
    assert_eq!(held.kind(), ErrorKind::Held);
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_took_longer_than_the_lease_is_not_taken() {
    let (store, [locks, other]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let line = waiting(&locks, 3);
    sleep(VALIDITY).await;
    store.set_fault(None);
    for waiter in line {
        assert_eq!(waiter.await.unwrap(), ErrorKind::Unreachable);
    }
    settle().await;
    assert!(
        other.lock("k").now().await.unwrap().is_some(),
        "and is given back"
    );
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_ends_the_turn_all_the_same() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    settle().await;
    assert_eq!(locks.stats().keys, 0);
    store.set_fault(None);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_record_in_the_place_of_the_lease_is_foreign_to_a_plain_lock() {
    let (store, [locks]) = fleet();
    let owner = Owner {
        instance: Instance::new(),
        attempt: 1,
    };
    let acquire = Acquire {
        key: key("k"),
        owner,
        lease: SECOND,
        block: 1,
        queueing: Queueing::No,
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    };
    store.ask_for(acquire).await.unwrap();
    let ending = Ending::Record {
        content: "answer".into(),
        retain: 5 * SECOND,
    };
    let release = Release {
        key: key("k"),
        owner,
        ending,
        in_doubt: false,
        lasts: SECOND,
        mode: Mode::Exclusive,
    };
    store.end(release).await.unwrap();
    assert_eq!(
        locks.lock("k").await.unwrap_err().kind(),
        ErrorKind::Foreign
    );
    assert_eq!(
        locks.lock("k").now().await.unwrap_err().kind(),
        ErrorKind::Foreign
    );
    sleep(5 * SECOND).await;
    assert!(locks.lock("k").now().await.unwrap().is_some());
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_key_is_refused_before_the_store_is_asked() {
    let (store, [locks]) = fleet();
    assert_eq!(
        locks.lock("").await.unwrap_err().kind(),
        ErrorKind::InvalidKey
    );
    let some = ["a".to_owned(), "x".repeat(LockKey::MAX_LEN + 1)];
    assert_eq!(
        locks.lock_all(some).await.unwrap_err().kind(),
        ErrorKind::InvalidKey
    );
    assert_eq!(store.calls().acquires, 0);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn limits_of_zero_and_of_all_time_work() {
    let (store, [locks]) = fleet();
    drop(locks.lock("k").within(Duration::MAX).await.unwrap());
    let guard = locks.lock("k").await.unwrap();
    assert_eq!(
        locks
            .lock("k")
            .within(Duration::ZERO)
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Held
    );
    drop(guard);
    sleep(MS).await;
    nothing_left(store, [locks]).await;
}
