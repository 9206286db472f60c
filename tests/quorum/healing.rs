//! Renewals: a majority keeps a lease, and takes part in nodes that came back; a lease that is over
//! takes part in none.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::advance;
use tower_distributed_lock::store::{
    Acquire, Fault, FaultyStore, Mode, QuorumStore, Renew, Renewed, Store,
};

use crate::{
    memory, settle,
    support::words::{attempt, granted, key, owner, renewal, *},
};

const MINUTE: Duration = Duration::from_secs(60);

struct Held {
    nodes: [FaultyStore; 3],
    store: QuorumStore,
    a: tower_distributed_lock::store::Owner,
}

/// A lease of a minute, granted while these nodes were down. They are back now.
async fn lease_without(down: &[usize]) -> Held {
    let ((nodes, store), a) = (memory::<3>(), owner());
    for node in down {
        nodes[*node].set_fault(Some(Fault::Unreachable));
    }
    let request = Acquire {
        lease: MINUTE,
        ..attempt(&key("k"), a)
    };
    granted(store.ask_for(request).await.unwrap());
    for node in down {
        nodes[*node].set_fault(None);
    }
    Held { nodes, store, a }
}

impl Held {
    async fn renew(&self, refill: u32) -> Renewed {
        let request = Renew {
            lease: MINUTE,
            ..renewal(&key("k"), self.a, refill)
        };
        self.store.renew_one(request).await
    }

    fn down(&self, node: usize, is_down: bool) {
        self.nodes[node].set_fault(is_down.then_some(Fault::Unreachable));
    }

