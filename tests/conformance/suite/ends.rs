//! The owners that an attempt ends, in the same step and before the attempt is judged.

use tower_distributed_lock::store::{
    Acquire, Acquired, End, Hint, Instance, Mode, Owner, Queueing, Released,
};

use crate::subject::*;

/// The attempt, after the ends of these owners.
fn ending_first(ends: impl IntoIterator<Item = (Owner, Mode)>, request: Acquire) -> Acquire {
    let end = |(owner, mode)| End { owner, mode };
    Acquire {
        ends: ends.into_iter().map(end).collect(),
        ..request
    }
}

/// Three owners of one instance.
fn owners_of_one() -> [Owner; 3] {
    let instance = Instance::new();
    [1, 2, 3].map(|number| attempt_of(instance, number))
}

pub(crate) async fn an_attempt_ends_an_exclusive_lease_and_takes_its_key(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, c] = owners_of_one();
    store.take(&key, a).await;
    held(store.ask(&key, b).await);
    let exclusive = ending_first([(a, Mode::Exclusive)], attempt(&key, b));
    granted(store.ask_for(exclusive).await.unwrap());
    assert_eq!(store.holder(&key).await, Some(b));

    let shared = in_mode(Mode::Shared, attempt(&key, c));
    let shared = ending_first([(b, Mode::Exclusive)], shared);
    granted(store.ask_for(shared).await.unwrap());
    assert_eq!(store.holders(&key).await, [c]);
    assert_eq!(store.free(&key, a).await, Released::NotOurs);
}

pub(crate) async fn an_attempt_ends_one_of_several_readers(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let ([a, b, c], other) = (owners_of_one(), owner());
    for reader in [a, other] {
        granted(store.ask_as(Mode::Shared, &key, reader).await);
    }
    let reader = in_mode(Mode::Shared, attempt(&key, b));
    granted(
        store
            .ask_for(ending_first([(a, Mode::Shared)], reader))
            .await
            .unwrap(),
    );
    assert_eq!(store.holders(&key).await, sorted([b, other]));

    // The other one still keeps a writer out, and the end of the own lease stays.
    let writer = ending_first([(b, Mode::Shared)], attempt(&key, c));
    held(store.ask_for(writer).await.unwrap());
    assert_eq!(store.holders(&key).await, [other]);
}

pub(crate) async fn an_attempt_ends_a_place_in_the_queue(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let ([a, b, c], other) = (owners_of_one(), owner());
    store.take(&key, other).await;
    held(store.queue(&key, a).await);
    let again = ending_first([(a, Mode::Exclusive)], waiting(&key, b));
    held(store.ask_for(again).await.unwrap());
    assert_eq!(store.see(&key).await.queue, [b]);

    let reader = in_mode(Mode::Shared, waiting(&key, c));
    held(
        store
            .ask_for(ending_first([(b, Mode::Exclusive)], reader))
            .await
            .unwrap(),
    );
    assert_eq!(store.see(&key).await.queue, [c]);
    assert_eq!(store.holder(&key).await, Some(other));
}

pub(crate) async fn an_attempt_ends_a_lease_after_its_downgrade(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, c] = owners_of_one();
    store.take(&key, a).await;
    assert!(is_renewed(&store.renew_as(Mode::Shared, &key, a, 0).await));
    // In the mode from before the downgrade.
    let writer = ending_first([(a, Mode::Exclusive)], attempt(&key, b));
    granted(store.ask_for(writer).await.unwrap());
    assert_eq!(store.holders(&key).await, [b]);

    // In the mode of a downgrade that has not come.
    let writer = ending_first([(b, Mode::Shared)], attempt(&key, c));
    granted(store.ask_for(writer).await.unwrap());
    assert_eq!(store.holders(&key).await, [c]);
}

pub(crate) async fn an_attempt_that_ends_a_lease_comes_behind_those_queued(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let ([a, b, c], other) = (owners_of_one(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, other).await);
    let behind = ending_first([(a, Mode::Exclusive)], waiting(&key, b));
    held(store.ask_for(behind).await.unwrap());
    let seen = store.see(&key).await;
    assert_eq!((seen.holder(), &seen.queue[..]), (None, &[other, b][..]));

    let skipping = Acquire {
        queueing: Queueing::Skip,
        ..attempt(&key, c)
    };
    let skipping = ending_first([(b, Mode::Exclusive)], skipping);
    granted(store.ask_for(skipping).await.unwrap());
    let seen = store.see(&key).await;
    assert_eq!((seen.holder().unwrap().owner, seen.queue), (c, vec![other]));
}

pub(crate) async fn an_attempt_hints_to_the_next_as_a_release(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let ([a, b, _], head, behind) = (owners_of_one(), owner(), owner());
    let mut to_head = store.watch_for_sure(head.instance).await;
    let mut to_behind = store.watch_for_sure(behind.instance).await;
    store.take(&key, a).await;
    held(store.queue(&key, head).await);
    held(store.queue(&key, behind).await);
    let attempt = ending_first([(a, Mode::Exclusive)], attempt(&key, b));
    held(store.ask_for(attempt).await.unwrap());
    hinted(&mut to_head, Hint::Free(key.clone())).await;
    hinted(&mut to_behind, Hint::Next(key)).await;
}

pub(crate) async fn an_attempt_that_ends_unknown_owners_is_an_attempt_like_any_other(
    subject: impl Subject,
) {
    let (store, key) = (subject.store(), key("k"));
    let ([a, b, c], other) = (owners_of_one(), owner());
    let unknown = [(a, Mode::Exclusive), (b, Mode::Shared)];
    let first = ending_first(unknown, attempt(&key, other));
    granted(store.ask_for(first).await.unwrap());
    let second = ending_first(unknown, attempt(&key, c));
    held(store.ask_for(second).await.unwrap());
    let seen = store.see(&key).await;
    assert_eq!(seen.holder().map(|holder| holder.owner), Some(other));
    assert_eq!(seen.queue, []);
}

pub(crate) async fn an_attempt_does_not_end_a_record(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let [a, b, _] = owners_of_one();
    store.take(&key, a).await;
    store.record(&key, a, b"done").await;
    let attempt = ending_first([(a, Mode::Exclusive)], waiting(&key, b));
    let answer = store.ask_for(attempt).await.unwrap();
    assert!(matches!(answer, Acquired::Recorded(record) if record == "done"));
    assert_eq!(store.see(&key).await.queue, []);
}
