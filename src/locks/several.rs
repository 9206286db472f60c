//! Locking several keys in one call.
//!
//! The order of the keys is that of their texts, so all callers in the fleet take the same keys in the same order:
//!
//! ```text
//! caller 1: lock_all([b, a])   takes a, then b      returns the guards of b, a
//! caller 2: lock_all([a, b])   waits for a          holds nothing that caller 1 could wait for
//! ```
//!
//! The wait for a later key can outlast the lease of an earlier one. All guards are therefore checked at the end, and a
//! call that finds a lost guard starts over within the same wait limit.

use std::time::Duration;

use super::{LockGuard, Locks, Status, Wait, line, none_if_held};
use crate::{
    Error, ErrorKind, LockKey,
    store::Mode,
    time::{later, now},
};

impl Locks {
    /// Locks several keys, waiting for each of them.
    ///
    /// Keys are locked one after another in one fixed order, so that two callers of this method cannot wait for each
    /// other. The guards are returned in the order of `keys`; a key that is given twice is one turn with two guards.
    /// All guards are held when this method returns.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guards = locks.lock_all(["accounts/1", "accounts/2"]).await?;
    /// assert_eq!(guards[1].key().as_str(), "accounts/2");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A caller that already holds one key and locks further keys can still wait for a caller that does the same in
    /// the opposite order. Only the wait limit ends such a deadlock. Prefer to lock all keys in one call; where a
    /// layer holds one of the keys, see [`lock_all_with`](Locks::lock_all_with).
    ///
    /// # Errors
    ///
    /// The same as for [`lock`](Locks::lock), with one wait limit for all keys together. Keys that were locked before
    /// the error are released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases all keys that were locked, and gives up the place in line.
    pub async fn lock_all<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<LockGuard>, Error>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        self.lock_several(keys, &[], self.usual_wait()).await
    }

    /// Locks several keys like [`lock_all`](Locks::lock_all), waiting for at most `limit` in total.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tower_distributed_lock::ErrorKind;
    ///
    /// let guard = locks.lock("accounts/2").await?;
    /// let both = locks.lock_all_within(["accounts/1", "accounts/2"], Duration::from_millis(10));
    /// assert_eq!(both.await.unwrap_err().kind(), ErrorKind::Held);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`lock_within`](Locks::lock_within).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock_all`](Locks::lock_all).
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

    /// Locks several keys only if all of them are free, without waiting.
    ///
    /// Returns `None`, and holds none of the keys, if another request holds one of them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("accounts/2").await?;
    /// assert!(locks.try_lock_all(["accounts/1", "accounts/2"]).await?.is_none());
    /// assert!(locks.try_lock("accounts/1").await?.is_some());
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`try_lock`](Locks::try_lock).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock_all`](Locks::lock_all).
    pub async fn try_lock_all<K>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Option<Vec<LockGuard>>, Error>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        none_if_held(self.lock_several(keys, &[], Wait::NotAtAll).await)
    }

    /// Locks several keys like [`lock_all`](Locks::lock_all), for a caller that already has guards.
    ///
    /// A key that one of the `held` guards is for is not locked again; that guard is cloned instead, and the time that
    /// [`max_hold`](crate::LocksBuilder::max_hold) allows its turn goes on. This is meant for a handler that runs under
    /// the lock of a layer and needs a second key. Such a handler can still deadlock
    /// with a request that holds the second key and wants the first, until the wait limit ends the wait. Where that
    /// can happen, lock both keys in the layer.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let held = locks.lock_all(["accounts/1"]).await?;
    /// let guards = locks.lock_all_with(&held, ["accounts/1", "accounts/2"]).await?;
    /// assert_eq!(guards[0].token(), held[0].token());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`lock_all`](Locks::lock_all), and:
    ///
    /// - [`ErrorKind::Lost`]: a `held` guard of one of the keys was lost.
    /// - [`ErrorKind::InvalidConfig`]: one of the `held` guards is for one of the keys, but shares the key or holds a
    ///   permit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases all keys that were not held before the call.
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

    /// Locks all keys, and starts over if a guard was lost while later keys were waited for.
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
        let left = || {
            let left = until.map(|until| until.saturating_duration_since(now()));
            left.map_or(wait, Wait::AtMost)
        };
        loop {
            let guards = self.lock_each(&keys, held, left).await?;
            // The wait for the later keys may have outlasted the leases of the earlier ones. `max_hold` of the turns
            // that this call began counts from now. A turn from before the call goes on as before.
            let is_in_hand = |guard: &LockGuard| held.iter().any(|held| held.is_clone_of(guard));
            let is_usable = |guard: &LockGuard| {
                if is_in_hand(guard) {
                    guard.is_held() && guard.mode() == Mode::Exclusive
                } else {
                    guard.begin_anew()
                }
            };
            if guards.iter().all(is_usable) {
                return Ok(guards);
            }
            // A guard in hand that is for none of the keys does not matter.
            let mut in_hand = guards.iter().filter(|guard| is_in_hand(guard));
            if let Some(loss) = in_hand.find_map(LockGuard::loss) {
                return Err(line::lost_error(Some(loss)));
            }
        }
    }

    /// Returns one guard for each key, in the order of `keys`; the keys are locked in sorted order. Some of the
    /// guards may be lost by the time that the last key is locked. `left` returns how long to wait from now on.
    async fn lock_each(
        &self,
        keys: &[LockKey],
        held: &[LockGuard],
        left: impl Fn() -> Wait,
    ) -> Result<Vec<LockGuard>, Error> {
        let in_hand = keys.iter().map(|key| self.in_hand(held, key));
        let in_hand = in_hand.collect::<Result<Vec<_>, Error>>()?;
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&at| &keys[at]);
        let mut guards: Vec<Option<LockGuard>> = vec![None; keys.len()];
        let mut last: Option<LockGuard> = None;
        for at in order {
            let key = &keys[at];
            let guard = match (last, in_hand[at]) {
                (Some(last), _) if last.key() == key => last,
                (_, Some(guard)) => guard.clone(),
                _ => self.lock_waiting(key, Mode::Exclusive, left()).await?,
            };
            last = Some(guard.clone());
            guards[at] = Some(guard);
        }
        Ok(guards.into_iter().flatten().collect())
    }

    /// The guard for a key among `held`. A guard that was released through a clone holds nothing.
    fn in_hand<'a>(
        &self,
        held: &'a [LockGuard],
        key: &LockKey,
    ) -> Result<Option<&'a LockGuard>, Error> {
        let is_for_key =
            |guard: &&LockGuard| guard.is_for(self, key) && guard.status() != Status::Released;
        match held.iter().find(is_for_key) {
            Some(guard) if guard.mode() != Mode::Exclusive => Err(Error::new(
                ErrorKind::InvalidConfig,
                "a guard in hand shares its key, or holds a permit: `lock_all_with` takes guards of exclusive locks only",
            )),
            in_hand => Ok(in_hand),
        }
    }
}
