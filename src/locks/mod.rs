//! The handle: who wants a key asks here.

mod config;
mod contender;
mod guard;
mod inner;
mod line;
mod lines;
mod recording;
mod renewing;
#[cfg(test)]
mod tests;
mod waiter;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

pub use config::LocksBuilder;
pub(crate) use guard::WeakGuard;
pub use guard::{LockGuard, Status};

use self::{
    config::Config,
    inner::{Counted, Counter, Inner},
    line::{WaitRequest, held},
    waiter::Waiter,
};
pub(crate) use self::{
    line::{Holding, NoTurn},
    recording::Late,
};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    store::{MemoryStore, Store},
    time::{Instant, later, now, timeout},
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

/// How much a [`Locks`] has to do at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys that are held or waited for.
    pub keys: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Leases that are renewed.
    pub leases: usize,
    /// Background calls to the store: renewals, and contenders for keys that are held elsewhere.
    pub calls: usize,
    /// Releases that the store has not answered yet, those of other [`Locks`] on the same store included.
    pub releases: usize,
}

impl Locks {
    /// Locks for a service that runs as one process, on a [`MemoryStore`] of its own, with all defaults.
    pub fn in_memory() -> Self {
        Self(Arc::new(Inner::new(
            Arc::new(MemoryStore::new()),
            Config::default(),
        )))
    }

    /// Locks for a fleet, on the server of a URL such as `redis://user:password@host:6379/0`, with all defaults.
    ///
    /// For settings of the connection, give a [`RedisStore`](crate::store::RedisStore) to [`builder`](Locks::builder).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a URL that cannot work, and [`ErrorKind::Unreachable`] when the server does not
    /// answer in time or refuses the connection.
    #[cfg(feature = "redis")]
    pub async fn redis(url: impl AsRef<str>) -> Result<Self, Error> {
        let store = crate::store::RedisStore::connect(url).await?;
        Self::builder(store).build()
    }

    /// Locks for a fleet, on a majority of independent servers, with all defaults: 3 or 5 URLs. See [`QuorumStore`]
    /// for what that gives and costs.
    ///
    /// Servers that are down may come later. For settings, give a [`QuorumStore`] of [`RedisStore`]s to
    /// [`builder`](Locks::builder).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a URL that cannot work, an even number of them, less than three, or one that
    /// is there twice; and [`ErrorKind::Unreachable`] when less than a majority of the servers can be reached.
    ///
    /// [`QuorumStore`]: crate::store::QuorumStore
    /// [`RedisStore`]: crate::store::RedisStore
    #[cfg(feature = "redis")]
    pub async fn quorum(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        use crate::store::{QuorumStore, RedisStore};

        let nodes = urls.into_iter().map(|url| RedisStore::builder(url).build());
        let nodes = nodes.collect::<Result<Vec<_>, Error>>()?;
        let store = QuorumStore::new(nodes.clone())?;
        let connecting = nodes.iter().map(RedisStore::reach);
        store.need_majority(futures_util::future::join_all(connecting).await)?;
        Self::builder(store).build()
    }

