//! Permits: at most so many at a time, in all instances together.

use tokio::{
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tower_distributed_lock::{
    ErrorKind, LockGuard, Locks, Loss,
    store::{Mode, Store},
};

use crate::support::{MS, SECOND, fleet, fleet_with, key, nothing_left, settle};

fn waiting(locks: &Locks, of: u32) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.permit("k", of).await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn no_more_permits_are_granted_than_there_are() {
    let (store, [a, b]) = fleet();
    let mut guards = Vec::new();
    for locks in [&a, &b, &a, &b] {
        guards.push(locks.permit("k", 4).await.unwrap());
    }
    assert!(guards.iter().all(|it| it.mode() == Mode::Permit { of: 4 }));
    for locks in [&a, &b] {
        assert!(locks.permit("k", 4).now().await.unwrap().is_none());
    }
    let error = a.permit("k", 4).within(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    let next = waiting(&b, 4);
    settle().await;
    assert!(!next.is_finished());
    guards.pop();
    drop(timeout(100 * MS, next).await.unwrap());
    drop(guards);
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn all_waiting_requests_of_a_process_ask_in_one_call() {
    let (store, [a, b]) = fleet();
    let holding: Vec<_> = {
        let mut holding = Vec::new();
        for _ in 0..8 {
            holding.push(b.permit("k", 8).await.unwrap());
        }
        holding
    };
    let waiting: Vec<_> = (0..6).map(|_| waiting(&a, 8)).collect();
    settle().await;
    let before = store.calls().acquires;
    drop(holding);
    let mut guards = Vec::new();
    for guard in waiting {
        guards.push(timeout(100 * MS, guard).await.unwrap().unwrap());
    }
    let asked = store.calls().acquires - before;
    assert!(asked <= 3, "six permits took {asked} calls");
    assert_eq!(a.stats().leases, 6);
    let tokens: std::collections::BTreeSet<_> = guards.iter().map(LockGuard::token).collect();
    assert_eq!(tokens.len(), 6, "each turn has a token of its own");
    drop(guards);
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn permits_are_passed_on_within_a_process() {
    let (store, [locks]) = fleet();
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..20 {
                let _guard = locks.permit("k", 4).await.unwrap();
                assert!(locks.stats().leases <= 4);
                sleep(MS).await;
            }
        });
    }
    tasks.join_all().await;
    settle().await;
    let calls = store.calls();
    let commands = calls.acquires + calls.renewals + calls.releases;
    assert!(commands <= 200, "{calls:?}");
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn two_processes_share_the_permits_fairly() {
    let (store, [a, b]) = fleet_with(|builder| builder.pass_turns(2));
    let mut tasks = JoinSet::new();
    for number in 0..16 {
        let locks = [&a, &b][number % 2].clone();
        tasks.spawn(async move {
            loop {
                let guard = locks.permit("k", 2).await.unwrap();
                // Turns of different lengths, so that the instances do not move in step.
                sleep(MS * (3 + number as u32)).await;
                drop(guard);
            }
        });
    }
    sleep(4 * SECOND).await;
    let turns = [a.totals().turns, b.totals().turns];
    tasks.shutdown().await;
    let [fewer, more] = [turns[0].min(turns[1]), turns[0].max(turns[1])];
    assert!(fewer + more > 600, "{turns:?}");
    assert!(fewer * 2 > more, "{turns:?}");
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn each_request_counts_by_its_own_number() {
    let (store, [a, b]) = fleet();
    let (first, second) = (
        a.permit("k", 3).await.unwrap(),
        b.permit("k", 3).await.unwrap(),
    );
    assert!(b.permit("k", 2).now().await.unwrap().is_none());
    assert!(a.permit("k", 2).now().await.unwrap().is_none());
    drop(first);
    settle().await;
    let third = a.permit("k", 2).now().await.unwrap();
    assert!(third.is_some());
    drop((second, third));
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_permit_leaves_the_others_alone() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(10 * SECOND));
    let first = locks.permit("k", 2).await.unwrap();
    sleep(5 * SECOND).await;
    let second = locks.permit("k", 2).await.unwrap();
    assert_eq!(first.lost().await, Loss::MaxHold);
    assert!(second.is_held());
    let third = locks.permit("k", 2).await.unwrap();
    assert!(third.is_held() && second.is_held());
    drop((first, second, third));
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_with_no_permits_is_refused() {
    let (store, [locks]) = fleet();
    let error = locks.permit("k", 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn locks_and_permits_do_not_mix_at_one_key() {
    let (store, [a, b]) = fleet();
    let permit = a.permit("k", 2).await.unwrap();
    for locks in [&a, &b] {
        let error = locks.lock("k").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        let error = locks.lock("k").shared().now().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    }
    drop(permit);
    settle().await;
    let lock = a.lock("k").await.unwrap();
    for locks in [&a, &b] {
        let error = locks.permit("k", 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    }
    assert!(lock.is_held());
    drop(lock);
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_cannot_be_downgraded() {
    let (store, [locks]) = fleet();
    let guard = locks.permit("k", 2).await.unwrap();
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(guard.is_held());
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn an_awaited_release_of_a_permit_says_whether_it_was_held() {
    let (store, [locks]) = fleet();
    let guard = locks.permit("k", 2).await.unwrap();
    guard.release().await.unwrap();
    let guard = locks.permit("k", 2).await.unwrap();
    store.force_release(key("k")).await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_give_back_their_permits() {
    let (store, [a, b]) = fleet();
    let held = [
        a.permit("k", 2).await.unwrap(),
        a.permit("k", 2).await.unwrap(),
    ];
    let waiting: Vec<_> = (0..5).map(|_| waiting(&b, 2)).collect();
    settle().await;
    waiting.iter().for_each(JoinHandle::abort);
    drop(held);
    settle().await;
    let guards = [
        a.permit("k", 2).now().await.unwrap(),
        a.permit("k", 2).now().await.unwrap(),
    ];
    assert!(guards.iter().all(Option::is_some));
    drop(guards);
    nothing_left(store, [a, b]).await;
}
