//! A node that hangs costs its timeout and no more, and its late grants are given back.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tower_distributed_lock::{
    ErrorKind,
    store::{Acquire, Store},
};

use crate::{
    Fleet, NODE_TIMEOUT, short,
    support::{eventually, redis_server::pass, words::*},
};

/// For the work of a slow machine besides the waiting.
const SLACK: Duration = Duration::from_millis(450);

/// Nothing is left, and nothing comes any more.
async fn assert_clean(fleet: &Fleet) {
    eventually("nothing is left", async || fleet.is_empty().await).await;
    pass(300).await;
    assert!(fleet.is_empty().await, "it came back");
}

#[tokio::test]
async fn a_lock_does_not_wait_for_a_frozen_node() {
    let fleet = Fleet::start_not_young(3).await;
    fleet.servers[1].freeze();
    let key = key("k");
    for _ in 0..3 {
        let (request, asked) = (short(&key), Instant::now());
        granted(fleet.store.acquire(request.clone()).await.unwrap());
        fleet.store.free(&key, request.owner).await;
        assert!(asked.elapsed() < NODE_TIMEOUT, "{:?}", asked.elapsed());
    }
    fleet.servers[1].thaw();
    assert_clean(&fleet).await;
}

#[tokio::test]
async fn a_frozen_node_whose_answer_decides_costs_its_timeout_once() {
    let fleet = Fleet::start_not_young(3).await;
    let (key, other) = (key("k"), owner());
    fleet.nodes[0].take(&key, other).await;
    fleet.servers[1].freeze();
    // The key is taken at one node and free at another: the answer of the third decides.
    let asked = Instant::now();
    held(fleet.store.acquire(short(&key)).await.unwrap());
    let took = asked.elapsed();
    assert!(
        took >= NODE_TIMEOUT && took < NODE_TIMEOUT + SLACK,
        "{took:?}"
    );
    fleet.servers[1].thaw();
    fleet.nodes[0].free(&key, other).await;
    assert_clean(&fleet).await;

    // The frozen node may have the record of the claim.
    fleet.servers[1].freeze();
    let claim = Acquire {
        fingerprint: Some(Bytes::from_static(b"claim")),
        lease: LONG,
        ..short(&key)
    };
    let asked = Instant::now();
    let error = fleet.store.acquire(claim).await.unwrap_err();
    let took = asked.elapsed();
    assert_eq!(
        error.kind(),
        ErrorKind::Unreachable,
        "too young for such a lease"
    );
    assert!(
        took >= NODE_TIMEOUT && took < NODE_TIMEOUT + SLACK,
        "{took:?}"
    );
    fleet.servers[1].thaw();
    assert_clean(&fleet).await;
}

/// Leases last for ten minutes: one that vanishes did not expire.
#[tokio::test]
async fn a_late_grant_is_undone() {
    let fleet = Fleet::start(3).await;
    for frozen in [&[0][..], &[1, 2], &[0, 1, 2]] {
        for node in frozen {
            fleet.servers[*node].freeze();
        }
        // The servers are younger than the lease, so all of them would be needed.
        for queueing in [attempt(&key("k"), owner()), waiting(&key("k"), owner())] {
            let error = fleet.store.acquire(queueing).await.unwrap_err();
            let words = format!("no quorum: {} of 3 nodes unreachable", frozen.len());
            assert!(error.to_string().starts_with(&words), "{error}");
        }
        for node in frozen {
            fleet.servers[*node].thaw();
        }
        assert_clean(&fleet).await;
    }
    fleet.store.take(&key("k"), owner()).await;
}

#[tokio::test]
async fn a_lease_grows_back_to_a_node_that_was_frozen() {
    let fleet = Fleet::start_not_young(3).await;
    let locks = fleet.locks();
    fleet.servers[2].freeze();
    let guard = locks.lock("k").await.unwrap();
    pass(2 * NODE_TIMEOUT.as_millis() as u64).await;
    assert!(guard.is_held());
    fleet.servers[2].thaw();
    let holds = async || fleet.nodes[2].holder(&key("k")).await.is_some();
    eventually("a renewal has healed the node", holds).await;
    guard.release().await.unwrap();
    assert_clean(&fleet).await;
}
