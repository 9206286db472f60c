//! Locking several keys in one call.
//!
//! The order of the keys is that of their texts, so all callers in the fleet take the same keys in
//! the same order:
//!
//! ```text
//! caller 1: lock_all([b, a])   takes a, then b      returns the guards of b, a
//! caller 2: lock_all([a, b])   waits for a          holds nothing that caller 1 could wait for
//! ```
//!
//! The wait for a later key can outlast the lease of an earlier one. All guards are therefore
//! checked at the end, and a call that finds a lost guard starts over within the same wait limit.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{Holding, LockGuard, Locks, Now, Status, Wait, line};
use crate::{
    Error, ErrorKind, LockKey,
    store::Mode,
    time::{Instant, later, now},
};

impl Locks {
    /// Locks several keys, waiting for each of them.
    ///
    /// Keys are locked one after another in one fixed order, so that two callers of this method
    /// cannot wait for each other. The guards are returned in the order of `keys`; a key that
    /// is given twice is one turn with two guards. All guards are held when the future
    /// resolves.
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
    /// A caller that already holds one key and locks further keys can still wait for a caller that
    /// does the same in the opposite order. Only the wait limit ends such a deadlock. Prefer to
    /// lock all keys in one call; where a layer holds one of the keys, see
    /// [`with`](LockAll::with).
    ///
    /// # Errors
    ///
    /// The same as for [`lock`](Locks::lock), with one wait limit for all keys together. Keys that
    /// were locked before the error are released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases all keys that were locked, and gives up the place in line.
    pub fn lock_all<K>(&self, keys: impl IntoIterator<Item = K>) -> LockAll<'_>
    where
        K: TryInto<LockKey, Error: Into<Error>>,
    {
        let keys = keys.into_iter();
        let keys = keys.map(|key| key.try_into().map_err(Into::into));
        LockAll {
            request: Some(Several {
                locks: self,
                keys: keys.collect(),
                held: &[],
                mode: Mode::Exclusive,
                wait: self.usual_wait(),
                holding: Holding::default(),
                fail_fast: false,
            }),
            waiting: None,
        }
    }
}

/// A request for several keys: a future that resolves to their guards, in the order of the keys.
///
/// Made by [`Locks::lock_all`]. Its methods change the request for all keys, and nothing happens
/// before the first poll.
#[must_use = "a lock is requested when the future is awaited"]
pub struct LockAll<'a> {
    /// Taken by the first poll.
    request: Option<Several<'a>>,
    waiting: Option<Waiting<'a>>,
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Vec<LockGuard>, Error>> + Send + 'a>>;

/// The keys that a caller, or a request behind a layer, wants together.
#[derive(Debug)]
pub(crate) struct Several<'a> {
    pub(crate) locks: &'a Locks,
    pub(crate) keys: Result<Vec<LockKey>, Error>,
    /// Guards in hand, whose keys are not locked again.
    pub(crate) held: &'a [LockGuard],
    pub(crate) mode: Mode,
    /// How long to wait for all keys together.
    pub(crate) wait: Wait,
    pub(crate) holding: Holding,
    pub(crate) fail_fast: bool,
}

impl<'a> LockAll<'a> {
    /// Uses guards that the caller already has: a key that one of them is for is not locked again.
    ///
    /// The guard is cloned instead, and the time that [`max_hold`](crate::LocksBuilder::max_hold)
    /// allows its turn goes on. This is meant for a handler that runs under the lock of a layer
    /// and needs a second key. Such a handler can still deadlock with a request that holds the
    /// second key and wants the first, until the wait limit ends the wait. Where that can
    /// happen, lock both keys in the layer.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let held = locks.lock_all(["accounts/1"]).await?;
    /// let guards = locks.lock_all(["accounts/1", "accounts/2"]).with(&held).await?;
    /// assert_eq!(guards[0].token(), held[0].token());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`]: a `held` guard of one of the keys was lost.
    /// - [`ErrorKind::InvalidConfig`]: one of the `held` guards is for one of the keys, but holds a
    ///   permit, or shares a key that is to be locked exclusively.
    pub fn with(self, held: &'a [LockGuard]) -> Self {
        self.change(|request| request.held = held)
    }

    /// Shares all keys. See [`Lock::shared`](super::Lock::shared).
    pub fn shared(self) -> Self {
        self.change(|request| request.mode = Mode::Shared)
    }

