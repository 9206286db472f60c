//! A node is away, dead or hanging: the other nodes do not wait for that node, and no calls pile up
//! for it.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt, future::join_all};
use tokio::time::Instant;
use tower_distributed_lock::{
    Locks,
    store::{
        Acquire, Acquired, Fault, FaultyStore, Queueing, QuorumStore, RedisStore, Renewed, Store,
    },
};

use crate::{
    Fleet, holders_at, memory, settle, short,
    support::{eventually, proxy::Proxy, redis_server::pass, words::*},
};

const TURNS: u64 = 500;

#[tokio::test(start_paused = true)]
async fn a_node_that_was_never_reached_is_owed_nothing() {
    let (nodes, store) = memory::<3>();
    nodes[2].set_fault(Some(Fault::Unreachable));
    for turn in 0..TURNS {
        let (key, a, b) = (key(&format!("k/{}", turn % 7)), owner(), owner());
        granted(store.ask_for(attempt(&key, a)).await.unwrap());
        held(store.ask_for(waiting(&key, b)).await.unwrap());
        store.free(&key, b).await;
        assert!(is_renewed(&store.renew_one(renewal(&key, a, 1)).await));
        drop(store.end(ending(&key, a)));
    }
    settle().await;
    assert_eq!(nodes[2].calls().releases, 0);
    nodes[2].set_fault(None);
    assert!(nodes.iter().all(FaultyStore::is_empty));
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_a_hanging_node_is_given_back() {
    let (nodes, store) = memory::<3>();
    for fault in [Fault::Hang, Fault::Mute] {
        nodes[2].set_fault(Some(fault));
        for turn in 0..TURNS {
            let (key, a) = (key(&format!("k/{}", turn % 7)), owner());
            granted(store.ask_for(attempt(&key, a)).await.unwrap());
            store.free(&key, a).await;
        }
        assert!(!nodes[2].is_empty(), "node 2 may have granted: {fault:?}");
        nodes[2].set_fault(None);
        settle().await;
        assert!(nodes.iter().all(FaultyStore::is_empty), "{fault:?}");
    }
}

#[tokio::test]
async fn a_killed_node_is_not_flooded_after_its_restart() {
    let mut fleet = Fleet::start_not_young(3).await;
    fleet.servers[2].kill();
    for turn in 0..TURNS {
        let request = short(&key(&format!("k/{}", turn % 7)));
        granted(fleet.store.ask_for(request.clone()).await.unwrap());
        fleet.store.free(&request.key, request.owner).await;
    }
    fleet.servers[2].restart().await;
    eventually("the node takes part", async || {
        fleet.nodes[2].inspect(key("k")).await.is_ok()
    })
    .await;
    pass(300).await;
    let commands = fleet.servers[2].commands().await;
    let scripts = commands.get("evalsha").copied().unwrap_or(0);
    assert!(scripts < TURNS / 5, "{commands:?}");
    eventually("nothing is left", async || fleet.is_empty().await).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_wait_for_a_hanging_node() {
    let ((nodes, store), a) = (memory::<3>(), owner());
    store.take(&key("k"), a).await;
    nodes[2].set_fault(Some(Fault::Hang));
    let asked = Instant::now();
    for _ in 0..10 {
        let Renewed::Renewed { tokens, .. } = store.renew_one(renewal(&key("k"), a, 4)).await
        else {
            panic!("two of three nodes renew");
        };
        assert_eq!(tokens.unwrap().left(), 4);
    }
    assert_eq!(asked.elapsed(), Duration::ZERO);

    // The late answer of the node still counts: a node that has forgotten is healed.
    nodes[2].restart();
    assert!(is_renewed(&store.renew_one(renewal(&key("k"), a, 0)).await));
    nodes[2].set_fault(None);
    settle().await;
    assert_eq!(holders_at(&nodes[2], &key("k")).await, [a.instance]);
}

#[tokio::test(start_paused = true)]
async fn one_lease_of_a_batch_does_not_wait_for_another() {
    let ((nodes, store), a, b) = (memory::<3>(), owner(), owner());
    store.take(&key("a"), a).await;
    nodes[1].set_fault(Some(Fault::Unreachable));
    store.take(&key("b"), b).await;
    nodes[1].set_fault(None);
    nodes[2].set_fault(Some(Fault::Hang));
    // Node 2 decides about `b`, of which node 1 has no part. The answer of node 2 changes nothing
    // for `a`.
    let mut answers = store.renew(vec![renewal(&key("b"), b, 0), renewal(&key("a"), a, 0)]);
    let asked = Instant::now();
    let (first, answer) = answers.next().await.unwrap();
    assert_eq!((first, asked.elapsed()), (1, Duration::ZERO));
    assert!(is_renewed(&answer));
    let (second, answer) = answers.next().await.unwrap();
    assert_eq!(second, 0);
    assert!(is_renewed(&answer), "node 1 is healed instead");
    assert!(answers.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_held_key_does_not_cost_a_nodes_timeout() {
    let ((nodes, store), a) = (memory::<3>(), owner());
    let timeout = Duration::from_millis(200);
    store.take(&key("k"), a).await;
    nodes[2].set_fault(Some(Fault::Hang));
    let claim = Acquire {
        fingerprint: Some(bytes::Bytes::from_static(b"claim")),
        ..attempt(&key("k"), owner())
    };
    for request in [
        waiting(&key("k"), owner()),
        attempt(&key("k"), owner()),
        claim,
    ] {
        let asked = Instant::now();
        held(store.ask_for(request).await.unwrap());
        assert!(asked.elapsed() <= timeout / 5, "{:?}", asked.elapsed());
    }
    nodes[2].set_fault(None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_waited_for_once() {
    let ((nodes, store), other) = (memory::<3>(), owner());
    nodes[0].take(&key("k"), other).await;
    nodes[2].set_fault(Some(Fault::Hang));
    let took = async || {
        let asked = Instant::now();
        held(store.ask_for(attempt(&key("k"), owner())).await.unwrap());
        asked.elapsed()
    };
    // One node is taken and one is free: the third decides.
    let timeout = Duration::from_millis(200);
    assert!(took().await >= timeout);
    for _ in 0..10 {
        assert!(took().await < timeout, "node 2 was silent before");
    }
    // A node that answers again is waited for again.
    nodes[2].set_fault(None);
    granted(store.ask_for(attempt(&key("j"), owner())).await.unwrap());
    nodes[2].set_fault(Some(Fault::Hang));
    assert!(took().await >= timeout);
}

/// The two live nodes have queues in different order, so that each offers a free key to another
/// attempt.
#[tokio::test(start_paused = true)]
async fn queues_in_different_order_do_not_split_every_vote() {
    let ((nodes, store), holder) = (memory::<3>(), owner());
    let (a, b) = (owner(), owner());
    nodes[2].set_fault(Some(Fault::Hang));
    store.take(&key("k"), holder).await;
    held(nodes[0].queue(&key("k"), a).await);
    held(nodes[0].queue(&key("k"), b).await);
    held(nodes[1].queue(&key("k"), b).await);
    held(nodes[1].queue(&key("k"), a).await);
    store.free(&key("k"), holder).await;
    let request = |owner| Acquire {
        queueing: Queueing::Wait {
            deadline: LONG,
            head_start: Duration::from_millis(300),
        },
        ..attempt(&key("k"), owner)
    };
    let (one, two) = tokio::join!(store.ask_for(request(a)), store.ask_for(request(b)));
    let won = |answer: &Acquired| matches!(answer, Acquired::Granted(_));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(won(&one) != won(&two), "{one:?} {two:?}");
    let (winner, loser) = if won(&one) { (a, b) } else { (b, a) };
    store.free(&key("k"), winner).await;
    granted(store.ask_for(request(loser)).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_leaves_nothing() {
    for (fault, is_polled) in [
        (None, false),
        (Some(Fault::Hang), false),
        (Some(Fault::Hang), true),
        (Some(Fault::Mute), true),
    ] {
        let (nodes, store) = memory::<3>();
        let (key, other, a) = (key("k"), owner(), owner());
        nodes[0].take(&key, other).await;
        nodes[2].set_fault(fault);
        let mut asking = store.ask_for(waiting(&key, a));
        if is_polled {
            // Node 0 has queued the attempt, node 1 has granted the key, and node 2 decides.
            assert!((&mut asking).now_or_never().is_none());
        }
        drop(asking);
        nodes[2].set_fault(None);
        settle().await;
        nodes[0].free(&key, other).await;
        assert!(nodes.iter().all(FaultyStore::is_empty), "{fault:?}");
    }
}

/// Fault: each renewal of a lease, and so each refill of tokens, waited for the node.
#[tokio::test(start_paused = true)]
async fn a_hot_key_goes_on_while_a_node_hangs() {
    let (nodes, store) = memory::<3>();
    let locks = Locks::builder(store).build().unwrap();
    // The node has a part in the lease that is passed on.
    let first = locks.lock("hot").await.unwrap();
    nodes[2].set_fault(Some(Fault::Hang));
    let began = Instant::now();
    let turns = (0..8).map(|_| async {
        for _ in 0..TURNS {
            locks.lock("hot").await.unwrap().release().await.unwrap();
        }
    });
    tokio::join!(join_all(turns), async { drop(first) });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn refused_attempts_leave_nothing_at_a_node_that_lost_its_connection() {
    let fleet = Fleet::start_not_young(3).await;
    let mut proxy = Proxy::start(fleet.servers[2].port()).await;
    let node = |url: String| RedisStore::builder(url).lanes(1).build().unwrap();
    let nodes = [fleet.servers[0].url(), fleet.servers[1].url(), proxy.url()].map(node);
    let store = QuorumStore::new(nodes).unwrap();
    let (key, other) = (key("k"), owner());
    fleet.nodes[0].take(&key, other).await;
    fleet.nodes[1].take(&key, other).await;
    for turn in 0..40 {
        let asking = tokio::spawn(store.ask_for(attempt(&key, owner())));
        // Before the command is sent, on its way, or with its reply on the way.
        pass(turn % 4).await;
        proxy.cut();
        held(asking.await.unwrap().unwrap());
    }
    for node in &fleet.nodes[..2] {
        node.free(&key, other).await;
    }
    eventually("nothing is left", async || fleet.is_empty().await).await;
    pass(300).await;
    assert!(fleet.is_empty().await, "a lease came back");
}
