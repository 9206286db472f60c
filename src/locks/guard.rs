//! A handle to a turn.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    Locks,
    inner::Inner,
    line::{Granted, lost},
    turn::Turn,
    watch,
};
use crate::{
    Error, LockKey, Loss,
    store::Released,
    time::{Instant, now},
    trace,
};

/// The exclusive use of a key, for as long as this or a clone of it lives.
///
/// - Dropping the last clone ends the turn: the next local request gets it, or the key is released in the
///   background. Nothing is awaited, so a guard can be dropped anywhere, even outside of a runtime.
/// - [`release`](LockGuard::release) ends the turn at once and for all clones, and asks the store whether the
///   lease was still ours.
/// - The lease is renewed in the background. Should it be lost, [`lost`](LockGuard::lost) resolves and
///   [`is_held`](LockGuard::is_held) is `false`; what was written since may collide with the next holder, unless the
///   resource compares [`token`](LockGuard::token)s.
///
/// `Clone` is re-entry: the same turn is held once more, with the same token.
#[must_use = "a guard that is dropped at once gives the key back at once"]
pub struct LockGuard(Arc<Turn>);

/// What a guard knows of its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The key is ours.
    Held,
    /// The turn was ended by [`LockGuard::release`] on a clone.
    Released,
    /// The lease was lost.
    Lost(Loss),
}

impl LockGuard {
    /// The first guard of a turn that has begun. To be called before the next `.await`, so that no cancellation loses the turn.
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
        granted.expect("a guard is made when its turn has begun")
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    /// What is locked.
    pub fn key(&self) -> &LockKey {
        &self.granted().lease.key
    }

    /// The fencing token: it rises with every turn at a key, in the whole fleet.
    ///
    /// Send it along with every write. A resource that keeps the highest token seen, and refuses lower ones, is safe
    /// even from a process that was paused for longer than its lease and does not know it yet.
    pub fn token(&self) -> u64 {
        self.granted().token
    }

    /// Whether the key is ours, by this process's clock.
    ///
    /// That clock is monotonic, and on Linux it stands still while the machine sleeps (a laptop's lid, a virtual machine that is
    /// suspended). After the machine wakes up, this can be `true` although the lease has expired in the store; the next renewal
    /// tells the loss. A resource that compares [`token`](LockGuard::token)s is safe from that, too.
    pub fn is_held(&self) -> bool {
        self.status() == Status::Held
    }

    /// How long the lease lasts if no further renewal succeeds; zero when the key is not held any more.
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

    /// Whether the turn is still under way, or how it ended.
    pub fn status(&self) -> Status {
        let lease = &self.granted().lease;
        if self.0.is_released() {
            Status::Released
        } else if let Some(loss) = lease.loss() {
            Status::Lost(loss)
        } else if !lease.is_valid(now()) {
            // The loss is about to be told.
            Status::Lost(Loss::Expired)
        } else {
            Status::Held
        }
    }

    /// Resolves when the lease is lost, with the reason. Never resolves if the turn ends in any other way.
    ///
    /// # Cancel safety
    ///
    /// Nothing is missed when the future is dropped: a loss is final, and told to everybody who asks later.
    pub async fn lost(&self) -> Loss {
        let loss = self.watch_lease().await;
        if self.0.is_released() {
            // The lease had gone on to other turns.
            std::future::pending::<()>().await;
        }
        loss
    }

    /// Ends the turn now, for all clones of this guard, and says whether the lease was ours until then.
    ///
    /// The other clones then are [`Status::Released`], not lost. Unlike a drop, this asks the store: it costs a round
    /// trip also where the turn is passed on to another local request.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): the lease was not ours any more, so somebody else may have had
    ///   the key at the same time.
    /// - [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): the store did not tell. The turn has ended all
    ///   the same.
    ///
    /// A turn that a clone has released already is `Ok`: that clone was told.
    ///
    /// # Cancel safety
    ///
    /// The turn ends at the first poll, and the release goes on when this future is dropped.
    pub async fn release(self) -> Result<(), Error> {
        if let Status::Lost(loss) = self.status() {
            // Nothing is left to be released, and the clones shall go on to see the loss.
            drop(self.inner().end_turn(self.granted(), false));
            return Err(lost(Some(loss)));
        }
        if self.0.set_released() {
            return Ok(());
        }
        let ended = self.inner().end_turn(self.granted(), true);
        ended.confirmed().await
    }
}

