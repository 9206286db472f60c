//! Pings and listings of a quorum whose nodes fail.

use std::collections::BTreeSet;

use tower_distributed_lock::{
    ErrorKind, LockKey,
    store::{Fault, List, Store},
};

use crate::{memory, support::words::*};

/// The keys of all pages from this one on.
async fn rest(store: &impl Store, mut request: List) -> BTreeSet<LockKey> {
    let mut keys = BTreeSet::new();
    loop {
        let page = store.list(request.clone()).await.unwrap();
        keys.extend(page.keys);
        let Some(next) = page.next else { return keys };
        request = request.after(next);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ping_needs_a_majority_and_names_the_other_nodes() {
    let (nodes, store) = memory::<3>();
    for fault in [Fault::Unreachable, Fault::Hang] {
        nodes[1].set_fault(Some(fault));
        store.ping().await.unwrap();
        nodes[2].set_fault(Some(fault));
        let error = store.ping().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let named = nodes
            .each_ref()
            .map(|node| error.to_string().contains(&*node.space()));
        assert_eq!(named, [false, true, true], "{error}");
        nodes.iter().for_each(|node| node.set_fault(None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_a_majority_holds_is_listed_by_every_majority() {
    let (nodes, store) = memory::<3>();
    let mut keys = BTreeSet::new();
    // Each key is missing at one of the nodes.
    for (index, away) in nodes.iter().enumerate() {
        away.set_fault(Some(Fault::Unreachable));
        for n in 0..10 {
            let key = key(&format!("k/{index}/{n}"));
            store.take(&key, owner()).await;
            keys.insert(key);
        }
        away.set_fault(None);
    }
    let request = List::all().at_most(4);
    assert_eq!(rest(&store, request.clone()).await, keys);
    for away in &nodes {
        away.set_fault(Some(Fault::Unreachable));
        assert_eq!(rest(&store, request.clone()).await, keys);
        away.set_fault(None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_between_two_pages_does_not_count_any_more() {
    let (nodes, store) = memory::<3>();
    let keys: BTreeSet<_> = (0..30).map(|n| key(&format!("k/{n}"))).collect();
    for key in &keys {
        store.take(key, owner()).await;
    }
    let request = List::all().at_most(4);
    let first = store.list(request.clone()).await.unwrap();
    let second = request.clone().after(first.next.unwrap());
    nodes[0].set_fault(Some(Fault::Hang));
    let page = store.list(second.clone()).await.unwrap();
    nodes[0].set_fault(None);
    // The node has missed a page. With another node away, nothing is sure any more.
    let third = request.clone().after(page.next.unwrap());
    nodes[1].set_fault(Some(Fault::Unreachable));
    let error = store.list(third.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    nodes[1].set_fault(None);
    let mut listed: BTreeSet<_> = first.keys.into_iter().chain(page.keys).collect();
    listed.extend(rest(&store, third).await);
    assert_eq!(listed, keys);
}
