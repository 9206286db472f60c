//! Hints. One may be lost, but without a fault each arrives.

use futures_util::future::join_all;
use tower_distributed_lock::store::{Acquire, Acquired, Hint, Released};

use crate::subject::*;

pub(crate) async fn a_new_waiter_is_hinted_to_the_holder(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let mut hints = store.watch_for_sure(a.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, owner()).await);
    hinted(&mut hints, Hint::Wanted(key)).await;
}

pub(crate) async fn a_release_is_hinted_to_the_head_of_the_queue(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    let mut hints = store.watch_for_sure(b.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, owner()).await);
    store.free(&key, a).await;
    hinted(&mut hints, Hint::Free(key)).await;
}

pub(crate) async fn the_attempt_behind_the_head_is_hinted_as_next(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    let mut hints_b = store.watch_for_sure(b.instance).await;
    let mut hints_c = store.watch_for_sure(c.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    store.free(&key, a).await;
    hinted(&mut hints_b, Hint::Free(key.clone())).await;
    hinted(&mut hints_c, Hint::Next(key)).await;
}

pub(crate) async fn a_question_about_an_expired_lease_is_hinted_to_the_head_of_the_queue(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let (b, c) = (owner(), owner());
    let mut hints = store.watch_for_sure(b.instance).await;
    let brief = Acquire {
        lease: SHORT,
        ..attempt(&key, b)
    };
    // A slow machine may see the lease expire before b is queued: then b has the key, and all
    // begins again.
    let is_queued = async || {
        store.take_briefly(brief.clone()).await;
        match store.queue(&key, b).await {
            Acquired::Held(_) => true,
            _ => {
                store.free(&key, b).await;
                false
            }
        }
    };
    eventually("b is queued", is_queued).await;
    let free = Hint::Free(key.clone());
    eventually("b is told", async || {
        held(store.queue(&key, c).await);
        hints.try_recv() == Ok(free.clone())
    })
    .await;
    granted(store.queue(&key, b).await);
}

pub(crate) async fn hints_arrive_from_listening_on(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    let mut hints = store.watch(a.instance);
    hinted(&mut hints, Hint::Listening).await;
    held(store.queue(&key, owner()).await);
    hinted(&mut hints, Hint::Wanted(key)).await;
}

pub(crate) async fn a_record_is_hinted_to_every_attempt_in_the_queue(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    let mut hints_b = store.watch_for_sure(b.instance).await;
    let mut hints_c = store.watch_for_sure(c.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    store.record(&key, a, b"done").await;
    hinted(&mut hints_b, Hint::Free(key.clone())).await;
    hinted(&mut hints_c, Hint::Free(key)).await;
}

pub(crate) async fn a_record_is_hinted_to_a_long_queue_one_after_another(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    let mut waiters = Vec::new();
    for _ in 0..45 {
        let waiter = owner();
        waiters.push((waiter, store.watch_for_sure(waiter.instance).await));
        held(store.queue(&key, waiter).await);
    }
    store.record(&key, a, b"done").await;
    let finds = waiters.iter_mut().map(|(waiter, hints)| {
        let key = &key;
        async move {
            hinted(hints, Hint::Free(key.clone())).await;
            let found = store.queue(key, *waiter).await;
            assert!(matches!(found, Acquired::Recorded(_)), "{found:?}");
        }
    });
    join_all(finds).await;
    assert_eq!(store.see(&key).await.queue, []);
}

/// Otherwise the head start of the head would begin while the record is there, and the head would
/// be passed by too early.
pub(crate) async fn a_release_beside_a_record_is_hinted_to_nobody(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    let mut hints = store.watch_for_sure(b.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    store.record(&key, a, b"done").await;
    hinted(&mut hints, Hint::Free(key.clone())).await;
    if !subject.has_one_node() {
        return; // the hints of the other nodes may come later
    }
    assert_eq!(store.free(&key, c).await, Released::NotOurs);
    let last = tower_distributed_lock::LockKey::new("last").unwrap();
    store.take(&last, attempt_of(b.instance, 2)).await;
    held(store.queue(&last, owner()).await);
    let before = hints_before(&mut hints, Hint::Wanted(last)).await;
    assert!(!before.contains(&Hint::Free(key)), "{before:?}");
}

pub(crate) async fn giving_up_at_the_head_of_a_free_key_is_hinted_to_the_next(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    let mut hints = store.watch_for_sure(c.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    store.free(&key, a).await;
    assert_eq!(store.free(&key, b).await, Released::NotOurs);
    hinted(&mut hints, Hint::Free(key.clone())).await;
    granted(store.queue(&key, c).await);
}

pub(crate) async fn a_forced_release_is_hinted_to_the_head_of_the_queue(subject: impl Subject) {
    let (store, key, b) = (subject.store(), key("k"), owner());
    let mut hints = store.watch_for_sure(b.instance).await;
    store.take(&key, owner()).await;
    held(store.queue(&key, b).await);
    assert!(store.force_release(key.clone()).await.unwrap());
    hinted(&mut hints, Hint::Free(key)).await;
}

pub(crate) async fn a_store_works_without_a_watcher(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    drop(store.watch(a.instance));
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    store.free(&key, a).await;
    granted(store.queue(&key, b).await);
    store.free(&key, b).await;
    assert!(subject.is_empty().await);
}
