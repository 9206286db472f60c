//! Votes that are split, and votes that are lost.

use std::time::Duration;

use futures_util::future::join_all;
use tower_distributed_lock::store::{Acquired, Fault, FaultyStore, Hint, QuorumStore, Store};

use crate::{memory, settle, support::words::*};

#[tokio::test(start_paused = true)]
async fn a_vote_that_is_split_is_repeated() {
    let (nodes, store) = memory::<3>();
    let (key, other) = (key("k"), owner());
    nodes[2].take(&key, other).await;
    nodes[1].set_fault(Some(Fault::Unreachable));
    let asking = tokio::spawn(store.ask_for(attempt(&key, owner())));
    settle().await;
    nodes[2].free(&key, other).await;
    granted(asking.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn attempts_that_are_each_first_in_one_queue_do_not_block_each_other() {
    let (nodes, store) = memory::<3>();
    let (key, holder) = (key("k"), owner());
    store.take(&key, holder).await;
    let contenders: Vec<_> = (0..3).map(|_| owner()).collect();
    let instances = [(); 3].map(|()| QuorumStore::new(nodes.clone()).unwrap());
    // Each is first at another node, and all of them sleep.
    for (at, node) in nodes.iter().enumerate() {
        for turn in 0..3 {
            held(node.queue(&key, contenders[(at + turn) % 3]).await);
        }
    }
    store.free(&key, holder).await;
    settle().await;
    // First at node 1 only: node 0 leads.
    held(instances[1].queue(&key, contenders[1]).await);
    assert_eq!(nodes[1].holder(&key).await, None, "node 1 is given back");
    granted(instances[0].queue(&key, contenders[0]).await);
    instances[0].free(&key, contenders[0]).await;

    let asking = [1, 2].map(|at| instances[at].ask_for(waiting(&key, contenders[at])));
    let answers = join_all(asking).await;
    let won = |answer: &Result<Acquired, _>| matches!(answer, Ok(Acquired::Granted(_)));
    assert_eq!(answers.iter().filter(|answer| won(answer)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_is_given_back() {
    let (nodes, store) = memory::<3>();
    let (key, other) = (key("k"), owner());
    nodes[0].take(&key, other).await;
    for fault in [Fault::Hang, Fault::Mute] {
        nodes[2].set_fault(Some(fault));
        held(store.ask_for(attempt(&key, owner())).await.unwrap());
        assert!(nodes[1].is_empty());
        nodes[2].set_fault(None);
        settle().await;
        assert!(nodes[2].is_empty(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_still_becomes_a_part_of_the_lease() {
    let (nodes, store) = memory::<3>();
    let (key, a) = (key("k"), owner());
    nodes[2].set_fault(Some(Fault::Hang));
    granted(store.ask_for(attempt(&key, a)).await.unwrap());
    nodes[2].set_fault(None);
    settle().await;
    assert_eq!(nodes[2].holder(&key).await, Some(a));
    nodes[1].set_fault(Some(Fault::Unreachable));
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 0)).await));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_took_too_long_to_be_granted_is_given_back() {
    let (nodes, store) = memory::<3>();
    let (key, a) = (key("k"), owner());
    let request = tower_distributed_lock::store::Acquire {
        lease: Duration::from_millis(100),
        ..attempt(&key, a)
    };
    nodes[1].set_fault(Some(Fault::Hang));
    nodes[2].set_fault(Some(Fault::Hang));
    let asking = tokio::spawn(store.ask_for(request));
    tokio::time::sleep(Duration::from_millis(95)).await;
    nodes[1].set_fault(None);
    nodes[2].set_fault(None);
    let error = asking.await.unwrap().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("too little of the lease was left"),
        "{error}"
    );
    settle().await;
    assert!(nodes.iter().all(|node| node.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn the_leading_node_tells_who_may_ask_at_once() {
    let (nodes, store) = memory::<3>();
    let (key, b) = (key("k"), owner());
    let mut hints = store.watch(b.instance);
    let mut assert_hinted = async |node: &FaultyStore, hint: Hint| {
        let a = owner();
        node.take(&key, a).await;
        held(node.queue(&key, b).await);
        node.free(&key, a).await;
        hinted(&mut hints, hint).await;
        node.free(&key, b).await;
    };
    let (free, next) = (Hint::Free(key.clone()), Hint::Next(key.clone()));
    assert_hinted(&nodes[0], free.clone()).await;
    assert_hinted(&nodes[1], next.clone()).await;
    assert_hinted(&nodes[2], next.clone()).await;

    // Node 1 leads when node 0 is away.
    nodes[0].set_fault(Some(Fault::Unreachable));
    let c = owner();
    store.take(&key, c).await;
    store.free(&key, c).await;
    assert_hinted(&nodes[1], free).await;
    assert_hinted(&nodes[2], next).await;
    nodes[1].restart();
    hinted(&mut hints, Hint::Reconnected).await;
}
