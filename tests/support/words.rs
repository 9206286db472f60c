//! The store's contract in short words.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::Instant;
use tower_distributed_lock::{
    Error, LockKey,
    store::{
        Acquire, Acquired, Answer, Ending, Grant, Held, Hint, Hints, Inspection, Instance, Mode,
        Owner, Queueing, Release, Released, Renew, Renewed, Store, StoreFuture,
    },
};

use super::PATIENCE;

/// Long enough that no test sees its end.
pub const LONG: Duration = Duration::from_secs(600);
/// Short enough to wait for its end.
pub const SHORT: Duration = Duration::from_millis(40);

pub fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

/// An acquisition by an instance of its own.
pub fn owner() -> Owner {
    attempt_of(Instance::new(), 1)
}

pub fn attempt_of(instance: Instance, attempt: u64) -> Owner {
    Owner { instance, attempt }
}

/// An attempt that neither queues nor expires; tests change single fields.
pub fn attempt(key: &LockKey, owner: Owner) -> Acquire {
    Acquire {
        key: key.clone(),
        owner,
        lease: LONG,
        block: 1,
        queueing: Queueing::No,
        mode: Mode::Exclusive,
        fingerprint: None,
        more: Vec::new(),
        ends: Vec::new(),
    }
}

pub fn waiting(key: &LockKey, owner: Owner) -> Acquire {
    Acquire {
        queueing: Queueing::Wait {
            deadline: LONG,
            head_start: LONG,
        },
        ..attempt(key, owner)
    }
}

/// As [`waiting`], for an attempt that passes a head by which leaves the free key untaken for so long.
pub fn waiting_behind(key: &LockKey, owner: Owner, head_start: Duration) -> Acquire {
    Acquire {
        queueing: Queueing::Wait {
            deadline: LONG,
            head_start,
        },
        ..attempt(key, owner)
    }
}

pub fn in_mode(mode: Mode, request: Acquire) -> Acquire {
    Acquire { mode, ..request }
}

pub fn sorted(owners: impl IntoIterator<Item = Owner>) -> Vec<Owner> {
    let mut owners: Vec<Owner> = owners.into_iter().collect();
    owners.sort_unstable();
    owners
}

pub fn renewal(key: &LockKey, owner: Owner, refill: u32) -> Renew {
    Renew {
        key: key.clone(),
        owner,
        lease: LONG,
        refill,
        mode: Mode::Exclusive,
    }
}

pub fn ending(key: &LockKey, owner: Owner) -> Release {
    Release {
        key: key.clone(),
        owner,
        ending: Ending::Free,
        lasts: LONG,
        in_doubt: false,
        mode: Mode::Exclusive,
    }
}

pub fn recording(key: &LockKey, owner: Owner, content: &'static [u8]) -> Release {
    Release {
        ending: Ending::Record {
            content: Bytes::from_static(content),
            retain: LONG,
        },
        ..ending(key, owner)
    }
}

/// The contract in the words of the tests.
pub trait Words: Store {
    /// Asks for a key. The call is made now.
    fn ask_for(&self, request: Acquire) -> StoreFuture<Result<Acquired, Error>> {
        let outcome = self.acquire(request);
        Box::pin(async move { outcome.await.into_result() })
    }

    /// Ends a lease or an attempt. The call is made now.
    fn end(&self, request: Release) -> StoreFuture<Result<Released, Error>> {
        let (answer, outcome) = Answer::channel();
        self.release(request, answer);
        Box::pin(async move { outcome.await.into_result() })
    }

    /// Asks for the key without queueing.
    async fn ask(&self, key: &LockKey, owner: Owner) -> Acquired {
        self.ask_for(attempt(key, owner)).await.unwrap()
    }

    /// Takes a key that must be free for this owner.
    async fn take(&self, key: &LockKey, owner: Owner) -> Grant {
        granted(self.ask(key, owner).await)
    }

    /// Takes a free key for a time that may be over before a slow machine is told so: then once more.
    async fn take_briefly(&self, request: Acquire) -> (Owner, Grant) {
        let until = Instant::now() + PATIENCE;
        loop {
            let owner = owner();
            let request = Acquire {
                owner,
                ..request.clone()
            };
            match self.ask_for(request).await {
                Ok(Acquired::Granted(grant)) => return (owner, grant),
                other => assert!(Instant::now() < until, "not granted: {other:?}"),
            }
        }
    }

    /// Asks for the key, and queues for a held one.
    async fn queue(&self, key: &LockKey, owner: Owner) -> Acquired {
        self.ask_for(waiting(key, owner)).await.unwrap()
    }

    async fn free(&self, key: &LockKey, owner: Owner) -> Released {
        self.end(ending(key, owner)).await.unwrap()
    }

