//! A quorum forgets its attempts when they have ended.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{advance, sleep};

use super::{super::*, QuorumStore, attempts::next_name};

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
        owed_for: MINUTE,
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
    assert!(tasks() > 1, "node 2 is heard in the background");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(tasks(), 1, "node 2 still hangs; only hints are waited for");
    drop(hints);
    nodes[2].set_fault(None);
    sleep(MINUTE).await;
    assert_eq!(tasks(), 0);
    assert!(nodes.iter().all(FaultyStore::is_empty));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_number_without_room_for_names_is_refused() {
    let (_nodes, store) = quorum();
    let last = owner((1 << 48) - 1);
    store.ask_for(request(last, Queueing::No)).await.unwrap();
    let next = next_name(owner(0));
    let error = store
        .ask_for(request(next, Queueing::No))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::InvalidConfig);
}
