//! Hints that are interrupted, and releases that the store does not carry out at once.

use std::{thread, time::Duration};

use tokio::time::timeout;
use tower_distributed_lock::store::Hint;

use crate::{subject::*, support::PATIENCE};

pub(crate) async fn an_interruption_of_the_hints_is_a_hint_itself(subject: impl Subject) {
    let (store, a) = (subject.store(), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    if subject.interrupt_hints().await {
        hinted(&mut hints, Hint::Reconnected).await;
    }
}

pub(crate) async fn a_release_is_owed_until_the_store_has_carried_it_out(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    assert_eq!(store.owed(), 0);
    if subject.refuse_writes(true).await {
        let released = store.end(ending(&key, a)).await;
        assert!(released.is_err(), "{released:?}");
        assert!(store.owed() > 0);
        let settled = timeout(Duration::from_millis(50), store.settled()).await;
        assert!(settled.is_err(), "settled while a release is owed");
        subject.refuse_writes(false).await;
    } else {
        drop(store.end(ending(&key, a)));
    }
    let settled = timeout(PATIENCE, store.settled()).await;
    settled.expect("the release should be carried out");
    assert_eq!(store.owed(), 0);
    eventually("no lease is left", async || subject.is_empty().await).await;
}

pub(crate) async fn a_release_outside_of_a_runtime_is_carried_out(subject: impl Subject) {
    let (store, a) = (subject.store(), owner());
    store.take(&key("k"), a).await;
    thread::scope(|threads| {
        threads.spawn(|| drop(store.end(ending(&key("k"), a))));
    });
    // At the latest with the next call from within a runtime.
    store.inspect(key("another")).await.unwrap();
    eventually("no lease is left", async || subject.is_empty().await).await;
}
