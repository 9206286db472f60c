//! A key is free, leased to one owner until a point in time, or taken by a record.

use std::time::Duration;

use bytes::Bytes;
use tower_distributed_lock::store::{Acquire, Acquired, Instance, Queueing, Released};

use crate::subject::*;

pub(crate) async fn a_free_key_is_granted(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let grant = store.take(&key, a).await;
    assert!(!grant.others_wait);
    assert_eq!(store.holder(&key).await, Some(a));
}

pub(crate) async fn a_leased_key_is_held_for_every_other_owner(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    let answer = held(store.ask(&key, owner()).await);
    assert!(answer.remaining > LONG / 2 && answer.remaining <= LONG);
    assert_eq!(answer.fingerprint, None);
    assert_eq!(store.holder(&key).await, Some(a));
}

pub(crate) async fn keys_are_independent_of_each_other(subject: impl Subject) {
    let store = subject.store();
    for text in ["k", "K", "k ", "k:1", "k/1", "queue:k", "{k}"] {
        store.take(&key(text), owner()).await;
    }
}

pub(crate) async fn a_released_key_is_free(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    assert_eq!(store.free(&key, a).await, Released::Freed);
    assert_eq!(store.holder(&key).await, None);
    assert!(subject.is_empty().await);
    store.take(&key, owner()).await;
}

pub(crate) async fn an_expired_lease_is_as_good_as_none(subject: impl Subject) {
    let (store, key, b) = (subject.store(), key("k"), owner());
    let (a, _) = store.take_briefly(short_lease(attempt(&key, b))).await;
    eventually("b is granted the key", async || {
        matches!(store.ask(&key, b).await, Acquired::Granted(_))
    })
    .await;
    assert_eq!(store.free(&key, a).await, Released::NotOurs);
    assert_eq!(store.holder(&key).await, Some(b));
}

pub(crate) async fn an_expired_lease_is_forgotten_without_being_asked_about(subject: impl Subject) {
    let store = subject.store();
    for n in 0..10 {
        let request = short_lease(attempt(&key(&format!("k/{n}")), owner()));
        store.take_briefly(request).await;
    }
    eventually("the store is empty", async || subject.is_empty().await).await;
}

pub(crate) async fn the_same_owner_is_granted_again_and_counted_anew(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let minute = Acquire {
        lease: Duration::from_secs(60),
        ..attempt(&key, a)
    };
    let first = granted(store.ask_for(minute).await.unwrap());
    let again = store.take(&key, a).await;
    assert!(again.tokens.first() > first.tokens.last());
    let holder = store.see(&key).await.holder().cloned().unwrap();
    assert_eq!(holder.owner, a);
    assert!(holder.remaining > LONG / 2, "the longer lease counts");
    assert_eq!(store.free(&key, a).await, Released::Freed);
    assert!(subject.is_empty().await, "one release frees it");
}

pub(crate) async fn another_attempt_of_the_same_instance_is_another_owner(subject: impl Subject) {
    let (store, key, instance) = (subject.store(), key("k"), Instance::new());
    // The first is a prefix of the second as text.
    let (first, second) = (attempt_of(instance, 1), attempt_of(instance, 12));
    for (holder, other) in [(first, second), (second, first)] {
        store.take(&key, holder).await;
        held(store.ask(&key, other).await);
        assert_eq!(store.free(&key, other).await, Released::NotOurs);
        assert_eq!(store.free(&key, holder).await, Released::Freed);
    }
}

pub(crate) async fn a_fingerprint_is_shown_as_it_was_stored(subject: impl Subject) {
    let store = subject.store();
    for (n, note) in NOTES.iter().enumerate() {
        let (key, a) = (key(&format!("k/{n}")), owner());
        let note = note.map(Bytes::from_static);
        let request = Acquire {
            fingerprint: note.clone(),
            ..attempt(&key, a)
        };
        granted(store.ask_for(request.clone()).await.unwrap());
        assert_eq!(held(store.ask(&key, owner()).await).fingerprint, note);
        assert_eq!(
            store.see(&key).await.holder().cloned().unwrap().fingerprint,
            note
        );
        granted(store.ask_for(request).await.unwrap());
        assert_eq!(store.free(&key, a).await, Released::Freed);
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn the_label_of_the_holder_is_shown(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    let label = subject.label();
    assert_eq!(held(store.ask(&key, owner()).await).label.as_deref(), label);
    let holder = store.see(&key).await.holder().cloned().unwrap();
    assert_eq!(holder.label.as_deref(), label);
}

const NOTES: [Option<&[u8]>; 6] = [
    None,
    Some(b""),
    Some(b"a note"),
    Some(b" "),
    Some(b"record:\r\n\0"),
    Some(&[0xff, 0, 0xfe]),
];

pub(crate) async fn any_text_can_be_a_key(subject: impl Subject) {
    let store = subject.store();
    let longest = "x".repeat(1024);
    for text in ["konto/ü 中", "a b", "{}", "}{", "%", "*", "\\", &*longest] {
        let (key, a, b) = (key(text), owner(), owner());
        let mut hints = store.watch_for_sure(b.instance).await;
        store.take(&key, a).await;
        held(store.queue(&key, b).await);
        assert_eq!(store.free(&key, a).await, Released::Freed);
        hinted(
            &mut hints,
            tower_distributed_lock::store::Hint::Free(key.clone()),
        )
        .await;
        store.take(&key, b).await;
        assert_eq!(store.free(&key, b).await, Released::Freed);
    }
    assert!(subject.is_empty().await);
}

pub(crate) async fn extreme_durations_are_taken(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    for (lease, deadline) in [
        (Duration::MAX, Duration::MAX),
        (Duration::ZERO, Duration::ZERO),
        (Duration::from_nanos(1), Duration::from_nanos(1)),
    ] {
        let (a, b) = (owner(), owner());
        let request = Acquire {
            lease,
            ..attempt(&key, a)
        };
        granted(store.ask_for(request).await.unwrap());
        let request = Acquire {
            queueing: Queueing::Wait {
                deadline,
                head_start: LONG,
            },
            ..attempt(&key, b)
        };
        store.ask_for(request).await.unwrap();
        store.free(&key, a).await;
        store.free(&key, b).await;
    }
    eventually("the store is empty", async || subject.is_empty().await).await;
}

fn short_lease(request: Acquire) -> Acquire {
    Acquire {
        lease: SHORT,
        ..request
    }
}
