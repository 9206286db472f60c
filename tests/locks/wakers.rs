//! Wakers that use the locks themselves: none of them is called under a lock of this crate.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use tower_distributed_lock::{
    ErrorKind, LockGuard, Locks, Loss,
    store::{FaultyStore, Store},
};

use crate::support::{key, settle};

/// Looks at all keys before it wakes the task.
struct Curious {
    locks: Locks,
    task: Waker,
}

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        let _ = (self.locks.held(), self.locks.stats());
        self.task.wake_by_ref();
    }
}

/// Polls a future with a waker that uses the locks.
async fn curious<F: Future>(locks: &Locks, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let waker = Waker::from(Arc::new(Curious {
            locks: locks.clone(),
            task: cx.waker().clone(),
        }));
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

fn waiting(locks: &Locks) -> tokio::task::JoinHandle<Result<LockGuard, ErrorKind>> {
    let locks = locks.clone();
    tokio::spawn(async move {
        let guard = curious(&locks, locks.lock("k")).await;
        guard.map_err(|error| error.kind())
    })
}

/// Fault: the waker was called under the mutex of a shard, which it then waited for.
#[test]
fn a_waker_may_use_the_locks() {
    let (done, finished) = mpsc::channel();
    // On a thread of its own, because a deadlock would last for ever.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build();
        runtime.unwrap().block_on(every_kind_of_wake_up());
        done.send(()).unwrap();
    });
    let patience = Duration::from_secs(30);
    finished.recv_timeout(patience).expect("it is a deadlock");
}

async fn every_kind_of_wake_up() {
    let store = FaultyStore::new();
    let locks = Locks::builder(store.clone()).build().unwrap();

    // A turn begins: the lease is passed on.
    let guard = locks.lock("k").await.unwrap();
    let next = waiting(&locks);
    settle().await;
    drop(guard);
    let guard = next.await.unwrap().unwrap();

    // The lease is confirmed before it is passed on.
    let next = waiting(&locks);
    settle().await;
    curious(&locks, guard.release()).await.unwrap();
    let guard = next.await.unwrap().unwrap();

    // The lease is lost.
    let watching = tokio::spawn({
        let (locks, guard) = (locks.clone(), guard.clone());
        async move { curious(&locks, guard.lost()).await }
    });
    settle().await;
    store.force_release(key("k")).await.unwrap();
    assert_eq!(watching.await.unwrap(), Loss::NotOurs);
    drop(guard);

    // The locks are closed, which refuses a request and waits for the last turn.
    let guard = locks.lock("k").await.unwrap();
    let refused = waiting(&locks);
    settle().await;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { curious(&locks, locks.close(Duration::from_secs(5))).await }
    });
    settle().await;
    assert_eq!(refused.await.unwrap().unwrap_err(), ErrorKind::Closed);
    let mut closing = pin!(closing);
    assert!(matches!(
        crate::support::poll_once(closing.as_mut()).await,
        Poll::Pending
    ));
    drop(guard);
    assert!(closing.await.unwrap().is_complete());
}
