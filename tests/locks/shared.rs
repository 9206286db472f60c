//! Shared locks: readers beside each other, writers alone, and one fair order for both.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tower_distributed_lock::{
    ErrorKind, LockGuard, Locks, Loss, Status,
    store::{Fault, Mode, Store},
};

use crate::support::{
    MS, SECOND, VALIDITY, fleet, fleet_with, key, nothing_left, nothing_left_soon, poll_once,
    settle,
};

fn reading(locks: &Locks) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.lock("k").shared().await.unwrap() })
}

fn writing(locks: &Locks) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.lock("k").await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_process_share_one_lease() {
    let (store, [locks]) = fleet();
    let mut guards = Vec::new();
    for _ in 0..100 {
        guards.push(locks.lock("k").shared().await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.mode() == Mode::Shared));
    assert_eq!(store.calls().acquires, 1);
    assert_eq!(locks.stats().leases, 1);
    guards.truncate(1);
    settle().await;
    assert_eq!(locks.stats().leases, 1, "one reader is left");
    drop(guards);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_reads_of_one_process_cost_next_to_nothing() {
    let (store, [locks]) = fleet();
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..100 {
                let _guard = locks.lock("k").shared().await.unwrap();
                tokio::task::yield_now().await;
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
async fn readers_of_several_processes_share_a_key_and_exclude_writers() {
    let (store, [a, b]) = fleet();
    let (first, second) = (reading(&a).await.unwrap(), reading(&b).await.unwrap());
    let seen = store.inspect(key("k")).await.unwrap();
    assert_eq!(seen.holders.len(), 2);
    for locks in [&a, &b] {
        assert!(locks.lock("k").now().await.unwrap().is_none());
    }
    drop(first);
    settle().await;
    assert!(a.lock("k").now().await.unwrap().is_none());
    drop(second);
    settle().await;
    let writer = a.lock("k").now().await.unwrap().expect("the key is free");
    for locks in [&a, &b] {
        assert!(locks.lock("k").shared().now().await.unwrap().is_none());
    }
    drop(writer);
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_writer_is_not_overtaken_by_later_readers() {
    for is_local in [true, false] {
        let (store, [a, b]) = fleet();
        let first = reading(&a).await.unwrap();
        let writer = writing(if is_local { &a } else { &b });
        settle().await;
        let late = reading(&a);
        settle().await;
        assert!(!writer.is_finished() && !late.is_finished(), "{is_local}");
        assert!(a.lock("k").shared().now().await.unwrap().is_none());
        drop(first);
        let writer = timeout(SECOND, writer).await.unwrap().unwrap();
        settle().await;
        assert!(!late.is_finished());
        drop(writer);
        drop(timeout(SECOND, late).await.unwrap().unwrap());
        nothing_left(store, [a, b]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_wait_behind_a_writer_begin_together() {
    let (store, [a, b]) = fleet();
    let writer = a.lock("k").await.unwrap();
    let readers = [reading(&a), reading(&b), reading(&a), reading(&b)];
    settle().await;
    drop(writer);
    let mut inside = Vec::new();
    for reader in readers {
        inside.push(timeout(SECOND, reader).await.unwrap().unwrap());
    }
    assert!(inside.iter().all(LockGuard::is_held));
    drop(inside);
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn readers_behind_a_writer_that_gives_up_begin_at_once() {
    for is_local in [true, false] {
        let (store, [a, b]) = fleet();
        let first = reading(&a).await.unwrap();
        let writer = writing(if is_local { &a } else { &b });
        settle().await;
        let late = reading(&a);
        settle().await;
        writer.abort();
        drop(timeout(100 * MS, late).await.unwrap().unwrap());
        drop(first);
        nothing_left(store, [a, b]).await;
    }
}

/// A stream of readers overlaps all the time, on both instances.
#[tokio::test(start_paused = true)]
async fn a_stream_of_readers_does_not_keep_a_writer_out() {
    let (store, [a, b]) = fleet();
    let mut readers = JoinSet::new();
    for number in 0..20_u32 {
        let locks = [&a, &b][number as usize % 2].clone();
        readers.spawn(async move {
            sleep(10 * MS * number).await;
            loop {
                let Ok(guard) = locks.lock("k").shared().await else {
                    return;
                };
                sleep(200 * MS).await;
                drop(guard);
            }
        });
    }
    sleep(SECOND).await;
    for locks in [&a, &b, &a, &b] {
        // The turns that are under way when the writer asks last for 200 ms.
        let writer = timeout(250 * MS, locks.lock("k")).await;
        let writer = writer.expect("the writer waits for earlier turns only");
        drop(writer.unwrap());
        sleep(300 * MS).await;
    }
    readers.shutdown().await;
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_writers_does_not_keep_a_reader_out() {
    let (store, [a, b]) = fleet_with(|builder| builder.pass_turns(2));
    let mut writers = JoinSet::new();
    for number in 0..8 {
        let locks = [&a, &b][number % 2].clone();
        writers.spawn(async move {
            loop {
                let Ok(guard) = locks.lock("k").await else {
                    return;
                };
                sleep(10 * MS).await;
                drop(guard);
            }
        });
    }
    sleep(SECOND).await;
    for locks in [&a, &b, &a, &b] {
        // At most the eight writers that wait come first, and those that the other instance passes
        // its lease on to.
        let reader = timeout(200 * MS, locks.lock("k").shared()).await;
        drop(reader.expect("the reader waits for earlier turns only"));
    }
    writers.shutdown().await;
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_lets_in_the_readers_ahead_of_the_first_writer() {
    let (store, [a, b]) = fleet();
    let guard = a.lock("k").await.unwrap();
    let readers = [reading(&a), reading(&b)];
    settle().await;
    let writer = writing(&b);
    settle().await;
    let late = reading(&b);
    settle().await;
    guard.downgrade().await.unwrap();
    assert_eq!(guard.mode(), Mode::Shared);
    let mut tokens = Vec::new();
    let mut inside = Vec::new();
    for reader in readers {
        let reader = timeout(SECOND, reader).await.unwrap().unwrap();
        tokens.push(reader.token());
        inside.push(reader);
    }
    assert!(guard.is_held());
    assert!(tokens.iter().all(|token| *token > guard.token()));
    assert!(!writer.is_finished() && !late.is_finished());
    drop((inside, guard));
    let writer = timeout(SECOND, writer).await.unwrap().unwrap();
    assert!(tokens.iter().all(|token| *token < writer.token()));
    drop(writer);
    drop(timeout(SECOND, late).await.unwrap().unwrap());
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_has_no_gap_for_a_writer() {
    let (store, [a, b]) = fleet();
    let guard = a.lock("k").await.unwrap();
    let writer = writing(&b);
    settle().await;
    guard.downgrade().await.unwrap();
    sleep(3 * VALIDITY).await;
    assert!(guard.is_held() && !writer.is_finished());
    drop(guard);
    drop(timeout(SECOND, writer).await.unwrap());
    nothing_left(store, [a, b]).await;
}

/// Fault: the lease had no token left for a reader, and asked for none.
#[tokio::test(start_paused = true)]
async fn a_downgraded_key_is_shared_with_a_reader_that_does_not_wait() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    guard.downgrade().await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let reader = locks.lock("k").shared().now().await.unwrap();
        tokens.push(reader.expect("the key is shared").token());
    }
    assert!(tokens.iter().all(|token| *token > guard.token()));
    assert!(locks.lock("k").now().await.unwrap().is_none());
    drop(guard);
    nothing_left(store, [locks]).await;
}

/// Fault: the tokens for the readers came after their moment had passed.
#[tokio::test(start_paused = true)]
async fn a_downgrade_that_was_not_answered_is_told_to_the_store_long_before_the_next_renewal() {
    let (store, [a, b]) = fleet();
    let mut kept = Vec::new();
    for n in 0..1_000 {
        let key = format!("k{n}");
        let guard = a.lock(&*key).await.unwrap();
        let reader = tokio::spawn({
            let (b, key) = (b.clone(), key.clone());
            async move { b.lock(&*key).shared().await.unwrap() }
        });
        settle().await;
        store.set_fault(Some(Fault::Late));
        let told = guard.downgrade().await;
        store.set_fault(None);
        let Err(error) = told else {
            kept.push((guard, reader)); // every other call of each three is answered
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let waited = timeout(2 * SECOND, reader).await;
        assert!(waited.is_ok(), "the reader waits for the next renewal");
        drop((guard, kept, waited));
        settle().await;
        return nothing_left(store, [a, b]).await;
    }
    panic!("each of a thousand downgrades was answered");
}

#[tokio::test(start_paused = true)]
async fn readers_in_line_begin_with_a_downgrade_although_another_instance_waits() {
    let (store, [a, b]) = fleet();
    let guard = a.lock("k").await.unwrap();
    let writer = writing(&b);
    settle().await;
    // The tokens that are asked for on behalf of the readers have not arrived when the guard is
    // downgraded.
    store.set_fault(Some(Fault::Hang));
    let readers = [reading(&a), reading(&a)];
    settle().await;
    let mut downgrading = Box::pin(guard.downgrade());
    assert!(poll_once(downgrading.as_mut()).await.is_pending());
    let late = reading(&a);
    settle().await;
    store.set_fault(None);
    downgrading.await.unwrap();
    let mut inside = Vec::new();
    for reader in readers {
        inside.push(timeout(100 * MS, reader).await.unwrap().unwrap());
    }
    settle().await;
    assert!(!writer.is_finished() && guard.is_held());
    assert!(!late.is_finished(), "the writer came first");
    drop((guard, inside));
    drop(timeout(SECOND, writer).await.unwrap().unwrap());
    drop(timeout(SECOND, late).await.unwrap().unwrap());
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_after_a_downgrade_does_not_overtake_a_waiting_writer() {
    let (store, [a, b]) = fleet();
    let guard = a.lock("k").await.unwrap();
    guard.downgrade().await.unwrap();
    let writer = writing(&b);
    settle().await;
    // No reader has used the lease since the downgrade.
    assert!(a.lock("k").shared().now().await.unwrap().is_none());
    let late = reading(&a);
    settle().await;
    assert!(!late.is_finished() && !writer.is_finished());
    drop(guard);
    drop(timeout(SECOND, writer).await.unwrap().unwrap());
    drop(timeout(SECOND, late).await.unwrap().unwrap());
    nothing_left(store, [a, b]).await;
}

/// Fault: the lease, which only had to be confirmed, was given back because a writer waited.
#[tokio::test(start_paused = true)]
async fn readers_begin_with_a_lease_that_is_doubted_when_it_is_granted() {
    let (store, [a, b]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let mut readers = [
        Box::pin(a.lock("k").shared()),
        Box::pin(a.lock("k").shared()),
    ];
    for reader in &mut readers {
        assert!(poll_once(reader.as_mut()).await.is_pending());
    }
    let writer = writing(&b);
    settle().await;
    // The grant is on its way when the instance hears that the store was away.
    store.set_fault(Some(Fault::Unreachable));
    store.set_fault(None);
    settle().await;
    let mut inside = Vec::new();
    for reader in readers {
        inside.push(timeout(100 * MS, reader).await.unwrap().unwrap());
    }
    assert!(!writer.is_finished());
    drop(inside);
    drop(timeout(SECOND, writer).await.unwrap().unwrap());
    nothing_left(store, [a, b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_downgrade_changes_nothing_and_a_lost_turn_has_none() {
    let (store, [locks]) = fleet();
    let guard = locks.lock("k").await.unwrap();
    guard.downgrade().await.unwrap();
    guard.downgrade().await.unwrap();
    store.force_release(key("k")).await.unwrap();
    assert_eq!(guard.lost().await, Loss::NotOurs);
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(guard);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn all_readers_are_told_when_their_lease_is_lost() {
    let (store, [locks]) = fleet();
    let guards = [
        locks.lock("k").shared().await.unwrap(),
        locks.lock("k").shared().await.unwrap(),
        locks.lock("k").shared().await.unwrap(),
    ];
    store.force_release(key("k")).await.unwrap();
    for guard in &guards {
        assert_eq!(guard.lost().await, Loss::NotOurs);
        assert_eq!(guard.status(), Status::Lost(Loss::NotOurs));
    }
    drop(guards);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_turn_of_one_reader_and_not_the_lease() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(10 * SECOND));
    let first = locks.lock("k").shared().await.unwrap();
    sleep(6 * SECOND).await;
    let second = locks.lock("k").shared().await.unwrap();
    assert_eq!(first.lost().await, Loss::MaxHold);
    assert!(!first.is_held() && second.is_held());
    assert!(locks.lock("k").now().await.unwrap().is_none());
    assert_eq!(second.lost().await, Loss::MaxHold);
    settle().await;
    let writer = locks.lock("k").now().await.unwrap();
    assert!(writer.is_some(), "no reader is left");
    drop((first, second, writer));
    nothing_left(store, [locks]).await;
}

/// Fault: the lease, which goes on for the second reader, was confirmed for the first reader as
/// well.
#[tokio::test(start_paused = true)]
async fn a_reader_past_max_hold_is_not_confirmed_although_the_lease_goes_on() {
    let (store, [locks]) = fleet_with(|builder| builder.max_hold(10 * SECOND));
    let first = locks.lock("k").shared().await.unwrap();
    sleep(6 * SECOND).await;
    let second = locks.lock("k").shared().await.unwrap();
    // The time of the first reader is over before the answer to its question comes.
    store.set_fault(Some(Fault::Mute));
    let confirming = tokio::spawn({
        let first = first.clone();
        async move { first.confirm().await }
    });
    assert_eq!(first.lost().await, Loss::MaxHold);
    store.set_fault(None);
    let asked_before_the_loss = confirming.await.unwrap();
    let asked_after_the_loss = first.confirm().await;
    for confirmed in [asked_before_the_loss, asked_after_the_loss] {
        let error = confirmed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("max_hold"), "{error}");
    }
    second.confirm().await.unwrap();
    drop((first, second));
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn an_awaited_release_of_a_reader_ends_its_turn_only() {
    let (store, [locks]) = fleet();
    let (first, second) = (
        locks.lock("k").shared().await.unwrap(),
        locks.lock("k").shared().await.unwrap(),
    );
    let clone = first.clone();
    first.release().await.unwrap();
    assert_eq!(clone.status(), Status::Released);
    assert!(second.is_held());
    store.force_release(key("k")).await.unwrap();
    let error = second.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(clone);
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_turns_of_all_readers() {
    let (store, [locks]) = fleet();
    let (first, second) = (
        locks.lock("k").shared().await.unwrap(),
        locks.lock("k").shared().await.unwrap(),
    );
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks.close(SECOND).await;
        }
    });
    assert_eq!(first.lost().await, Loss::Closed);
    assert_eq!(second.status(), Status::Lost(Loss::Closed));
    drop((first, second));
    closing.await.unwrap();
    nothing_left(store, [locks]).await;
}

/// On several threads, with real time: the count of readers and writers inside is never wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn readers_and_writers_on_threads_never_meet() {
    const WRITER: usize = 1_000_000;
    let (store, [a, b]) = fleet();
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let (locks, inside) = ([&a, &b][number % 2].clone(), inside.clone());
        tasks.spawn(async move {
            for _ in 0..40 {
                let is_writer = number < 4;
                let weight = if is_writer { WRITER } else { 1 };
                let guard = if is_writer {
                    locks.lock("k").await.unwrap()
                } else {
                    locks.lock("k").shared().await.unwrap()
                };
                let before = inside.fetch_add(weight, Ordering::SeqCst);
                let is_alone = before == 0 || (!is_writer && before < WRITER);
                assert!(is_alone, "{before} were inside");
                tokio::time::sleep(Duration::from_micros(200)).await;
                inside.fetch_sub(weight, Ordering::SeqCst);
                drop(guard);
            }
        });
    }
    tasks.join_all().await;
    nothing_left_soon(store, [a, b]).await;
}
