//! Locks for one process of a fleet: the [`Locks`] handle and everything behind it.
//!
//! A call of [`Locks::lock`] becomes a [`Waiter`](turn::Waiter) in the [`Line`](line::Line) of its
//! key. The first waiter of a line starts a [`Contender`](contender::Contender), which asks the
//! store for a lease. The lease then serves the waiters one after another; each of them gets a
//! [`Turn`](turn::Turn) and holds it through a [`LockGuard`]. All clones of a handle share one
//! [`Inner`].
//!
//! ```text
//! lock("a") ──┐
//! lock("a") ──┼─▶ Line of "a" ──▶ Contender ──▶ Store        ask: `Acquire`; answer: a lease and tokens
//! lock("a") ──┘       │
//!                     │ turn 1 (token 41) ──▶ LockGuard ──▶ dropped: the lease is passed on, no call to the store
//!                     │ turn 2 (token 42) ──▶ LockGuard ──▶ dropped: the lease is passed on
//!                     │ turn 3 (token 43) ──▶ LockGuard ──▶ dropped: no request waits, the lease is released
//! ```
//!
//! | part | file | task |
//! |---|---|---|
//! | the handle | `mod.rs`, `lock.rs`, `several.rs`, `operators.rs`, `shutdown.rs`, `connect.rs`, `config.rs` | the public methods |
//! | the request | `turn.rs`, `guard.rs` | from the wait in line to the end of the turn |
//! | the line | `lines.rs`, `line/` | the state of a key in this process |
//! | the store's side | `contender.rs`, `renewing.rs`, `recording.rs` | calls to the store, and the handling of their answers |
//! | shared state | `inner.rs` | the store, the settings, the lines and the scheduler |

mod config;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod connect;
mod contender;
#[cfg(feature = "metrics")]
mod gauges;
mod guard;
mod inner;
mod line;
mod lines;
mod lock;
mod operators;
mod recording;
pub(crate) mod reentry;
mod renewing;
mod several;
mod shutdown;
#[cfg(test)]
mod tests;
mod totals;
mod troubles;
mod turn;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

pub use config::LocksBuilder;
pub(crate) use guard::WeakGuard;
pub use guard::{LockGuard, Status};
pub use lock::{Lock, Now};
pub use operators::{HeldKey, LeaseView};
pub use several::LockAll;
pub(crate) use shutdown::Busy;
pub use shutdown::{Closed, Stats};
pub use totals::Totals;

use self::{config::Config, inner::Inner};
pub(crate) use self::{
    line::{Holding, NoTurn},
    lock::permit,
    recording::LateRecord,
    several::Several,
};
use crate::{
    Background, Error, LockKey,
    store::{MemoryStore, Owner, Released, Store},
};

/// Locks keys in a store, on behalf of one instance of a fleet.
///
/// `Locks` is a cheap handle that can be cloned freely. A process normally has one; two `Locks` in
/// one process compete like two processes. Every method that waits must be called within a tokio
/// runtime whose time driver is enabled, and fails with
/// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) outside of one.
/// [`LocksBuilder::background`] decides where leases are renewed.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::Locks;
///
/// let locks = Locks::in_memory();
/// let guard = locks.lock("orders/42").await?;
/// assert!(locks.lock("orders/42").now().await?.is_none());
/// drop(guard);
/// assert!(locks.lock("orders/42").now().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks(Arc<Inner>);

/// How long a request waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Take the key if it is free, and fail otherwise.
    NotAtAll,
    /// Wait in line for at most this time.
    AtMost(Duration),
    /// Wait in line until the turn comes.
    ForEver,
}

impl Wait {
    /// The longest time, if there is one.
    fn limit(self) -> Option<Duration> {
        match self {
            Self::AtMost(limit) => Some(limit),
            Self::NotAtAll | Self::ForEver => None,
        }
    }
}

impl Locks {
    /// Creates locks for a service that runs as one process, on a new [`MemoryStore`] and with
    /// default settings.
    ///
    /// Use [`builder`](Locks::builder) to change the settings, or to use a store that other
    /// processes share.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use tower_distributed_lock::Locks;
    ///
    /// let locks = Locks::in_memory();
    /// let one_more_handle = locks.clone(); // the same locks
    /// let other = Locks::in_memory(); // other locks, on a store of their own
    ///
    /// let guard = locks.lock("orders/42").await?;
    /// assert!(one_more_handle.lock("orders/42").now().await?.is_none());
    /// assert!(other.lock("orders/42").now().await?.is_some());
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory() -> Self {
        Self(Arc::new(Inner::new(
            Arc::new(MemoryStore::new()),
            Config::default(),
            Background::default(),
        )))
    }

    /// Returns a builder for locks in `store`.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_distributed_lock::Error> {
    /// use std::time::Duration;
    /// use tower_distributed_lock::{Locks, store::MemoryStore};
    ///
    /// let locks = Locks::builder(MemoryStore::new())
    ///     .lease(Duration::from_secs(10))
    ///     .wait_limit(Duration::from_secs(2))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(store: impl Store) -> LocksBuilder {
        LocksBuilder::new(Arc::new(store))
    }

    /// Starts the background, as the next use does.
    #[cfg(shuttle)]
    pub(crate) fn start_background(&self) {
        self.0.scheduler.start(&self.0);
    }

    /// See [`Lines::knows`](lines::Lines::knows).
    #[cfg(shuttle)]
    pub(crate) fn knows(&self, key: &LockKey, owner: Owner) -> bool {
        self.0.lines.knows(key, owner)
    }

    /// See [`Inner::send_record`].
    pub(crate) async fn record_for(
        &self,
        key: &LockKey,
        owner: Owner,
        record: (Bytes, Duration),
    ) -> Result<Released, Error> {
        self.0.send_record(key, owner, record).await
    }

    /// The name of the store's key space. Equal keys in equal spaces exclude each other.
    pub(crate) fn space(&self) -> &Arc<str> {
        &self.0.space
    }

    /// How long [`lock`](Locks::lock) waits.
    pub(crate) fn usual_wait(&self) -> Wait {
        self.0.config.wait_limit.map_or(Wait::ForEver, Wait::AtMost)
    }

    /// How long a lease lasts without a renewal, unless a caller has asked for another length.
    pub(crate) fn usual_lease(&self) -> Duration {
        self.0.config.lease
    }

    /// Checks that a lease held for this long can be renewed under the other settings.
    pub(crate) fn check_holding(&self, holding: Holding) -> Result<(), Error> {
        self.0.config.check_holding(holding)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("instance", &self.0.instance)
            .field("store", &self.0.store)
            .field("stats", &self.stats())
            .finish()
    }
}
