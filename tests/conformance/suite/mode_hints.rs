//! Hints about keys that are shared.

use std::time::Duration;

use futures_util::future::join_all;
use tower_distributed_lock::{
    LockKey,
    store::{Acquired, Hint, Hints, Instance, Mode::Shared, Store},
};

use crate::subject::*;

/// Sends a hint to an instance that no test waits for, so that all hints before it have arrived.
async fn last_hint(store: &dyn Store, instance: Instance) -> Hint {
    let key = key("last");
    store.take(&key, attempt_of(instance, 1_000_001)).await;
    held(store.queue(&key, owner()).await);
    Hint::Wanted(key)
}

pub(crate) async fn all_readers_that_are_next_are_hinted_and_the_writer_behind_them(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let [holder, r1, r2, writer] = std::array::from_fn(|_| owner());
    let mut hints = Vec::new();
    for owner in [r1, r2, writer] {
        hints.push(store.watch_for_sure(owner.instance).await);
    }
    store.take(&key, holder).await;
    held(store.queue_as(Shared, &key, r1).await);
    held(store.queue_as(Shared, &key, r2).await);
    held(store.queue(&key, writer).await);
    store.free(&key, holder).await;
    hinted(&mut hints[0], Hint::Free(key.clone())).await;
    hinted(&mut hints[1], Hint::Free(key.clone())).await;
    let last = last_hint(store, writer.instance).await;
    let before = hints_before(&mut hints[2], last).await;
    assert!(before.contains(&Hint::Next(key.clone())), "{before:?}");
    assert!(!before.contains(&Hint::Free(key)), "{before:?}");
}

/// Waits for the hint, or until the store has said that it is worth asking again: a quorum may give
/// way for a moment.
async fn hinted_or_due(hints: &mut Hints, key: &LockKey, remaining: Duration) {
    let hint = hinted(hints, Hint::Free(key.clone()));
    let _ = tokio::time::timeout(remaining, hint).await;
}

/// Many more than a store tells at once.
pub(crate) async fn the_readers_of_a_long_queue_are_hinted_one_after_another(
    subject: impl Subject,
) {
    let (store, key, holder) = (subject.store(), key("k"), owner());
    store.take(&key, holder).await;
    let mut readers = Vec::new();
    for _ in 0..45 {
        let reader = owner();
        readers.push((reader, store.watch_for_sure(reader.instance).await));
        held(store.queue_as(Shared, &key, reader).await);
    }
    store.free(&key, holder).await;
    let turns = readers.iter_mut().map(|(reader, hints)| {
        let key = &key;
        async move {
            let mut remaining = LONG;
            loop {
                hinted_or_due(hints, key, remaining).await;
                match store.queue_as(Shared, key, *reader).await {
                    Acquired::Granted(_) => break,
                    other => remaining = held(other).remaining,
                }
            }
        }
    });
    join_all(turns).await;
    for (reader, _) in &readers {
        store.free_as(Shared, &key, *reader).await;
    }
}

pub(crate) async fn the_last_reader_is_hinted_to_the_writer(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, writer] = std::array::from_fn(|_| owner());
    let mut hints = store.watch_for_sure(writer.instance).await;
    granted(store.ask_as(Shared, &key, a).await);
    granted(store.ask_as(Shared, &key, b).await);
    held(store.queue(&key, writer).await);
    store.free_as(Shared, &key, a).await;
    let last = last_hint(store, writer.instance).await;
    let before = hints_before(&mut hints, last).await;
    assert!(!before.contains(&Hint::Free(key.clone())), "{before:?}");
    store.free_as(Shared, &key, b).await;
    hinted(&mut hints, Hint::Free(key)).await;
}

pub(crate) async fn readers_behind_a_writer_that_gives_up_are_hinted(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [reader, writer, r1, r2] = std::array::from_fn(|_| owner());
    for asks_without_queueing in [false, true] {
        let mut hints = Vec::new();
        for owner in [r1, r2] {
            hints.push(store.watch_for_sure(owner.instance).await);
        }
        granted(store.ask_as(Shared, &key, reader).await);
        held(store.queue(&key, writer).await);
        held(store.queue_as(Shared, &key, r1).await);
        held(store.queue_as(Shared, &key, r2).await);
        if asks_without_queueing {
            held(store.ask(&key, writer).await);
        } else {
            store.free(&key, writer).await;
        }
        for hints in &mut hints {
            hinted(hints, Hint::Free(key.clone())).await;
        }
        granted(store.queue_as(Shared, &key, r2).await);
        granted(store.queue_as(Shared, &key, r1).await);
        for owner in [reader, r1, r2] {
            store.free_as(Shared, &key, owner).await;
        }
    }
    assert_eq!(store.see(&key).await.queue, []);
}

pub(crate) async fn a_downgrade_is_hinted_to_the_readers_ahead_of_the_first_writer(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let [a, r1, r2, writer, late] = std::array::from_fn(|_| owner());
    let mut hints = Vec::new();
    for owner in [r1, r2, late] {
        hints.push(store.watch_for_sure(owner.instance).await);
    }
    store.take(&key, a).await;
    held(store.queue_as(Shared, &key, r1).await);
    held(store.queue_as(Shared, &key, r2).await);
    held(store.queue(&key, writer).await);
    held(store.queue_as(Shared, &key, late).await);
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    hinted(&mut hints[0], Hint::Free(key.clone())).await;
    hinted(&mut hints[1], Hint::Free(key.clone())).await;
    let last = last_hint(store, late.instance).await;
    let before = hints_before(&mut hints[2], last).await;
    assert!(!before.contains(&Hint::Free(key)), "{before:?}");
}

pub(crate) async fn a_waiter_is_hinted_to_all_readers_but_its_own_instance(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, c] = std::array::from_fn(|_| owner());
    let mut hints = Vec::new();
    for owner in [a, b, c] {
        hints.push(store.watch_for_sure(owner.instance).await);
        granted(store.ask_as(Shared, &key, owner).await);
    }
    let wanted = Hint::Wanted(key.clone());
    held(store.queue(&key, attempt_of(c.instance, 2)).await);
    hinted(&mut hints[0], wanted.clone()).await;
    hinted(&mut hints[1], wanted.clone()).await;
    let last = last_hint(store, c.instance).await;
    let before = hints_before(&mut hints[2], last).await;
    assert!(!before.contains(&wanted), "{before:?}");
    // The second attempt is of another instance, so now c is told as well.
    held(store.queue(&key, owner()).await);
    hinted(&mut hints[2], wanted).await;
}

pub(crate) async fn only_attempts_of_other_instances_count_as_others(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let own = attempt_of(a.instance, 2);
    assert!(!granted(store.ask_as(Shared, &key, a).await).others_wait);
    held(store.queue(&key, own).await);
    for refill in [0, 1] {
        let answer = store.renew_as(Shared, &key, a, refill).await;
        assert!(!tells_of_others(&answer));
    }
    assert!(!granted(store.ask_as(Shared, &key, a).await).others_wait);
    held(store.queue(&key, owner()).await);
    for refill in [0, 1] {
        let answer = store.renew_as(Shared, &key, a, refill).await;
        assert!(tells_of_others(&answer));
    }
    assert!(granted(store.ask_as(Shared, &key, a).await).others_wait);
    store.free_as(Shared, &key, a).await;
    assert!(granted(store.queue(&key, own).await).others_wait);
}
