//! A node that restarted may have forgotten a lease: for as long as the longest lasts, a majority
//! needs others.

use std::time::Duration;

use tokio::time::advance;
use tower_distributed_lock::store::{Acquire, Acquired, Fault, QuorumStore};

use crate::{memory, support::words::*};

const MINUTE: Duration = Duration::from_secs(60);

fn request(owner: tower_distributed_lock::store::Owner) -> Acquire {
    Acquire {
        lease: MINUTE,
        ..attempt(&key("k"), owner)
    }
}

#[tokio::test(start_paused = true)]
async fn two_nodes_that_forgot_do_not_make_a_majority() {
    let (nodes, store) = memory::<3>();
    granted(store.ask_for(request(owner())).await.unwrap());
    nodes[0].restart();
    nodes[1].restart();
    held(store.ask_for(request(owner())).await.unwrap());
    assert!(nodes[0].is_empty() && nodes[1].is_empty(), "it is undone");

    nodes[2].set_fault(Some(Fault::Unreachable));
    let error = store.ask_for(request(owner())).await.unwrap_err();
    let words = "no quorum: 1 of 3 nodes unreachable; 2 restarted within a lease's time and may have forgotten one";
    assert!(error.to_string().starts_with(words), "{error}");
    advance(MINUTE - Duration::from_millis(1)).await;
    assert!(store.ask_for(request(owner())).await.is_err());
    advance(Duration::from_millis(1)).await;
    granted(store.ask_for(request(owner())).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_forgot_and_one_that_never_knew_do_not_make_a_majority() {
    let (nodes, store) = memory::<3>();
    nodes[2].set_fault(Some(Fault::Unreachable));
    granted(store.ask_for(request(owner())).await.unwrap());
    nodes[2].set_fault(None);
    nodes[0].restart();
    held(store.ask_for(request(owner())).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn all_nodes_are_enough_although_they_are_young() {
    let (nodes, store) = memory::<3>();
    for node in &nodes {
        node.restart();
    }
    let a = owner();
    granted(store.ask_for(request(a)).await.unwrap());
    store.free(&key("k"), a).await;
    nodes[0].set_fault(Some(Fault::Unreachable));
    assert!(store.ask_for(request(owner())).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn nodes_that_remember_are_enough() {
    let (nodes, store) = memory::<5>();
    nodes[0].restart();
    nodes[1].set_fault(Some(Fault::Unreachable));
    granted(store.ask_for(request(owner())).await.unwrap());
    nodes[2].restart();
    let other = Acquire {
        key: key("other"),
        ..request(owner())
    };
    assert!(store.ask_for(other).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_longest_lease_of_the_fleet_counts() {
    let (nodes, one) = memory::<3>();
    let other = QuorumStore::builder(nodes.clone()).longest_lease(MINUTE);
    let other = other.build().unwrap();
    granted(one.ask_for(request(owner())).await.unwrap());
    nodes[0].restart();
    nodes[1].restart();
    advance(MINUTE / 2).await;
    // Half a minute is longer than its own leases, and shorter than those of others.
    let short = Acquire {
        lease: MINUTE / 10,
        ..request(owner())
    };
    assert!(matches!(
        other.ask_for(short).await.unwrap(),
        Acquired::Held(_)
    ));
}
