//! Waiting while the store is away for a time, and places in its queue.

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};
use tower_distributed_lock::{
    ErrorKind, Locks,
    store::{
        Acquire, Acquired, Ending, Fault, FaultyStore, Instance, Mode, Owner, Queueing, Release,
        Released,
    },
};

use crate::support::{MS, SECOND, Words, fleet, fleet_with, inspect, key, nothing_left, settle};

#[tokio::test(start_paused = true)]
async fn waiters_survive_a_store_that_is_away_for_a_while() {
    for fault in [Fault::Unreachable, Fault::Hang] {
        let (store, [locks, other]) = fleet();
        let elsewhere = other.lock("k").await.unwrap();
        let wait =
            |locks: Locks| async move { locks.lock("k").within(60 * SECOND).await.map(drop) };
        let waiting: Vec<_> = (0..50).map(|_| tokio::spawn(wait(locks.clone()))).collect();
        settle().await;
        store.set_fault(Some(fault));
        sleep(2300 * MS).await;
        store.set_fault(None);
        sleep(SECOND).await;
        let began = Instant::now();
        drop(elsewhere);
        for waiter in waiting {
            waiter.await.unwrap().unwrap();
        }
        assert!(began.elapsed() < SECOND, "{fault:?}: {:?}", began.elapsed());
        nothing_left(store, [locks, other]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lock_now_fails_at_once_while_the_store_is_away() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let error = locks.lock("k").now().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    store.set_fault(None);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn lock_now_fails_at_once_while_others_wait_for_a_store_that_is_away() {
    for fault in [Fault::Unreachable, Fault::Hang] {
        let (store, [locks, other]) = fleet();
        let elsewhere = other.lock("k").await.unwrap();
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").await.map(drop) }
        });
        settle().await;
        store.set_fault(Some(fault));
        sleep(3 * SECOND).await;
        let began = Instant::now();
        let error = locks.lock("k").now().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{fault:?}");
        assert!(began.elapsed().is_zero());
        store.set_fault(None);
        drop(elsewhere);
        waiting.await.unwrap().unwrap();
        nothing_left(store, [locks, other]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_reached_while_the_store_is_away_is_reported_as_unreachable() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").within(10 * SECOND).await.unwrap_err() }
    });
    sleep(5 * SECOND).await;
    store.set_fault(Some(Fault::Unreachable));
    let error = waiting.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("for the last 4"), "{error}");
    store.set_fault(None);
    drop(elsewhere);
    nothing_left(store, [locks, other]).await;
}

/// Fault: the doubted lease of the readers did not count as waiting for its confirmation.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_reported_to_readers_beside_others() {
    let (store, [locks]) = fleet();
    let reading = locks.lock("k").shared().await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    sleep(11 * SECOND).await;
    let began = Instant::now();
    let error = locks.lock("k").shared().now().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(began.elapsed().is_zero());
    let error = locks.lock("k").shared().within(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(reading.is_held(), "the turn under way goes on");
    store.set_fault(None);
    let second = locks.lock("k").shared().within(SECOND).await.unwrap();
    drop((reading, second));
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn readers_that_fail_fast_do_not_wait_for_a_doubted_lease() {
    let (store, [locks]) = fleet_with(|builder| builder.fail_fast(true));
    let reading = locks.lock("k").shared().await.unwrap();
    // The lease is doubted after a moment of absence, and this request waits for its confirmation.
    store.set_fault(Some(Fault::Unreachable));
    store.set_fault(None);
    store.set_fault(Some(Fault::Hang));
    settle().await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").shared().await.map(drop) }
    });
    sleep(SECOND).await;
    assert!(!waiting.is_finished(), "the renewal has not failed yet");
    let began = Instant::now();
    store.set_fault(Some(Fault::Unreachable));
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let error = locks.lock("k").shared().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(began.elapsed().is_zero());
    store.set_fault(None);
    drop(reading);
    nothing_left(store, [locks]).await;
}

