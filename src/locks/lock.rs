//! A request for a lock: its options, and the future that waits for the turn.
//!
//! [`Locks::lock`] and [`Locks::permit`] return a [`Lock`], [`Locks::lock_all`] a
//! [`LockAll`](super::LockAll). Both are futures. Their methods change the request, and are called
//! before the first poll:
//!
//! ```text
//! locks.lock(key) ──▶ shared(), within(..), lease(..), max_hold(..) ──▶ .await ──▶ LockGuard
//!                                                                  └──▶ now() ──▶ .await ──▶ Some(LockGuard), None
//! ```

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;

use super::{
    Holding, LockGuard, Locks, NoTurn, Wait,
    line::{WaitRequest, held_error},
    reentry,
    turn::{self, Waiter},
};
use crate::{
    Error, ErrorKind, LockKey,
    store::Mode,
    sync::consume_budget,
    time::{Timeout, now, timeout},
    trace,
};

impl Locks {
    /// Locks a key, waiting for the key to become free.
    ///
    /// Requests of this process get their turns in the order in which they asked. Instances that
    /// wait for the same key are served in the order of the store's queue.
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
    /// The methods of [`Lock`] change the request: [`now`](Lock::now) does not wait,
    /// [`within`](Lock::within) waits for a limited time, [`shared`](Lock::shared) shares the
    /// key with others, [`lease`](Lock::lease) and [`max_hold`](Lock::max_hold) replace the
    /// settings of these locks.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Held`] when the [`wait_limit`](crate::LocksBuilder::wait_limit) has
    /// passed. The default limit of 10 s is shorter than the default lease, so that requests do
    /// not wait for the lease of a crashed holder to expire. See [`ErrorKind`] for the other
    /// errors.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in line, and also the turn if the turn was granted at
    /// the same moment.
    ///
    /// A future that is neither polled nor dropped keeps its place in line, and keeps the turn once
    /// the turn has come. Avoid awaiting anything else in the meantime, for example in the
    /// other branch of a `select!` that borrows this future.
    #[doc(alias = "mutex")]
    #[doc(alias = "try_lock")]
    pub fn lock(&self, key: impl TryInto<LockKey, Error: Into<Error>>) -> Lock<'_> {
        Lock::new(self, key.try_into().map_err(Into::into), Mode::Exclusive)
    }

    /// Takes one of the `of` permits of a key, waiting while all are taken.
    ///
    /// A key can be a semaphore: at most `of` requests of the whole fleet hold one of its permits
    /// at a time. Each permit is a lease of its own, and the permit of a crashed process comes
    /// back when its lease expires. To limit the requests of one process, [tower's concurrency
    /// limit](https://docs.rs/tower/latest/tower/limit/concurrency/) is enough, and costs no call to a store.
    ///
    /// Users of one key should all name the same number. If they do not, each of them is granted a
    /// permit only while fewer permits than *its* number are held.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let first = locks.permit("exports", 2).await?;
    /// let second = locks.permit("exports", 2).await?;
    /// if locks.permit("exports", 2).now().await?.is_none() {
    ///     println!("two exports run already: try again later");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`lock`](Locks::lock), and
    ///
    /// - [`ErrorKind::InvalidConfig`] if `of` is zero, or on a
    ///   [`QuorumStore`](crate::store::QuorumStore), which has no permits;
    /// - [`ErrorKind::Foreign`] if the key is locked: use different keys for locks and permits.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`lock`](Locks::lock).
    #[doc(alias = "semaphore")]
    pub fn permit(&self, key: impl TryInto<LockKey, Error: Into<Error>>, of: u32) -> Lock<'_> {
        let key = key.try_into().map_err(Into::into);
        match permit(of) {
            Ok(mode) => Lock::new(self, key, mode),
            Err(error) => Lock::new(self, key.and(Err(error)), Mode::Exclusive),
        }
    }

    /// Claims a key for work that is to be done once. `fingerprint` is a digest of that work.
    ///
    /// Requests that claim the key with the same fingerprint get the record that this turn ends
    /// with ([`LockGuard::record`]).
    pub(crate) async fn claim(
        &self,
        key: &LockKey,
        fingerprint: Bytes,
        wait: Wait,
        holding: Holding,
    ) -> Result<LockGuard, NoTurn> {
        let lock = Lock::new(self, Ok(key.clone()), Mode::Exclusive);
        let mut lock = pin!(lock.wait(wait).change(|request| {
            request.fingerprint = Some(fingerprint);
            request.holding = holding;
        }));
        poll_fn(|cx| lock.as_mut().poll_turn(cx)).await
    }

    /// Locks a key for a layer. With `fail_fast`, the request fails as soon as the store does,
    /// because its caller would rather go on without the lock.
    pub(crate) fn lock_for_layer(
        &self,
        key: &LockKey,
        mode: Mode,
        wait: Wait,
        holding: Holding,
        fail_fast: bool,
    ) -> Lock<'_> {
        let lock = Lock::new(self, Ok(key.clone()), mode).wait(wait);
        lock.change(|request| {
            request.fail_fast = fail_fast;
            request.holding = holding;
        })
    }
}

