//! The handle to a turn.
//!
//! A [`LockGuard`] is a counted reference to a [`Turn`]. The count of guards is apart from the count of the `Arc`,
//! because the line and the waiter also have the turn, and must not keep the turn from ending:
//!
//! ```text
//! LockGuard ──▶ Arc<Turn> ──▶ Granted { lease, number, token }
//!    clone: guards + 1            │
//!    drop:  guards - 1            └─▶ Arc<Lease>: deadline, loss, doubts
//!           0 left: the line ends the turn
//! ```

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    Locks,
    inner::Inner,
    line::{Granted, lost_error},
    turn::Turn,
    watch,
};
use crate::{
    Error, ErrorKind, LockKey, Loss,
    store::{Mode, Owner, Released},
    time::{Instant, now},
    trace,
};

/// The use of a key, for as long as this guard or a clone of the guard lives: exclusive, shared with others, or one of
/// several permits, as [`mode`](LockGuard::mode) tells.
///
/// - Dropping the last clone ends the turn: the next local request gets its turn, or the key is released in the
///   background. Nothing is awaited, so a guard can be dropped anywhere, even outside of a runtime.
/// - [`release`](LockGuard::release) ends the turn at once and for all clones, and asks the store whether the lease
///   was held until then.
/// - The lease is renewed in the background. When the lease is lost, [`lost`](LockGuard::lost) resolves and
///   [`is_held`](LockGuard::is_held) returns `false`. Writes after that moment may collide with the next holder,
///   unless the resource compares [`token`](LockGuard::token)s.
///
/// A clone holds the same turn once more, with the same token, which makes cloning a form of re-entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_distributed_lock::Error> {
/// # let locks = tower_distributed_lock::Locks::in_memory();
/// let guard = locks.lock("orders/42").await?;
/// let first = guard.token();
/// guard.release().await?;
///
/// let guard = locks.lock("orders/42").await?;
/// assert!(guard.token() > first);
/// # Ok(())
/// # }
/// ```
#[must_use = "a guard that is dropped at once gives the key back at once"]
pub struct LockGuard(Arc<Turn>);

/// The state of a guard's turn, from [`LockGuard::status`].
///
/// ```
/// use tower_distributed_lock::{LockGuard, Status};
///
/// fn describe(guard: &LockGuard) -> String {
///     match guard.status() {
///         Status::Held => format!("held for another {:?}", guard.remaining()),
///         Status::Released => "released".into(),
///         Status::Lost(loss) => format!("lost: {loss}"),
///         _ => "in a state that this program does not know".into(),
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The turn is under way, and the lease is held.
    Held,
    /// A clone of the guard has ended the turn with [`LockGuard::release`].
    Released,
    /// The lease was lost, for this reason.
    Lost(Loss),
}

impl LockGuard {
    /// Creates the first guard of a turn that has begun. Must be called before the next `.await`, so that a
    /// cancellation cannot leak the turn.
    pub(crate) fn new(turn: Arc<Turn>) -> Self {
        turn.add_guard();
        let guard = Self(turn);
        let Granted {
            lease,
            number,
            token,
        } = guard.granted();
        trace::turn_began(lease.key.as_str(), lease.owner, *token, *number > 1);
        guard
    }

    fn granted(&self) -> &Granted {
        let granted = self.0.granted();
        granted.expect("a guard is created after its turn has begun")
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    /// Returns how many may hold the key at the same time as this guard.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use tower_distributed_lock::store::Mode;
    ///
    /// assert_eq!(locks.lock("reports/7").await?.mode(), Mode::Exclusive);
    /// assert_eq!(locks.lock_shared("reports/7").await?.mode(), Mode::Shared);
    /// assert_eq!(locks.permit("exports", 4).await?.mode(), Mode::Permit { of: 4 });
    /// # Ok(())
    /// # }
    /// ```
    pub fn mode(&self) -> Mode {
        self.granted().lease.mode()
    }

    /// Returns the locked key.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// assert_eq!(guard.key().as_str(), "orders/42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &LockKey {
        &self.granted().lease.key
    }

