//! A slot of a Cluster that is moving from one node to another, or was left half-way by a reshard
//! that failed.

use std::time::Duration;

use tower_distributed_lock::{
    LockKey,
    store::{Ending, Owner, RedisStore, Release, Released, Renewed},
};

use crate::{subject::*, support::cluster::Cluster};

/// Renews a lease without waiters, with and without further tokens, and ends the lease.
async fn renew_and_end(store: &RedisStore, key: &LockKey, owner: Owner, ending: Ending) {
    for refill in [0, 8] {
        let answer = store.renew_one(renewal(key, owner, refill)).await;
        assert!(
            matches!(
                answer,
                Renewed::Renewed {
                    others_wait: false,
                    ..
                }
            ),
            "{refill}: {answer:?}"
        );
    }
    let release = Release {
        key: key.clone(),
        owner,
        ending,
        in_doubt: false,
        lasts: LONG,
        mode: tower_distributed_lock::store::Mode::Exclusive,
    };
    let released = store.end(release).await;
    assert_eq!(released.unwrap(), Released::Freed);
}

#[tokio::test]
async fn a_lease_without_waiters_is_renewed_and_released_in_a_half_open_slot() {
    let cluster = Cluster::start().await;
    let store = RedisStore::cluster(cluster.urls()).timeout(Duration::from_secs(2));
    let store = store.connect().await.unwrap();
    let (key, a, b) = (key("account"), owner(), owner());
    store.take(&key, a).await;
    let lock = cluster.leftovers().await.remove(0);
    let slot = cluster.slot(&lock).await;

    // The keys are at the old node.
    let from = cluster.owner(&slot, 0).await;
    let to = (from + 1) % 3;
    let before = renew_and_end(&store, &key, a, Ending::Free);
    cluster.migrate(&slot, from, to, before, async {}).await;

    // The keys are at the new node, and the old node redirects there.
    store.take(&key, b).await;
    let record = Ending::Record {
        content: b"done".as_slice().into(),
        retain: LONG,
    };
    let after = renew_and_end(&store, &key, b, record);
    cluster.migrate(&slot, to, from, async {}, after).await;
    assert_eq!(store.see(&key).await.record.as_deref(), Some(&b"done"[..]));
    for node in &cluster.nodes {
        assert_eq!(node.errors("NOSCRIPT").await, 0, "no call is sent twice");
    }
}
