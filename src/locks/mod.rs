//! Locks for one process of a fleet: the [`Locks`] handle and everything behind it.
//!
//! A call of [`Locks::lock`] becomes a [`Waiter`] in the [`Line`](line::Line) of its key. The first
//! waiter of a line starts a [`Contender`](contender::Contender), which asks the store for a lease. The lease then
//! serves the waiters one after another; each of them gets a [`Turn`](turn::Turn) and holds it through a
//! [`LockGuard`]. All clones of a handle share one [`Inner`].
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
//! | the handle | `mod.rs`, `modes.rs`, `several.rs`, `operators.rs`, `shutdown.rs`, `connect.rs`, `config.rs` | the public methods |
//! | the request | `turn.rs`, `guard.rs` | from the wait in line to the end of the turn |
//! | the line | `lines.rs`, `line/` | the state of a key in this process |
//! | the store's side | `contender.rs`, `renewing.rs`, `recording.rs` | calls to the store, and the handling of their answers |
//! | shared state | `inner.rs` | the store, the settings, the lines and the scheduler |

mod config;
#[cfg(feature = "redis")]
mod connect;
mod contender;
#[cfg(feature = "metrics")]
mod gauges;
mod guard;
mod inner;
mod line;
mod lines;
mod modes;
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
mod watch;

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;

pub use config::LocksBuilder;
pub(crate) use guard::WeakGuard;
pub use guard::{LockGuard, Status};
pub use operators::{HeldKey, LeaseView};
pub(crate) use shutdown::Busy;
pub use shutdown::{Closed, Stats};
pub use totals::Totals;

use self::{
    config::Config,
    inner::Inner,
    line::{WaitRequest, held_error},
    turn::Waiter,
};
pub(crate) use self::{
    line::{Holding, NoTurn},
    modes::permit,
    recording::{Late, LateRecord},
};
use crate::{
    Background, Error, ErrorKind, LockKey,
    store::{MemoryStore, Mode, Owner, Released, Store},
    sync::consume_budget,
    time::{now, timeout},
    trace,
};

/// Locks keys in a store, on behalf of one instance of a fleet.
///
/// `Locks` is a cheap handle that can be cloned freely. A process normally has one; two `Locks` in one process
/// compete like two processes. Every method that waits must be called within a tokio runtime whose time driver is
/// enabled, and fails with [`ErrorKind::Unreachable`] outside of one. [`LocksBuilder::background`] decides where
/// leases are renewed.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// use tower_distributed_lock::Locks;
///
/// let locks = Locks::in_memory();
/// let guard = locks.lock("orders/42").await?;
/// assert!(locks.try_lock("orders/42").await?.is_none());
/// drop(guard);
/// assert!(locks.try_lock("orders/42").await?.is_some());
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

impl Locks {
    /// Creates locks for a service that runs as one process, on a new [`MemoryStore`] and with default settings.
    ///
    /// Use [`builder`](Locks::builder) to change the settings, or to use a store that other processes share.
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
    /// assert!(one_more_handle.try_lock("orders/42").await?.is_none());
    /// assert!(other.try_lock("orders/42").await?.is_some());
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

