//! rslock on one server, with its defaults: the next attempt at a held key comes after a random time of up to 200 ms.

use ::rslock::{LockGuard, LockManager};

use super::{Client, Key, LEASE};

#[derive(Clone)]
pub struct Rslock(LockManager);

impl Client for Rslock {
    const NAME: &'static str = "rslock 0.10";
    const COMMANDS: &'static [&'static str] = &["set", "evalsha", "eval"];

    type Guard = LockGuard;

    async fn connect(url: &str) -> Self {
        Self(LockManager::new(vec![url]))
    }

    async fn lock(&self, key: &Key) -> LockGuard {
        let guard = self.0.acquire(key.text.as_str(), LEASE).await;
        guard.expect("rslock acquires")
    }

    async fn release(&self, guard: LockGuard) {
        guard.release().await;
    }
}
