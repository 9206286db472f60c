//! Several keys at once.

use std::time::Duration;

use super::{LockGuard, Locks, Status, Wait, line, none_if_held};
use crate::{
    Error, LockKey,
    time::{later, now},
};

impl Locks {
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
    /// As for [`lock_all`](Locks::lock_all), and [`ErrorKind::Lost`](crate::ErrorKind::Lost) if one of the guards was lost.
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
            // A guard whose clone was released holds nothing any more.
            let in_hand = held
                .iter()
                .find(|guard| guard.is_for(self, key) && guard.status() != Status::Released);
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
}