    /// Returns the owner of the lease: the text that log events, [`Locks::held`] and the store have for this turn.
    ///
    /// Turns that a process passes on under one lease have the same owner and different tokens.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// println!("working as {}", guard.owner()); // find the same text in Redis, or on the admin page
    /// # Ok(())
    /// # }
    /// ```
    pub fn owner(&self) -> Owner {
        self.granted().lease.owner
    }

    /// Returns the fencing token, which rises with every exclusive turn at a key across the whole fleet.
    ///
    /// The token of a shared guard, or of a permit, is above those of all earlier exclusive guards and below those of all
    /// later ones. Guards that share a key may have the same token.
    ///
    /// Send the token along with every write. A resource that keeps the highest token seen, and refuses lower tokens,
    /// is safe even from a process that was paused for longer than its lease and has not noticed yet.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("accounts/1").await?;
    /// let statement = format!(
    ///     "UPDATE accounts SET balance = 5, token = {0} WHERE id = 1 AND token <= {0}",
    ///     guard.token(),
    /// );
    /// # drop(statement);
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> u64 {
        self.granted().token
    }

    /// Returns whether the key is held, by the clock of this process.
    ///
    /// That clock is monotonic, and on Linux the clock stands still while the machine sleeps (a closed laptop, a
    /// suspended virtual machine). After the machine wakes up, this method can return `true` although the lease has
    /// expired in the store, until the next renewal reports the loss. A resource that compares
    /// [`token`](LockGuard::token)s is safe in that case, too.
    ///
    /// Call `is_held` between the steps of a long computation that never awaits, and that [`run`](LockGuard::run) could
    /// therefore not interrupt:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// # fn step(_: u32) {}
    /// let guard = locks.lock("reports/7").await?;
    /// let finished = tokio::task::spawn_blocking(move || {
    ///     for part in 0..100 {
    ///         if !guard.is_held() {
    ///             return false; // another holder may have begun
    ///         }
    ///         step(part);
    ///     }
    ///     true
    /// });
    /// assert!(finished.await.unwrap());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_held(&self) -> bool {
        self.status() == Status::Held
    }

    /// Returns how long the lease lasts if no further renewal succeeds, or zero if the key is not held any more.
    ///
    /// The value jumps up with every renewal. Use the value as a time limit for a call that must not outlast the lease:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// # async fn pay() {}
    /// let guard = locks.lock("orders/42").await?;
    /// let paid = tokio::time::timeout(guard.remaining(), pay()).await;
    /// assert!(paid.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        match self.status() {
            Status::Held => self
                .granted()
                .lease
                .deadline()
                .saturating_duration_since(now()),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether the turn is still under way, or how the turn ended.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use tower_distributed_lock::Status;
    ///
    /// let guard = locks.lock("orders/42").await?;
    /// let clone = guard.clone();
    /// assert_eq!(clone.status(), Status::Held);
    /// guard.release().await?;
    /// assert_eq!(clone.status(), Status::Released);
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(&self) -> Status {
        let lease = &self.granted().lease;
        if self.0.is_released() {
            Status::Released
        } else if let Some(loss) = self.0.loss() {
            Status::Lost(loss)
        } else if !lease.is_valid(now()) {
            // The line has not been told of the loss yet.
            Status::Lost(Loss::Expired)
        } else {
            Status::Held
        }
    }

    /// Waits for the loss of the lease, and returns the reason. The future never resolves if the turn ends in any
    /// other way.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// tokio::select! {
    ///     loss = guard.lost() => println!("stop: {loss}"),
    ///     () = tokio::task::yield_now() => println!("done"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. A loss is final, and a later call returns the same reason.
    pub async fn lost(&self) -> Loss {
        let mut watching = pin!(self.watch_lease());
        // The clock is looked at in each poll: after a pause of the process, the task can be woken for another reason
        // before the watch is told.
        let watching = poll_fn(|cx| match self.loss() {
            Some(loss) => Poll::Ready(loss),
            None => watching.as_mut().poll(cx),
        });
        let loss = watching.await;
        if self.0.is_released() {
            // The lease had gone on to serve other turns, and the loss is theirs.
            std::future::pending::<()>().await;
        }
        loss
    }

    /// Ends the turn now, for all clones of this guard, and checks that the lease was held until then.
    ///
    /// The status of the other clones becomes [`Status::Released`]. Unlike a drop, `release` asks the store, which
    /// costs a round trip even where the lease is passed on to another local request.
    ///
    /// Prefer `release` to a drop where the result matters: a job that reports success, or a test that checks that no lease
    /// was lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// // Do the work, then:
    /// guard.release().await?; // an error means that another holder may have worked at the same time
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`]: the lease was lost, so another request may have had the key at
    ///   the same time.
    /// - [`ErrorKind::Unreachable`]: the store did not answer. The turn has ended
    ///   nevertheless.
    ///
    /// Releasing a turn that a clone has already released returns `Ok`, because the clone got the result.
    ///
    /// # Cancel safety
    ///
    /// The turn ends at the first poll, or, if the key is shared, when the store has answered. When the future is dropped
    /// before that, the turn ends, and the release continues in the background.
    pub async fn release(self) -> Result<(), Error> {
        if self.mode() == Mode::Shared {
            return self.release_shared().await;
        }
        if let Some(loss) = self.loss() {
            // Nothing is left to be released, and the clones must continue to see the loss rather than a release.
            drop(self.inner().end_turn(self.granted(), false));
            return Err(lost_error(Some(loss)));
        }
        if self.0.set_released() {
            return Ok(());
        }
        let ended = self.inner().end_turn(self.granted(), true);
        trace::releasing(self.token(), ended.confirmed()).await
    }

    /// Confirms the lease, which other turns may go on to use, and ends this turn. The last turn also waits for the
    /// release of the lease. If the future is dropped, the drop of the guard ends the turn.
    async fn release_shared(self) -> Result<(), Error> {
        let answer = trace::releasing(self.token(), self.confirm()).await;
        if let Some(loss) = self.loss() {
            return Err(lost_error(Some(loss)));
        }
        if self.0.set_released() {
            return answer;
        }
        let ended = self.inner().end_turn(self.granted(), true);
        answer.and(ended.confirmed().await)
    }

    /// Makes the turn of an exclusive guard a shared one, without a gap in between: no other request has the key exclusively
    /// before this turn has ended. Requests that share the key, and wait ahead of the first request that wants
    /// the key for itself, get their turns now.
    ///
    /// The token of this guard does not change. Guards that share the key from now on have higher tokens.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("reports/7").await?;
    /// // Write the report, then let others read it as well.
    /// guard.downgrade().await?;
    /// let reading = locks.lock_shared("reports/7").await?;
    /// assert!(locks.try_lock("reports/7").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A guard that already shares the key is not changed.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`]: the lease was lost, or the turn has ended.
    /// - [`ErrorKind::Unreachable`]: the store did not answer. The guard is shared from now
    ///   on in this process, and the next renewal tells the store.
    /// - [`ErrorKind::InvalidConfig`]: the guard holds a permit, or the claim of an idempotent
    ///   request.
    ///
    /// # Cancel safety
    ///
    /// The guard is shared as soon as the future was polled. If the future is dropped, the store learns of that with
    /// the next renewal at the latest.
    pub async fn downgrade(&self) -> Result<(), Error> {
        let granted = self.granted();
        if self.mode().is_permit() || granted.lease.fingerprint.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "only the guard of an exclusive lock can be downgraded, not that of a permit or of an idempotent request",
            ));
        }
        let is_under_way = self.inner().with_line(&granted.lease.key, |line, t| {
            line.downgrade(&self.0, granted, t)
        });
        match is_under_way {
            Some(true) => self.confirm().await,
            _ => Err(lost_error(self.0.loss())),
        }
    }
}

