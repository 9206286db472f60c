//! All patterns of nodes that are taken by another owner, and of nodes that are dead: granted
//! exactly when a majority is free and alive, and nothing of a failed attempt is left behind.

use tower_distributed_lock::{
    ErrorKind,
    store::{Acquire, Acquired, Fault, Queueing},
};

use crate::{Fleet, memory, settle, short, support::words::*};

/// The numbers of all patterns, so that each differs from the one before in one bit.
fn patterns(bits: usize) -> impl Iterator<Item = usize> {
    (0..1usize << bits).map(|n| n ^ (n >> 1))
}

fn has(pattern: usize, node: usize) -> bool {
    pattern >> node & 1 == 1
}

async fn taken_by_another_owner(nodes: usize) {
    let fleet = Fleet::start_not_young(nodes).await;
    for pattern in patterns(nodes) {
        let (key, other) = (key(&format!("k/{pattern}")), owner());
        for node in (0..nodes).filter(|node| has(pattern, *node)) {
            fleet.nodes[node].take(&key, other).await;
        }
        let is_free = pattern.count_ones() as usize <= nodes / 2;
        let request = short(&key);
        match fleet.store.ask_for(request.clone()).await.unwrap() {
            Acquired::Granted(_) => {
                assert!(is_free, "granted with {pattern:b} taken");
                fleet.store.free(&key, request.owner).await;
            }
            Acquired::Held(_) => assert!(!is_free, "held with {pattern:b} taken"),
            Acquired::Recorded(_) => unreachable!("nobody records"),
        }
        for node in 0..nodes {
            let holder = fleet.nodes[node].holder(&key).await;
            let expected = has(pattern, node).then_some(other);
            assert_eq!(holder, expected, "node {node} with {pattern:b} taken");
        }
    }
}

#[tokio::test]
async fn three_nodes_in_every_pattern_of_taken_nodes() {
    taken_by_another_owner(3).await;
}

#[tokio::test]
async fn five_nodes_in_every_pattern_of_taken_nodes() {
    taken_by_another_owner(5).await;
}

async fn dead(nodes: usize) {
    let mut fleet = Fleet::start_not_young(nodes).await;
    let mut before = 0;
    for pattern in patterns(nodes) {
        for node in 0..nodes {
            match (has(before, node), has(pattern, node)) {
                (false, true) => fleet.servers[node].kill(),
                (true, false) => {
                    fleet.servers[node].restart().await;
                    fleet.until_none_is_young().await;
                }
                _ => {}
            }
        }
        before = pattern;
        let (dead, key) = (pattern.count_ones() as usize, key(&format!("k/{pattern}")));
        let request = short(&key);
        match fleet.store.ask_for(request.clone()).await {
            Ok(Acquired::Granted(_)) => {
                assert!(dead <= nodes / 2, "granted with {pattern:b} dead");
                fleet.store.free(&key, request.owner).await;
            }
            Ok(other) => panic!("with {pattern:b} dead: {other:?}"),
            Err(error) => {
                assert!(dead > nodes / 2, "{error} with {pattern:b} dead");
                assert_eq!(error.kind(), ErrorKind::Unreachable);
                let words = format!("no quorum: {dead} of {nodes} nodes unreachable");
                assert!(error.to_string().starts_with(&words), "{error}");
            }
        }
        for node in (0..nodes).filter(|node| !has(pattern, *node)) {
            let left = fleet.nodes[node].holder(&key).await;
            assert_eq!(left, None, "node {node} with {pattern:b} dead");
        }
    }
}

#[tokio::test]
async fn three_nodes_in_every_pattern_of_dead_nodes() {
    dead(3).await;
}

#[tokio::test]
async fn five_nodes_in_every_pattern_of_dead_nodes() {
    dead(5).await;
}

/// Each node free, taken or dead, and whether the attempt queues: 3^5 patterns, which no server
/// could play in time.
#[tokio::test(start_paused = true)]
async fn five_nodes_in_every_pattern_of_free_taken_and_dead_nodes() {
    const QUEUEING: [Queueing; 3] = [
        Queueing::No,
        Queueing::Skip,
        Queueing::Wait {
            deadline: LONG,
            head_start: LONG,
        },
    ];
    for queueing in QUEUEING {
        for pattern in 0..3usize.pow(5) {
            let (nodes, store) = memory::<5>();
            let is = |node: usize| pattern / 3usize.pow(node as u32) % 3;
            let of = |kind| (0..5).filter(|node| is(*node) == kind).count();
            let (key, other, a) = (key("k"), owner(), owner());
            for (at, node) in nodes.iter().enumerate() {
                match is(at) {
                    0 => {}
                    1 => {
                        node.take(&key, other).await;
                    }
                    _ => node.set_fault(Some(Fault::Unreachable)),
                }
            }
            let request = Acquire {
                queueing,
                ..attempt(&key, a)
            };
            let answer = store.ask_for(request).await;
            let (free, taken) = (of(0), of(1));
            match &answer {
                Ok(Acquired::Granted(_)) => assert!(free >= 3),
                Ok(Acquired::Held(_)) => assert!(free < 3 && free + taken >= 3),
                Ok(Acquired::Recorded(_)) => unreachable!("nobody records"),
                Err(_) => assert!(free + taken < 3),
            }
            settle().await;
            let stays = matches!(queueing, Queueing::Wait { .. }) && answer.is_ok();
            if stays || matches!(answer, Ok(Acquired::Granted(_))) {
                store.free(&key, a).await;
            }
            for (at, node) in nodes.iter().enumerate() {
                node.set_fault(None);
                settle().await;
                let seen = node.see(&key).await;
                let holder = seen.holder().cloned().map(|holder| holder.owner);
                assert_eq!(
                    holder,
                    (is(at) == 1).then_some(other),
                    "{pattern} {answer:?}"
                );
                assert_eq!(seen.queue, [], "{pattern} {answer:?}");
            }
        }
    }
}
