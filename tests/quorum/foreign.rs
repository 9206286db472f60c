//! Values under the names of the store that another program wrote: no outage, but an error of their
//! own.

use futures_util::FutureExt;
use redis::Value;
use tokio::time::timeout;
use tower_distributed_lock::{
    Error, ErrorKind,
    store::{Hint, Hints, Mode, Owner, Renewed, Store},
};

use crate::{
    Fleet, holders_at, memory,
    support::{PATIENCE, eventually, words::*},
};

const LOCK: &str = "tdl:2:{b2089}:lock:orders/42";
const FENCE: &str = "tdl:2:{b2089}:fence";

fn assert_kind<T: std::fmt::Debug>(outcome: Result<T, Error>, kind: ErrorKind) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), kind, "{error:?}");
}

/// Writes the value of another program on the first nodes.
async fn write(fleet: &Fleet, nodes: usize, name: &str) {
    for server in &fleet.servers[..nodes] {
        let _: Value = server.send(&["SET", name, "locked"]).await;
    }
}

/// Every call for the key fails with this kind. The owner held it before.
async fn assert_all_fail(fleet: &Fleet, a: Owner, kind: ErrorKind) {
    let (store, key) = (&fleet.store, key("orders/42"));
    assert_kind(store.ask_for(attempt(&key, owner())).await, kind);
    assert_kind(store.ask_for(waiting(&key, owner())).await, kind);
    assert_kind(store.inspect(key.clone()).await, kind);
    assert_kind(store.force_release(key.clone()).await, kind);
    assert_kind(store.end(ending(&key, a)).await, kind);
    let Renewed::Unknown(error) = store.renew_one(renewal(&key, a, 0)).await else {
        panic!("there is nothing to renew");
    };
    assert_eq!(error.kind(), kind, "{error:?}");
}

#[tokio::test]
async fn a_foreign_value_on_a_majority_of_nodes_is_no_outage() {
    let mut fleet = Fleet::start(3).await;
    let a = owner();
    let granted = fleet.store.ask_for(attempt(&key("orders/42"), a)).await;
    granted.unwrap();
    for nodes in [2, 3] {
        write(&fleet, nodes, LOCK).await;
        assert_all_fail(&fleet, a, ErrorKind::Foreign).await;
    }
    // A request that waits for ever would wait for the end of an outage.
    let locks = fleet.locks();
    let asking = timeout(PATIENCE, locks.lock("orders/42"));
    assert_kind(asking.await.expect("an answer"), ErrorKind::Foreign);

    // One node of three has a foreign value and one is away: the third node cannot decide.
    let _: Value = fleet.servers[1].send(&["DEL", LOCK]).await;
    let _: Value = fleet.servers[2].send(&["DEL", LOCK]).await;
    fleet.servers[2].kill();
    assert_all_fail(&fleet, a, ErrorKind::Unreachable).await;
}

#[tokio::test]
async fn a_foreign_token_counter_on_a_majority_of_nodes_is_no_outage() {
    let fleet = Fleet::start(3).await;
    write(&fleet, 2, FENCE).await;
    let (store, key) = (&fleet.store, key("orders/42"));
    assert_kind(
        store.ask_for(attempt(&key, owner())).await,
        ErrorKind::Foreign,
    );
    assert_kind(store.raise_fence(key.clone(), 7).await, ErrorKind::Foreign);
    assert_kind(
        store.raise_fence(key, u64::MAX).await,
        ErrorKind::InvalidConfig,
    );
    eventually("the third node keeps no lease", async || {
        fleet.is_empty().await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_key_is_foreign_does_not_lead() {
    let (nodes, store) = memory::<3>();
    let (key, other, a) = (key("k"), owner(), owner());
    // Locks and permits of one key do not mix.
    granted(nodes[0].ask_as(Mode::Permit { of: 1 }, &key, owner()).await);
    nodes[2].take(&key, other).await;
    let mut asking = store.ask_for(attempt(&key, a));
    assert!((&mut asking).now_or_never().is_none());
    assert_eq!(
        holders_at(&nodes[1], &key).await,
        [a.instance],
        "node 1 leads, so the attempt keeps the grant of node 1 while it pauses"
    );
    nodes[2].free(&key, other).await;
    granted(asking.await.unwrap());
}

/// Hints of the leading node mean that an attempt may ask at once.
async fn assert_node_0_leads(fleet: &Fleet, hints: &mut Hints, waiter: Owner) {
    let (node, key, holder) = (&fleet.nodes[0], key("k"), owner());
    node.take(&key, holder).await;
    held(node.queue(&key, waiter).await);
    node.free(&key, holder).await;
    let (free, next) = (Hint::Free(key.clone()), Hint::Next(key.clone()));
    loop {
        let hint = timeout(PATIENCE, hints.recv()).await;
        let hint = hint.expect("a hint arrives").unwrap();
        assert_ne!(hint, next, "node 0 does not lead");
        if hint == free {
            break;
        }
    }
    node.free(&key, waiter).await;
}

#[tokio::test]
async fn a_node_with_a_foreign_value_is_not_silent() {
    let fleet = Fleet::start_patient(3).await;
    let (key, waiter) = (key("orders/42"), owner());
    let mut hints = fleet.store.watch_for_sure(waiter.instance).await;
    write(&fleet, 1, LOCK).await;
    // The servers are younger than the lease, so all of them are waited for, and would be needed.
    let failed = fleet.store.ask_for(attempt(&key, owner())).await;
    let words = "no quorum: 0 of 3 nodes unreachable; 1 answered with an error; 2 restarted";
    let error = failed.unwrap_err().to_string();
    assert!(error.starts_with(words), "{error}");
    assert_node_0_leads(&fleet, &mut hints, waiter).await;

    fleet.store.renew_one(renewal(&key, owner(), 0)).await;
    assert_node_0_leads(&fleet, &mut hints, waiter).await;
}
