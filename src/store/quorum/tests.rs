//! A quorum forgets its attempts when they have ended, and its nodes forget the names.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, advance, sleep};

use super::{
    super::*,
    QuorumStore,
    attempts::{Attempts, Names},
    health::Health,
    node::Node,
};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn quorum() -> ([FaultyStore; 3], QuorumStore) {
    let nodes = std::array::from_fn(|_| FaultyStore::new());
    let store = QuorumStore::new(nodes.clone()).unwrap();
    (nodes, store)
}

pub(super) fn owner(attempt: u64) -> Owner {
    Owner {
        instance: Instance::new(),
        attempt,
    }
}

pub(super) fn request(owner: Owner, queueing: Queueing) -> Acquire {
    Acquire {
        key: LockKey::new("k").unwrap(),
        owner,
        lease: MINUTE,
        block: 1,
        queueing,
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    }
}

pub(super) fn release(owner: Owner, ending: Ending) -> Release {
    Release {
        key: LockKey::new("k").unwrap(),
        owner,
        ending,
        in_doubt: false,
        lasts: MINUTE,
        mode: Mode::Exclusive,
    }
}

/// The calls as results.
pub(super) trait Calls: Store {
    async fn ask_for(&self, request: Acquire) -> Result<Acquired, crate::Error> {
        self.acquire(request).await.into_result()
    }

    async fn end(&self, request: Release) -> Result<Released, crate::Error> {
        let (answer, outcome) = Answer::channel();
        self.release(request, answer);
        outcome.await.into_result()
    }
}

