//! One lease for one turn after another.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower_distributed_lock::{
    ErrorKind, LockGuard, Locks, Loss, Status,
    store::{
        Acquire, Acquired, Ending, Fault, FaultyStore, Instance, Mode, Owner, Queueing, Release,
        Store,
    },
};

use crate::support::{
    MS, SECOND, VALIDITY, Words, fleet, fleet_with, holder, key, nothing_left,
    pause_of_the_process, poll_once, settle,
};

fn waiting(locks: &Locks) -> tokio::task::JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.lock("k").await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_turns_of_one_instance_cost_next_to_nothing() {
    let (store, [locks]) = fleet();
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..100 {
                let _guard = locks.lock("k").await.unwrap();
                tokio::task::yield_now().await;
            }
        });
    }
    tasks.join_all().await;
    settle().await;
    let calls = store.calls();
    let commands = calls.acquires + calls.renewals + calls.releases;
    assert!(commands <= 1_000, "{calls:?}");
    assert_eq!(calls.acquires, 1);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_past_its_deadline_is_not_passed_on() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let owner = holder(&store, "k").await;
    let next = waiting(&locks);
    settle().await;
    // No timer has run since the deadline, and the store would give the key to another instance.
    pause_of_the_process(VALIDITY).await;
    let (clone, acquires) = (guard.clone(), store.calls().acquires);
    drop(guard);
    drop(clone);
    let next = next.await.unwrap();
    assert!(next.is_held());
    assert_ne!(holder(&store, "k").await, owner);
    assert_eq!(store.calls().acquires, acquires + 1);
    drop(next);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_granted_but_not_begun_before_the_deadline_is_not_begun() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let next = waiting(&locks);
    settle().await;
    pause_of_the_process(VALIDITY - MS).await;
    drop(guard); // in time: the turn goes to the next, which does not run yet
    pause_of_the_process(MS).await;
    let next = next.await.unwrap();
    assert!(next.is_held());
    assert!(next.remaining() > VALIDITY - SECOND, "under a new lease");
    drop(next);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_passed_on_while_it_is_unconfirmed() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let next = waiting(&locks);
    settle().await;
    store.set_fault(Some(Fault::Unreachable));
    sleep(12 * SECOND).await;
    // A renewal went unanswered. The lease is valid still, and so is this turn; another would need
    // an answer.
    assert!(guard.is_held());
    store.set_fault(Some(Fault::Hang));
    drop(guard);
    sleep(SECOND).await;
    assert!(!next.is_finished());
    store.set_fault(None);
    drop(next.await.unwrap());
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_passed_on_after_a_reconnect_until_the_store_has_confirmed_it() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let next = waiting(&locks);
    settle().await;
    // The store was away for a moment, so short that no renewal noticed, and has lost everything.
    store.set_fault(Some(Fault::Unreachable));
    store.set_fault(None);
    store.force_release(key("k")).await.unwrap();
    let elsewhere = other.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Hang));
    settle().await;
    drop(guard);
    settle().await;
    assert!(!next.is_finished());
    store.set_fault(None);
    settle().await;
    assert!(!next.is_finished(), "another instance has the key");
    drop(elsewhere);
    drop(next.await.unwrap());
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn the_next_turn_does_not_wait_for_the_answer_to_an_awaited_release() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let mut turns: Vec<_> = (0..3).map(|_| waiting(&locks)).collect();
    settle().await;
    store.set_fault(Some(Fault::Mute));
    let mut releases = Vec::new();
    let mut guard = Some(guard);
    for turn in turns.drain(..) {
        let release = guard.take().unwrap().release();
        releases.push(tokio::spawn(release));
        guard = Some(timeout(SECOND, turn).await.unwrap().unwrap());
    }
    settle().await;
    assert!(releases.iter().all(|release| !release.is_finished()));
    let renewals = store.calls().renewals;
    store.set_fault(None);
    for release in releases {
        release.await.unwrap().unwrap();
    }
    assert_eq!(
        store.calls().renewals,
        renewals + 1,
        "one answer for all that came later"
    );
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_not_passed_on_and_its_tokens_are_not_used() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let waiting = [waiting(&locks), waiting(&locks)];
    settle().await;
    store.force_release(key("k")).await.unwrap();
    let highest = store.raise_fence(key("k"), 0).await.unwrap();
    assert_eq!(guard.lost().await, Loss::NotOurs);
    for next in waiting {
        let next = next.await.unwrap();
        assert!(next.token() > highest);
    }
    assert_eq!(guard.status(), Status::Lost(Loss::NotOurs));
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn once_another_instance_waits_at_most_pass_turns_turns_are_passed_on() {
    let (store, [locks, other]) = fleet_with(|builder| builder.pass_turns(5));
    let guard = locks.lock("k").await.unwrap();
    let mut here = JoinSet::new();
    for _ in 0..20 {
        let locks = locks.clone();
        here.spawn(async move { locks.lock("k").await.unwrap().token() });
    }
    settle().await;
    let there = waiting(&other);
    settle().await;
    drop(guard);
    let there = there.await.unwrap();
    let token = there.token();
    drop(there);
    let tokens = here.join_all().await;
    let before = tokens.iter().filter(|passed_on| **passed_on < token);
    assert_eq!(before.count(), 5);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn once_another_instance_waits_turns_are_passed_on_for_pass_time_at_most() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let here = waiting(&locks);
    settle().await;
    let there = waiting(&other);
    settle().await;
    sleep(11 * MS).await;
    drop(guard);
    let there = there.await.unwrap();
    assert!(!here.is_finished());
    drop(there);
    drop(here.await.unwrap());
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_another_instance_waits_outlives_an_older_answer_that_none_does() {
    let (store, [locks, other]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let next = waiting(&locks);
    settle().await;
    drop(guard);
    let guard = next.await.unwrap(); // with tokens for some turns to come
    sleep(5 * SECOND).await;
    store.set_fault(Some(Fault::Mute));
    sleep(10 * SECOND).await; // a renewal has found nobody, and its answer is on its way
    let there = waiting(&other);
    settle().await;
    store.set_fault(None);
    settle().await;
    let here = waiting(&locks);
    sleep(11 * MS).await;
    drop(guard);
    let there = there.await.unwrap();
    assert!(!here.is_finished());
    drop(there);
    drop(here.await.unwrap());
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn while_no_other_instance_waits_turns_are_passed_on_without_an_end() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    let here: Vec<_> = (0..200).map(|_| waiting(&locks)).collect();
    settle().await;
    drop(guard);
    for turn in here {
        let turn = turn.await.unwrap();
        sleep(20 * MS).await;
        drop(turn);
    }
    assert_eq!(store.calls().acquires, 1);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn another_instance_gets_its_share_although_no_hint_arrives() {
    let (store, [locks]) = fleet();
    let here: Vec<_> = (0..500).map(|_| waiting(&locks)).collect();
    settle().await;
    let first = Instant::now();
    // The hints of the memory store cannot be lost: the other instance is played by hand, without a
    // watcher.
    let stranger = Owner {
        instance: Instance::new(),
        attempt: 1,
    };
    let mut had_it = None;
    for turn in here {
        let turn = turn.await.unwrap();
        sleep(10 * MS).await;
        if had_it.is_none() {
            had_it = stranger_asks(&store, stranger)
                .await
                .then(|| first.elapsed());
        }
        drop(turn);
        settle().await;
        if had_it.is_none() {
            had_it = stranger_asks(&store, stranger)
                .await
                .then(|| first.elapsed());
        }
    }
    let after = had_it.expect("the stranger was starved");
    assert!(after < 2 * SECOND, "{after:?}");
    nothing_left(store, [locks]).await;
}

/// Asks for the key, and gives a grant back at once.
async fn stranger_asks(store: &FaultyStore, owner: Owner) -> bool {
    let acquire = Acquire {
        key: key("k"),
        owner,
        lease: 30 * SECOND,
        block: 1,
        queueing: Queueing::Wait {
            deadline: 3 * SECOND,
            head_start: 3 * SECOND,
        },
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    };
    let granted = matches!(store.ask_for(acquire).await, Ok(Acquired::Granted(_)));
    if granted {
        let release = Release {
            key: key("k"),
            owner,
            ending: Ending::Free,
            in_doubt: false,
            lasts: SECOND,
            mode: Mode::Exclusive,
        };
        store.end(release).await.unwrap();
    }
    granted
}

#[tokio::test(start_paused = true)]
async fn waiters_for_tokens_survive_an_unreachable_store() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.lock("k").await.map(drop) })
        })
        .collect();
    settle().await;
    drop(guard);
    sleep(5 * SECOND).await;
    store.set_fault(None);
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_for_tokens_fail_at_once_with_fail_fast() {
    let (store, [locks]) = fleet_with(|builder| builder.fail_fast(true));
    let guard = locks.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Unreachable));
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.lock("k").await.unwrap_err().kind() })
        })
        .collect();
    settle().await;
    drop(guard);
    let began = Instant::now();
    for waiter in waiting {
        assert_eq!(waiter.await.unwrap(), ErrorKind::Unreachable);
    }
    assert!(began.elapsed() <= SECOND + MS, "at the next renewal");
    store.set_fault(None);
    nothing_left(store, [locks]).await;
}

