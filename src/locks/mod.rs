//! The handle: who wants a key asks here.

mod config;
#[cfg(feature = "redis")]
mod connect;
mod contender;
mod guard;
mod inner;
mod line;
mod lines;
mod recording;
pub(crate) mod reentry;
mod renewing;
mod several;
mod shutdown;
#[cfg(test)]
mod tests;
mod turn;
mod waiter;
mod watch;

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;

pub use config::LocksBuilder;
pub(crate) use guard::WeakGuard;
pub use guard::{LockGuard, Status};
pub use shutdown::Stats;

use self::{
    config::Config,
    inner::Inner,
    line::{WaitRequest, held},
    waiter::Waiter,
};
pub(crate) use self::{
    line::{Holding, NoTurn},
    recording::Late,
};
use crate::{
    Error, ErrorKind, LockKey,
    store::{MemoryStore, Store},
    time::{Instant, now, timeout},
    trace,
};

/// Locks keys in a store, for one instance of a fleet.
///
/// A cheap handle: clone it freely. One for each process is the normal use; two in one process compete like two
/// processes. All methods that wait must be called within a tokio runtime with its time driver on; they fail with
/// [`ErrorKind::Unreachable`] where there is none.
///
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
    NotAtAll,
    AtMost(Duration),
    ForEver,
}

impl Locks {
    /// Locks for a service that runs as one process, on a [`MemoryStore`] of its own, with all defaults.
    pub fn in_memory() -> Self {
        Self(Arc::new(Inner::new(
            Arc::new(MemoryStore::new()),
            Config::default(),
        )))
    }

    /// Locks in `store`, to be configured.
    pub fn builder(store: impl Store) -> LocksBuilder {
        LocksBuilder::new(Arc::new(store))
    }

    /// Waits for this request's turn at the key, first come, first served.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]. [`ErrorKind::Held`] after the [`wait_limit`](LocksBuilder::wait_limit), which is 10 s by default: below a
    /// lease, so that a key whose holder has crashed is not waited for to the end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the place in line up, and the key, if that was granted in this very moment.
    ///
    /// A future that is neither dropped nor polled keeps its place, and the turn once it has come: do not wait for
    /// anything else in between, as in a `select!` by reference whose other branch awaits.
    pub async fn lock(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, self.usual_wait()).await
    }

    /// Like [`lock`](Locks::lock), but fails with [`ErrorKind::Held`] after `limit`, or with
    /// [`ErrorKind::Unreachable`] if the store has not said anything in that time.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Locks::lock).
    pub async fn lock_within(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        limit: Duration,
    ) -> Result<LockGuard, Error> {
        self.lock_waiting(key, Wait::AtMost(limit)).await
    }

    /// Takes the key if it is free; does not wait, does not queue.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]. That somebody else holds the key is not an error but `None`.
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Locks::lock).
    pub async fn try_lock(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<Option<LockGuard>, Error> {
        none_if_held(self.lock_waiting(key, Wait::NotAtAll).await)
    }

    /// Claims a key for one thing, which is to be done once: `fingerprint` is a digest of it. Whoever claims the same gets
    /// the record that this turn ends with ([`LockGuard::record`]).
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

    /// See [`Inner::record_late`].
    pub(crate) async fn record_late(
        &self,
        key: &LockKey,
        claim: Bytes,
        record: (&Bytes, Duration),
        until: Instant,
    ) -> Result<Late, Error> {
        self.0.record_late(key, claim, record, until).await
    }

    /// What tells the keys of these locks from those of locks in another store.
    pub(crate) fn space(&self) -> &Arc<str> {
        &self.0.space
    }

    /// How long to wait where nothing else is said.
    pub(crate) fn usual_wait(&self) -> Wait {
        self.0.config.wait_limit.map_or(Wait::ForEver, Wait::AtMost)
    }

    /// A lock for a layer. With `fail_fast`, a store that is away is not waited for: the caller would rather go on without.
    pub(crate) async fn lock_for_layer(
        &self,
        key: &LockKey,
        wait: Wait,
        holding: Holding,
        fail_fast: bool,
    ) -> Result<LockGuard, Error> {
        reentry::check(self, key)?;
        let request = WaitRequest {
            fail_fast,
            holding,
            ..request(None, wait)
        };
        let turn = self.turn(key, request, wait).await;
        turn.map_err(NoTurn::into_error)
    }

    /// Whether this lease can be held and renewed with the other settings.
    pub(crate) fn check_holding(&self, holding: Holding) -> Result<(), Error> {
        self.0.config.check_holding(holding)
    }

    async fn lock_waiting(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        wait: Wait,
    ) -> Result<LockGuard, Error> {
        let key = key.try_into().map_err(Into::into)?;
        reentry::check(self, &key)?;
        let turn = self.turn(&key, request(None, wait), wait).await;
        turn.map_err(NoTurn::into_error)
    }

    fn turn<'a>(
        &'a self,
        key: &'a LockKey,
        request: WaitRequest,
        wait: Wait,
    ) -> impl Future<Output = Result<LockGuard, NoTurn>> + Send + 'a {
        let waiter = Waiter::new(&self.0, key, request);
        trace::acquiring(key.as_str(), async move {
            // Pinned out here, so that the place in line is still there when the limit is reached.
            let mut waiter = pin!(waiter);
            let Wait::AtMost(limit) = wait else {
                return waiter.await;
            };
            match timeout(limit, waiter.as_mut()).await {
                Some(outcome) => outcome,
                None => Err(NoTurn::Failed(self.waited_in_vain(key, limit))),
            }
        })
    }

    /// Why a request has not had its turn within its limit.
    fn waited_in_vain(&self, key: &LockKey, limit: Duration) -> Error {
        let why = self.0.with_line(key, |line, t| {
            let away = line.away_after(limit, t.now);
            (away, line.holder(t.now))
        });
        match why.unwrap_or_default() {
            (Some(away), _) => away.into_error(now(), &format!("no turn within {limit:?}")),
            (None, holder) => {
                let held = held(holder);
                Error::new(ErrorKind::Held, format!("no turn within {limit:?}: {held}"))
            }
        }
    }
}

fn none_if_held<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(guards) => Ok(Some(guards)),
        Err(error) if error.kind() == ErrorKind::Held => Ok(None),
        Err(error) => Err(error),
    }
}

fn request(fingerprint: Option<Bytes>, wait: Wait) -> WaitRequest {
    WaitRequest {
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
