//! Small helpers.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

pub(crate) use test_support::words::{Words, key};
use tokio::{runtime::Handle, time::Instant};
use tower_distributed_lock::{
    Locks, LocksBuilder, Stats,
    store::{FaultyStore, Inspection, Owner, Store},
};

/// With the default settings, a lease is valid for this long: 30 s, less 1 % and 2 ms.
pub(crate) const VALIDITY: Duration = Duration::from_millis(29_698);

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Several instances on one store.
pub(crate) fn fleet<const N: usize>() -> (FaultyStore, [Locks; N]) {
    fleet_with(|builder| builder)
}

pub(crate) fn fleet_with<const N: usize>(
    configure: impl Fn(LocksBuilder) -> LocksBuilder,
) -> (FaultyStore, [Locks; N]) {
    let store = FaultyStore::new();
    let locks = std::array::from_fn(|_| {
        configure(Locks::builder(store.clone()).wait_forever())
            .build()
            .unwrap()
    });
    (store, locks)
}

/// Lets everything happen that can happen without time going by.
pub(crate) async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// Moves the clock, and runs no timer and no other task: as after a pause of the whole process.
pub(crate) async fn pause_of_the_process(duration: Duration) {
    let mut advance = pin!(tokio::time::advance(duration));
    let _ = poll_once(advance.as_mut()).await;
}

/// Polls a future once, within the present task.
pub(crate) async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

pub(crate) async fn inspect(store: &FaultyStore, text: &str) -> Inspection {
    store.inspect(key(text)).await.unwrap()
}

pub(crate) async fn holder(store: &FaultyStore, text: &str) -> Owner {
    inspect(store, text).await.holder().cloned().unwrap().owner
}

/// The end of every test on one thread: nothing is held, waited for or under way, the store is
/// empty, no time went by for that, and with the last handle the last task is gone.
#[track_caller]
pub(crate) fn nothing_left<const N: usize>(
    store: FaultyStore,
    fleet: [Locks; N],
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let before = Instant::now();
        settle().await;
        for locks in &fleet {
            assert_eq!(locks.stats(), Stats::default(), "{caller}");
        }
        assert!(store.is_empty(), "the store is not empty: {caller}");
        drop(fleet);
        settle().await;
        let tasks = Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 0, "tasks are left: {caller}");
        assert_eq!(before.elapsed(), Duration::ZERO, "{caller}");
    }
}

/// The same with other threads, which may take some time for it.
pub(crate) async fn nothing_left_soon(store: FaultyStore, fleet: impl IntoIterator<Item = Locks>) {
    for locks in fleet {
        eventually(|| locks.stats() == Stats::default()).await;
    }
    eventually(|| store.is_empty()).await;
    eventually(|| Handle::current().metrics().num_alive_tasks() == 0).await;
}

/// Waits until other threads have made the condition true; fails after an absurdly long time.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(MS).await;
        }
    };
    tokio::time::timeout(20 * SECOND, waiting)
        .await
        .expect("this should have come true long ago");
}
