//! Locking several keys in one call.
//!
//! All keys are asked for at once, without waiting for their holders. If one of them is held, the
//! others are given back, and the call waits for that one while it holds nothing:
//!
//! ```text
//! caller 1: lock_all([a, b])   asks for a, b: granted      holds both
//! caller 2: lock_all([b, c])   asks for b, c: b is held    gives c back, waits for b
//!                              b is granted, asks for c    holds both, or gives b back and waits for c
//! ```
//!
//! Callers that want the same keys could go on like this for ever. After a few rounds
//! ([`ROUNDS`]), the keys are therefore locked one after another, in the order of their texts, and
//! each is held while the next one is waited for. All callers have the same order, so nobody
//! waits in a circle: those who hold a key wait for later ones only, or for none.
//!
//! The wait for a later key can outlast the lease of an earlier one. All guards are therefore
//! checked at the end, and a call that finds a lost guard starts over within the same wait limit.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::join_all;

use super::{Holding, Lock, LockGuard, Locks, Now, Status, Wait, line};
use crate::{
    Error, ErrorKind, LockKey,
    store::Mode,
    time::{Instant, later, now},
};

/// How often all keys are asked for at once, before they are locked one after another.
const ROUNDS: usize = 3;

impl Locks {
    /// Locks several keys, waiting for each of them.
    ///
    /// The guards are returned in the order of `keys`; a key that is given twice is one turn with
    /// two guards. All guards are held when the future resolves.
    ///
    /// All keys are asked for at once, which takes one round trip if they are free. A call that
    /// has to wait for a key holds none of the others meanwhile, and asks for the rest when it
    /// has that key. Two callers of this method cannot wait for each other, whatever the order
    /// of their keys. This holds on every store. The grant is one step on none of them, so
    /// another caller may see some of the keys held for a moment, and free again: its
    /// [`now`](super::Lock::now) is then refused although the key was free before and is free
    /// after. If the keys are in so much use that three such rounds fail, they are locked one
    /// after another, in one fixed order for all callers, and held while the next one is waited
    /// for.
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

    /// Returns one guard for each key, in the order of `keys`. Some of the guards may be lost by
    /// the time that the last key is locked.
    async fn lock_each(
        &self,
        keys: &[LockKey],
        until: Option<Instant>,
    ) -> Result<Vec<LockGuard>, Error> {
        let in_hand = keys.iter().map(|key| self.in_hand(key));
        let in_hand = in_hand.collect::<Result<Vec<_>, Error>>()?;
        let missing = keys.iter().zip(&in_hand).filter(|(_, held)| held.is_none());
        let mut missing: Vec<&LockKey> = missing.map(|(key, _)| key).collect();
        missing.sort_unstable();
        missing.dedup();
        let locked = self.lock_missing(&missing, until).await?;
        let of_key = |key: &LockKey| &locked[missing.partition_point(|missing| *missing < key)];
        let guards = keys.iter().zip(in_hand);
        let guards = guards.map(|(key, held)| held.unwrap_or_else(|| of_key(key)).clone());
        Ok(guards.collect())
    }

    /// Locks keys that are sorted, and returns their guards in the same order.
    async fn lock_missing(
        &self,
        keys: &[&LockKey],
        until: Option<Instant>,
    ) -> Result<Vec<LockGuard>, Error> {
        let rounds = if keys.len() > 1 { ROUNDS } else { 0 };
        // The key that was waited for.
        let mut first = None;
        for round in 1..=rounds {
            let asked = self.ask_for_all(keys, first.take(), until).await;
            let errors = keys.iter().zip(&asked);
            let mut errors = errors.filter_map(|(key, asked)| Some((key, asked.as_ref().err()?)));
            if let Some((_, error)) = errors.find(|(key, error)| self.is_over(key, error)) {
                return Err(error.clone());
            }
            let Some(at) = asked.iter().position(Result::is_err) else {
                return asked.into_iter().collect();
            };
            // Nothing is held during the wait.
            drop(asked);
            if round < rounds {
                first = Some((at, self.lock_one(keys[at], until).await?));
            }
        }
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            guards.push(self.lock_one(key, until).await?);
        }
        Ok(guards)
    }

    /// Asks for all keys at once, and waits for the answers of the store only. `first` is the guard
    /// of one of the keys, by its place.
    async fn ask_for_all(
        &self,
        keys: &[&LockKey],
        first: Option<(usize, LockGuard)>,
        until: Option<Instant>,
    ) -> Vec<Result<LockGuard, Error>> {
        let in_hand = first.as_ref().map(|(at, _)| *at);
        let missing = keys.iter().enumerate();
        let missing = missing.filter(|(at, _)| Some(*at) != in_hand);
        let asking = missing.map(|(_, key)| self.lock_one(key, until).attempt());
        let mut asked = join_all(asking).await;
        if let Some((at, guard)) = first {
            asked.insert(at, Ok(guard));
        }
        asked
    }

    /// Whether a key that was not granted ends the call. A key that is held is waited for, and so
    /// is a store that is away, if it has answered for the line of this key before.
    fn is_over(&self, key: &LockKey, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Held => self.wait == Wait::NotAtAll,
            ErrorKind::Unreachable => {
                let has_line = || self.locks.0.with_line(key, |_, _| ()).is_some();
                self.wait == Wait::NotAtAll || self.fail_fast || !has_line()
            }
            ErrorKind::LineFull
            | ErrorKind::TooManyKeys
            | ErrorKind::Lost
            | ErrorKind::Closed
            | ErrorKind::InvalidKey
            | ErrorKind::InvalidConfig
            | ErrorKind::Foreign => true,
        }
    }

    /// A request for one of the keys, within what is left of the limit.
    fn lock_one(&self, key: &LockKey, until: Option<Instant>) -> Lock<'a> {
        let left = until.map(|until| until.saturating_duration_since(now()));
        let wait = left.map_or(self.wait, Wait::AtMost);
        let locks = self.locks;
        locks.lock_for_layer(key, self.mode, wait, self.holding, self.fail_fast)
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
