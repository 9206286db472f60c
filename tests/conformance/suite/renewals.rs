//! A renewal never makes a lease shorter, never creates one, and does nothing for an owner without
//! the key.

use std::time::Duration;

use tower_distributed_lock::store::{Acquire, Renew, Renewed};

use crate::subject::*;

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) async fn a_renewal_prolongs(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    let request = Acquire {
        lease: MINUTE,
        ..attempt(&key, a)
    };
    granted(store.ask_for(request).await.unwrap());
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 0)).await));
    assert!(store.see(&key).await.holder().cloned().unwrap().remaining > LONG / 2);
}

pub(crate) async fn a_renewal_never_shortens(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    let shorter = Renew {
        lease: MINUTE,
        ..renewal(&key, a, 0)
    };
    assert!(is_renewed(&store.renew_one(shorter).await));
    assert!(store.see(&key).await.holder().cloned().unwrap().remaining > LONG / 2);
}

pub(crate) async fn a_renewal_never_creates(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let answer = store.renew_one(renewal(&key, owner(), 4)).await;
    assert!(matches!(answer, Renewed::NotOurs));
    assert!(subject.is_empty().await);
}

pub(crate) async fn a_renewal_of_a_former_owner_does_nothing(subject: impl Subject) {
    let (store, key) = (subject.store(), key("k"));
    let (a, b) = (owner(), owner());
    store.take(&key, a).await;
    store.free(&key, a).await;
    let request = Acquire {
        lease: MINUTE,
        ..attempt(&key, b)
    };
    granted(store.ask_for(request).await.unwrap());
    let before = store.see(&key).await;
    let answer = store.renew_one(renewal(&key, a, 4)).await;
    assert!(matches!(answer, Renewed::NotOurs));
    let after = store.see(&key).await;
    assert_eq!(after.fence, before.fence, "no token for a former owner");
    assert!(after.holder().cloned().unwrap().remaining <= MINUTE);
}

pub(crate) async fn a_renewal_does_not_revive_a_record(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    store.record(&key, a, b"done").await;
    let answer = store.renew_one(renewal(&key, a, 1)).await;
    assert!(matches!(answer, Renewed::NotOurs));
    assert_eq!(store.see(&key).await.record.as_deref(), Some(&b"done"[..]));
}

pub(crate) async fn a_batch_is_answered_in_its_order(subject: impl Subject) {
    let (store, a) = (subject.store(), owner());
    let keys: Vec<_> = (0..700).map(|n| key(&format!("k/{n}"))).collect();
    for key in keys.iter().step_by(2) {
        store.take(key, a).await;
    }
    let batch = keys.iter().map(|key| renewal(key, a, 0)).collect();
    let answers = store.renew_all(batch).await;
    let renewed: Vec<bool> = answers.iter().map(is_renewed).collect();
    let expected: Vec<bool> = (0..700).map(|n| n % 2 == 0).collect();
    assert_eq!(renewed, expected);
    assert!(store.renew_all(Vec::new()).await.is_empty());
}

pub(crate) async fn tokens_come_only_when_asked_for(subject: impl Subject) {
    let (store, key, a) = (subject.store(), key("k"), owner());
    store.take(&key, a).await;
    for (refill, expected) in [(0, None), (7, Some(7))] {
        let Renewed::Renewed { tokens, .. } = store.renew_one(renewal(&key, a, refill)).await
        else {
            panic!("the lease is a's");
        };
        assert_eq!(tokens.map(|tokens| tokens.left()), expected);
    }
}
