//! The contestants, behind one trait. Static dispatch: no contestant pays for the largest future of another.

mod async_redis_lock;
mod bb8;
mod hand_written;
mod ours;
mod postgres;
mod rslock;

use std::time::Duration;

use tower_distributed_lock::LockKey;

pub use self::{
    async_redis_lock::AsyncRedisLock,
    bb8::Bb8,
    hand_written::{HandWritten, Held},
    ours::{Awaited, Dropped, settle},
    postgres::{AdvisoryLock, LeaseRow},
    rslock::Rslock,
};

/// How long a lock lives on the server unless it is renewed; the default of `tower-distributed-lock`, for all contestants.
pub const LEASE: Duration = Duration::from_secs(30);

/// A key in both forms, made before the clock runs.
#[derive(Debug, Clone)]
pub struct Key {
    pub text: String,
    pub lock_key: LockKey,
}

impl Key {
    pub fn new(text: String) -> Self {
        let lock_key = LockKey::new(text.as_str()).expect("a valid key");
        Self { text, lock_key }
    }
}

/// A client that locks keys. Clones share their connections.
pub trait Client: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    /// The commands that the client sends, as opposed to those that only its scripts call.
    const COMMANDS: &'static [&'static str];

    type Guard: Send;

    /// A client with connections of its own.
    fn connect(url: &str) -> impl Future<Output = Self> + Send;

    /// Waits for the key.
    fn lock(&self, key: &Key) -> impl Future<Output = Self::Guard> + Send;

    /// Gives the key back, and waits for the server's answer unless the contestant is one that does not.
    fn release(&self, guard: Self::Guard) -> impl Future<Output = ()> + Send;

    /// Waits until releases in the background have ended.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}