impl LockGuard {
    /// Runs a future for as long as the lease is held: the loss is looked at first in every poll, and ends the future.
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
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lease was lost: the future was dropped at one of its `.await`s. What
    /// it had begun elsewhere (a statement that a database received, say) may still take effect.
    ///
    /// # Cancel safety
    ///
    /// Dropping this drops the future. The turn goes on.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        Self::run_with(std::slice::from_ref(self), future).await
    }

    /// Like [`run`](LockGuard::run), under several guards: the loss of any of them ends the future.
    ///
    /// # Errors
    ///
    /// As for [`run`](LockGuard::run).
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](LockGuard::run).
    pub async fn run_with<F: Future>(guards: &[Self], future: F) -> Result<F::Output, Error> {
        let lost_already = guards.iter().find_map(|guard| match guard.status() {
            Status::Lost(loss) => Some(loss),
            _ => None,
        });
        if let Some(loss) = lost_already {
            return Err(lost(Some(loss)));
        }
        let losses = guards.iter().map(|guard| Box::pin(guard.lost()));
        let mut losses: FuturesUnordered<_> = losses.collect();
        tokio::select! {
            biased;
            Some(loss) = losses.next() => Err(lost(Some(loss))),
            output = future => Ok(output),
        }
    }

    /// Resolves when the lease is lost, like [`lost`](LockGuard::lost), but holds no clone of the guard: the turn can end
    /// meanwhile. After the end of the turn, the lease may serve other local requests, and its loss then is theirs.
    pub fn watch(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.watch_lease()
    }

    /// Asks the store whether the lease is ours, and prolongs it. The turn goes on.
    ///
    /// Before an effect that nothing else protects (an e-mail, a call of another service), this notices a lease that was deleted or
    /// lost in a fail-over before its next renewal would.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lease is not ours any more, and
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the store does not tell. As for
    /// [`release`](Self::release), a turn that a clone has released is `Ok`.
    pub async fn confirm(&self) -> Result<(), Error> {
        if self.status() == Status::Released {
            return Ok(());
        }
        let answer = self.inner().confirm(&self.granted().lease).await;
        match self.status() {
            Status::Released => Ok(()),
            _ => answer,
        }
    }
}

/// For the layers.
impl LockGuard {
    /// Ends the turn with a record in the lease's place, which is shared with all who wait with the same claim. The turn
    /// goes on if the store does not answer by `until`, and this can be tried again.
    pub(crate) async fn record(
        &self,
        record: (&Bytes, Duration),
        until: Instant,
    ) -> Result<Released, Error> {
        if self.0.is_released() {
            // A clone has ended the turn, and the same lease may serve another by now.
            return Ok(Released::NotOurs);
        }
        let outcome = self.inner().record(self.granted(), record, until).await;
        if let Ok(Released::Freed) = outcome {
            self.0.set_released();
        }
        outcome
    }

    /// Ends the turn as [`record`](Self::record) does, but does not touch the lease in the store any more: its time
    /// ends it, unless the record that was on its way takes its place after all.
    pub(crate) fn abandon(self, content: &Bytes) {
        self.0.set_released();
        self.inner().finish(self.granted(), content);
    }

    /// Whether nobody else holds this turn.
    pub(crate) fn is_only_one(&self) -> bool {
        self.0.guards() == 1
    }

    /// Whether asking `locks` for `key` would wait for this very turn.
    pub(crate) fn is_for(&self, locks: &Locks, key: &LockKey) -> bool {
        self.key() == key && self.inner().space == locks.0.space
    }

    /// Resolves when the lease is lost; does not keep the turn from ending.
    fn watch_lease(&self) -> impl Future<Output = Loss> + Send + use<> {
        watch::loss(self.inner().clone(), self.granted().lease.clone())
    }

    /// Counts the turn's time anew. Says whether the turn is still under way.
    pub(crate) fn begin_anew(&self) -> bool {
        let granted = self.granted();
        self.inner()
            .with_line(&granted.lease.key, |line, t| line.begin_anew(granted, t))
            .unwrap_or(false)
    }

    pub(crate) fn downgrade(&self) -> WeakGuard {
        WeakGuard(Arc::downgrade(&self.0))
    }
}

/// A handle that does not keep its turn from ending.
#[derive(Clone)]
pub(crate) struct WeakGuard(Weak<Turn>);

impl WeakGuard {
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