/// Fault: a renewal that was on its way before a reconnect confirmed the lease, and the turn was
/// passed on beside another instance's.
#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_reconnect_does_not_let_a_turn_be_passed_on() {
    let (store, [locks, other]) = fleet();
    let first = locks.lock("k").await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").await }
    });
    settle().await;
    // A refill is on its way, and brings tokens for the next turn.
    store.set_fault(Some(Fault::Mute));
    sleep(11 * SECOND).await;
    store.restart();
    settle().await;
    let elsewhere = tokio::spawn({
        let other = other.clone();
        async move { other.lock("k").await }
    });
    settle().await;
    store.set_fault(None);
    drop(first);
    let elsewhere = elsewhere.await.unwrap().unwrap();
    settle().await;
    assert!(elsewhere.is_held());
    assert!(!waiting.is_finished(), "two are inside");
    drop(elsewhere);
    drop(waiting.await.unwrap().unwrap());
    nothing_left(store, [locks, other]).await;
}

/// Fault: a turn took time in the length of the line, because the line was rebuilt for each.
#[tokio::test]
async fn a_turn_in_a_long_line_takes_about_as_long_as_one_in_a_short_line() {
    let (mut short, mut long) = (
        Turns::with_line_of(10).await,
        Turns::with_line_of(1_000).await,
    );
    // Both are timed in spans of a few turns, side by side, and the best span counts: others use
    // the machine, and would disturb a longer span in every case.
    let (mut best_short, mut best_long) = (Duration::MAX, Duration::MAX);
    for _ in 0..200 {
        best_short = best_short.min(short.time_some().await);
        best_long = best_long.min(long.time_some().await);
    }
    assert!(
        best_long * 2 < best_short * 3,
        "{best_long:?} for turns in a line of 1,000, {best_short:?} in one of 10"
    );
}

