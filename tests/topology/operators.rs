//! Pings and listings of a Cluster that loses a node.

use std::{collections::BTreeSet, time::Duration};

use tower_distributed_lock::{
    ErrorKind,
    store::{List, RedisStore, Store},
};

use crate::{
    subject::*,
    support::{cluster::Cluster, redis_server::RedisServer},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ping_reaches_every_node_and_names_the_one_that_is_gone() {
    let mut cluster = Cluster::start().await;
    let store = RedisStore::cluster(cluster.urls()).lanes(2);
    let store = store.timeout(Duration::from_millis(500));
    let store = store.connect().await.unwrap();
    let pings = async |node: &RedisServer| node.commands().await.get("eval").copied();
    for node in &cluster.nodes {
        node.reset_stats().await;
    }
    store.ping().await.unwrap();
    for node in &cluster.nodes[..3] {
        assert_eq!(pings(node).await, Some(2), "one for each lane");
    }
    for node in &cluster.nodes[3..] {
        assert_eq!(pings(node).await, None, "a replica has no slots");
    }

    let keys: Vec<_> = (0..60).map(|n| key(&format!("k/{n}"))).collect();
    for key in &keys {
        store.take(key, owner()).await;
    }
    for node in &cluster.nodes[..3] {
        let replicated: usize = node.send(&["WAIT", "1", "5000"]).await;
        assert_eq!(replicated, 1);
    }
    let address = format!("127.0.0.1:{}", cluster.nodes[0].port());
    cluster.nodes[0].kill();
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains(&address), "{error}");
    // A list that meets a fail-over on its way may miss keys, so all nodes must know of it.
    let gone = format!("int({})", cluster.nodes[0].port());
    let know = async || {
        for node in &cluster.nodes[1..] {
            let slots: redis::Value = node.send(&["CLUSTER", "SLOTS"]).await;
            if format!("{slots:?}").contains(&gone) {
                return false;
            }
        }
        true
    };
    eventually("all nodes know of the fail-over", know).await;
    eventually("a replica takes over", async || store.ping().await.is_ok()).await;

    let (mut listed, mut request) = (BTreeSet::new(), List::starting_with("k/").at_most(5));
    loop {
        let page = store.list(request.clone()).await.unwrap();
        listed.extend(page.keys);
        let Some(next) = page.next else { break };
        request = request.after(next);
    }
    assert_eq!(listed, keys.into_iter().collect(), "of all three nodes");
}