    /// Locks a key, waiting for the key to become free.
    ///
    /// Requests of this process get their turns in the order in which they asked. Instances that wait for the same
    /// key are served in the order of the store's queue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// // Only one request of the whole fleet is here at a time.
    /// drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Held`] when the [`wait_limit`](LocksBuilder::wait_limit) has passed. The default limit
    /// of 10 s is shorter than the default lease, so that requests do not wait for the lease of a crashed holder to
    /// expire. See [`ErrorKind`] for the other errors.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in line, and also the turn if the turn was granted at the same moment.
    ///
    /// A future that is neither polled nor dropped keeps its place in line, and keeps the turn once the turn has
    /// come. Avoid awaiting anything else in the meantime, for example in the other branch of a `select!` that
    /// borrows this future.
    pub async fn lock(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, Mode::Exclusive, self.usual_wait())
            .await
    }

    /// Locks a key like [`lock`](Locks::lock), waiting for at most `limit`.
    ///
    /// The limit covers the whole wait: for other requests of this process, for other instances, and for the answers of the
    /// store. [`try_lock`](Locks::try_lock) is for callers that do not wait at all.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tower_distributed_lock::ErrorKind;
    ///
    /// let guard = locks.lock("orders/42").await?;
    /// let error = locks.lock_within("orders/42", Duration::from_millis(10)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Held);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Held`] when `limit` has passed, or with [`ErrorKind::Unreachable`] if the store has
    /// not answered in that time. See [`ErrorKind`] for the other errors.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn lock_within(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        limit: Duration,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, Mode::Exclusive, Wait::AtMost(limit))
            .await
    }

    /// Locks a key only if it is free, without waiting and without joining the store's queue.
    ///
    /// Returns `None` if another request holds the key.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("reports/daily").await?;
    /// assert!(locks.try_lock("reports/daily").await?.is_none());
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]; [`ErrorKind::Held`] is not among the errors returned here.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    pub async fn try_lock(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<Option<LockGuard>, Error> {
        none_if_held(
            self.lock_waiting(key, Mode::Exclusive, Wait::NotAtAll)
                .await,
        )
    }

    /// Claims a key for work that is to be done once. `fingerprint` is a digest of that work.
    ///
    /// Requests that claim the key with the same fingerprint get the record that this turn ends with
    /// ([`LockGuard::record`]).
    pub(crate) async fn claim(
        &self,
        key: &LockKey,
        fingerprint: Bytes,
        wait: Wait,
        holding: Holding,
    ) -> Result<LockGuard, NoTurn> {
        let request = WaitRequest {
            holding,
            ..request(Some(fingerprint), wait)
        };
        self.turn(key, request, wait).await
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

    /// See [`Inner::record_for`].
    pub(crate) async fn record_for(
        &self,
        key: &LockKey,
        owner: Owner,
        record: (Bytes, Duration),
    ) -> Result<Released, Error> {
        self.0.record_for(key, owner, record).await
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

    /// Locks a key for a layer. With `fail_fast`, the request fails as soon as the store does, because its caller
    /// would rather go on without the lock.
    pub(crate) async fn lock_for_layer(
        &self,
        key: &LockKey,
        mode: Mode,
        wait: Wait,
        holding: Holding,
        fail_fast: bool,
    ) -> Result<LockGuard, Error> {
        reentry::check(self, key)?;
        let request = WaitRequest {
            mode,
            fail_fast,
            holding,
            ..request(None, wait)
        };
        let turn = self.turn(key, request, wait).await;
        turn.map_err(NoTurn::into_error)
    }

    /// Checks that a lease held for this long can be renewed under the other settings.
    pub(crate) fn check_holding(&self, holding: Holding) -> Result<(), Error> {
        self.0.config.check_holding(holding)
    }

    /// Locks a key for a caller outside of the layers. A key that the calling handler's own request holds is refused.
    async fn lock_waiting(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        mode: Mode,
        wait: Wait,
    ) -> Result<LockGuard, Error> {
        let key = key.try_into().map_err(Into::into)?;
        reentry::check(self, &key)?;
        let request = WaitRequest {
            mode,
            ..request(None, wait)
        };
        let turn = self.turn(&key, request, wait).await;
        turn.map_err(NoTurn::into_error)
    }

    /// Waits for the turn of a request, within the limit of `wait`. All methods that lock a key end here.
    fn turn<'a>(
        &'a self,
        key: &'a LockKey,
        request: WaitRequest,
        wait: Wait,
    ) -> impl Future<Output = Result<LockGuard, NoTurn>> + Send + 'a {
        let mode = request.mode;
        let waiter = Waiter::new(&self.0, key, request);
        let waiting = async move {
            // A free key in memory is granted in the first poll, and a loop of such turns would
            // never yield.
            consume_budget().await;
            // Pinned outside of the timeout: the waiter must still be in line when `waited_in_vain` looks at the
            // line.
            let mut waiter = pin!(waiter);
            let outcome = match wait {
                Wait::AtMost(limit) => match timeout(limit, waiter.as_mut()).await {
                    Some(outcome) => outcome,
                    None => Err(NoTurn::Failed(self.waited_in_vain(key, limit))),
                },
                Wait::NotAtAll | Wait::ForEver => waiter.await,
            };
            if matches!(outcome, Err(NoTurn::Failed(_))) {
                self.0.troubles.refused();
            }
            outcome.map_err(|no_turn| no_turn.in_mode(mode))
        };
        trace::acquiring(waiting, turn::describe)
    }

    /// The error of a request that had no turn within `limit`: the store was away, or the key was held.
    fn waited_in_vain(&self, key: &LockKey, limit: Duration) -> Error {
        let why = self.0.with_line(key, |line, t| {
            let away = line.away_after(limit, t.now);
            (away, line.holder(t.now))
        });
        match why.unwrap_or_default() {
            (Some(away), _) => away.into_error(now(), &format!("no turn within {limit:?}")),
            (None, holder) => {
                let held = held_error(holder);
                Error::new(ErrorKind::Held, format!("no turn within {limit:?}: {held}"))
            }
        }
    }
}

/// The result of a `try_` method: a key that is held is `None`, and not an error.
fn none_if_held<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(guards) => Ok(Some(guards)),
        Err(error) if error.kind() == ErrorKind::Held => Ok(None),
        Err(error) => Err(error),
    }
}

/// A request for the exclusive use of a key, with the settings of the [`Locks`].
fn request(fingerprint: Option<Bytes>, wait: Wait) -> WaitRequest {
    WaitRequest {
        mode: Mode::Exclusive,
        patient: wait != Wait::NotAtAll,
        fail_fast: false,
        fingerprint,
        holding: Holding::default(),
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