    /// Locks for a fleet, on the primary of a service that Redis Sentinel watches over, with all defaults. See
    /// [`RedisStore::sentinel`](crate::store::RedisStore::sentinel).
    ///
    /// # Errors
    ///
    /// As for [`redis`](Locks::redis).
    #[cfg(feature = "redis")]
    pub async fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<String>>,
        service: impl AsRef<str>,
    ) -> Result<Self, Error> {
        let store = crate::store::RedisStore::sentinel(sentinels, service);
        Self::builder(store.connect().await?).build()
    }

    /// Locks for a fleet, in a Redis Cluster, with all defaults. See
    /// [`RedisStore::cluster`](crate::store::RedisStore::cluster).
    ///
    /// # Errors
    ///
    /// As for [`redis`](Locks::redis).
    #[cfg(feature = "redis")]
    pub async fn cluster(
        nodes: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, Error> {
        let store = crate::store::RedisStore::cluster(nodes);
        Self::builder(store.connect().await?).build()
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

    /// Waits for several keys, one after another in one fixed order, so that two callers cannot wait for each other.
    ///
    /// Guards come in the order in which the keys were given; a key given twice is one turn with two guards. All guards are
    /// held when this returns.
    ///
    /// A caller that holds a key already, and locks further ones, can wait for another caller that does the same the
    /// other way round: then the limit ends the wait. Better lock all keys in one call; where a layer holds one of
    /// them, see [`lock_all_with`](Locks::lock_all_with).
    ///
    /// # Errors
    ///
    /// As for [`lock`](Locks::lock), with its limit for all keys together. What was locked until then is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives everything back.
    pub async fn lock_all<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<LockGuard>, Error>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        self.lock_several(keys, &[], self.usual_wait()).await
    }

    /// Like [`lock_all`](Locks::lock_all), with one limit for all keys together.
    ///
    /// # Errors
    ///
    /// As for [`lock_within`](Locks::lock_within).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives everything back.
    pub async fn lock_all_within<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
        limit: Duration,
    ) -> Result<Vec<LockGuard>, Error>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        self.lock_several(keys, &[], Wait::AtMost(limit)).await
    }

    /// Takes several keys if all of them are free, or none; does not wait.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Locks::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives everything back.
    pub async fn try_lock_all<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Option<Vec<LockGuard>>, Error>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        none_if_held(self.lock_several(keys, &[], Wait::NotAtAll).await)
    }

    /// Like [`lock_all`](Locks::lock_all), for a caller that has guards already: a key of theirs is not waited for, its guard
    /// is cloned.
    ///
    /// For a handler that runs under the lock of its layer and needs a second key. Such a handler can still wait for one that holds
    /// the second key and wants the first, until the limit ends it: where that can happen, lock both keys in the layer.
    ///
    /// # Errors
    ///
    /// As for [`lock_all`](Locks::lock_all), and [`ErrorKind::Lost`] if one of the guards was lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back everything that was not held before.
    pub async fn lock_all_with<K>(
        &self,
        held: &[LockGuard],
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<LockGuard>, Error>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        self.lock_several(keys, held, self.usual_wait()).await
    }

    async fn lock_several<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
        held: &[LockGuard],
        wait: Wait,
    ) -> Result<Vec<LockGuard>, Error>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        let keys = keys
            .into_iter()
            .map(|key| key.try_into().map_err(Into::into));
        let keys = keys.collect::<Result<Vec<LockKey>, Error>>()?;
        let until = match wait {
            Wait::AtMost(limit) => Some(later(now(), limit)),
            _ => None,
        };
        loop {
            let left = until.map(|until| until.saturating_duration_since(now()));
            let wait = left.map_or(wait, Wait::AtMost);
            let guards = self.lock_each(&keys, held, wait).await?;
            // The wait for the later keys may have outlasted the leases of the earlier ones. Their time counts from now on.
            if guards.iter().all(LockGuard::begin_anew) {
                return Ok(guards);
            }
            if let Some(Status::Lost(loss)) = held
                .iter()
                .map(LockGuard::status)
                .find(|status| matches!(status, Status::Lost(_)))
            {
                return Err(line::lost(Some(loss)));
            }
        }
    }

    /// One guard for each key, in the order of the keys, taken in one fixed order. Some may be lost by the end.
    async fn lock_each(
        &self,
        keys: &[LockKey],
        held: &[LockGuard],
        wait: Wait,
    ) -> Result<Vec<LockGuard>, Error> {
        let until = match wait {
            Wait::AtMost(limit) => Some(later(now(), limit)),
            _ => None,
        };
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&at| &keys[at]);
        let mut guards: Vec<Option<LockGuard>> = vec![None; keys.len()];
        let mut last: Option<LockGuard> = None;
        for at in order {
            let key = &keys[at];
            let in_hand = held.iter().find(|guard| guard.is_for(self, key));
            let guard = match (last, in_hand) {
                (Some(last), _) if last.key() == key => last,
                (_, Some(guard)) => guard.clone(),
                _ => {
                    let left = until.map(|until| until.saturating_duration_since(now()));
                    let wait = left.map_or(wait, Wait::AtMost);
                    self.lock_waiting(key, wait).await?
                }
            };
            last = Some(guard.clone());
            guards[at] = Some(guard);
        }
        Ok(guards.into_iter().flatten().collect())
    }

    /// Ends the use of these locks, for a graceful shutdown.
    ///
    /// From now on nobody gets a turn: those who ask and those who wait get [`ErrorKind::Closed`]. Turns under way may
    /// finish for as long as `grace`; then they are lost, with [`Loss::Closed`], and their keys released. The key of an
    /// idempotent request, whose handler always finishes, is released only when that has. Returns once all is given back,
    /// at the latest a lease's time after that.
    ///
    /// # Cancel safety
    ///
    /// The locks stay closed when the future is dropped; call it again to go on with the rest.
    pub async fn close(&self, grace: Duration) {
        let inner = &self.0;
        trace::closing(inner.lines.len());
        inner.lines.close();
        if timeout(grace, self.idle()).await.is_none() {
            for lease in inner.lines.leases() {
                inner.lose(&lease, Loss::Closed);
            }
            let _ = timeout(inner.config.lease, self.idle()).await;
        }
    }

    /// Whether [`close`](Locks::close) was called.
    pub fn is_closed(&self) -> bool {
        self.0.lines.is_closed()
    }

    /// How much there is to do at the moment; all zero when nothing is left behind.
    pub fn stats(&self) -> Stats {
        let inner = &self.0;
        Stats {
            keys: inner.lines.len(),
            waiting: inner.lines.waiting(),
            leases: inner.scheduler.leases(),
            calls: inner.background.get(),
            releases: inner.store.owed(),
        }
    }

    /// Keeps [`close`](Locks::close) waiting for as long as it lives.
    pub(crate) fn busy(&self) -> Busy {
        Busy {
            _counted: Counter::one(&self.0.busy),
        }
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
        let turn = self.turn(&key, request(None, wait), wait).await;
        turn.map_err(NoTurn::into_error)
    }

    async fn turn(
        &self,
        key: &LockKey,
        request: WaitRequest,
        wait: Wait,
    ) -> Result<LockGuard, NoTurn> {
        trace::acquiring(key.as_str(), async {
            let waiting = self.wait(key, request);
            let Wait::AtMost(limit) = wait else {
                return waiting.await;
            };
            // Pinned out here, so that the place in line is still there when the limit is reached.
            let mut waiting = std::pin::pin!(waiting);
            match timeout(limit, &mut waiting).await {
                Some(outcome) => outcome,
                None => Err(NoTurn::Failed(self.waited_in_vain(key, limit))),
            }
        })
        .await
    }

    async fn wait(&self, key: &LockKey, request: WaitRequest) -> Result<LockGuard, NoTurn> {
        if !self.0.scheduler.start(&self.0) {
            return Err(NoTurn::Failed(Error::new(
                ErrorKind::Unreachable,
                "locks need a tokio runtime with its time driver on (`enable_time`) to be renewed on, and this is not within one",
            )));
        }
        loop {
            let guard = Waiter::join(&self.0, key, request.clone())?.await?;
            // This task may have been kept from running for longer than the lease.
            if guard.is_held() {
                return Ok(guard);
            }
        }
    }

    /// Why a request has not had its turn within its limit.
    fn waited_in_vain(&self, key: &LockKey, limit: Duration) -> Error {
        let why = self.0.with_line(key, |line, t| {
            let away = line.away_after(limit, t.now);
            (away, line.holder())
        });
        match why.unwrap_or_default() {
            (Some(away), _) => away.into_error(now(), &format!("no turn within {limit:?}")),
            (None, holder) => {
                let held = held(holder.as_deref());
                Error::new(ErrorKind::Held, format!("no turn within {limit:?}: {held}"))
            }
        }
    }

    /// Resolves when nothing is held, waited for or under way.
    async fn idle(&self) {
        let inner = &self.0;
        loop {
            let emptied = inner.lines.emptied();
            let background = inner.background.ended();
            let busy = inner.busy.ended();
            let stats = self.stats();
            if stats == Stats::default() && inner.busy.get() == 0 {
                return;
            }
            tokio::select! {
                biased;
                () = emptied => {}
                () = background => {}
                () = busy => {}
                () = inner.store.settled(), if stats.releases > 0 => {}
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

/// Work that [`Locks::close`] waits for.
pub(crate) struct Busy {
    _counted: Counted,
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
