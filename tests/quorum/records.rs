//! A record on any node is enough for a thing not to be done twice.

use bytes::Bytes;
use tower_distributed_lock::store::{Acquire, Acquired, Fault, FaultyStore, Released};

use crate::{memory, settle, support::words::*};

const RECORD: Bytes = Bytes::from_static(b"done");

fn claim(owner: tower_distributed_lock::store::Owner) -> Acquire {
    Acquire {
        fingerprint: Some(Bytes::from_static(b"claim")),
        ..attempt(&key("k"), owner)
    }
}

async fn records(nodes: &[FaultyStore]) -> Vec<bool> {
    let mut records = Vec::new();
    for node in nodes {
        records.push(node.see(&key("k")).await.record == Some(RECORD));
    }
    records
}

fn down(node: &FaultyStore, is_down: bool) {
    node.set_fault(is_down.then_some(Fault::Unreachable));
}

#[tokio::test(start_paused = true)]
async fn a_record_needs_a_majority() {
    let ((nodes, store), a) = (memory::<3>(), owner());
    granted(store.ask_for(claim(a)).await.unwrap());
    down(&nodes[0], true);
    assert_eq!(store.record(&key("k"), a, b"done").await, Released::Freed);

    let ((nodes, store), a) = (memory::<3>(), owner());
    granted(store.ask_for(claim(a)).await.unwrap());
    down(&nodes[0], true);
    down(&nodes[1], true);
    let failed = store.end(recording(&key("k"), a, b"done")).await;
    let error = failed.unwrap_err().to_string();
    let words = "no quorum: 2 of 3 nodes unreachable";
    assert!(error.starts_with(words), "{error}");
    // The nodes make up for the record, and a second record finds it.
    down(&nodes[0], false);
    down(&nodes[1], false);
    assert_eq!(store.record(&key("k"), a, b"done").await, Released::Freed);
    assert_eq!(records(&nodes).await, [true; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_record_reaches_nodes_that_had_no_part_in_the_lease() {
    let ((nodes, store), a) = (memory::<3>(), owner());
    down(&nodes[2], true);
    granted(store.ask_for(claim(a)).await.unwrap());
    down(&nodes[2], false);
    assert_eq!(store.record(&key("k"), a, b"done").await, Released::Freed);
    settle().await;
    assert_eq!(records(&nodes).await, [true; 3]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_finds_a_record_copies_it_to_nodes_without_it() {
    let ((nodes, store), a) = (memory::<5>(), owner());
    granted(store.ask_for(claim(a)).await.unwrap());
    store.record(&key("k"), a, b"done").await;
    settle().await;
    tokio::time::advance(LONG / 2).await;
    for node in &nodes[..4] {
        node.restart();
    }
    tokio::time::advance(LONG / 4).await;
    let answer = store.ask_for(claim(owner())).await.unwrap();
    assert_eq!(answer, Acquired::Recorded(RECORD));
    settle().await;
    assert_eq!(records(&nodes).await, [true; 5]);
    for node in &nodes {
        let remaining = node.see(&key("k")).await.record_remaining.unwrap();
        assert!(
            remaining <= LONG / 4,
            "it is not kept for longer: {remaining:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_every_node_that_may_have_a_record() {
    let ((nodes, store), a) = (memory::<3>(), owner());
    nodes[2].take(&key("k"), a).await;
    nodes[2].record(&key("k"), a, b"done").await;
    nodes[2].set_fault(Some(Fault::Hang));
    let asking = tokio::spawn(store.ask_for(claim(owner())));
    settle().await;
    nodes[2].set_fault(None);
    assert_eq!(asking.await.unwrap().unwrap(), Acquired::Recorded(RECORD));
}
