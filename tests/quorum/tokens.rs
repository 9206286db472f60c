//! Tokens rise from turn to turn, although every node counts for itself.

use tower_distributed_lock::store::{
    Acquire, Fault, FaultyStore, QuorumStore, Renewed, Store, Tokens,
};

use crate::{memory, rounds, settle, support::words::*};

fn down(node: &FaultyStore, is_down: bool) {
    node.set_fault(is_down.then_some(Fault::Unreachable));
}

/// Takes the key with one node missing, and releases the key.
async fn turn(nodes: &[FaultyStore; 3], store: &QuorumStore, missing: usize) -> Tokens {
    let a = owner();
    down(&nodes[missing], true);
    let request = Acquire {
        block: 4,
        ..attempt(&key("k"), a)
    };
    let tokens = granted(store.ask_for(request).await.unwrap()).tokens;
    store.free(&key("k"), a).await;
    down(&nodes[missing], false);
    tokens
}

/// Node 0 is far ahead of the others.
async fn one_ahead(nodes: &[FaultyStore; 3]) {
    let ahead = nodes[0].see(&key("k")).await.fence + 1_000_000;
    nodes[0].raise_fence(key("k"), ahead).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_over_every_pair_of_majorities() {
    for first in 0..3 {
        for second in 0..3 {
            let (nodes, store) = memory::<3>();
            one_ahead(&nodes).await;
            let (before, after) = (
                turn(&nodes, &store, first).await,
                turn(&nodes, &store, second).await,
            );
            assert!(after.first() > before.last(), "{first}, then {second}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_over_a_refill() {
    let ((nodes, store), a) = (memory::<3>(), owner());
    let key = key("k");
    down(&nodes[0], true);
    store.take(&key, a).await;
    down(&nodes[0], false);
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 0)).await));
    settle().await;
    one_ahead(&nodes).await;
    down(&nodes[2], true);
    let Renewed::Renewed { tokens, .. } = store.renew_one(renewal(&key, a, 3)).await else {
        panic!("it has a majority");
    };
    let refilled = tokens.unwrap();
    assert_eq!(refilled.left(), 3);
    store.free(&key, a).await;
    down(&nodes[2], false);
    let after = turn(&nodes, &store, 0).await;
    assert!(after.first() > refilled.last());
}

#[tokio::test(start_paused = true)]
async fn a_turn_does_not_begin_before_a_majority_counts_up_to_it() {
    let (nodes, store) = memory::<3>();
    let (key, a) = (key("k"), owner());
    one_ahead(&nodes).await;
    down(&nodes[2], true);
    let last = store.take(&key, a).await.tokens.last().unwrap();
    for node in &nodes[..2] {
        assert!(node.see(&key).await.fence >= last);
    }
    store.free(&key, a).await;

    // Node 1 grants, and is gone before its counter is raised to that of node 0.
    one_ahead(&nodes).await;
    nodes[0].set_fault(Some(Fault::Hang));
    let asking = tokio::spawn(store.ask_for(attempt(&key, owner())));
    settle().await;
    down(&nodes[1], true);
    nodes[0].set_fault(None);
    let error = asking.await.unwrap().unwrap_err();
    let words = "no quorum: 1 of 3 token counters have reached the token of the turn";
    assert!(error.to_string().starts_with(words), "{error}");
    down(&nodes[1], false);
    down(&nodes[2], false);
    rounds().await;
    assert!(nodes.iter().all(FaultyStore::is_empty));
}

#[tokio::test(start_paused = true)]
async fn tokens_need_not_rise_when_fencing_is_turned_off() {
    let (nodes, _) = memory::<3>();
    let store = QuorumStore::builder(nodes.clone()).fencing(false);
    let store = store.build().unwrap();
    one_ahead(&nodes).await;
    let (before, after) = (turn(&nodes, &store, 2).await, turn(&nodes, &store, 0).await);
    assert!(after.first() < before.first());
}
