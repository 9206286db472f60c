//! Requests that come while the store is asked on behalf of another request: those that fit beside
//! it wait for the answer, and all others are refused.

use std::{pin::Pin, task::Poll};

use tokio::time::{Instant, timeout};
use tower_distributed_lock::{
    Error, ErrorKind, LockGuard, Locks,
    store::{Fault, FaultyStore, Mode},
};

use crate::support::{SECOND, fleet, fleet_with, inspect, nothing_left, poll_once, settle};

type Trying = Pin<Box<dyn Future<Output = Result<Option<LockGuard>, Error>> + Send>>;

/// A request for the key, which does not wait for a turn of another.
fn trying(locks: &Locks, mode: Mode) -> Trying {
    let locks = locks.clone();
    Box::pin(async move {
        match mode {
            Mode::Exclusive => locks.lock("k").now().await,
            Mode::Shared => locks.lock("k").shared().now().await,
            Mode::Permit { of } => locks.permit("k", of).now().await,
            _ => unreachable!("there is no such mode"),
        }
    })
}

/// Asks for the key in each mode, in order, while the store answers none of them. Then the store
/// answers.
async fn all_at_once(
    store: &FaultyStore,
    locks: &Locks,
    modes: impl IntoIterator<Item = Mode>,
) -> Vec<Result<Option<LockGuard>, Error>> {
    store.set_fault(Some(Fault::Mute));
    let mut asking = Vec::new();
    for mode in modes {
        let mut asked = trying(locks, mode);
        let answer = poll_once(asked.as_mut()).await;
        asking.push((asked, answer));
    }
    store.set_fault(None);
    let mut answers = Vec::new();
    for (asked, answer) in asking {
        answers.push(match answer {
            Poll::Ready(answer) => answer,
            Poll::Pending => timeout(SECOND, asked).await.expect("the request waits"),
        });
    }
    answers
}

fn granted(answers: &[Result<Option<LockGuard>, Error>]) -> Vec<bool> {
    let granted = |answer: &Result<Option<LockGuard>, Error>| answer.as_ref().unwrap().is_some();
    answers.iter().map(granted).collect()
}

const FOUR: Mode = Mode::Permit { of: 4 };
const EIGHT: Mode = Mode::Permit { of: 8 };

