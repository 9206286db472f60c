//! How a lease ends, and the records that can take its place.

use bytes::Bytes;
use tower_distributed_lock::store::{Acquire, Acquired, Ending, Release, Released};

use crate::subject::*;

pub(crate) async fn a_release_by_a_former_owner_does_nothing(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    store.take(&key, a).await;
    store.free(&key, a).await;
    store.take(&key, b).await;
    assert_eq!(store.free(&key, a).await, Released::NotOurs);
    assert_eq!(store.record(&key, a, b"late").await, Released::NotOurs);
    assert_eq!(store.holder(&key).await, Some(b));
}

pub(crate) async fn a_release_of_nothing_is_not_ours(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    assert_eq!(store.free(&key, owner()).await, Released::NotOurs);
    assert_eq!(
        store.record(&key, owner(), b"late").await,
        Released::NotOurs
    );
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_record_takes_the_place_of_the_lease(subject: impl Subject) {
    const ANY_BYTES: &[u8] = b"\xff\0lease: \r\n";
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    assert_eq!(store.record(&key, a, ANY_BYTES).await, Released::Freed);
    let record = Bytes::from_static(ANY_BYTES);
    for somebody in [owner(), a] {
        assert_eq!(
            store.ask(&key, somebody).await,
            Acquired::Recorded(record.clone())
        );
    }
    let seen = store.see(&key).await;
    assert_eq!((seen.holder(), seen.record.clone()), (None, Some(record)));
}

pub(crate) async fn a_record_outlives_the_lease_and_then_expires(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let short_lease = Acquire {
        lease: SHORT * 10,
        ..attempt(&key, owner())
    };
    // On a slow machine the lease may end before the record is there: then once more.
    eventually("the record is in time", async || {
        let (a, _) = store.take_briefly(short_lease.clone()).await;
        store.record(&key, a, b"done").await == Released::Freed
    })
    .await;
    tokio::time::sleep(SHORT * 15).await;
    assert!(matches!(
        store.ask(&key, owner()).await,
        Acquired::Recorded(_)
    ));

    store.force_release(key.clone()).await.unwrap();
    let b = owner();
    store.take(&key, b).await;
    let passing = Release {
        ending: Ending::Record {
            content: Bytes::new(),
            retain: SHORT,
        },
        ..ending(&key, b)
    };
    assert_eq!(store.end(passing).await.unwrap(), Released::Freed);
    eventually("the store is empty", async || subject.is_empty().await).await;
}

pub(crate) async fn a_repeated_record_is_freed_again_and_changes_nothing(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    store.record(&key, a, b"first").await;
    assert_eq!(store.record(&key, a, b"second").await, Released::Freed);
    assert_eq!(store.free(&key, a).await, Released::Freed);
    assert_eq!(store.see(&key).await.record.as_deref(), Some(&b"first"[..]));
}

pub(crate) async fn a_record_of_another_owner_is_answered_with_not_ours(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    store.take(&key, a).await;
    store.record(&key, a, b"a's").await;
    assert_eq!(store.free(&key, b).await, Released::NotOurs);
    assert_eq!(store.record(&key, b, b"b's").await, Released::NotOurs);
    assert_eq!(store.see(&key).await.record.as_deref(), Some(&b"a's"[..]));
}

pub(crate) async fn a_record_ends_the_attempts_that_find_it(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b, c) = (owner(), owner(), owner());
    store.take(&key, a).await;
    held(store.queue(&key, b).await);
    held(store.queue(&key, c).await);
    store.record(&key, a, b"done").await;
    assert!(matches!(store.queue(&key, c).await, Acquired::Recorded(_)));
    assert_eq!(store.see(&key).await.queue, [b]);
}
