//! `tower-distributed-lock` with its defaults, twice: the release awaited, and the guard dropped.

use std::time::Duration;

use tower_distributed_lock::{LockGuard, Locks, store::RedisStore};

use super::{Client, Key};

/// Commands that the crate's scripts call are not in here: `get`, `set`, `del`, `time` and others.
const COMMANDS: &[&str] = &["evalsha", "eval", "subscribe", "ssubscribe", "ping"];

/// Waits for the answer to each release.
#[derive(Clone)]
pub struct Awaited(pub Locks);

/// Drops its guards: the next lock carries the cost of the last release.
#[derive(Clone)]
pub struct Dropped(pub Locks);

impl Client for Awaited {
    const NAME: &'static str = "this crate, release awaited";
    const COMMANDS: &'static [&'static str] = COMMANDS;

    type Guard = LockGuard;

    async fn connect(url: &str) -> Self {
        Self(connect(url).await)
    }

    async fn lock(&self, key: &Key) -> LockGuard {
        self.0
            .lock(&key.lock_key)
            .await
            .expect("the lock is granted")
    }

    async fn release(&self, guard: LockGuard) {
        guard.release().await.expect("the lock was held");
    }

    async fn settle(&self) {
        settle(&self.0).await;
    }
}

impl Client for Dropped {
    const NAME: &'static str = "this crate, guard dropped";
    const COMMANDS: &'static [&'static str] = COMMANDS;

    type Guard = LockGuard;

    async fn connect(url: &str) -> Self {
        Self(connect(url).await)
    }

    async fn lock(&self, key: &Key) -> LockGuard {
        self.0
            .lock(&key.lock_key)
            .await
            .expect("the lock is granted")
    }

    async fn release(&self, guard: LockGuard) {
        drop(guard);
    }

    async fn settle(&self) {
        settle(&self.0).await;
    }
}

impl Dropped {
    /// With a long timeout: under callgrind all takes fifty times as long, connecting included.
    pub async fn patient(url: &str) -> Self {
        let store = RedisStore::builder(url).timeout(Duration::from_secs(60));
        let store = store.connect().await.expect("the server is up");
        Self(Locks::builder(store).build().expect("valid settings"))
    }
}

async fn connect(url: &str) -> Locks {
    Locks::redis(url).await.expect("the server is up")
}

/// Waits until no key is held and no release is under way.
pub async fn settle(locks: &Locks) {
    loop {
        let stats = locks.stats();
        if stats.keys == 0 && stats.releases == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