/// A line of requests, one turn after another.
struct Turns {
    locks: Locks,
    guard: Option<LockGuard>,
    line: VecDeque<Pin<Box<dyn Future<Output = LockGuard>>>>,
}

impl Turns {
    async fn with_line_of(length: usize) -> Self {
        let (_, [locks]) = fleet();
        let guard = Some(locks.lock("k").await.unwrap());
        let mut turns = Self {
            locks,
            guard,
            line: VecDeque::new(),
        };
        for _ in 0..length {
            turns.join().await;
        }
        turns
    }

    async fn join(&mut self) {
        let locks = self.locks.clone();
        // Without a budget, which would be used up before the last request has joined the line.
        let request = async move { locks.lock("k").await.unwrap() };
        let mut request = Box::pin(tokio::task::unconstrained(request));
        assert!(poll_once(request.as_mut()).await.is_pending());
        self.line.push_back(request);
    }

    /// The time of five turns, after which as many requests join the line again.
    async fn time_some(&mut self) -> Duration {
        let began = std::time::Instant::now();
        for _ in 0..5 {
            drop(self.guard.take());
            let next = self.line.pop_front().expect("the line is longer");
            self.guard = Some(next.await);
        }
        let took = began.elapsed();
        for _ in 0..5 {
            self.join().await;
        }
        took
    }
}
