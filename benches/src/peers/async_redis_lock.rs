//! async-redis-lock: one script for the lock and a task for each lock, which renews it. Retries every 100 ms, its default.

use ::async_redis_lock::{Lock, Locker, Options};

use super::{Client, Key, LEASE};

#[derive(Clone)]
pub struct AsyncRedisLock {
    locker: Locker,
    options: Options,
}

impl AsyncRedisLock {
    /// A client whose locks live for `lease` and are renewed at a third of it.
    pub async fn with_lease(url: &str, lease: std::time::Duration) -> Self {
        let options = Options::new().ttl(lease).extend(lease / 3).timeout(None);
        let locker = Locker::from_redis_url(url).await;
        Self {
            locker: locker.expect("the server is up"),
            options,
        }
    }
}

impl Client for AsyncRedisLock {
    const NAME: &'static str = "async-redis-lock 0.4";
    const COMMANDS: &'static [&'static str] = &["evalsha", "eval"];

    type Guard = Lock;

    async fn connect(url: &str) -> Self {
        Self::with_lease(url, LEASE).await
    }

    async fn lock(&self, key: &Key) -> Lock {
        let locked = self
            .locker
            .acquire_with_options(&self.options, key.text.as_str());
        locked.await.expect("async-redis-lock acquires")
    }

    async fn release(&self, lock: Lock) {
        lock.release().await.expect("async-redis-lock releases");
    }
}