    fn held_at(&self) -> Vec<bool> {
        self.nodes.iter().map(|node| !node.is_empty()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_forgot_is_healed() {
    let lease = lease_without(&[]).await;
    lease.nodes[1].restart();
    assert!(is_renewed(&lease.renew(0).await));
    settle().await;
    assert_eq!(lease.held_at(), [true; 3]);
    lease.store.free(&key("k"), lease.a).await;
    settle().await;
    assert_eq!(lease.held_at(), [false; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_down_at_the_grant_is_healed() {
    let lease = lease_without(&[0]).await;
    assert_eq!(lease.held_at(), [false, true, true]);
    assert!(is_renewed(&lease.renew(0).await));
    settle().await;
    assert_eq!(lease.held_at(), [true; 3]);
    lease.store.free(&key("k"), lease.a).await;
    settle().await;
    assert_eq!(lease.held_at(), [false; 3]);
}

#[tokio::test(start_paused = true)]
async fn healing_makes_the_majority_that_a_renewal_needs() {
    let lease = lease_without(&[0]).await;
    lease.down(2, true);
    let Renewed::Renewed { tokens, .. } = lease.renew(5).await else {
        panic!("node 0 makes up for node 2");
    };
    assert_eq!(tokens.unwrap().left(), 5);
    assert_eq!(lease.held_at(), [true; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_lost_the_key_to_another_owner_does_not_end_the_lease() {
    let lease = lease_without(&[]).await;
    lease.nodes[2].restart();
    lease.nodes[2].take(&key("k"), owner()).await;
    for _ in 0..3 {
        assert!(is_renewed(&lease.renew(0).await));
    }
}

#[tokio::test(start_paused = true)]
async fn a_majority_that_forgot_ends_the_lease_and_is_not_healed() {
    let lease = lease_without(&[]).await;
    lease.nodes[0].restart();
    lease.nodes[1].restart();
    assert!(matches!(lease.renew(0).await, Renewed::NotOurs));
    settle().await;
    assert_eq!(lease.held_at(), [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_of_answers_a_renewal_is_unknown() {
    let lease = lease_without(&[]).await;
    lease.down(0, true);
    lease.down(1, true);
    let Renewed::Unknown(error) = lease.renew(0).await else {
        panic!("one node of three proves nothing");
    };
    let words = "no quorum: 1 of 3 nodes have renewed the lease";
    assert!(error.to_string().starts_with(words), "{error}");
    lease.down(0, false);
    assert!(is_renewed(&lease.renew(0).await));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_healed_after_the_deadline() {
    let lease = lease_without(&[0]).await;
    lease.down(0, true);
    lease.down(1, true);
    for _ in 0..3 {
        advance(MINUTE / 2).await; // node 2 still holds it, but the majority's time is over after two of these
        assert!(matches!(lease.renew(0).await, Renewed::Unknown(_)));
    }
    lease.down(0, false);
    assert!(matches!(lease.renew(0).await, Renewed::Unknown(_)));
    settle().await;
    assert_eq!(lease.held_at(), [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_healed_during_the_release_is_released() {
    for fault in [Fault::Hang, Fault::Mute] {
        let lease = lease_without(&[0]).await;
        lease.down(1, true);
        lease.nodes[0].set_fault(Some(fault));
        let renewing = tokio::spawn({
            let request = renewal(&key("k"), lease.a, 0);
            lease.store.renew(vec![request]).collect::<Vec<_>>()
        });
        settle().await; // node 0 is asked for its part
        lease.down(1, false);
        lease.store.free(&key("k"), lease.a).await;
        lease.nodes[0].set_fault(None);
        renewing.await.unwrap();
        settle().await;
        assert_eq!(lease.held_at(), [false; 3], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn healing_that_takes_too_long_is_undone() {
    for fault in [Fault::Hang, Fault::Mute] {
        let lease = lease_without(&[0]).await;
        lease.down(1, true);
        lease.nodes[0].set_fault(Some(fault));
        assert!(matches!(lease.renew(0).await, Renewed::Unknown(_)));
        lease.nodes[0].set_fault(None);
        settle().await;
        assert_eq!(lease.held_at(), [false, true, true], "{fault:?}");
        // The part is healed in the end, in a new name.
        assert!(is_renewed(&lease.renew(0).await));
        settle().await;
        assert_eq!(lease.held_at(), [true; 3], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_clean_up_behind_a_failed_grant_does_not_end_a_healed_part() {
    let (nodes, store) = memory::<3>();
    let (key, a) = (key("k"), owner());
    // The call takes effect at node 0, and its answer comes after the call was given up: the
    // release follows later.
    nodes[0].set_fault(Some(Fault::Mute));
    granted(store.ask_for(attempt(&key, a)).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    nodes[0].set_fault(None);
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 0)).await));
    settle().await;
    // Whatever belongs to the first name may come now, and again.
    nodes[0].free(&key, a).await;
    let held = nodes[0].holder(&key).await.expect("it is healed");
    assert_ne!(held, a, "in the name whose acquire was given up");
    nodes[1].set_fault(Some(Fault::Unreachable));
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 0)).await));
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_release_failed_is_not_healed() {
    let lease = lease_without(&[0]).await;
    lease.nodes[2].set_fault(Some(Fault::Hang));
    // Node 0 has no part, node 1 frees its part, node 2 does not answer: whether a majority had the
    // lease is unknown.
    let outcome = lease.store.end(ending(&key("k"), lease.a)).await;
    assert!(outcome.is_err());
    assert!(matches!(lease.renew(0).await, Renewed::Unknown(_)));
    settle().await;
    assert_eq!(lease.held_at(), [false, false, true]);
    lease.nodes[2].set_fault(None);
    settle().await;
    assert_eq!(lease.held_at(), [false; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_foreign_value_for_one_key_is_healed_for_all_others() {
    let (nodes, store) = memory::<3>();
    let leases: Vec<_> = (0..100)
        .map(|n| (key(&format!("k/{n}")), owner()))
        .collect();
    nodes[2].set_fault(Some(Fault::Unreachable));
    for (key, owner) in &leases {
        store.take(key, *owner).await;
    }
    nodes[2].set_fault(None);
    // At node 2, the first key is used for permits.
    let (foreign, others) = leases.split_first().unwrap();
    let permit = Mode::Permit { of: 2 };
    granted(nodes[2].ask_as(permit, &foreign.0, owner()).await);
    let renewals = leases.iter().map(|(key, owner)| renewal(key, *owner, 0));
    let answers = store.renew_all(renewals.collect()).await;
    assert!(answers.iter().all(is_renewed));
    settle().await;
    for (key, _) in others {
        assert!(nodes[2].holder(key).await.is_some(), "{key:?}");
    }
}
