//! Waiting: one contender for all, first come, first served, and only so many.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower_distributed_lock::{ErrorKind, Locks, store::Fault};

use crate::support::{MS, SECOND, fleet, fleet_with, inspect, nothing_left, poll_once, settle};

/// `count` tasks that wait for the key one after another. Returns the order of their turns.
fn waiters(locks: &Locks, count: usize) -> JoinSet<(usize, u64)> {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let locks = locks.clone();
        tasks.spawn(async move { (number, locks.lock("k").await.unwrap().token()) });
    }
    tasks
}

async fn by_token(tasks: JoinSet<(usize, u64)>) -> Vec<usize> {
    let mut turns = tasks.join_all().await;
    turns.sort_by_key(|(_, token)| *token);
    turns.into_iter().map(|(number, _)| number).collect()
}

/// Counts how often a task is woken.
struct Counter {
    wakes: AtomicUsize,
    task: Waker,
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.task.wake_by_ref();
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_an_uncontended_request_wakes_it_once() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let task = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let wakes = AtomicUsize::new(0);
    let counter = Arc::new(Counter { wakes, task });
    let waker = Waker::from(counter.clone());
    let mut lock = Box::pin(locks.lock("k"));
    let mut poll = || lock.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    store.set_fault(None);
    let guard = poll_fn(|_| poll()).await.unwrap();
    assert_eq!(counter.wakes.load(Ordering::Relaxed), 1);
    drop(lock);
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn an_uncontended_turn_costs_one_acquire_and_one_release() {
    let (store, [locks]) = fleet();
    for _ in 0..10 {
        drop(locks.lock("k").await.unwrap());
        settle().await;
    }
    let calls = store.calls();
    assert_eq!(
        (calls.acquires, calls.renewals, calls.releases),
        (10, 0, 10)
    );
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn any_number_of_waiters_has_one_contender() {
    let (store, [locks, other]) = fleet();
    // The instance listens to hints from its first use on, and then its contender asks once more.
    drop(locks.lock("unrelated").await.unwrap());
    settle().await;
    let elsewhere = other.lock("k").await.unwrap();
    let before = store.calls();
    let waiting = waiters(&locks, 100);
    settle().await;
    assert_eq!(locks.stats().waiting, 100);
    assert_eq!(store.calls().acquires - before.acquires, 1);
    assert_eq!(inspect(&store, "k").await.queue.len(), 1);

    // A waiting contender asks about once in a poll interval, which is a second.
    sleep(20 * SECOND).await;
    let asked = store.calls().acquires - before.acquires;
    assert!((20..=27).contains(&asked), "asked {asked} times");

    // When the key comes, the line runs through without another acquire.
    let before = store.calls();
    drop(elsewhere);
    assert_eq!(by_token(waiting).await, Vec::from_iter(0..100));
    settle().await;
    let calls = store.calls();
    assert_eq!(calls.acquires - before.acquires, 1);
    assert!(calls.renewals - before.renewals <= 4, "{calls:?}");
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_goes_to_the_next_instance_at_once() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").await.unwrap();
    let waiting = waiters(&locks, 1);
    settle().await;
    let began = Instant::now();
    drop(elsewhere);
    assert_eq!(by_token(waiting).await, [0]);
    assert!(began.elapsed().is_zero());
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn instances_are_served_in_order_of_arrival() {
    let (store, fleet) = fleet::<5>();
    let first = fleet[0].lock("k").await.unwrap();
    let mut tasks = JoinSet::new();
    for (number, locks) in fleet.iter().enumerate().skip(1) {
        let locks = locks.clone();
        tasks.spawn(async move { (number, locks.lock("k").await.unwrap().token()) });
        settle().await;
    }
    drop(first);
    assert_eq!(by_token(tasks).await, [1, 2, 3, 4]);
    nothing_left(store, fleet).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_line_refuses_further_requests() {
    let (store, [locks]) = fleet_with(|builder| builder.longest_line(3));
    let guard = locks.lock("k").await.unwrap();
    let waiting = waiters(&locks, 3);
    settle().await;
    let error = locks.lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LineFull);
    drop(guard);
    assert_eq!(by_token(waiting).await, [0, 1, 2]);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_line_is_not_longer_while_its_lease_is_being_released() {
    let (store, [locks]) = fleet_with(|builder| builder.longest_line(3));
    drop(locks.lock("k").await.unwrap());
    store.set_fault(Some(Fault::Hang));
    settle().await;
    assert_eq!(store.calls().releases, 1);
    let waiting = waiters(&locks, 3);
    settle().await;
    let error = locks.lock("k").within(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LineFull);
    store.set_fault(None);
    assert_eq!(by_token(waiting).await, [0, 1, 2]);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn lock_now_leaves_no_trace_in_the_queue() {
    let (store, [locks, other]) = fleet();
    let guard = other.lock("k").await.unwrap();
    assert!(locks.lock("k").now().await.unwrap().is_none());
    assert_eq!(inspect(&store, "k").await.queue, []);
    settle().await;
    assert_eq!(locks.stats().keys, 0);
    drop(guard);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn lock_now_does_not_wait_behind_others() {
    let (store, [locks]) = fleet();
    drop(locks.lock("k").await.unwrap());
    store.set_fault(Some(Fault::Hang));
    settle().await;
    // The lease is being released, and another request waits for the next one.
    let waiting = waiters(&locks, 1);
    settle().await;
    let at_once = timeout(SECOND, locks.lock("k").now())
        .await
        .expect("waited");
    assert!(at_once.unwrap().is_none());
    store.set_fault(None);
    assert_eq!(by_token(waiting).await, [0]);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn lock_now_gets_a_key_that_is_just_being_given_back() {
    let (store, [locks]) = fleet();
    for _ in 0..10 {
        assert!(locks.lock("k").now().await.unwrap().is_some());
    }
    nothing_left(store, [locks]).await;
}

/// Fault: the key counted as held while the store was asked on behalf of a request that had left.
#[tokio::test(start_paused = true)]
async fn lock_now_gets_a_free_key_although_a_cancelled_request_has_just_asked_for_it() {
    for longest_line in [0, 8] {
        let (store, [locks]) = fleet_with(|builder| builder.longest_line(longest_line));
        for is_shared in [false, true] {
            store.set_fault(Some(Fault::Mute));
            let mut cancelled = Box::pin(locks.lock("k"));
            assert!(poll_once(cancelled.as_mut()).await.is_pending());
            drop(cancelled);
            let mut trying = Box::pin(async {
                if is_shared {
                    locks.lock("k").shared().now().await
                } else {
                    locks.lock("k").now().await
                }
            });
            assert!(poll_once(trying.as_mut()).await.is_pending());
            store.set_fault(None);
            let guard = trying.await.unwrap();
            assert!(guard.expect("the key is free").is_held());
            settle().await;
        }
        nothing_left(store, [locks]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lock_now_of_a_key_that_is_held_is_refused_although_a_cancelled_request_has_just_asked() {
    for longest_line in [0, 8] {
        let (store, [locks, other]) = fleet_with(|builder| builder.longest_line(longest_line));
        let elsewhere = other.lock("k").await.unwrap();
        store.set_fault(Some(Fault::Mute));
        let mut cancelled = Box::pin(locks.lock("k"));
        assert!(poll_once(cancelled.as_mut()).await.is_pending());
        drop(cancelled);
        let mut trying = Box::pin(locks.lock("k").now());
        assert!(poll_once(trying.as_mut()).await.is_pending());
        store.set_fault(None);
        assert!(trying.await.unwrap().is_none());
        drop(elsewhere);
        nothing_left(store, [locks, other]).await;
    }
}

/// Fault: the store had answered for a cancelled writer, and a reader that could share the key was
/// refused.
#[tokio::test(start_paused = true)]
async fn lock_shared_now_shares_a_key_although_a_cancelled_writer_has_just_asked_for_it() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").shared().await.unwrap();
    store.set_fault(Some(Fault::Mute));
    let mut cancelled = Box::pin(locks.lock("k"));
    assert!(poll_once(cancelled.as_mut()).await.is_pending());
    drop(cancelled);
    let mut trying = Box::pin(locks.lock("k").shared().now());
    assert!(poll_once(trying.as_mut()).await.is_pending());
    store.set_fault(None);
    let guard = trying.await.unwrap().expect("the key is only shared");
    drop((guard, elsewhere));
    nothing_left(store, [locks, other]).await;
}

/// Fault: a request that could begin at once was refused, because no request may wait.
#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_refuses_no_request_that_need_not_wait() {
    let (store, [locks]) = fleet_with(|builder| builder.longest_line(0));
    let readers = [
        locks.lock("k").shared().await.unwrap(),
        locks.lock("k").shared().await.unwrap(),
    ];
    let permits = [
        locks.permit("p", 2).await.unwrap(),
        locks.permit("p", 2).await.unwrap(),
    ];
    for error in [
        locks.lock("k").await.unwrap_err(),
        locks.permit("p", 2).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::LineFull);
    }
    drop((readers, permits));
    nothing_left(store, [locks]).await;
}

/// Fault: the lease was granted and only had to be confirmed, and its own request was told that the
/// key is held.
#[tokio::test(start_paused = true)]
async fn lock_now_gets_its_key_although_the_store_came_back_before_the_grant_arrived() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let mut trying = Box::pin(locks.lock("k").now());
    assert!(poll_once(trying.as_mut()).await.is_pending());
    // The grant is on its way when the instance hears that the store was away.
    store.set_fault(Some(Fault::Unreachable));
    store.set_fault(None);
    settle().await;
    let guard = trying.await.unwrap().expect("the key is free");
    guard.confirm().await.unwrap();
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_lock_now_does_not_refuse_a_waiter() {
    let (store, [locks, other]) = fleet();
    let elsewhere = other.lock("k").await.unwrap();
    store.set_fault(Some(Fault::Hang));
    let impatient = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").now().await.unwrap().is_none() }
    });
    settle().await;
    let waiting = waiters(&locks, 1);
    settle().await;
    store.set_fault(None);
    settle().await;
    assert!(impatient.await.unwrap());
    assert_eq!(inspect(&store, "k").await.queue.len(), 1);
    drop(elsewhere);
    assert_eq!(by_token(waiting).await, [0]);
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_its_limit() {
    let (store, [locks, other]) = fleet_with(|builder| builder.wait_limit(2 * SECOND));
    let guard = other.lock("k").await.unwrap();
    let began = Instant::now();
    for (limit, outcome) in [
        (500 * MS, locks.lock("k").within(500 * MS).await),
        (2 * SECOND, locks.lock("k").await),
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Held, "{limit:?}");
    }
    assert_eq!(began.elapsed(), 2500 * MS);
    settle().await;
    assert_eq!(inspect(&store, "k").await.queue, []);
    drop(guard);
    nothing_left(store, [locks, other]).await;
}