/// Fault: each of them made the contender ask at once, and undid its back-off.
#[tokio::test(start_paused = true)]
async fn requests_that_give_up_at_the_head_of_a_line_cost_no_questions() {
    for fault in [None, Some(Fault::Unreachable)] {
        for is_mixed in [false, true] {
            if is_mixed && fault.is_none() {
                // Each of them needs a place of another mode in the queue.
                continue;
            }
            let (store, [locks, other]) = fleet();
            let elsewhere = other.lock("k").await.unwrap();
            let mut waiting = Vec::new();
            for number in 0..520_u32 {
                let locks = locks.clone();
                waiting.push(tokio::spawn(async move {
                    let limit = 10 * MS * (number + 1);
                    if is_mixed && number % 2 == 1 {
                        locks.lock("k").shared().within(limit).await
                    } else {
                        locks.lock("k").within(limit).await
                    }
                }));
            }
            settle().await;
            store.set_fault(fault);
            let before = store.calls().acquires;
            sleep(5 * SECOND).await;
            let asked = store.calls().acquires - before;
            assert!((4..=12).contains(&asked), "asked {asked} times: {fault:?}");
            for waiting in waiting {
                waiting.await.unwrap().unwrap_err();
            }
            store.set_fault(None);
            drop(elsewhere);
            nothing_left(store, [locks, other]).await;
        }
    }
}

/// Commands while the store is away do not grow with the time, and not with the lease.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_asked_about_once_in_a_poll_interval() {
    for lease in [SECOND, 30 * SECOND, 120 * SECOND, 3600 * SECOND] {
        let (store, [locks, other]) = fleet_with(|builder| builder.lease(lease));
        let elsewhere = other.lock("k").await.unwrap();
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").await.map(drop) }
        });
        settle().await;
        store.set_fault(Some(Fault::Unreachable));
        let before = store.calls().acquires;
        sleep(60 * SECOND).await;
        let asked = store.calls().acquires - before;
        assert!(
            (50..=90).contains(&asked),
            "asked {asked} times with {lease:?}"
        );
        store.set_fault(None);
        drop(elsewhere);
        waiting.await.unwrap().unwrap();
        nothing_left(store, [locks, other]).await;
    }
}

/// Fault: the place of a contender whose next question failed stayed, and a free key stood still
/// for up to three seconds.
#[tokio::test(start_paused = true)]
async fn a_contender_that_fails_leaves_no_place_in_the_queue() {
    let (store, [locks, other, third]) = fleet_with(|builder| builder.fail_fast(true));
    let elsewhere = other.lock("k").await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await.map(drop) }
    });
    settle().await;
    assert_eq!(inspect(&store, "k").await.queue.len(), 1);
    store.set_fault(Some(Fault::Unreachable));
    waiting.await.unwrap().unwrap_err();
    store.set_fault(None);
    settle().await;
    assert_eq!(inspect(&store, "k").await.queue, []);
    drop(elsewhere);
    let began = Instant::now();
    drop(third.lock("k").await.unwrap());
    assert!(began.elapsed().is_zero());
    nothing_left(store, [locks, other, third]).await;
}

fn stranger(attempt: u64) -> Owner {
    Owner {
        instance: Instance::new(),
        attempt,
    }
}

/// Queues for the key, and is never heard of again.
async fn queue_and_crash(store: &FaultyStore) {
    let acquire = Acquire {
        key: key("k"),
        owner: stranger(1),
        lease: 30 * SECOND,
        block: 1,
        queueing: Queueing::Wait {
            deadline: 600 * SECOND,
            head_start: 300 * MS,
        },
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    };
    let answer = store.ask_for(acquire).await.unwrap();
    assert!(matches!(answer, Acquired::Held(_)), "{answer:?}");
}

