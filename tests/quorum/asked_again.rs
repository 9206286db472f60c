//! A node that has a part of an attempt is asked for the part again, and is away by then. The call
//! has no effect, and the part must still be released.

use futures_util::FutureExt;
use tower_distributed_lock::{
    LockKey,
    store::{Fault, FaultyStore, Owner, QuorumStore, RedisStore, Store},
};

use crate::{
    Fleet, NODE_TIMEOUT, memory, rounds, settle,
    support::{
        eventually,
        proxy::{Network, Proxy},
        redis_server::pass,
        words::*,
    },
};

#[tokio::test(start_paused = true)]
async fn a_grant_of_a_split_vote_is_returned_by_a_node_that_was_away_at_the_next_vote() {
    let (nodes, store) = memory::<3>();
    let (key, other) = (key("k"), owner());
    nodes[1].take(&key, other).await;
    nodes[2].set_fault(Some(Fault::Unreachable));
    let mut asking = store.ask_for(attempt(&key, owner()));
    // Node 0 has granted the key, and leads: the attempt keeps the grant, and pauses.
    assert!((&mut asking).now_or_never().is_none());
    assert!(!nodes[0].is_empty());
    nodes[0].set_fault(Some(Fault::Unreachable));
    asking.await.unwrap_err();
    nodes[0].set_fault(None);
    rounds().await;
    assert!(nodes[0].is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_place_in_a_queue_ends_at_a_node_that_was_away_at_the_next_question() {
    let (nodes, store) = memory::<3>();
    let (key, holder, waiter) = (key("k"), owner(), owner());
    store.take(&key, holder).await;
    held(store.queue(&key, waiter).await);
    nodes[2].set_fault(Some(Fault::Unreachable));
    held(store.queue(&key, waiter).await);
    nodes[2].set_fault(None);
    store.free(&key, waiter).await;
    store.free(&key, holder).await;
    assert!(nodes.iter().all(FaultyStore::is_empty));
}

#[tokio::test(start_paused = true)]
async fn a_place_in_a_queue_ends_at_a_node_that_was_away_when_it_was_to_be_healed() {
    let (nodes, store) = memory::<3>();
    let (key, other, a) = (key("k"), owner(), owner());
    nodes[2].take(&key, other).await;
    granted(store.queue(&key, a).await);
    settle().await; // node 2 has queued the attempt
    nodes[2].set_fault(Some(Fault::Unreachable));
    assert!(is_renewed(&store.renew_one(renewal(&key, a, 0)).await));
    settle().await; // healing has failed
    nodes[2].set_fault(None);
    store.free(&key, a).await;
    nodes[2].free(&key, other).await;
    assert!(nodes.iter().all(FaultyStore::is_empty));
}

/// How an attempt ends whose last question has not reached node 2.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// The question is dropped before its answer.
    Dropped,
    /// The attempt is released after the time of the question is over.
    Released,
    /// The attempt is released before that, and the node is known to be silent.
    ReleasedWhileAsking,
    /// The attempt asks once more before the time of the question is over, and is released then.
    ReleasedAfterAskingAgain,
}

#[tokio::test]
async fn a_place_in_a_queue_ends_although_the_last_question_was_never_sent() {
    let fleet = Fleet::start_not_young(3).await;
    let mut proxy = Proxy::start(fleet.servers[2].port()).await;
    let node = |url: String| RedisStore::builder(url).lanes(1).build().unwrap();
    let nodes = [fleet.servers[0].url(), fleet.servers[1].url(), proxy.url()].map(node);
    let store = QuorumStore::builder(nodes.clone()).node_timeout(NODE_TIMEOUT);
    let store = store.build().unwrap();
    let (key, holder) = (key("k"), owner());
    fleet.store.take(&key, holder).await;
    let waits_at_node_2 = async || !fleet.nodes[2].see(&key).await.queue.is_empty();
    for end in [
        End::Dropped,
        End::Released,
        End::ReleasedWhileAsking,
        End::ReleasedAfterAskingAgain,
    ] {
        let waiter = owner();
        // The answer of a majority is enough. A call that node 2 has not answered in time is given
        // up there, and made again.
        eventually("the attempt waits at node 2", async || {
            held(store.queue(&key, waiter).await);
            waits_at_node_2().await
        })
        .await;
        proxy.cut();
        proxy.set(Network::BlackHole);
        // A call without an answer: the store has noticed that the connection is gone, and has no
        // other one.
        nodes[2].inspect(key.clone()).await.unwrap_err();
        end_attempt(&store, &key, waiter, end).await;
        proxy.set(Network::Fine);
        eventually(&format!("the place is gone: {end:?}"), async || {
            !waits_at_node_2().await
        })
        .await;
    }
}

async fn end_attempt(store: &QuorumStore, key: &LockKey, waiter: Owner, end: End) {
    if end == End::ReleasedWhileAsking {
        // The servers are younger than the lease, so node 2 is waited for until its timeout, and is
        // silent then.
        let other = attempt(&self::key("j"), owner());
        store.ask_for(other).await.unwrap_err();
    }
    let mut asking = store.ask_for(waiting(key, waiter));
    if end == End::Dropped {
        assert!((&mut asking).now_or_never().is_none());
        return;
    }
    held(asking.await.unwrap());
    match end {
        End::Released => pass(2 * NODE_TIMEOUT.as_millis() as u64).await,
        End::ReleasedAfterAskingAgain => drop(held(store.queue(key, waiter).await)),
        _ => {}
    }
    store.free(key, waiter).await;
}