impl LockGuard {
    /// Runs a future for as long as the lease is held.
    ///
    /// Every poll looks at the clock and checks for the loss first, so that a future which is woken after a pause of the
    /// process makes no further step. When the lease is lost, the future is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// let total = guard.run(async { 6 * 7 }).await?;
    /// # assert_eq!(total, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the lease was lost: the future was dropped at one of its
    /// `.await`s. Effects that the future had begun elsewhere, such as a statement that a database has received, may
    /// still happen.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops `future`. The turn goes on.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        Self::run_with(std::slice::from_ref(self), future).await
    }

    /// Runs a future like [`run`](LockGuard::run), for as long as the leases of all `guards` are held.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// use tower_distributed_lock::LockGuard;
    ///
    /// let guards = locks.lock_all(["accounts/1", "accounts/2"]).await?;
    /// let moved = LockGuard::run_with(&guards, async { 100 }).await?;
    /// # assert_eq!(moved, 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`run`](LockGuard::run).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](LockGuard::run).
    pub async fn run_with<F: Future>(guards: &[Self], future: F) -> Result<F::Output, Error> {
        let losses = guards.iter().map(|guard| Box::pin(guard.lost()));
        let mut losses: FuturesUnordered<_> = losses.collect();
        // `losses` polls only the futures that were woken, and so does not look at the clock in each poll.
        let lost_by_the_clock = poll_fn(|_| match guards.iter().find_map(Self::loss) {
            Some(loss) => Poll::Ready(loss),
            None => Poll::Pending,
        });
        tokio::select! {
            biased;
            loss = lost_by_the_clock => Err(lost_error(Some(loss))),
            Some(loss) = losses.next() => Err(lost_error(Some(loss))),
            output = future => Ok(output),
        }
    }

    /// Returns a future that resolves when the lease is lost, like [`lost`](LockGuard::lost), but that holds no clone
    /// of the guard.
    ///
    /// After a pause of the process, the future may resolve a moment later than `lost`, which looks at the clock in each poll: without a
    /// guard, a turn whose time is over cannot be told from a turn that has ended.
    ///
    /// The turn can end while the future waits. The lease may serve other local requests afterwards, and the future
    /// then resolves when the lease is lost during their turns. The future never resolves if the lease ends in any
    /// other way: drop the future when the work is done, and do not spawn it alone, as a task that would never end.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// # async fn work(_: tower_distributed_lock::LockGuard) {}
    /// let guard = locks.lock("orders/42").await?;
    /// let loss = guard.watch();
    /// let working = tokio::spawn(async move {
    ///     tokio::select! {
    ///         loss = loss => println!("stop: {loss}"),
    ///         () = work(guard) => println!("done"), // `work` drops the guard, and so ends the turn
    ///     }
    /// });
    /// # working.await.unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.watch_lease()
    }

    /// Asks the store whether the lease is held, and extends the lease. The turn goes on.
    ///
    /// Call `confirm` before an effect that nothing else protects, such as an e-mail or a call of another service. A
    /// lease that was deleted, or lost in a fail-over, is then noticed before the next renewal.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed_lock::Error> {
    /// # let locks = tower_distributed_lock::Locks::in_memory();
    /// let guard = locks.lock("orders/42").await?;
    /// guard.confirm().await?;
    /// // Send the e-mail now.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the lease was lost, or when the turn of this guard was lost and the lease goes on for
    /// other readers; [`ErrorKind::Unreachable`] when the store does not answer. Like [`release`](Self::release),
    /// `confirm` returns `Ok` for a turn that a clone has released.
    ///
    /// # Cancel safety
    ///
    /// The lease may or may not have been extended when the future is dropped. The turn goes on in both cases.
    pub async fn confirm(&self) -> Result<(), Error> {
        if let Some(over) = self.result_if_over() {
            return over;
        }
        let answer = self.inner().confirm(&self.granted().lease).await;
        // A shared lease goes on for other readers after the turn of this one was lost.
        self.result_if_over().unwrap_or(answer)
    }
}

