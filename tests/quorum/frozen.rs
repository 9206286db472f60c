//! A node that hangs costs its timeout and no more, and its late grants are given back.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tower_distributed_lock::{ErrorKind, store::Acquire};

use crate::{
    Fleet, NODE_TIMEOUT, short,
    support::{eventually, redis_server::pass, words::*},
};

/// For the work of a slow machine besides the waiting.
const SLACK: Duration = Duration::from_millis(450);

/// The time of the fastest of a few calls: a machine that is busy slows down some of them, and a
/// call that waits for a node takes the node's timeout each time.
async fn fastest(mut time_of_a_call: impl AsyncFnMut() -> Duration) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        fastest = fastest.min(time_of_a_call().await);
    }
    fastest
}

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
    let took = fastest(async || {
        let (request, asked) = (short(&key), Instant::now());
        granted(fleet.store.ask_for(request.clone()).await.unwrap());
        fleet.store.free(&key, request.owner).await;
        asked.elapsed()
    })
    .await;
    assert!(took < NODE_TIMEOUT, "{took:?}");
    fleet.servers[1].thaw();
    assert_clean(&fleet).await;
}

#[tokio::test]
async fn a_frozen_node_whose_answer_decides_costs_its_timeout_once() {
    // The key is taken at one node and free at another: the answer of the third decides.
    let took = fastest(async || {
        let fleet = Fleet::start_not_young(3).await;
        let (key, other) = (key("k"), owner());
        fleet.nodes[0].take(&key, other).await;
        fleet.servers[1].freeze();
        let asked = Instant::now();
        held(fleet.store.ask_for(short(&key)).await.unwrap());
        let took = asked.elapsed();
        fleet.servers[1].thaw();
        fleet.nodes[0].free(&key, other).await;
        assert_clean(&fleet).await;
        took
    })
    .await;
    assert!(
        took >= NODE_TIMEOUT && took < NODE_TIMEOUT + SLACK,
        "{took:?}"
    );

    // The frozen node may have the record of the claim.
    let took = fastest(async || {
        let fleet = Fleet::start_not_young(3).await;
        let claim = Acquire {
            fingerprint: Some(Bytes::from_static(b"claim")),
            lease: LONG,
            ..short(&key("k"))
        };
        fleet.servers[1].freeze();
        let asked = Instant::now();
        let error = fleet.store.ask_for(claim).await.unwrap_err();
        let (took, kind) = (asked.elapsed(), error.kind());
        assert_eq!(kind, ErrorKind::Unreachable, "too young for such a lease");
        fleet.servers[1].thaw();
        assert_clean(&fleet).await;
        took
    })
    .await;
    assert!(
        took >= NODE_TIMEOUT && took < NODE_TIMEOUT + SLACK,
        "{took:?}"
    );
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
            let error = fleet.store.ask_for(queueing).await.unwrap_err();
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
