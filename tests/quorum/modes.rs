//! Readers and writers on a quorum: majorities of the one meet majorities of the other, also if
//! some nodes did not hear of a downgrade.

use tower_distributed_lock::store::{
    Acquire, Acquired, Fault,
    Mode::{Exclusive, Shared},
    Queueing, Released, Renewed,
};

use crate::{holders_at, memory, settle, support::words::*};

/// Each node is free, read by another owner, written by another owner, or dead: 4^N patterns, for
/// readers and writers that queue or do not.
async fn every_pattern<const N: usize>() {
    const QUEUEING: [Queueing; 3] = [
        Queueing::No,
        Queueing::Skip,
        Queueing::Wait {
            deadline: LONG,
            head_start: LONG,
        },
    ];
    for (mode, queueing) in [Exclusive, Shared]
        .into_iter()
        .flat_map(|mode| QUEUEING.map(|queueing| (mode, queueing)))
    {
        for pattern in 0..4usize.pow(N as u32) {
            let (nodes, store) = memory::<N>();
            let is = |node: usize| pattern / 4usize.pow(node as u32) % 4;
            let of = |kind| (0..N).filter(|node| is(*node) == kind).count();
            let (key, reader, writer, a) = (key("k"), owner(), owner(), owner());
            for (at, node) in nodes.iter().enumerate() {
                match is(at) {
                    0 => {}
                    1 => {
                        node.ask_as(Shared, &key, reader).await;
                    }
                    2 => {
                        node.take(&key, writer).await;
                    }
                    _ => node.set_fault(Some(Fault::Unreachable)),
                }
            }
            let request = Acquire {
                queueing,
                mode,
                ..attempt(&key, a)
            };
            let answer = store.ask_for(request).await;
            let room = match mode {
                Shared => of(0) + of(1),
                _ => of(0),
            };
            let (alive, majority) = (N - of(3), N / 2 + 1);
            match &answer {
                Ok(Acquired::Granted(_)) => assert!(room >= majority, "{mode} {pattern}"),
                Ok(Acquired::Held(_)) => assert!(room < majority && alive >= majority),
                Ok(Acquired::Recorded(_)) => unreachable!("nobody records"),
                Err(_) => assert!(alive < majority, "{mode} {pattern}"),
            }
            settle().await;
            let stays = matches!(queueing, Queueing::Wait { .. }) && answer.is_ok();
            if stays || matches!(answer, Ok(Acquired::Granted(_))) {
                store.free_as(mode, &key, a).await;
            }
            for (at, node) in nodes.iter().enumerate() {
                node.set_fault(None);
                settle().await;
                let expected = match is(at) {
                    1 => vec![reader],
                    2 => vec![writer],
                    _ => vec![],
                };
                assert_eq!(node.holders(&key).await, expected, "{pattern} {answer:?}");
                assert_eq!(node.see(&key).await.queue, [], "{pattern} {answer:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn three_nodes_in_every_pattern_of_free_read_written_and_dead_nodes() {
    every_pattern::<3>().await;
}

#[tokio::test(start_paused = true)]
async fn five_nodes_in_every_pattern_of_free_read_written_and_dead_nodes() {
    every_pattern::<5>().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_did_not_hear_of_a_downgrade_hears_of_it_with_the_next_renewal() {
    let (nodes, store) = memory::<3>();
    let (key, a, b, c) = (key("k"), owner(), owner(), owner());
    store.take(&key, a).await;
    nodes[2].set_fault(Some(Fault::Unreachable));
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    nodes[2].set_fault(None);
    assert_eq!(nodes[2].see(&key).await.holders[0].mode, Exclusive);
    assert_eq!(store.see(&key).await.holders[0].mode, Shared);

    granted(store.ask_as(Shared, &key, b).await);
    held(store.ask(&key, owner()).await);
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    assert_eq!(nodes[2].see(&key).await.holders[0].mode, Shared);
    granted(store.ask_as(Shared, &key, c).await);
    settle().await;
    assert_eq!(nodes[2].holders(&key).await, sorted([a, c]));
    // The renewal of b adds the node that had refused b.
    assert!(is_renewed(&store.renew_as(Shared, &key, b, 0).await));
    settle().await;
    assert_eq!(nodes[2].holders(&key).await, sorted([a, b, c]));
    for reader in [a, b, c] {
        assert_eq!(store.free_as(Shared, &key, reader).await, Released::Freed);
    }
    settle().await;
    assert!(nodes.iter().all(|node| node.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_only_a_minority_heard_lets_no_reader_in() {
    let (nodes, store) = memory::<3>();
    let (key, a, b) = (key("k"), owner(), owner());
    store.take(&key, a).await;
    nodes[1].set_fault(Some(Fault::Unreachable));
    nodes[2].set_fault(Some(Fault::Unreachable));
    let answer = store.renew_as(Shared, &key, a, 0).await;
    assert!(matches!(answer, Renewed::Unknown(_)), "{answer:?}");
    nodes[1].set_fault(None);
    nodes[2].set_fault(None);
    assert_eq!(nodes[0].see(&key).await.holders[0].mode, Shared);
    for mode in [Shared, Exclusive] {
        held(store.ask_as(mode, &key, b).await);
    }
    settle().await;
    for node in &nodes {
        assert_eq!(node.holders(&key).await, [a]);
    }
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    granted(store.ask_as(Shared, &key, b).await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_some_nodes_downgraded_is_released_everywhere() {
    for heard in 0..3 {
        let (nodes, store) = memory::<3>();
        let (key, a) = (key("k"), owner());
        store.take(&key, a).await;
        for (at, node) in nodes.iter().enumerate() {
            node.set_fault((at > heard).then_some(Fault::Unreachable));
        }
        let _ = store.renew_as(Shared, &key, a, 0).await;
        nodes.iter().for_each(|node| node.set_fault(None));
        assert_eq!(store.free_as(Shared, &key, a).await, Released::Freed);
        settle().await;
        assert!(nodes.iter().all(|node| node.is_empty()), "{heard}");
        store.take(&key, owner()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_forgot_is_healed_beside_other_readers() {
    let (nodes, store) = memory::<3>();
    let (key, a, b) = (key("k"), owner(), owner());
    granted(store.ask_as(Shared, &key, a).await);
    granted(store.ask_as(Shared, &key, b).await);
    nodes[0].restart();
    assert!(is_renewed(&store.renew_as(Shared, &key, a, 0).await));
    settle().await;
    assert_eq!(holders_at(&nodes[0], &key).await, [a.instance]);
    assert_eq!(nodes[0].see(&key).await.holders[0].mode, Shared);
    assert!(is_renewed(&store.renew_as(Shared, &key, b, 0).await));
    settle().await;
    let both = sorted([a, b]).into_iter().map(|owner| owner.instance);
    assert!(holders_at(&nodes[0], &key).await.into_iter().eq(both));
    held(store.ask(&key, owner()).await);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_a_majority_forgot_is_lost_although_readers_could_join() {
    let (nodes, store) = memory::<3>();
    let (key, a, b) = (key("k"), owner(), owner());
    granted(store.ask_as(Shared, &key, a).await);
    nodes[0].restart();
    nodes[1].restart();
    let answer = store.renew_as(Shared, &key, a, 0).await;
    assert!(matches!(answer, Renewed::NotOurs), "{answer:?}");
    settle().await;
    assert_eq!(nodes[0].holders(&key).await, []);
    assert_eq!(nodes[1].holders(&key).await, []);
    granted(store.ask_as(Shared, &key, b).await);
}

/// A writer is granted the key only by a majority of nodes that remember the readers, or by all
/// nodes.
#[tokio::test(start_paused = true)]
async fn a_node_that_forgot_its_readers_does_not_let_a_writer_in() {
    for (forgot, mode) in [(0, Exclusive), (1, Exclusive), (2, Exclusive), (0, Shared)] {
        let (nodes, store) = memory::<3>();
        let (key, a) = (key("k"), owner());
        nodes[(forgot + 1) % 3].set_fault(Some(Fault::Unreachable));
        granted(store.ask_as(Shared, &key, a).await);
        settle().await;
        nodes[(forgot + 1) % 3].set_fault(None);
        // The reader has two nodes, and one of them forgets it. A writer would have two nodes now,
        // one of them young.
        nodes[forgot].restart();
        let answer = store.ask_as(mode, &key, owner()).await;
        let is_granted = matches!(answer, Acquired::Granted(_));
        assert_eq!(is_granted, mode == Shared, "{forgot}: {answer:?}");
    }
}
