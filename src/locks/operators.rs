//! What operators see of a [`Locks`] and of its store, and how they free a key.

use std::time::Duration;

use super::Locks;
use crate::{
    Error, LockKey, Loss,
    store::{Expected, Inspection, Instance, KeyPage, List, Mode, Owner},
    time::now,
    trace,
};

/// A key that a [`Locks`] holds or waits for, from [`Locks::held`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// use std::time::Duration;
///
/// let guard = locks.lock("orders/42").await?;
/// for held in locks.held() {
///     let longest = held.longest_wait.unwrap_or_default();
///     if longest > Duration::from_secs(5) {
///         eprintln!("{}: {} requests wait, the first for {longest:?}", held.key, held.waiting);
///     }
/// }
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldKey {
    /// The key.
    pub key: LockKey,
    /// The leases of this instance at the key. Empty while the instance only waits.
    pub leases: Vec<LeaseView>,
    /// The number of requests of this instance that wait for their turn.
    pub waiting: usize,
    /// How long the first of these requests has waited. `None` if no request waits.
    pub longest_wait: Option<Duration>,
}

/// A lease of this instance, from [`Locks::held`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// let guard = locks.lock("reports/7").shared().await?;
/// let also_reading = locks.lock("reports/7").shared().await?;
///
/// let held = locks.held();
/// let lease = &held[0].leases[0];
/// assert_eq!(lease.turns, 2); // two readers, one lease
/// assert!(lease.loss.is_none());
/// # drop((guard, also_reading));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseView {
    /// The owner of the lease, as in the store, in log events and in
    /// [`LockGuard::owner`](crate::LockGuard::owner).
    pub owner: Owner,
    /// The mode of the lease.
    pub mode: Mode,
    /// The token of the turn under way, or of the latest one of several. `None` between two turns.
    pub token: Option<u64>,
    /// The number of turns under way.
    pub turns: usize,
    /// How long the turn under way has lasted, or the longest one of several.
    pub held_for: Duration,
    /// How long the lease lasts if no further renewal succeeds. Zero if the lease is lost.
    pub remaining: Duration,
    /// The reason of the loss, if the lease is lost. An idempotent request goes on to its end
    /// after a loss.
    pub loss: Option<Loss>,
}

impl Locks {
    /// Returns the identity of these locks in the fleet, which is a part of every [`Owner`]. Clones
    /// have the same identity.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// assert_eq!(guard.owner().instance, locks.instance());
    /// # Ok(())
    /// # }
    /// ```
    pub fn instance(&self) -> Instance {
        self.0.instance
    }

    /// The text by which operators recognize the process of these locks, if the store has one.
    #[cfg(feature = "admin")]
    pub(crate) fn label(&self) -> Option<std::sync::Arc<str>> {
        self.0.store.label()
    }