impl<S: Store> Calls for S {}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_has_ended_is_forgotten() {
    let (nodes, store) = quorum();
    let (a, b, c) = (owner(1), owner(2), owner(3));
    let wait = Queueing::Wait {
        deadline: MINUTE,
        head_start: MINUTE,
    };
    store.ask_for(request(a, Queueing::No)).await.unwrap();
    store.ask_for(request(b, wait)).await.unwrap();
    store.ask_for(request(c, Queueing::No)).await.unwrap();
    assert_eq!(store.0.attempts.len(), 2, "a holds, b waits, c is gone");
    store.end(release(b, Ending::Free)).await.unwrap();
    assert_eq!(store.0.attempts.len(), 1);
    let record = Ending::Record {
        content: Bytes::new(),
        retain: MINUTE,
    };
    store.end(release(a, record)).await.unwrap();
    assert_eq!(store.0.attempts.len(), 0);
    for queueing in [Queueing::No, Queueing::Skip, wait] {
        store.ask_for(request(owner(4), queueing)).await.unwrap(); // finds the record
        assert_eq!(store.0.attempts.len(), 0);
    }
    for node in &nodes {
        node.set_fault(Some(Fault::Unreachable));
    }
    store.ask_for(request(owner(5), wait)).await.unwrap_err();
    assert_eq!(store.0.attempts.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_no_call_returns_to_is_removed() {
    let (_nodes, store) = quorum();
    for n in 0..2_000 {
        let request = Acquire {
            key: LockKey::new(format!("k/{n}")).unwrap(),
            ..request(owner(n), Queueing::No)
        };
        store.ask_for(request).await.unwrap();
        advance(MINUTE / 10).await;
        assert!(store.0.attempts.len() <= 64, "ten are valid at a time");
    }
}

#[tokio::test(start_paused = true)]
async fn no_background_task_is_left() {
    let (nodes, store) = quorum();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    nodes[2].set_fault(Some(Fault::Hang));
    let (a, b) = (owner(1), owner(2));
    let hints = store.watch(a.instance);
    store.ask_for(request(a, Queueing::No)).await.unwrap();
    store.ask_for(request(b, Queueing::No)).await.unwrap();
    store.end(release(a, Ending::Free)).await.unwrap();
    assert!(tasks() > 3, "node 2 is heard in the background");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(tasks(), 3, "node 2 still hangs; only hints are waited for");
    drop(hints);
    nodes[2].set_fault(None);
    sleep(MINUTE).await;
    assert_eq!(tasks(), 0);
    assert!(nodes.iter().all(FaultyStore::is_empty));
}

/// A node, and its store.
fn node() -> (FaultyStore, Node) {
    let (store, health) = (FaultyStore::new(), Arc::new(Health::new(1)));
    let node = Node::new(
        0,
        Arc::new(store.clone()),
        health,
        Names::default(),
        home::Home::default(),
    );
    (store, node)
}

/// Asks a node for the part of an attempt.
fn ask(node: &Node, request: Acquire) -> StoreFuture<Outcome<Acquired>> {
    let attempts = Attempts::new(1, Names::default());
    let (attempt, _) = attempts.enter(&request, Instant::now());
    attempt.ask(0);
    node.acquire(&attempt, request)
}

/// Longer than the longest pause between two rounds.
const ROUNDS: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn a_question_that_is_dropped_has_one_ending() {
    for fault in [Fault::Hang, Fault::Mute] {
        let (store, node) = node();
        let a = owner(1);
        store.set_fault(Some(fault));
        let asking = ask(&node, request(a, Queueing::No));
        assert_eq!(node.endings(), 0);
        drop(asking);
        assert_eq!(node.endings(), 1);
        node.end(release(a, Ending::Free));
        drop(node.release(release(a, Ending::Free)));
        assert_eq!(
            (node.endings(), store.calls().releases),
            (1, 1),
            "{fault:?}"
        );
        store.set_fault(None);
        assert_eq!(node.endings(), 0);
        assert!(store.is_empty(), "{fault:?}");
    }
}

/// The store makes the acquire at some later time, or never.
#[tokio::test(start_paused = true)]
async fn a_question_of_unknown_outcome_leaves_nothing() {
    let (store, node) = node();
    for number in 0..200 {
        store.set_fault(Some(Fault::Late));
        let outcome = ask(&node, request(owner(number), Queueing::Skip)).await;
        let is_unknown = matches!(outcome, Outcome::Unknown(_));
        if !is_unknown {
            node.end(release(owner(number), Ending::Free));
        }
        store.set_fault(None);
        sleep(ROUNDS).await;
        if is_unknown {
            assert_eq!(node.endings(), 0);
            assert!(store.is_empty(), "{number}");
        }
        store
            .force_release(LockKey::new("k").unwrap())
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_ending_whose_caller_has_gone_away_is_carried() {
    let (store, node) = node();
    let (a, b) = (owner(1), owner(2));
    ask(&node, request(a, Queueing::No)).await;
    store.set_fault(Some(Fault::Unreachable));
    drop(node.release(release(a, Ending::Free)));
    store.set_fault(None);
    let answer = ask(&node, request(b, Queueing::No)).await;
    assert!(
        matches!(answer, Outcome::Answered(Acquired::Granted(_))),
        "{answer:?}"
    );
    sleep(ROUNDS).await;
    assert_eq!(node.endings(), 0);
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap()
}

#[test]
fn releases_are_repeated_on_the_next_runtime() {
    let (store, node) = node();
    for how in ["call", "watch"] {
        let a = owner(1);
        runtime().block_on(async {
            ask(&node, request(a, Queueing::No)).await;
            store.set_fault(Some(Fault::Unreachable));
            node.end(release(a, Ending::Free));
            sleep(ROUNDS).await;
        });
        store.set_fault(None);
        assert_eq!(node.endings(), 1, "nobody repeats without a runtime");
        runtime().block_on(async {
            if how == "call" {
                drop(ask(&node, other_key(owner(2))).await);
            } else {
                drop(node.watch(a.instance));
            }
            // The clock of the first runtime was ahead.
            sleep(3 * ROUNDS).await;
        });
        assert_eq!(node.endings(), 0, "{how}");
    }
}

fn other_key(owner: Owner) -> Acquire {
    Acquire {
        key: LockKey::new("other").unwrap(),
        ..request(owner, Queueing::No)
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_back_hurries() {
    let (nodes, store) = quorum();
    let a = owner(1);
    let _hints = store.watch(a.instance);
    store.ask_for(request(a, Queueing::No)).await.unwrap();
    nodes[2].set_fault(Some(Fault::Unreachable));
    store.end(release(a, Ending::Free)).await.unwrap();
    sleep(10 * ROUNDS).await;
    nodes[2].set_fault(None);
    sleep(Duration::from_millis(1)).await;
    assert!(nodes.iter().all(FaultyStore::is_empty));
}

/// The caller was told that the key is held, and would not renew the lease.
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_after_a_lost_vote_is_returned() {
    let (nodes, store) = quorum();
    let (other, b) = (owner(1), owner(2));
    let wait = Queueing::Wait {
        deadline: MINUTE,
        head_start: MINUTE,
    };
    for node in &nodes[..2] {
        node.ask_for(request(other, Queueing::No)).await.unwrap();
    }
    nodes[2].set_fault(Some(Fault::Hang));
    let answer = store.ask_for(request(b, wait)).await.unwrap();
    assert!(matches!(answer, Acquired::Held(_)), "{answer:?}");
    nodes[2].set_fault(None);
    sleep(Duration::from_millis(1)).await;
    assert!(nodes[2].is_empty());
}

/// Without the limit, each attempt would leave another ending at the node.
#[tokio::test(start_paused = true)]
async fn a_silent_node_has_few_names_to_forget() {
    let (nodes, store) = quorum();
    nodes[2].set_fault(Some(Fault::Hang));
    for number in 0..200 {
        let a = owner(number);
        store.ask_for(request(a, Queueing::No)).await.unwrap();
        store.end(release(a, Ending::Free)).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    assert!(
        store.0.nodes[2].endings() <= 32,
        "{}",
        store.0.nodes[2].endings()
    );
    nodes[2].set_fault(None);
    sleep(ROUNDS).await;
    assert!(nodes.iter().all(FaultyStore::is_empty));
    store
        .ask_for(request(owner(1000), Queueing::No))
        .await
        .unwrap();
    sleep(ROUNDS).await;
    assert!(!nodes[2].is_empty(), "the node is asked again");
}

/// The task that waits for node 2 ends with its runtime, after a vote or while it heals.
#[test]
fn a_part_is_healed_although_the_question_for_it_ended_with_its_runtime() {
    for (at_the_vote, in_the_heal) in [(Fault::Hang, None), (Fault::Unreachable, Some(Fault::Hang))]
    {
        let (nodes, store) = quorum();
        let a = owner(1);
        let renew = async || {
            let renewals = store.renew(vec![Renew {
                key: release(a, Ending::Free).key,
                owner: a,
                lease: MINUTE,
                refill: 0,
                mode: Mode::Exclusive,
            }]);
            renewals.collect::<Vec<_>>().await;
            sleep(Duration::from_millis(1)).await;
        };
        runtime().block_on(async {
            nodes[2].set_fault(Some(at_the_vote));
            store.ask_for(request(a, Queueing::No)).await.unwrap();
            if in_the_heal.is_some() {
                nodes[2].set_fault(in_the_heal);
                renew().await;
            }
        });
        nodes[2].set_fault(None);
        assert!(nodes[2].is_empty(), "what came late was ended");
        runtime().block_on(renew());
        assert!(!nodes[2].is_empty(), "{in_the_heal:?}");
        runtime()
            .block_on(store.end(release(a, Ending::Free)))
            .unwrap();
        assert!(nodes.iter().all(FaultyStore::is_empty));
    }
}

/// The record is copied in a task, which ends with its runtime before it has begun.
#[test]
fn an_attempt_that_finds_a_record_leaves_no_lease_behind_when_its_runtime_ends() {
    let (nodes, store) = quorum();
    let (a, b) = (owner(1), owner(2));
    let record = Ending::Record {
        content: Bytes::from_static(b"done"),
        retain: MINUTE,
    };
    let found = runtime().block_on(async {
        nodes[0].ask_for(request(a, Queueing::No)).await.unwrap();
        nodes[0].end(release(a, record)).await.unwrap();
        let claim = Acquire {
            fingerprint: Some(Bytes::from_static(b"claim")),
            ..request(b, Queueing::No)
        };
        store.ask_for(claim).await.unwrap()
    });
    assert!(matches!(found, Acquired::Recorded(_)), "{found:?}");
    assert!(nodes[1].is_empty() && nodes[2].is_empty());
}

/// A release of the first name may come late, and must not end the later lease.
#[tokio::test(start_paused = true)]
async fn a_name_that_was_given_up_is_not_used_again_by_the_same_owner() {
    let (nodes, store) = quorum();
    let a = owner(1);
    for down in [true, false] {
        let fault = down.then_some(Fault::Unreachable);
        nodes[1].set_fault(fault);
        nodes[2].set_fault(fault);
        let answer = store.ask_for(request(a, Queueing::No)).await;
        assert_eq!(answer.is_err(), down);
        assert_eq!(nodes[0].is_empty(), down);
    }
    nodes[0].end(release(a, Ending::Free)).await.unwrap();
    assert!(!nodes[0].is_empty(), "the lease has another name");
}

/// A release whose outcome is not known is repeated, and may still come after the repetition was
/// answered.
#[tokio::test(start_paused = true)]
async fn a_name_whose_release_may_come_late_is_not_used_again() {
    let (nodes, store) = quorum();
    for number in 0..100 {
        let a = owner(number);
        store.ask_for(request(a, Queueing::No)).await.unwrap();
        nodes[0].set_fault(Some(Fault::Late));
        store.end(release(a, Ending::Free)).await.unwrap();
        sleep(ROUNDS).await;
        nodes[0].set_fault(None);
        sleep(ROUNDS).await;
        if store.0.attempts.name(a) != a {
            store.ask_for(request(a, Queueing::No)).await.unwrap();
            nodes[0].end(release(a, Ending::Free)).await.unwrap();
            assert!(!nodes[0].is_empty(), "the lease has another name");
            return;
        }
    }
    panic!("every release was answered");
}
