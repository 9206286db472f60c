//! Operators inspect keys and release them by force.

use bytes::Bytes;
use tower_distributed_lock::store::{Acquire, Inspection, Released, Renewed};

use crate::subject::*;

pub(crate) async fn inspecting_tells_all_and_changes_nothing(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    let nothing = store.see(&key).await;
    assert_eq!((nothing.holder(), nothing.record.clone()), (None, None));
    assert_eq!(nothing.queue, []);
    assert!(subject.is_empty().await);

    let request = Acquire {
        fingerprint: Some(Bytes::from_static(b"note")),
        ..attempt(&key, a)
    };
    let grant = granted(store.acquire(request).await.unwrap());
    held(store.queue(&key, b).await);
    let look = async || {
        let Inspection {
            mut holders,
            queue,
            record,
            fence,
            ..
        } = store.see(&key).await;
        let holder = holders.remove(0);
        assert!(holders.is_empty());
        assert!(holder.remaining > LONG / 2 && holder.remaining <= LONG);
        (holder.owner, holder.fingerprint, queue, record, fence)
    };
    let expected = (
        a,
        Some(Bytes::from_static(b"note")),
        vec![b],
        None,
        grant.tokens.last().unwrap(),
    );
    assert_eq!(look().await, expected);
    assert_eq!(look().await, expected);
}

pub(crate) async fn a_forced_release_takes_the_key_from_its_holder(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    assert!(!store.force_release(key.clone()).await.unwrap());
    store.take(&key, a).await;
    assert!(store.force_release(key.clone()).await.unwrap());
    let renewed = store.renew_one(renewal(&key, a, 0)).await;
    assert!(matches!(renewed, Renewed::NotOurs));
    assert_eq!(store.free(&key, a).await, Released::NotOurs);
    store.take(&key, owner()).await;
}

pub(crate) async fn a_forced_release_removes_a_record(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    store.record(&key, a, b"done").await;
    assert!(store.force_release(key.clone()).await.unwrap());
    assert!(subject.is_empty().await);
}