impl LockGuard {
    /// The result of [`confirm`](Self::confirm) for a turn that is not under way any more.
    fn result_if_over(&self) -> Option<Result<(), Error>> {
        match self.status() {
            Status::Held => None,
            Status::Released => Some(Ok(())),
            Status::Lost(loss) => Some(Err(lost_error(Some(loss)))),
        }
    }
}

/// Methods for the layers of this crate.
impl LockGuard {
    /// Ends the turn with a record in the lease's place, and shares the record with all requests that wait with the
    /// same fingerprint. The turn goes on if the store does not answer by `until`, and the caller may try again.
    pub(crate) async fn record(
        &self,
        record: (&Bytes, Duration),
        until: Instant,
    ) -> Result<Released, Error> {
        if self.0.is_released() {
            // A clone has ended the turn, and the lease may already serve another.
            return Ok(Released::NotOurs);
        }
        let outcome = self.inner().record(self.granted(), record, until).await;
        if let Ok(Released::Freed) = outcome {
            self.0.set_released();
        }
        outcome
    }

    /// Ends the turn as [`record`](Self::record) does, without touching the lease in the store. The lease expires
    /// there, unless a record that was sent before takes its place.
    pub(crate) fn abandon(self, content: &Bytes) {
        self.0.set_released();
        self.inner().finish(self.granted(), content);
    }