/// Fault: the request whose question was under way counted as being in the way of all others.
#[tokio::test(start_paused = true)]
async fn all_free_permits_are_granted_to_requests_that_ask_at_once() {
    for longest_line in [0, 8] {
        let (store, [locks]) = fleet_with(|builder| builder.longest_line(longest_line));
        let answers = all_at_once(&store, &locks, [FOUR; 5]).await;
        assert_eq!(granted(&answers), [true, true, true, true, false]);
        drop(answers);
        nothing_left(store, [locks]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_the_requests_that_ask_at_once_as_many_are_refused_as_others_hold_permits() {
    for held in 0..=4 {
        let (store, [locks, other]) = fleet();
        let mut elsewhere = Vec::new();
        for _ in 0..held {
            elsewhere.push(other.permit("k", 4).await.unwrap());
        }
        let answers = all_at_once(&store, &locks, [FOUR; 4]).await;
        let expected: Vec<bool> = (0..4).map(|at| at < 4 - held).collect();
        assert_eq!(granted(&answers), expected, "{held} are held elsewhere");
        assert_eq!(inspect(&store, "k").await.queue, []);
        drop((answers, elsewhere));
        nothing_left(store, [locks, other]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn permits_of_different_numbers_are_granted_in_order_as_far_as_each_number_allows() {
    let (store, [locks, other]) = fleet();
    let elsewhere = [
        other.permit("k", 8).await.unwrap(),
        other.permit("k", 8).await.unwrap(),
        other.permit("k", 8).await.unwrap(),
    ];
    // One of four is free, then one of eight; a second one of four is not.
    let answers = all_at_once(&store, &locks, [FOUR, EIGHT, FOUR, EIGHT]).await;
    assert_eq!(granted(&answers), [true, true, false, true]);
    drop(answers);
    settle().await;
    // Four are taken, and there is room for one of eight only.
    let fourth = other.permit("k", 8).await.unwrap();
    let answers = all_at_once(&store, &locks, [FOUR, EIGHT]).await;
    assert_eq!(granted(&answers), [false, true]);
    drop((answers, elsewhere, fourth));
    nothing_left(store, [locks, other]).await;
}

/// Fault: the same as for permits.
#[tokio::test(start_paused = true)]
async fn a_free_key_is_shared_by_all_readers_that_ask_at_once() {
    for longest_line in [0, 8] {
        let (store, [locks]) = fleet_with(|builder| builder.longest_line(longest_line));
        let answers = all_at_once(&store, &locks, [Mode::Shared; 4]).await;
        assert_eq!(granted(&answers), [true; 4]);
        assert_eq!(store.calls().acquires, 1, "one question is for all");
        drop(answers);
        nothing_left(store, [locks]).await;
    }
}

/// A limit of zero is for requests that wait for turns, and not for those that wait for an answer.
#[tokio::test(start_paused = true)]
async fn readers_that_ask_at_once_have_room_in_a_line_of_no_length() {
    let (store, [locks]) = fleet_with(|builder| builder.longest_line(0));
    for is_cancelled in [false, true] {
        store.set_fault(Some(Fault::Mute));
        let mut asking: Vec<_> = (0..4).map(|_| Box::pin(locks.lock("k").shared())).collect();
        for asked in &mut asking {
            assert!(poll_once(asked.as_mut()).await.is_pending());
        }
        if is_cancelled {
            asking.clear();
            asking.push(Box::pin(locks.lock("k").shared()));
            assert!(poll_once(asking[0].as_mut()).await.is_pending());
        }
        store.set_fault(None);
        for asked in asking {
            drop(timeout(SECOND, asked).await.unwrap().unwrap());
        }
        settle().await;
    }
    nothing_left(store, [locks]).await;
}

#[tokio::test(start_paused = true)]
async fn readers_that_ask_at_once_are_refused_beside_a_writer() {
    let (store, [locks, other]) = fleet();
    let writer = other.lock("k").await.unwrap();
    let answers = all_at_once(&store, &locks, [Mode::Shared; 4]).await;
    assert_eq!(granted(&answers), [false; 4]);
    assert_eq!(inspect(&store, "k").await.queue, []);
    drop(writer);
    let answers = all_at_once(
        &store,
        &locks,
        [Mode::Exclusive, Mode::Exclusive, Mode::Shared],
    )
    .await;
    assert_eq!(granted(&answers), [true, false, false]);
    drop(answers);
    nothing_left(store, [locks, other]).await;
}

/// Fault: the reader was refused because of a writer that was refused itself.
#[tokio::test(start_paused = true)]
async fn a_reader_behind_a_writer_that_is_refused_shares_the_key() {
    let (store, [locks, other]) = fleet();
    let reading = other.lock("k").shared().await.unwrap();
    let answers = all_at_once(
        &store,
        &locks,
        [Mode::Exclusive, Mode::Shared, Mode::Shared],
    )
    .await;
    assert_eq!(granted(&answers), [false, true, true]);
    drop((answers, reading));
    nothing_left(store, [locks, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_behind_a_writer_that_begins_after_a_confirmation_is_refused() {
    let (store, [locks]) = fleet();
    store.set_fault(Some(Fault::Mute));
    let mut writer = trying(&locks, Mode::Exclusive);
    assert!(poll_once(writer.as_mut()).await.is_pending());
    // The grant is on its way when the instance hears that the store was away, and must be
    // confirmed.
    store.set_fault(Some(Fault::Unreachable));
    store.set_fault(None);
    settle().await;
    store.set_fault(Some(Fault::Mute));
    assert!(poll_once(writer.as_mut()).await.is_pending());
    let mut reader = trying(&locks, Mode::Shared);
    assert!(poll_once(reader.as_mut()).await.is_pending());
    store.set_fault(None);
    let writer = writer.await.unwrap().expect("the key is free");
    let refused = timeout(SECOND, reader).await.expect("the reader waits");
    assert!(refused.unwrap().is_none());
    drop(writer);
    nothing_left(store, [locks]).await;
}

/// The request that asked first leaves before the answer.
#[tokio::test(start_paused = true)]
async fn the_answer_to_the_question_of_a_request_that_left_is_for_the_others() {
    for mode in [Mode::Shared, FOUR] {
        let (store, [locks]) = fleet();
        store.set_fault(Some(Fault::Mute));
        let mut asking: Vec<_> = (0..4).map(|_| trying(&locks, mode)).collect();
        for asked in &mut asking {
            assert!(poll_once(asked.as_mut()).await.is_pending());
        }
        drop(asking.remove(0));
        store.set_fault(None);
        let mut guards = Vec::new();
        for asked in asking {
            let guard = timeout(SECOND, asked).await.unwrap().unwrap();
            guards.push(guard.expect("the key is free"));
        }
        drop(guards);
        nothing_left(store, [locks]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_that_ask_at_once_fail_with_the_store() {
    for mode in [Mode::Shared, FOUR] {
        let (store, [locks]) = fleet();
        store.set_fault(Some(Fault::Hang));
        let mut asking: Vec<_> = (0..4).map(|_| trying(&locks, mode)).collect();
        for asked in &mut asking {
            assert!(poll_once(asked.as_mut()).await.is_pending());
        }
        store.set_fault(Some(Fault::Unreachable));
        for asked in asking {
            let error = timeout(SECOND, asked).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreachable);
        }
        store.set_fault(None);
        nothing_left(store, [locks]).await;
    }
}

/// The readers that wait leave room for one that does not, so the store decides.
#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_wait_asks_although_others_wait_in_the_queue() {
    let (store, [locks, other]) = fleet();
    let writer = other.lock("k").await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("k").shared().await.unwrap() }
    });
    settle().await;
    let began = Instant::now();
    assert!(locks.lock("k").shared().now().await.unwrap().is_none());
    assert_eq!(inspect(&store, "k").await.queue.len(), 1);
    assert!(locks.lock("k").now().await.unwrap().is_none());
    drop(writer);
    // The instance has not been told yet that the key is free.
    let answers = all_at_once(&store, &locks, [Mode::Shared; 2]).await;
    assert_eq!(granted(&answers), [true; 2]);
    assert!(began.elapsed().is_zero());
    drop((answers, waiting.await.unwrap()));
    nothing_left(store, [locks, other]).await;
}

/// A line that waits in the store's queue is full however well its requests go together.
#[tokio::test(start_paused = true)]
async fn readers_that_wait_in_the_queue_are_bounded() {
    let (store, [locks, other]) = fleet_with(|builder| builder.longest_line(2));
    let writer = other.lock("k").await.unwrap();
    let wait = |locks: Locks| async move { locks.lock("k").shared().await.unwrap() };
    let waiting = [(); 2].map(|()| tokio::spawn(wait(locks.clone())));
    settle().await;
    let error = locks.lock("k").shared().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LineFull);
    assert!(locks.lock("k").shared().now().await.unwrap().is_none());
    drop(writer);
    for waiting in waiting {
        drop(waiting.await.unwrap());
    }
    nothing_left(store, [locks, other]).await;
}

/// Fault: the place stayed in the queue for up to a poll interval, and all readers waited behind
/// it.
#[tokio::test(start_paused = true)]
async fn a_writer_that_does_not_wait_leaves_no_place_in_the_queue() {
    let (store, [locks, other]) = fleet();
    let reading = other.lock("k").shared().await.unwrap();
    let mut cancelled = Box::pin(locks.lock("k"));
    assert!(poll_once(cancelled.as_mut()).await.is_pending());
    settle().await;
    assert_eq!(inspect(&store, "k").await.queue.len(), 1);
    drop(cancelled);
    // The next question is asked for both: for the one that does not wait, and for the one that
    // does.
    let mut writer = trying(&locks, Mode::Exclusive);
    assert!(poll_once(writer.as_mut()).await.is_pending());
    let mut reader = Box::pin(locks.lock("k").shared());
    assert!(poll_once(reader.as_mut()).await.is_pending());
    let began = Instant::now();
    assert!(writer.await.unwrap().is_none());
    let reader = reader.await.unwrap();
    assert_eq!(inspect(&store, "k").await.queue, []);
    let third = other.lock("k").shared().now().await.unwrap();
    assert!(third.is_some(), "no writer waits");
    assert!(began.elapsed().is_zero());
    drop((reader, reading, third));
    nothing_left(store, [locks, other]).await;
}
