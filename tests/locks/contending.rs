//! The questions of a line to the store: who is asked for, when the next question follows, and what
//! an answer is worth.

use tokio::{
    task::JoinHandle,
    time::{Instant, advance, sleep, timeout},
};
use tower_distributed_lock::{
    LockGuard, Locks,
    store::{
        Acquire, Acquired, Ending, Fault, FaultyStore, Instance, Mode, Owner, Queueing, Release,
    },
};

use crate::support::{MS, SECOND, Words, fleet, fleet_with, key, nothing_left, settle};

fn writing(locks: &Locks) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.lock("k").await.unwrap() })
}

fn reading(locks: &Locks) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.lock("k").shared().await.unwrap() })
}

/// The store grants a lease and restarts without it before the answer arrives.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_granted_before_a_reconnect_serves_no_turn_until_confirmed() {
    let (store, [locks, other]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let waiting = writing(&locks);
    settle().await;
    store.restart();
    settle().await;
    store.set_fault(None); // the answer is there, and its task has not run yet
    let elsewhere = other.lock("k").await.unwrap();
    settle().await;
    assert!(elsewhere.is_held());
    assert!(!waiting.is_finished(), "two are inside");
    drop(elsewhere);
    drop(timeout(SECOND, waiting).await.unwrap().unwrap());
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_that_waits_does_not_restart_pass_time() {
    let (store, [locks, second, third]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let here = writing(&locks);
    settle().await;
    let there = writing(&second);
    sleep(6 * MS).await;
    let later = writing(&third);
    sleep(5 * MS).await;
    drop(guard); // more than `pass_time`, 10 ms, after the first hint
    let there = there.await.unwrap();
    assert!(!here.is_finished(), "the turn was passed on");
    drop(there);
    drop((here.await.unwrap(), later.await.unwrap()));
    nothing_left(store, [locks, second, third]).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_behind_a_writer_that_gives_up_joins_the_readers_elsewhere_at_once() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").shared().await.unwrap();
    let writer = writing(&locks);
    settle().await;
    let reader = reading(&locks);
    settle().await;
    writer.abort();
    settle().await;
    assert!(reader.is_finished(), "no question was asked for the reader");
    drop((reader.await.unwrap(), elsewhere));
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_answered_again_is_not_away() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").await.unwrap();
    let waiting = writing(&locks);
    settle().await;
    store.set_fault(Some(Fault::Unreachable));
    sleep(3 * SECOND).await;
    assert!(locks.lock("k").now().await.is_err(), "the store is away");
    store.set_fault(None);
    sleep(2 * SECOND).await;
    assert!(locks.lock("k").now().await.unwrap().is_none());
    drop(elsewhere);
    drop(waiting.await.unwrap());
    nothing_left(store, [locks, other]).await;
}

/// Takes the key by hand for a while, or queues for it.
async fn stranger(store: &FaultyStore, lease: std::time::Duration) -> Owner {
    let owner = Owner {
        instance: Instance::new(),
        attempt: 1,
    };
    let acquire = Acquire {
        key: key("k"),
        owner,
        lease,
        block: 1,
        queueing: Queueing::Wait {
            deadline: 10 * SECOND,
            head_start: 300 * MS,
        },
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    };
    let answer = store.ask_for(acquire).await.unwrap();
    assert!(matches!(answer, Acquired::Granted(_) | Acquired::Held(_)));
    owner
}

#[tokio::test(start_paused = true)]
async fn an_offer_to_the_attempt_ahead_does_not_put_the_next_question_off() {
    let (store, [locks]) = fleet();
    let holder = stranger(&store, 400 * MS).await;
    stranger(&store, SECOND).await; // never heard of again
    let waiting = writing(&locks);
    sleep(200 * MS).await;
    let release = Release {
        key: key("k"),
        owner: holder,
        ending: Ending::Free,
        in_doubt: false,
        lasts: SECOND,
        mode: Mode::Exclusive,
    };
    store.end(release).await.unwrap(); // the other stranger is offered the key
    let asked = store.calls().acquires;
    // The lease would have ended by now, and the head start of the other stranger has not.
    sleep(250 * MS).await;
    assert_eq!(store.calls().acquires, asked + 1);
    drop(timeout(100 * MS, waiting).await.unwrap().unwrap());
    nothing_left(store, [locks]).await;
}

/// The lease waits for its confirmation for longer than the turn before was allowed to last.
#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_turn_ends_with_the_turn() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(2 * SECOND));
    let guard = locks.lock("k").await.unwrap();
    let next = writing(&locks);
    settle().await;
    store.set_fault(Some(Fault::Unreachable));
    guard.release().await.unwrap_err();
    let acquires = store.calls().acquires;
    let began = Instant::now();
    // In steps, because a scheduler that does not rest keeps paused time from passing by itself.
    while began.elapsed() < 5 * SECOND {
        advance(SECOND / 4).await;
        settle().await;
    }
    store.set_fault(None);
    settle().await;
    assert!(next.is_finished(), "the lease was not confirmed");
    assert_eq!(store.calls().acquires, acquires, "the lease is the same");
    drop(next.await.unwrap());
    nothing_left(store, [locks]).await;
}