/// A request for a key: a future that waits for the turn and resolves to its [`LockGuard`].
///
/// Made by [`Locks::lock`] and [`Locks::permit`]. Nothing happens before the first poll.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// use std::time::Duration;
///
/// let reading = locks.lock("reports/7").shared().within(Duration::from_secs(2)).await?;
/// let writing = locks.lock("reports/7").now().await?;
/// assert!(writing.is_none());
/// # drop(reading);
/// # Ok(())
/// # }
/// ```
#[pin_project::pin_project]
#[must_use = "a lock is requested when the future is awaited"]
pub struct Lock<'a> {
    locks: &'a Locks,
    /// `None` if the request is invalid, and once it has ended.
    #[pin]
    waiting: Option<Timeout<Waiter<'a>>>,
    /// Why the request is invalid.
    invalid: Option<Error>,
    /// A key that is held is waited for by another request of the same call, which tells of it.
    is_attempt: bool,
    /// Set while the request waits.
    acquiring: Option<trace::Acquiring>,
}

impl<'a> Lock<'a> {
    fn new(locks: &'a Locks, key: Result<LockKey, Error>, mode: Mode) -> Self {
        let (key, invalid) = match key {
            Ok(key) => (Some(key), None),
            Err(error) => (None, Some(error)),
        };
        let request = |key| {
            let waiter = Waiter::new(&locks.0, key, WaitRequest::new(mode));
            timeout(locks.0.config.wait_limit, waiter)
        };
        Self {
            locks,
            waiting: key.map(request),
            invalid,
            is_attempt: false,
            acquiring: None,
        }
    }

    /// Shares the key with others, and waits only while another request has the key exclusively.
    ///
    /// Any number of requests can share a key, and no request has the key exclusively meanwhile:
    /// the readers and writers of a reader-writer lock. All requests wait in one fair queue.
    /// Requests that share the key and are next to each other in the queue get their turns
    /// together; later ones do not overtake a request that wants the key for itself.
    ///
    /// The readers of one process share one lease, so a key that is only read costs no call to the
    /// store for most reads.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let reading = locks.lock("reports/7").shared().await?;
    /// let also_reading = locks.lock("reports/7").shared().await?;
    /// assert!(locks.lock("reports/7").now().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A guard that shares a key cannot become exclusive: two requests that both try would wait for
    /// each other. Drop the guard, lock the key with [`lock`](Locks::lock), and check again
    /// what was read. A request that may have to write can lock exclusively from the start, and
    /// [`downgrade`](LockGuard::downgrade) its guard if it does not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Foreign`] if the key is in use for [permits](Locks::permit), and
    /// [`ErrorKind::InvalidConfig`] if the request itself is for a permit.
    #[doc(alias = "lock_shared")]
    pub fn shared(mut self) -> Self {
        let mode = |waiting: &Timeout<Waiter<'_>>| waiting.get_ref().request.mode;
        if self.waiting.as_ref().map(mode).is_some_and(Mode::is_permit) {
            self.waiting = None;
            self.invalid = Some(Error::new(
                ErrorKind::InvalidConfig,
                "a permit cannot be shared: call `shared` on `lock`, not on `permit`",
            ));
        }
        self.change(|request| request.mode = Mode::Shared)
    }

    /// Waits for at most `limit`, instead of the [`wait_limit`](crate::LocksBuilder::wait_limit) of
    /// these locks.
    ///
    /// The limit covers the whole wait: for other requests of this process, for other instances,
    /// and for the answers of the store. [`now`](Lock::now) is for callers that do not wait at
    /// all.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use std::time::Duration;
    /// use tower_distributed_lock::ErrorKind;
    ///
    /// let guard = locks.lock("orders/42").await?;
    /// let error = locks.lock("orders/42").within(Duration::from_millis(10)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Held);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Held`] when `limit` has passed, or with [`ErrorKind::Unreachable`]
    /// if the store has not answered in that time.
    #[doc(alias = "timeout")]
    pub fn within(self, limit: Duration) -> Self {
        self.wait(Wait::AtMost(limit))
    }

    /// How long the store keeps the lease if it is not renewed, instead of the
    /// [`lease`](crate::LocksBuilder::lease) of these locks. Requests that share a lease share the
    /// length that the first of them asked for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if such a lease cannot be renewed under the other settings.
    pub fn lease(self, lease: Duration) -> Self {
        self.change(|request| request.holding.lease = Some(lease))
    }