    /// Describes the turn that has just begun.
    pub(crate) fn acquired(&self) -> trace::Acquired<'_> {
        let granted = self.granted();
        trace::Acquired::Turn {
            owner: &granted.lease.owner,
            token: granted.token,
            passed_on: granted.number > 1,
            hold: self.hold(),
        }
    }

    /// The time for which the turn lasts.
    pub(crate) fn hold(&self) -> &trace::Hold {
        self.0.hold()
    }

    /// The loss of the turn, by the clock: even before the line has been told.
    pub(crate) fn loss(&self) -> Option<Loss> {
        match self.status() {
            Status::Lost(loss) => Some(loss),
            _ => None,
        }
    }

    /// Whether this is the only guard of the turn.
    pub(crate) fn is_only_one(&self) -> bool {
        self.0.guards() == 1
    }

    /// Whether both guards are for the same turn.
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether asking `locks` for `key` would wait for this guard's turn.
    pub(crate) fn is_for(&self, locks: &Locks, key: &LockKey) -> bool {
        self.key() == key && self.inner().space == locks.0.space
    }

    /// Resolves when the lease is lost, without keeping the turn from ending.
    fn watch_lease(&self) -> impl Future<Output = Loss> + Send + use<> {
        watch::loss(self.0.clone())
    }

    /// Restarts the time that `max_hold` allows the turn. Returns whether the turn is still under way.
    pub(crate) fn begin_anew(&self) -> bool {
        let granted = self.granted();
        self.inner()
            .with_line(&granted.lease.key, |line, t| {
                line.begin_anew(&self.0, granted, t)
            })
            .unwrap_or(false)
    }

    /// Returns a handle that does not keep the turn from ending.
    pub(crate) fn weak(&self) -> WeakGuard {
        WeakGuard(Arc::downgrade(&self.0))
    }
}

/// A handle that does not keep the turn from ending.
///
/// The extensions of a request and the task-local of a handler have weak guards, so that neither a copy of the
/// extensions nor a forgotten task keeps a key locked.
#[derive(Clone)]
pub(crate) struct WeakGuard(Weak<Turn>);

impl WeakGuard {
    /// Returns a guard, unless the last guard of the turn has been dropped.
    pub(crate) fn upgrade(&self) -> Option<LockGuard> {
        let turn = self.0.upgrade()?;
        turn.add_guard_if_held().then(|| LockGuard(turn))
    }
}

impl Clone for LockGuard {
    fn clone(&self) -> Self {
        self.0.add_guard();
        Self(self.0.clone())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.0.remove_guard() && !self.0.is_released() {
            drop(self.inner().end_turn(self.granted(), false));
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("token", &self.token())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