    /// Waits for at most `limit` in total.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tower_distributed_lock::ErrorKind;
    ///
    /// let guard = locks.lock("accounts/2").await?;
    /// let both = locks.lock_all(["accounts/1", "accounts/2"]).within(Duration::from_millis(10));
    /// assert_eq!(both.await.unwrap_err().kind(), ErrorKind::Held);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn within(self, limit: Duration) -> Self {
        self.change(|request| request.wait = Wait::AtMost(limit))
    }

    /// How long the store keeps each lease. See [`Lock::lease`](super::Lock::lease).
    pub fn lease(self, lease: Duration) -> Self {
        self.change(|request| request.holding.lease = Some(lease))
    }

    /// How long the turns may last. See [`Lock::max_hold`](super::Lock::max_hold).
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.change(|request| request.holding.max_hold = Some(max_hold))
    }

    /// Locks the keys only if all of them are free, without waiting. Otherwise the future resolves
    /// to `None`, and none of the keys is held.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("accounts/2").await?;
    /// assert!(locks.lock_all(["accounts/1", "accounts/2"]).now().await?.is_none());
    /// assert!(locks.lock("accounts/1").now().await?.is_some());
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn now(self) -> Now<Self> {
        Now(self.change(|request| request.wait = Wait::NotAtAll))
    }

    fn change(mut self, change: impl FnOnce(&mut Several<'a>)) -> Self {
        self.request.as_mut().map(change);
        self
    }
}

impl Future for LockAll<'_> {
    type Output = Result<Vec<LockGuard>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(request) = this.request.take() {
            this.waiting = Some(Box::pin(request.lock()));
        }
        let waiting = this.waiting.as_mut();
        waiting
            .expect("the first poll has begun to wait")
            .as_mut()
            .poll(cx)
    }
}

impl fmt::Debug for LockAll<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockAll").field(&self.request).finish()
    }
}

impl<'a> Several<'a> {
    /// Locks all keys, and starts over if a guard was lost while later keys were waited for.
    pub(crate) async fn lock(mut self) -> Result<Vec<LockGuard>, Error> {
        let keys = std::mem::replace(&mut self.keys, Ok(Vec::new()))?;
        let until = self.wait.limit().map(|limit| later(now(), limit));
        loop {
            let guards = self.lock_each(&keys, until).await?;
            // The wait for the later keys may have outlasted the leases of the earlier ones.
            // `max_hold` of the turns that this call began counts from now. A turn from
            // before the call goes on as before.
            let is_in_hand =
                |guard: &LockGuard| self.held.iter().any(|held| held.is_clone_of(guard));
            let is_usable = |guard: &LockGuard| {
                if is_in_hand(guard) {
                    guard.is_held() && self.is_enough(guard)
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

    /// Returns one guard for each key, in the order of `keys`; the keys are locked in sorted order.
    /// Some of the guards may be lost by the time that the last key is locked.
    async fn lock_each(
        &self,
        keys: &[LockKey],
        until: Option<Instant>,
    ) -> Result<Vec<LockGuard>, Error> {
        let in_hand = keys.iter().map(|key| self.in_hand(key));
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
                _ => self.lock_one(key, until).await?,
            };
            last = Some(guard.clone());
            guards[at] = Some(guard);
        }
        Ok(guards.into_iter().flatten().collect())
    }

    async fn lock_one(&self, key: &LockKey, until: Option<Instant>) -> Result<LockGuard, Error> {
        let left = until.map(|until| until.saturating_duration_since(now()));
        let wait = left.map_or(self.wait, Wait::AtMost);
        let locks = self.locks;
        let lock = locks.lock_for_layer(key, self.mode, wait, self.holding, self.fail_fast);
        lock.await
    }

    /// The guard for a key among those in hand. A guard that was released through a clone holds
    /// nothing.
    fn in_hand(&self, key: &LockKey) -> Result<Option<&'a LockGuard>, Error> {
        let is_for_key = |guard: &&LockGuard| {
            guard.is_for(self.locks, key) && guard.status() != Status::Released
        };
        match self.held.iter().find(is_for_key) {
            Some(guard) if !self.is_enough(guard) => Err(Error::new(
                ErrorKind::InvalidConfig,
                "a guard in hand shares its key, or holds a permit: `with` takes guards of exclusive locks, \
                 or also shared ones for keys that are shared",
            )),
            in_hand => Ok(in_hand),
        }
    }

    /// Whether the guard of a key needs no other one for the mode of this request.
    fn is_enough(&self, guard: &LockGuard) -> bool {
        guard.mode().includes(self.mode)
    }
}