    /// How long the turn may last, instead of the [`max_hold`](crate::LocksBuilder::max_hold) of
    /// these locks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for zero.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.change(|request| request.holding.max_hold = Some(max_hold))
    }

    /// Takes the key only if that is possible at once, without waiting and without joining the
    /// store's queue.
    ///
    /// The future resolves to `None` if the turn of another request must end before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("reports/daily").await?;
    /// assert!(locks.lock("reports/daily").now().await?.is_none());
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]; [`ErrorKind::Held`] is not among the errors returned here.
    #[doc(alias = "try_lock")]
    pub fn now(self) -> Now<Self> {
        Now(self.wait(Wait::NotAtAll))
    }

    /// Does not wait for holders of the key, but still for so long for the store. A request that
    /// would have waited counts as withdrawn if the key is held, and not as refused.
    pub(super) fn attempt(mut self) -> Self {
        let waiting = self.waiting.as_ref();
        self.is_attempt = waiting.is_some_and(|waiting| waiting.get_ref().request.patient);
        self.change(|request| request.patient = false)
    }

    /// How long the request waits.
    pub(super) fn wait(mut self, wait: Wait) -> Self {
        if let Some(waiting) = &mut self.waiting {
            waiting.set_limit(wait.limit());
        }
        self.change(|request| request.patient = wait != Wait::NotAtAll)
    }

    /// Changes the request, if it is valid.
    pub(super) fn change(mut self, change: impl FnOnce(&mut WaitRequest)) -> Self {
        if let Some(waiting) = &mut self.waiting {
            change(&mut waiting.get_mut().request);
        }
        self
    }

    /// Waits for the turn. Every request for a key ends here.
    fn poll_turn(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<LockGuard, NoTurn>> {
        let mut this = self.project();
        if let Some(error) = this.invalid.take() {
            return Poll::Ready(Err(error.into()));
        }
        let waiting = this.waiting.as_mut().as_pin_mut();
        let mut waiting = waiting.expect("polled after it was ready");
        let acquiring = match this.acquiring {
            Some(acquiring) => acquiring,
            None => {
                // A free key in memory is granted in the first poll, and a loop of such turns would
                // never yield.
                ready!(pin!(consume_budget()).poll(cx));
                waiting.get_ref().check(this.locks)?;
                this.acquiring.insert(trace::Acquiring::begin())
            }
        };
        let turn = ready!(acquiring.scope(|| waiting.as_mut().poll(cx)));
        // The waiter is still in line.
        let outcome = turn.unwrap_or_else(|| Err(waiting.waited_in_vain().into()));
        let mode = waiting.get_ref().request.mode;
        let outcome = outcome.map_err(|no_turn| no_turn.in_mode(mode));
        if !*this.is_attempt || !outcome.as_ref().is_err_and(NoTurn::is_held) {
            if matches!(outcome, Err(NoTurn::Failed(_))) {
                this.locks.0.troubles.refused();
            }
            acquiring.end(turn::describe(&outcome));
        }
        // Now, and not with the future, which may live on: nobody would end a turn that comes
        // later.
        this.waiting.set(None);
        Poll::Ready(outcome)
    }
}

impl Future for Lock<'_> {
    type Output = Result<LockGuard, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_turn(cx).map_err(NoTurn::into_error)
    }
}

impl fmt::Debug for Lock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.waiting.as_ref();
        f.debug_struct("Lock")
            .field(
                "request",
                &request.map(|waiting| &waiting.get_ref().request),
            )
            .finish_non_exhaustive()
    }
}

impl Waiter<'_> {
    /// Checks a request before it joins its line. A claim is no handler's own.
    fn check(&self, locks: &Locks) -> Result<(), Error> {
        let request = &self.request;
        if request.holding != Holding::default() {
            locks.check_holding(request.holding)?;
        }
        if request.fingerprint.is_none() {
            reentry::check(locks, &self.key)?;
        }
        Ok(())
    }
}

impl Timeout<Waiter<'_>> {
    /// The error of a request that had no turn within its limit: the store was away, or the key was
    /// held.
    fn waited_in_vain(&self) -> Error {
        let (waiter, limit) = (self.get_ref(), self.limit().unwrap_or_default());
        let why = waiter.inner.with_line(&waiter.key, |line, t| {
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

/// A request that does not wait: resolves to `None` where the request that it was made of would
/// wait for the turn of another.
///
/// Made by [`Lock::now`] and [`LockAll::now`](super::LockAll::now).
#[pin_project::pin_project]
#[derive(Debug)]
#[must_use = "a lock is requested when the future is awaited"]
pub struct Now<F>(#[pin] pub(super) F);

impl<T, F: Future<Output = Result<T, Error>>> Future for Now<F> {
    type Output = Result<Option<T>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().0.poll(cx)) {
            Ok(guards) => Ok(Some(guards)),
            Err(error) if error.kind() == ErrorKind::Held => Ok(None),
            Err(error) => Err(error),
        })
    }
}

/// The mode of a permit.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] for a key without permits.
pub(crate) fn permit(of: u32) -> Result<Mode, Error> {
    match of {
        0 => Err(Error::new(
            ErrorKind::InvalidConfig,
            "a key with 0 permits could never be held: name at least 1",
        )),
        of => Ok(Mode::Permit { of }),
    }
}