    /// Returns the keys that this instance holds or waits for, in ascending order.
    ///
    /// The store is not asked: [`inspect`](Locks::inspect) and [`list`](Locks::list) return the
    /// state of the whole fleet. Keys that change during the call may be missing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// let held = locks.held();
    /// assert_eq!(held[0].key.as_str(), "orders/42");
    /// assert_eq!(held[0].leases[0].owner, guard.owner());
    /// assert_eq!(held[0].leases[0].token, Some(guard.token()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn held(&self) -> Vec<HeldKey> {
        let (now, mut held) = (now(), Vec::new());
        self.0
            .lines
            .each(|key, line| held.push(line.snapshot(key, now)));
        held.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        held
    }

    /// Returns the state of a key in the store: the holders, the queue, the record. The state is
    /// not changed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// let seen = locks.inspect("orders/42").await?;
    /// assert_eq!(seen.holder().unwrap().owner, guard.owner());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) for a text that cannot be a key.
    /// - [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the store does not answer.
    /// - [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) when the store has a value of another
    ///   program in the key's place.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the key.
    pub async fn inspect(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<Inspection, Error> {
        let key = key.try_into().map_err(Into::into)?;
        self.0.store.inspect(key).await
    }

    /// Takes a key away from all of its holders, or removes the record of an idempotent request.
    /// Returns whether there was a lease or a record.
    ///
    /// **The holder is not stopped.** A holder of these locks learns of the loss at once, and a
    /// holder of another instance at its next renewal, by default within a third of the lease; the
    /// loss is [`Loss::NotOurs`]. Until then, two requests may hold the key, and only their
    /// [tokens](crate::LockGuard::token) tell them apart. Requests that wait for the key get their
    /// turns from now on.
    ///
    /// Without its record, a repeated idempotent request runs again. An idempotent request that
    /// still runs goes on to its end, beside a repetition that has taken the key meanwhile.
    ///
    /// Stop the holder instead where that is possible: [`inspect`](Locks::inspect) tells its label
    /// and instance. See [Freeing a key](crate::guide::operating#freeing-a-key).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// assert!(locks.force_release("orders/42").await?);
    /// assert!(guard.confirm().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`inspect`](Locks::inspect). After
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable), the key may have been
    /// taken away: the call is not repeated, because it could end the lease of the next holder.
    ///
    /// # Cancel safety
    ///
    /// The key may or may not have been taken away when the future is dropped.
    pub async fn force_release(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
    ) -> Result<bool, Error> {
        let key = key.try_into().map_err(Into::into)?;
        self.force_release_if(key, Expected::Anything).await
    }

    /// Takes a key away if the holder or the record is the one that the operator has seen.
    pub(crate) async fn force_release_if(
        &self,
        key: LockKey,
        expected: Expected,
    ) -> Result<bool, Error> {
        trace::force_releasing(key.as_str());
        let freeing = self.0.store.force_release_if(key.clone(), expected);
        // The renewals of this instance's own leases are started after the release, and so find
        // out. No further turn begins under these leases before that.
        self.0.with_line(&key, |line, t| line.doubt_leases(t));
        let freed = freeing.await?;
        if freed {
            trace::force_released(self.0.instance);
        }
        Ok(freed)
    }

    /// Checks that the store answers and accepts writes, for the readiness check of a service.
    ///
    /// The check makes a round trip on every connection that locks use, and changes nothing. The
    /// time is bounded by the store's own limit:
    /// [`RedisStoreBuilder::timeout`](crate::store::RedisStoreBuilder::timeout) (1 s), or
    /// [`QuorumStoreBuilder::node_timeout`](crate::store::QuorumStoreBuilder::node_timeout). A
    /// quorum needs the answers of a majority; a Cluster needs those of all nodes that have
    /// slots.
    ///
    /// ```
    /// use axum::{Router, http::StatusCode, routing::get};
    /// use tower_distributed_lock::Locks;
    ///
    /// fn routes(locks: Locks) -> Router {
    ///     let ready = async move || match locks.ping().await {
    ///         Ok(()) => (StatusCode::OK, String::new()),
    ///         Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    ///     };
    ///     Router::new().route("/ready", get(ready))
    /// }
    /// # routes(Locks::in_memory());
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when a server does not answer in
    ///   time or refuses writes. The message names the server.
    /// - [`ErrorKind::Closed`](crate::ErrorKind::Closed) after [`close`](Locks::close), because
    ///   these locks grant no turn any more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the store.
    pub async fn ping(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(super::lines::closed());
        }
        self.0.store.ping().await?;
        self.0.store_answered();
        Ok(())
    }

    /// Returns one page of the keys that the whole fleet holds or waits for, or that have a record.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::collections::BTreeSet;
    /// use tower_distributed_lock::store::List;
    ///
    /// let guards = locks.lock_all(["orders/1", "orders/2", "users/1"]).await?;
    /// let mut keys = BTreeSet::new();
    /// let mut next = Some(List::starting_with("orders/").at_most(1));
    /// while let Some(request) = next {
    ///     let page = locks.list(request.clone()).await?;
    ///     keys.extend(page.keys); // a key can be on several pages
    ///     next = page.next.map(|cursor| request.after(cursor));
    /// }
    /// assert_eq!(keys.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Every key that is there from before the first page until after the last one is on a page,
    /// provided that the store does not move to another server meanwhile. Other keys may be
    /// missing. Each call does a limited amount of work: a page can have few keys, or none, and
    /// still have a next page.
    ///
    /// In Redis, the listing is a SCAN of the whole database, which takes a number of calls that
    /// grows with all keys of that database, also those of other programs. Locks are not held
    /// up meanwhile.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the store does not answer.
    /// - [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a cursor of another
    ///   store.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the keys.
    pub async fn list(&self, request: List) -> Result<KeyPage, Error> {
        self.0.store.list(request).await
    }
}