/// Fault: a crashed waiter at the head of the queue blocked a free key for its whole deadline.
#[tokio::test(start_paused = true)]
async fn a_crashed_head_of_the_queue_delays_a_free_key_by_less_than_half_a_second() {
    for crashed in 1..=3 {
        let (store, [locks, other]) = fleet();
        let elsewhere = other.lock("k").await.unwrap();
        for _ in 0..crashed {
            queue_and_crash(&store).await;
        }
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").await.map(drop) }
        });
        settle().await;
        sleep(5 * SECOND).await;
        let began = Instant::now();
        drop(elsewhere);
        waiting.await.unwrap().unwrap();
        let took = began.elapsed();
        assert!(took < crashed * SECOND / 2, "{took:?} behind {crashed}");
        nothing_left(store, [locks, other]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_before_a_crashed_head_is_passed_on_soon_too() {
    let (store, [locks]) = fleet();
    let holder = stranger(7);
    let acquire = Acquire {
        key: key("k"),
        owner: holder,
        lease: 10 * SECOND,
        block: 1,
        queueing: Queueing::No,
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    };
    store.ask_for(acquire).await.unwrap();
    queue_and_crash(&store).await;
    let began = Instant::now();
    drop(locks.lock("k").await.unwrap());
    assert!(began.elapsed() < 10 * SECOND + SECOND / 2);
    let release = Release {
        key: key("k"),
        owner: holder,
        ending: Ending::Free,
        in_doubt: false,
        lasts: SECOND,
        mode: Mode::Exclusive,
    };
    let released = store.end(release).await;
    assert_eq!(released.unwrap(), Released::NotOurs);
    nothing_left(store, [locks]).await;
}

/// Fault: missed releases were forgotten by a store that hung before it worked again.
#[tokio::test(start_paused = true)]
async fn a_missed_release_takes_effect_after_any_sequence_of_faults() {
    for between in [None, Some(Fault::Hang), Some(Fault::Mute)] {
        let (store, [locks]) = fleet();
        let guard = locks.lock("k").await.unwrap();
        store.set_fault(Some(Fault::Unreachable));
        drop(guard);
        assert_eq!(locks.stats().releases, 1);
        store.set_fault(between);
        store.set_fault(None);
        nothing_left(store, [locks]).await;
    }
}

/// The next acquire names the owner, and so needs neither the repetition of its release nor a
/// second round trip.
#[tokio::test(start_paused = true)]
async fn a_lock_right_after_a_release_that_failed_is_granted_at_once() {
    let (store, [locks]) = fleet();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { of: 1 }] {
        let ask = async || match mode {
            Mode::Exclusive => locks.lock("k").await,
            Mode::Shared => locks.lock("k").shared().await,
            _ => locks.permit("permits", 1).await,
        };
        let guard = ask().await.unwrap();
        store.set_fault(Some(Fault::Unreachable));
        drop(guard);
        settle().await;
        assert_eq!(locks.stats().releases, 1);
        store.set_fault(None);
        let next = if mode == Mode::Shared {
            locks.lock("k").now_or_never()
        } else {
            ask().now_or_never()
        };
        assert!(next.expect("granted by the first answer").is_ok());
        settle().await;
    }
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_to_an_unreachable_store_is_owed_for_one_lease_at_most() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    drop(guard);
    sleep(29 * SECOND).await;
    assert_eq!(locks.stats().releases, 1);
    sleep(2 * SECOND).await;
    assert_eq!(locks.stats().releases, 0);
    store.set_fault(None);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn keys_in_use_are_bounded() {
    let (store, [locks]) = fleet_with(|builder| builder.max_keys(3));
    let guards = locks.lock_all(["a", "b", "c"]).await.unwrap();
    let error = locks.lock("d").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooManyKeys);
    assert!(error.to_string().contains('3'), "{error}");
    // A waiter for a key that is in use takes none of the room.
    let error = locks.lock("a").within(MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    drop(guards);
    drop(locks.lock("d").await.unwrap());
    nothing_left(store, [locks]).await;
}