    async fn record(&self, key: &LockKey, owner: Owner, content: &'static [u8]) -> Released {
        self.end(recording(key, owner, content)).await.unwrap()
    }

    async fn renew_one(&self, request: Renew) -> Renewed {
        let mut answers = self.renew_all(vec![request]).await;
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    /// The answers in the order of their requests.
    async fn renew_all(&self, requests: Vec<Renew>) -> Vec<Renewed> {
        let mut answers: Vec<(usize, Renewed)> = self.renew(requests).collect().await;
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Asks for the key in a mode, without queueing.
    async fn ask_as(&self, mode: Mode, key: &LockKey, owner: Owner) -> Acquired {
        self.ask_for(in_mode(mode, attempt(key, owner)))
            .await
            .unwrap()
    }

    /// Asks for the key in a mode, and queues if there is no room.
    async fn queue_as(&self, mode: Mode, key: &LockKey, owner: Owner) -> Acquired {
        self.ask_for(in_mode(mode, waiting(key, owner)))
            .await
            .unwrap()
    }

    async fn free_as(&self, mode: Mode, key: &LockKey, owner: Owner) -> Released {
        let request = Release {
            mode,
            ..ending(key, owner)
        };
        self.end(request).await.unwrap()
    }

    async fn renew_as(&self, mode: Mode, key: &LockKey, owner: Owner, refill: u32) -> Renewed {
        let request = Renew {
            mode,
            ..renewal(key, owner, refill)
        };
        self.renew_one(request).await
    }

    /// The holders of the key, sorted.
    async fn holders(&self, key: &LockKey) -> Vec<Owner> {
        let holders = self.see(key).await.holders;
        sorted(holders.into_iter().map(|holder| holder.owner))
    }

    async fn see(&self, key: &LockKey) -> Inspection {
        self.inspect(key.clone()).await.unwrap()
    }

    async fn holder(&self, key: &LockKey) -> Option<Owner> {
        self.see(key)
            .await
            .holder()
            .cloned()
            .map(|holder| holder.owner)
    }

    /// Watches for an instance, and returns when hints really arrive: the first ones may be lost.
    async fn watch_for_sure(&self, instance: Instance) -> Hints {
        let mut hints = self.watch(instance);
        let key = key("is anybody listening?");
        let holder = attempt_of(instance, 1_000_000);
        self.take(&key, holder).await;
        let until = Instant::now() + PATIENCE;
        let wanted = Hint::Wanted(key.clone());
        loop {
            let waiter = owner();
            assert!(matches!(self.queue(&key, waiter).await, Acquired::Held(_)));
            self.free(&key, waiter).await;
            let arrives = async { while hints.recv().await.is_some_and(|hint| hint != wanted) {} };
            if tokio::time::timeout(SHORT, arrives).await.is_ok() {
                break;
            }
            assert!(Instant::now() < until, "no hint ever arrives");
        }
        self.free(&key, holder).await;
        hints
    }
}

impl<S: Store + ?Sized> Words for S {}

pub fn granted(answer: Acquired) -> Grant {
    match answer {
        Acquired::Granted(grant) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

pub fn held(answer: Acquired) -> Held {
    match answer {
        Acquired::Held(held) => held,
        other => panic!("expected to find the key held, got {other:?}"),
    }
}

/// Waits until the hint arrives; other hints may come first.
pub async fn hinted(hints: &mut Hints, expected: Hint) {
    let arrives = async {
        while let Some(hint) = hints.recv().await {
            if hint == expected {
                return;
            }
        }
        panic!("the hints ended before {expected:?}");
    };
    tokio::time::timeout(PATIENCE, arrives)
        .await
        .expect("the hint should arrive");
}

/// The hints that arrive before this one.
pub async fn hints_before(hints: &mut Hints, last: Hint) -> Vec<Hint> {
    let mut before = Vec::new();
    let arrives = async {
        while let Some(hint) = hints.recv().await {
            if hint == last {
                return;
            }
            before.push(hint);
        }
        panic!("the hints ended before {last:?}");
    };
    tokio::time::timeout(PATIENCE, arrives)
        .await
        .expect("the hint should arrive");
    before
}

/// Whether a renewal tells that other instances wait.
pub fn tells_of_others(answer: &Renewed) -> bool {
    match answer {
        Renewed::Renewed { others_wait, .. } => *others_wait,
        other => panic!("expected a renewal, got {other:?}"),
    }
}

pub fn is_renewed(answer: &Renewed) -> bool {
    match answer {
        Renewed::Renewed { .. } => true,
        Renewed::NotOurs => false,
        Renewed::Unknown(error) => panic!("the store failed: {error:?}"),
    }
}
